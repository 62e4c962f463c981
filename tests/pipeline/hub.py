"""A hub on loopback: what `huggingface_hub` asks of huggingface.co.

Answers the API (repository, revision, tree), `resolve` with its headers, and redirects:
a small file to the hub's own cache, a file of LFS to another origin. Files are served over plain
HTTP; the hub's Xet storage is not imitated.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
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

    @property
    def oid(self) -> str:
        """The name of the blob in Git: of an LFS file, of its pointer."""
        data = self.data
        if self.lfs:
            data = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
                f"size {len(data)}\n"
            ).encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid

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

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a revision."""
        commit = self.main if revision == "main" else revision
        return commit if commit in self.commits else None


@dataclass(frozen=True)
class Request:
    """A request that the hub received."""

    method: str
    path: str  # without the query
    headers: dict[str, str] = field(default_factory=dict)


Fault = Callable[["Answer"], bool]  # True: it has sent an answer itself


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
        self.storage = f"http://localhost:{self._server.server_port}/lfs"  # another origin

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
        url = urlsplit(handler.path)
        path, query = unquote(url.path).strip("/"), parse_qs(url.query)
        self.requests.append(Request(handler.command, path, dict(handler.headers)))
        answer = self._answer(path, query)
        answer.handler, answer.hub, answer.path = handler, self, path
        for part, fault in list(self.faults):
            if part in path and fault(answer):
                return
        answer.send()

    def _answer(self, path: str, query: dict[str, list[str]]) -> Answer:
        parts = path.split("/")
        if parts[0] == "lfs":
            return self._stored(parts[1])
        if parts[:2] == ["api", "resolve-cache"]:
            repository = self.repositories[parts[2], "/".join(parts[3:5])]
            return _file(repository.commits[parts[5]]["/".join(parts[6:])], parts[5])
        if parts[0] == "api":
            kind, name, rest = parts[1], "/".join(parts[2:4]), parts[4:]
        else:
            kind = "datasets" if parts[0] == "datasets" else "models"
            parts = parts[kind == "datasets" :]
            name, rest = "/".join(parts[:2]), parts[2:]
        if (kind, name) not in self.repositories:
            return missing("RepoNotFound", status=401)
        repository = self.repositories[kind, name]
        action, revision = [*rest, "revision", "main"][0], [*rest[1:], "main"][0]
        commit, inside = repository.resolve(revision), "/".join(rest[2:])
        if commit is None:
            return missing("RevisionNotFound")
        if action == "resolve":
            return self._resolved(repository, commit, inside)
        if action == "tree":
            return _tree(repository, commit, inside, query)
        return _info(repository, commit) if action == "revision" else missing("EntryNotFound")

    def _resolved(self, repository: Repository, commit: str, path: str) -> Answer:
        file = repository.commits[commit].get(path)
        if file is None:
            return missing("EntryNotFound", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.oid}"'}
        if not file.lfs:
            place = f"/api/resolve-cache/{repository.kind}/{repository.name}/{commit}/{path}"
            return Answer(307, b"", headers | {"Location": place})
        headers |= {
            "X-Linked-ETag": f'"{file.sha256}"',
            "X-Linked-Size": str(len(file.data)),
            "Location": f"{self.storage}/{file.sha256}",
        }
        return Answer(302, b"", headers)

    def _stored(self, sha256: str) -> Answer:
        for repository in self.repositories.values():
            for tree in repository.commits.values():
                for file in tree.values():
                    if file.lfs and file.sha256 == sha256:
                        return Answer(200, file.data, {"ETag": '"of-the-storage"'})
        return Answer(404, b"no such blob")


@dataclass
class Answer:
    """What goes back; faults change it or send it themselves."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    handler: Any = None
    hub: Any = None
    path: str = ""

    def send(self, most: int | None = None) -> None:
        """Send it, of the body at most `most` bytes: the connection ends there."""
        body, status, headers = self.body, self.status, dict(self.headers)
        asked = self.handler.headers.get("Range", "")
        if status == 200:
            headers["Accept-Ranges"] = "bytes"
            if asked.startswith("bytes="):
                first, _, last = asked[len("bytes=") :].partition("-")
                start, end = int(first), int(last) + 1 if last else len(body)
                headers["Content-Range"] = f"bytes {start}-{min(end, len(body)) - 1}/{len(body)}"
                status, body = 206, body[start:end]
        self.handler.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.handler.send_header(key, value)
        self.handler.end_headers()
        if self.handler.command != "HEAD":
            self.handler.wfile.write(body[:most])
            if most is not None:
                self.handler.close_connection = True


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                hub.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client hung up

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Print nothing: tests read what was asked."""

    return Handler


def missing(code: str, headers: dict[str, str] | None = None, status: int = 404) -> Answer:
    """Return the hub's answer to a request for what is not there."""
    error = {"X-Error-Code": code, "X-Error-Message": f"{code} on this hub"}
    return Answer(status, json.dumps({"error": code}).encode(), error | (headers or {}))


def _json(value: Any, headers: dict[str, str] | None = None) -> Answer:
    kind = {"Content-Type": "application/json"}
    return Answer(200, json.dumps(value).encode(), kind | (headers or {}))


def _file(file: File, commit: str) -> Answer:
    return Answer(200, file.data, {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'})


def _info(repository: Repository, commit: str) -> Answer:
    files = [{"rfilename": path} for path in repository.commits[commit]]
    owner = repository.name.split("/")[0]
    return _json(
        {"_id": "1", "id": repository.name, "author": owner, "sha": commit, "siblings": files,
         "private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0,
         "likes": 0, "lastModified": "2025-01-01T00:00:00.000Z",
         "createdAt": "2025-01-01T00:00:00.000Z"}
    )  # fmt: skip


def _tree(repository: Repository, commit: str, folder: str, query: dict[str, list[str]]) -> Answer:
    """Return the listing of a folder, or of all below it."""
    files, start = repository.commits[commit], f"{folder}/" if folder else ""
    below = {path[len(start) :]: file for path, file in files.items() if path.startswith(start)}
    if not below and folder:
        return missing("EntryNotFound", {"X-Repo-Commit": commit})
    recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
    folders = {path.rsplit("/", 1)[0] if recursive else path.split("/")[0]
               for path in below if "/" in path}  # fmt: skip
    entries = [file.entry() for path, file in below.items() if recursive or "/" not in path]
    entries += [_folder(start + name) for name in sorted(folders)]
    return _json(entries, {"X-Repo-Commit": commit})


def _folder(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(path.encode()).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    """Return the variables by which a process takes this hub, with an empty cache in `home`."""
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"} | more  # fmt: skip


def connect(hub: Hub, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process take this hub, with an empty cache in `home`."""
    from huggingface_hub import constants, utils

    utils.close_session()
    patch.setattr(constants, "ENDPOINT", hub.endpoint)
    place = "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + place)
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
