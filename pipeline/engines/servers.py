"""Inference servers over HTTP: the request for one prompt, and the server's own description.

The engine is the one that /v1/models names as the owner of the model. Prompts are sent as token
ids, so that no chat template or tokenizer of the server comes in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipeline.core.errors import PipelineError, first_line
from pipeline.engines.answers import FormatError, answer_parts, printable
from pipeline.engines.counts import read_answer
from pipeline.engines.pages import read_page

MOST_BYTES = 256 * 2**20  # of a response; a server that sends more does not end
PATIENCE = 30.0  # seconds for a connection, and for all but answers


ENGINES = {  # owner of the model: name, endpoint; where it says its version, under which key
    "vllm": ("vLLM", "/v1/completions", "/version", "version"),
    "llamacpp": ("llama.cpp", "/completion", "/props", "build_info"),
}


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str  # without a path
    engine: str  # vLLM or llama.cpp
    version: str  # its own word, empty without one
    model: str  # as the server names it
    endpoint: str  # the address that answers one prompt

    @property
    def shown(self) -> str:
        """Engine and version as printed."""
        return f"{self.engine} {self.version}".strip()


def request_body(
    server: Server,
    prompt: Sequence[int],
    steps: int,
    temperature: float,
    seed: int = 0,
    log_probs: int = 0,
) -> dict[str, Any]:
    """Return the request for one prompt of token ids, with the ids of the answer.

    Nothing but temperature (0 is greedy) shapes the distribution: defaults of the engine and of the
    model do (top_p, top_k; llama.cpp's min_p and its chain of samplers). `log_probs` are asked for
    a token, 0 is none.
    """
    body = {"prompt": list(prompt), "temperature": temperature, "top_p": 1.0, "top_k": 0}
    body["seed"] = seed
    if server.engine == "llama.cpp":
        body |= {"n_predict": steps, "return_tokens": True, "cache_prompt": False}
        body |= {"samplers": ["top_k", "top_p", "temperature"], "repeat_penalty": 1.0}
        return body | ({"n_probs": log_probs, "backend_sampling": False} if log_probs else {})
    body |= {"model": server.model, "max_tokens": steps, "return_token_ids": True}
    named = {"logprobs": log_probs, "return_tokens_as_token_ids": True}
    return body | (named if log_probs else {})


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
    """Return the server at an address, with or without /v1; `model` is one of several it serves."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        status, body = await fetch(client, f"{base}/v1/models")
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ExceptionGroup) as error:
        raise PipelineError(
            f"{base}/v1/models does not answer ({first_line(error)}): start the server, and give "
            "its address, for instance http://localhost:8000"
        ) from error
    if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        raise PipelineError(f"{base} wants a key (status {status}): set OPENAI_API_KEY to it")
    try:
        owners = {str(card["id"]): str(card.get("owned_by")) for card in json.loads(body)["data"]}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise PipelineError(
            f"{base}/v1/models lists no models (status {status}): is it vLLM or llama.cpp?"
        ) from error
    name = model or next(iter(owners), None)
    if name not in owners or (model is None and len(owners) > 1):
        raise PipelineError(
            f"{base} serves {', '.join(map(printable, sorted(owners))) or 'none'}: give ask.model"
        )
    if owners[name] not in ENGINES:
        raise PipelineError(
            f"{base} is a server of {printable(owners[name]):.60}: give vLLM's or llama.cpp's"
        )
    engine, endpoint, about, key = ENGINES[owners[name]]
    try:
        _, body = await fetch(client, base + about)
        version = printable(json.loads(body).get(key) or "")[:60]
    except (httpx2.HTTPError, TimeoutError, ValueError, AttributeError, RecursionError):
        version = ""
    return Server(base, engine, version, name, base + endpoint)


async def metrics_page(client: httpx2.AsyncClient, server: Server) -> str | None:
    """Return the server's page of /metrics; None where it has none, or no counts."""
    try:
        status, body = await fetch(client, f"{server.url}/metrics")
        page = body.decode("utf-8", errors="replace")
        read_page(server.url, page)
    except (httpx2.HTTPError, TimeoutError, PipelineError):
        return None
    return page if status == httpx2.codes.OK else None


def checked_answer(request: Any, body: Any) -> dict[str, Any]:
    """Return what a server answered, which must hold the ids of at least one token."""
    parts = answer_parts({"request": request, "response": body}, 0)
    if isinstance(parts, str) or not isinstance(body, dict):
        raise PipelineError(f"the server sent no answer: {json.dumps(body):.200}")
    try:
        found = read_answer(parts[0])
    except FormatError as error:
        raise PipelineError(f"the server's answer {first_line(error)}") from error
    wanted = request["n_predict"] if "n_predict" in request else request["max_tokens"]
    size = len(found.tokens or ()) if found else 0
    if not 1 <= size <= wanted:
        raise PipelineError(
            f"the server's answer has {size} token ids: 1 to {wanted} were asked for"
        )
    return body
