"""Inference servers over HTTP: the request for one prompt, and the server's own description.

The engine is the one that /v1/models names as the owner of the model. Prompts are sent as token
ids, so that no chat template or tokenizer of the server comes in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.secrets import without_secrets
from pipeline.engines.answers.draft_counts import read_answer
from pipeline.engines.answers.layouts import answer_parts
from pipeline.engines.engine_base import AnswerError
from pipeline.engines.metrics_pages import read_page
from pipeline.engines.printed_text import printable
from pipeline.engines.registry import ENGINES, engine_named, served_engines

MAX_BYTES = 256 * 2**20  # of a response; a server that sends more does not end
PATIENCE = 30.0  # seconds for a connection, and for all but answers


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str  # without a path and a login
    engine: str  # its name
    version: str  # its own word, empty without one
    model: str  # as the server names it
    endpoint: str  # the address that answers one prompt
    weights: str = ""  # what else tells models of one name apart, empty where nothing does

    @property
    def identity(self) -> dict[str, str]:
        """What has to be equal for answers to be of one model; empty where it is not told."""
        return {"engine": self.engine, "model": self.model, "weights": self.weights}

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

    Only the temperature (0 is greedy) may shape the distribution. So the request turns off what the
    engine and the model do by default: top_p, top_k, llama.cpp's min_p and chain of samplers.
    `log_probs` is how many log-probabilities a token has; 0 is none.
    """
    body = {"prompt": list(prompt), "temperature": temperature, "top_p": 1.0, "top_k": 0}
    body["seed"] = seed
    return body | engine_named(server.engine).request_body(server.model, steps, log_probs)


async def fetch(
    client: httpx2.AsyncClient, url: str, request: Any = None, seconds: float = PATIENCE
) -> tuple[int, bytes]:
    """Return the status and the body that an address sends; a `request` is posted as JSON.

    Raises:
        httpx2.HTTPError: no connection, an address that can't be, or more than `MAX_BYTES`.
        TimeoutError: the whole took longer than `seconds`.
    """
    method = "GET" if request is None else "POST"
    async with asyncio.timeout(seconds), client.stream(method, url, json=request) as response:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_BYTES:
                raise httpx2.DecodingError(f"the body has more than {MAX_BYTES} bytes")
        return response.status_code, bytes(body)


def split_login(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return an address without its login (http://user:password@host), and the login."""
    try:
        parsed = httpx2.URL(url)
        usable = parsed.scheme in ("http", "https") and parsed.host
    except (httpx2.InvalidURL, ValueError):
        usable = False
    if not usable or parsed.query or parsed.fragment:
        raise PipelineError(
            f"{without_secrets(url)} is no address of a server: give it without ? and #, for "
            "instance http://localhost:8000 (a server's key is taken from OPENAI_API_KEY)"
        ) from None
    login = (parsed.username, parsed.password) if parsed.userinfo else None
    return str(parsed.copy_with(userinfo=b"")), login


def _weights(card: Mapping[str, Any]) -> str:
    """Return what identifies the weights: vLLM's path of the model, or llama.cpp's sizes."""
    meta = card.get("meta")
    sizes = meta if isinstance(meta, Mapping) else {}
    values = [card.get("root"), *(sizes.get(name) for name in ("n_params", "size"))]
    return ", ".join(str(value) for value in values if value is not None)


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
        cards = {str(card["id"]): card for card in json.loads(body)["data"]}
        owners = {name: str(card.get("owned_by")) for name, card in cards.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise PipelineError(
            f"{base}/v1/models lists no models (status {status}): is it {served_engines()}?"
        ) from error
    name = model or next(iter(owners), None)
    if name not in owners or (model is None and len(owners) > 1):
        raise PipelineError(
            f"{base} serves {', '.join(map(printable, sorted(owners))) or 'none'}: give ask.model"
        )
    engine = next((one for one in ENGINES if one.model_owner == owners[name]), None)
    if engine is None:
        raise PipelineError(
            f"{base} is a server of {printable(owners[name]):.60}: give one of {served_engines()}"
        )
    about, key = engine.version_place
    try:
        _, body = await fetch(client, base + about)
        version = printable(json.loads(body).get(key) or "")[:60]
    except (httpx2.HTTPError, TimeoutError, ValueError, AttributeError, RecursionError):
        version = ""
    address = base + engine.endpoint
    return Server(base, engine.name, version, name, address, _weights(cards[name]))


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
        answer = read_answer(parts[0])
    except AnswerError as error:
        raise PipelineError(f"the server's answer {first_line(error)}") from error
    wanted = request["n_predict"] if "n_predict" in request else request["max_tokens"]
    size = len(answer.tokens or ()) if answer else 0
    if not 1 <= size <= wanted:
        raise PipelineError(
            f"the server's answer has {size} token ids: 1 to {wanted} were asked for"
        )
    return body
