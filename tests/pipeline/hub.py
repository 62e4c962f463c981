"""A hub on loopback, sound or with faults: what `huggingface_hub` asks of huggingface.co.

Answers the API (repository, revision, tree) and `resolve`, which redirects for a file of LFS to
another origin. Files are served over plain HTTP; the hub's Xet storage is not imitated.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

LFS = (".safetensors", ".parquet", "tokenizer.json")  # kept in LFS, as the hub's .gitattributes say


@dataclass(frozen=True)
class File:
    """A file of a repository, with the names that Git and LFS have for its content."""

    path: str
    data: bytes

    @property
    def lfs(self) -> bool:
        return self.path.endswith(LFS)

    @cached_property
    def oid(self) -> str:
        """The name of the blob in Git: of an LFS file, of its pointer."""
        data = self.data
        if self.lfs:
            pointer = f"oid sha256:{self.sha256}\nsize {len(data)}\n"
            data = f"version https://git-lfs.github.com/spec/v1\n{pointer}".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def entry(self) -> dict[str, Any]:
        """Return the file's entry in a listing."""
        size = len(self.data)
        entry = {"type": "file", "oid": self.oid, "size": size, "path": self.path}
        lfs = {"oid": self.sha256, "size": size, "pointerSize": 134}
        return entry | ({"lfs": lfs} if self.lfs else {})


class Repository:
    """A model or a data set, with the files of every commit."""

    def __init__(self, kind: str, name: str, files: dict[str, bytes]) -> None:
        """Make the first commit of `name`; `kind` is models or datasets."""
        self.kind, self.name = kind, name
        self.commits: dict[str, dict[str, File]] = {}
        self.main = self.commit(files)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with these files, to which main moves, and return it."""
        tree = {path: File(path, data) for path, data in sorted(files.items())}
        names = "".join(f"{file.oid} {path}" for path, file in tree.items())
        self.main = hashlib.sha1(f"{self.name} {len(self.commits)} {names}".encode()).hexdigest()
        self.commits[self.main] = tree
        return self.main


class Request(NamedTuple):
    """A request that the hub received."""

    method: str
    path: str  # without the query


@dataclass
class Answer:
    """What goes back; faults change it or send it themselves."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    handler: Any = None
    hub: Any = None
    path: str = ""

    def send(self) -> None:
        """Send it."""
        self.handler.send_response(self.status)
        for key, value in (self.headers | {"Content-Length": str(len(self.body))}).items():
            self.handler.send_header(key, value)
        self.handler.end_headers()
        if self.handler.command != "HEAD":
            self.handler.wfile.write(self.body)


Fault = Callable[[Answer], bool]  # True: it has sent an answer itself


class Hub:
    """The server, its repositories, what it was asked, and the faults that it is to have."""

    def __init__(self, *repositories: Repository) -> None:
        """Serve `repositories` once it is started."""
        self.repositories = {(each.kind, each.name): each for each in repositories}
        self.requests: list[Request] = []
        self.faults: list[tuple[str, Fault]] = []  # a part of the path, and what befalls it
        self.leaving = threading.Event()  # ends what hangs
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Hub]:
        """Serve until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.leaving.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def asked(self, part: str, method: str = "GET") -> list[str]:
        """Return the paths that were asked for by `method` and contain `part`."""
        return [each.path for each in self.requests if each.method == method and part in each.path]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        path = unquote(urlsplit(handler.path).path).strip("/")
        self.requests.append(Request(handler.command, path))
        answer = self._answer(path)
        answer.handler, answer.hub, answer.path = handler, self, path
        for part, fault in list(self.faults):
            if part in path and fault(answer):
                return
        answer.send()

    def _answer(self, path: str) -> Answer:
        parts = path.split("/")
        if parts[0] == "lfs":
            trees = [tree for each in self.repositories.values() for tree in each.commits.values()]
            files = {file.sha256: file for tree in trees for file in tree.values()}
            return Answer(200, files[parts[1]].data, {"ETag": '"of-the-storage"'})
        api = parts[0] == "api"
        kind = parts[1] if api else "datasets" if parts[0] == "datasets" else "models"
        parts = parts[2 if api else kind == "datasets" :]
        repository = self.repositories.get((kind, "/".join(parts[:2])))
        if repository is None:
            return _missing("RepoNotFound", 401)
        action, revision = [*parts[2:], "revision", "main"][0], [*parts[3:], "main"][0]
        commit = repository.main if revision == "main" else revision
        if commit not in repository.commits:
            return _missing("RevisionNotFound")
        files = repository.commits[commit]
        if action == "resolve":
            return self._resolved(files.get("/".join(parts[4:])), commit)
        if action == "tree":
            return _json([file.entry() for file in files.values()])
        siblings = [{"rfilename": path} for path in files]
        return _json({"_id": "1", "id": repository.name, "sha": commit, "siblings": siblings})

    def _resolved(self, file: File | None, commit: str) -> Answer:
        headers = {"X-Repo-Commit": commit}
        if file is None:
            return _missing("EntryNotFound", **headers)
        headers["ETag"] = f'"{file.oid}"'
        if not file.lfs:
            return Answer(200, file.data, headers)
        storage = self.endpoint.replace("127.0.0.1", "localhost")  # another origin
        headers |= {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.data))}
        return Answer(302, b"", headers | {"Location": f"{storage}/lfs/{file.sha256}"})


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                hub.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client hung up

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Print nothing: tests read what was asked."""

    return Handler


def _missing(code: str, status: int = 404, **headers: str) -> Answer:
    """Return the hub's answer to a request for what is not there."""
    return Answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code, **headers})


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def connect(hub: Hub, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process take this hub, with an empty cache in `home`."""
    from huggingface_hub import constants, utils

    utils.close_session()
    patch.setattr(constants, "ENDPOINT", hub.endpoint)
    place = "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + place)
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)


# --- faults: each changes an answer, or sends another itself --------------------------------------


def status(code: int, **headers: str) -> Fault:
    """A hub that answers with this status; `Retry_After` is the header Retry-After."""

    def fault(answer: Answer) -> bool:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        answer.status, answer.body, answer.headers = code, b"", named
        return False

    return fault


def hang(answer: Answer) -> bool:
    """A hub that takes a request and never answers."""
    answer.hub.leaving.wait()
    answer.handler.close_connection = True
    return True


def flipped(answer: Answer) -> bool:
    """A file with one wrong bit."""
    at = len(answer.body) // 2
    answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
    return False


def sha(value: Any) -> Fault:
    """A hub that tells something else than a commit."""

    def fault(answer: Answer) -> bool:
        answer.body = json.dumps(json.loads(answer.body) | {"sha": value}).encode()
        return False

    return fault
