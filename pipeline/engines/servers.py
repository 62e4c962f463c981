"""Inference servers over HTTP: the request for one prompt, and the server's own description.

The engine is the one that /v1/models names as the owner of the model. Prompts are sent as token
ids, so that no chat template or tokenizer of the server comes in between.

| owner | endpoint | log-probabilities | version |
|---|---|---|---|
| vllm | /v1/completions | logprobs | /version |
| llamacpp | /completion | n_probs | /props |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipeline.engines.answers import FormatError, answer_parts, asked, printable
from pipeline.engines.pages import read_page
from pipeline.errors import PipelineError, first_line

MODEL_OWNERS = {"vllm": "vLLM", "llamacpp": "llama.cpp"}  # in /v1/models
ENDPOINTS = {"vLLM": "/v1/completions", "llama.cpp": "/completion"}
VERSIONS = {  # where an engine says its version, and under which key
    "vLLM": ("/version", "version"),
    "llama.cpp": ("/props", "build_info"),
}
MOST_BYTES = 256 * 2**20  # of a response; a server that sends more does not end
PATIENCE = 30.0  # seconds for a connection, and for all but answers


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: without a path.
        engine: vLLM or llama.cpp.
        version: its own word, empty without one.
        model: as the server names it.
    """

    url: str
    engine: str
    version: str
    model: str

    @property
    def shown(self) -> str:
        """Engine and version as printed."""
        return f"{self.engine} {self.version}".strip()

    @property
    def metrics(self) -> str:
        """The address of its page of /metrics."""
        return f"{self.url}/metrics"

    @property
    def endpoint(self) -> str:
        """The address that answers one prompt."""
        return self.url + ENDPOINTS[self.engine]


@dataclass(frozen=True)
class Sampling:
    """How answers are generated.

    Attributes:
        steps: the most tokens of an answer.
        temperature: 0 is greedy.
        seed: of the server's random numbers.
        log_probs: how many a token; 0 is none.
    """

    steps: int
    temperature: float
    seed: int
    log_probs: int


def request_body(server: Server, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """Return the request for one prompt of token ids, with the ids of the answer.

    Nothing but temperature shapes the distribution: defaults of the engine and of the model do
    (top_p, top_k; llama.cpp's min_p and its chain of samplers).
    """
    ids, count = list(prompt), sampling.log_probs
    drawn = {"temperature": sampling.temperature, "top_p": 1.0}
    drawn |= {"top_k": 0, "seed": sampling.seed}
    if server.engine == "llama.cpp":
        samplers = {"samplers": ["top_k", "top_p", "temperature"], "repeat_penalty": 1.0}
        logs = {"n_probs": count, "backend_sampling": False} if count else {}
        size = {"n_predict": sampling.steps, "return_tokens": True, "cache_prompt": False}
        return {"prompt": ids, **size, **drawn, **samplers, **logs}
    body = {"model": server.model, "prompt": ids, "max_tokens": sampling.steps, **drawn}
    body |= {"return_token_ids": True}
    return body | ({"logprobs": count, "return_tokens_as_token_ids": True} if count else {})


async def fetch(
    client: httpx2.AsyncClient, url: str, request: Any = None, seconds: float = PATIENCE
) -> tuple[int, bytes]:
    """Return the status and the body that an address sends; a `request` is posted as JSON.

    Raises:
        httpx2.HTTPError: no connection, an address that can't be, or more than `MOST_BYTES`.
        TimeoutError: the whole took longer than `seconds`.
    """
    method = "GET" if request is None else "POST"
    async with asyncio.timeout(seconds), client.stream(method, url, json=request) as response:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                raise httpx2.DecodingError(f"the body has more than {MOST_BYTES} bytes")
        return response.status_code, bytes(body)


async def open_server(client: httpx2.AsyncClient, url: str, model: str | None) -> Server:
    """Return the server at an address.

    Args:
        client: to ask with.
        url: with or without /v1 behind it.
        model: one of several that it serves; None where it serves one.

    Raises:
        PipelineError: nothing answers there, it wants a key, which model is meant is not clear, or
            the server is neither vLLM nor llama.cpp.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        status, body = await fetch(client, f"{base}/v1/models")
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
        raise PipelineError(
            f"{base}/v1/models does not answer ({first_line(error)}): start the server, and give "
            "its address, for instance http://localhost:8000"
        ) from error
    if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        raise PipelineError(f"{base} wants a key (status {status}): set OPENAI_API_KEY to it")
    try:
        cards = {str(card["id"]): card for card in json.loads(body)["data"]}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise PipelineError(
            f"{base}/v1/models lists no models (status {status}): give the address of vLLM, or of "
            "llama.cpp's server"
        ) from error
    if (model is None and len(cards) != 1) or (model is not None and model not in cards):
        raise PipelineError(
            f"{base} serves {', '.join(map(printable, sorted(cards))) or 'no model'}: give one of "
            "them as ask.model"
        )
    name = model or next(iter(cards))
    owner = str(cards[name].get("owned_by"))
    if owner not in MODEL_OWNERS:
        raise PipelineError(
            f"{base} is a server of {printable(owner):.60}: give the address of vLLM, or of "
            "llama.cpp's server"
        )
    engine = MODEL_OWNERS[owner]
    return Server(base, engine, await _version(client, base, engine), name)


async def _version(client: httpx2.AsyncClient, base: str, engine: str) -> str:
    """Return an engine's version in its own words; empty where it does not say."""
    path, key = VERSIONS[engine]
    try:
        _, body = await fetch(client, base + path)
        return printable(json.loads(body).get(key) or "")[:60]
    except (httpx2.HTTPError, TimeoutError, ValueError, AttributeError, RecursionError):
        return ""


async def metrics_page(client: httpx2.AsyncClient, server: Server) -> str | None:
    """Return the server's page of /metrics; None where it has none, or no counts."""
    try:
        status, body = await fetch(client, server.metrics)
        page = body.decode("utf-8", errors="replace")
        read_page(server.metrics, page)
    except (httpx2.HTTPError, TimeoutError, PipelineError):
        return None
    return page if status == httpx2.codes.OK else None


def checked_answer(server: Server, request: Any, body: Any) -> dict[str, Any]:
    """Return what a server answered, which must hold the ids of at least one token.

    Raises:
        PipelineError: it does not, or has more tokens than were asked for.
    """
    parts = answer_parts({"request": request, "response": body}, 0)
    if isinstance(parts, str) or not isinstance(body, dict):
        raise PipelineError(f"the server sent no answer: {json.dumps(body):.200}")
    try:
        found = asked(parts[0])
    except (FormatError, AttributeError) as error:
        raise PipelineError(f"the server's answer {first_line(error)}") from error
    wanted = request["n_predict" if server.engine == "llama.cpp" else "max_tokens"]
    if found is None or not 1 <= len(found.tokens) <= wanted:
        size = 0 if found is None else len(found.tokens)
        raise PipelineError(f"the server's answer has {size} tokens: 1 to {wanted} were asked for")
    return body
