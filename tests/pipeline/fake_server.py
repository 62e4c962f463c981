"""A small inference server on loopback, with faults, that answers as vLLM or llama.cpp."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Lock, Thread
from time import sleep
from typing import Any

PAGE = """# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} %d.0
"""


@dataclass
class FakeServer:
    """What the server does, and what it was asked."""

    owner: str = "vllm"  # of the model, as /v1/models names it
    # of the next requests, in order: a status, "drop" for a connection that ends inside the answer,
    # "text" for no JSON, "slow" for one byte by byte, bytes for a body
    faults: list[int | str | bytes] = field(default_factory=list)
    together: int = 1  # requests that must be there at once before any is answered
    version: str = "0.0.1"
    text: str = "x"  # of every answer
    key: str = ""  # that requests must have, where it is not empty
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # with their path
    url: str = ""


def answer(owner: str, request: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the answer to a request: its prompt's last token, as often as it may be."""
    tokens = [request["prompt"][-1]] * request["n_predict" if owner == "llamacpp" else "max_tokens"]
    if owner == "llamacpp":
        return {"content": text, "tokens": tokens, "stop": True, "prompt": "its text"}
    choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": "length"}
    return {"id": "cmpl-1", "model": "tiny", "choices": [choice]}


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """Serve on loopback until the end of the block; sets the address."""
    lock, barrier = Lock(), Barrier(fake.together, timeout=10)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def reply(self, status: int, body: bytes, cut: int = 0) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - cut])

        def do_GET(self) -> None:
            bodies: dict[str, Any] = {
                "/v1/models": {"data": [{"id": "tiny", "owned_by": fake.owner}]},
                "/version": {"version": fake.version},
                "/props": {"build_info": fake.version},
            }
            if fake.key and self.headers["Authorization"] != f"Bearer {fake.key}":
                self.reply(401, b'{"error": "Unauthorized"}')
            elif self.path == "/metrics" and fake.owner == "vllm":
                self.reply(200, (PAGE % len(fake.asked)).encode())
            elif self.path in bodies:
                self.reply(200, json.dumps(bodies[self.path]).encode())
            else:
                self.reply(404, b'{"detail": "Not Found"}')

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                fake.asked.append((self.path, request))
                fault = fake.faults.pop(0) if fake.faults else None
            barrier.wait()
            body = json.dumps(answer(fake.owner, request, fake.text)).encode()
            if fault == "drop":
                self.reply(200, body, cut=5)
                self.close_connection = True
            elif fault == "text":
                self.reply(200, b"<html>")
            elif fault == "slow":
                with suppress(OSError):
                    self.send_response(200)
                    self.end_headers()
                    self.close_connection = True
                    for _ in range(100):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        sleep(0.1)
            elif isinstance(fault, bytes):
                self.reply(404 if b"<html>" in fault else 200, fault)
            elif fault is not None:
                self.reply(int(fault), b'{"error": {"message": "no such thing"}}')
            else:
                self.reply(200, body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
