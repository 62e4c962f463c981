"""A hub on loopback, sound or with faults, and the repositories of the paper's study, small.

It answers the API (repository, revision, tree) and `resolve`, which redirects for a file of LFS to
another origin. Files are served over plain HTTP; the hub's Xet storage is not imitated.
"""

import hashlib
import io
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

LFS = (".safetensors", ".parquet", "tokenizer.json")  # kept in LFS, as the hub's .gitattributes say
MODELS = {"Qwen/Qwen3-0.6B": 0, "Qwen/Qwen3-1.7B": 1, "Qwen/Qwen3-4B": 2}  # and their seeds
ULTRACHAT = "HuggingFaceH4/ultrachat_200k"
SPLITS = {"train_sft": (3, 40), "test_sft": (1, 12)}  # files, and rows of each
PROSE = (
    "the river town keeps its old bridge open for carts and people who walk to market each day "
    "while children learn letters from a teacher that writes short songs about weather and bread"
)


class File(NamedTuple):
    """A file of a repository, with the names that Git and LFS have for its content."""

    path: str
    data: bytes
    sha256: str
    lfs: bool
    oid: str  # of an LFS file, of its pointer


def file(path, data):
    sha256, blob, lfs = hashlib.sha256(data).hexdigest(), data, path.endswith(LFS)
    if lfs:
        pointer = f"oid sha256:{sha256}\nsize {len(data)}\n"
        blob = f"version https://git-lfs.github.com/spec/v1\n{pointer}".encode()
    oid = hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest()
    return File(path, data, sha256, lfs, oid)


def entry(of):
    """A file's entry in a listing."""
    size = len(of.data)
    entry = {"type": "file", "oid": of.oid, "size": size, "path": of.path}
    return entry | ({"lfs": {"oid": of.sha256, "size": size, "pointerSize": 134}} if of.lfs else {})


class Repository:
    """A model or a data set (`kind`: models or datasets), with the files of every commit."""

    def __init__(self, kind, name, files):
        self.kind, self.name = kind, name
        self.commits = {}
        self.commit(files)

    def commit(self, files):
        """Add a commit with these files, to which main moves, and return it."""
        tree = {path: file(path, data) for path, data in sorted(files.items())}
        names = "".join(f"{file.oid} {path}" for path, file in tree.items())
        self.main = hashlib.sha1(f"{self.name} {len(self.commits)} {names}".encode()).hexdigest()
        self.commits[self.main] = tree
        return self.main


@dataclass
class Answer:
    """What goes back; faults change it."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Hub:
    """The server, its repositories, what it was asked, and the faults that it is to have."""

    def __init__(self, *repositories):
        self.repositories = {(each.kind, each.name): each for each in repositories}
        self.requests = []  # method and path of each
        self.faults = []  # (part of a path, what befalls its answer)
        self.leaving = threading.Event()  # ends what hangs
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self):
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

    def asked(self, part):
        """The requests whose path contains `part`."""
        return [request for request in self.requests if part in request[1]]

    def answer(self, handler):
        path = unquote(urlsplit(handler.path).path).strip("/")
        self.requests.append((handler.command, path))
        answer = self._answer(path)
        for fault in [fault for part, fault in self.faults if part in path]:
            fault(answer)
        if not answer.status:
            self.leaving.wait()
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for key, value in (answer.headers | {"Content-Length": str(len(answer.body))}).items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(answer.body)

    def _answer(self, path):
        parts = path.split("/")
        if parts[0] == "lfs":
            trees = [tree for each in self.repositories.values() for tree in each.commits.values()]
            data = {of.sha256: of.data for tree in trees for of in tree.values()}
            return Answer(200, data[parts[1]], {"ETag": '"of-the-storage"'})
        api = parts[0] == "api"
        kind = parts[1] if api else "datasets" if parts[0] == "datasets" else "models"
        parts = parts[2 if api else kind == "datasets" :]
        repository = self.repositories[kind, "/".join(parts[:2])]
        action, revision = [*parts[2:], "revision", "main"][0], [*parts[3:], "main"][0]
        commit = repository.main if revision == "main" else revision
        files = repository.commits[commit]
        if action == "resolve":
            return self._resolved(files.get("/".join(parts[4:])), commit)
        if action == "tree":
            return _json([entry(of) for of in files.values()])
        siblings = [{"rfilename": path} for path in files]
        return _json({"_id": "1", "id": repository.name, "sha": commit, "siblings": siblings})

    def _resolved(self, of, commit):
        headers = {"X-Repo-Commit": commit}
        if of is None:
            headers |= {"X-Error-Code": "EntryNotFound", "X-Error-Message": "EntryNotFound"}
            return Answer(404, b"{}", headers)
        headers["ETag"] = f'"{of.oid}"'
        if not of.lfs:
            return Answer(200, of.data, headers)
        storage = self.endpoint.replace("127.0.0.1", "localhost")  # another origin
        headers |= {"X-Linked-ETag": f'"{of.sha256}"', "X-Linked-Size": str(len(of.data))}
        return Answer(302, b"", headers | {"Location": f"{storage}/lfs/{of.sha256}"})


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            try:
                hub.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client hung up

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            """Print nothing: tests read what was asked."""

    return Handler


def _json(value):
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def connect(hub, home, patch):
    """Let this process take this hub, with an empty cache in `home`."""
    from huggingface_hub import constants, utils

    utils.close_session()
    patch.setattr(constants, "ENDPOINT", hub.endpoint)
    place = "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + place)
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)


# --- faults: each changes an answer ---------------------------------------------------------------


def status(code, **headers):
    """A hub that answers with this status; `Retry_After` is the header Retry-After."""

    def fault(answer):
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        answer.status, answer.body, answer.headers = code, b"", named

    return fault


def hang(answer):
    """A hub that takes a request and never answers."""
    answer.status = 0


def flipped(answer):
    """A file with one wrong bit."""
    at = len(answer.body) // 2
    answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]


# --- the repositories of the paper's study --------------------------------------------------------


def ultrachat():
    """A data set in the layout of UltraChat 200k: its splits, below data/, and a card."""
    files = {"README.md": b"---\nlicense: mit\n---\n# UltraChat, small\n"}
    for split, (count, rows) in SPLITS.items():
        for part in range(count):
            path = f"data/{split}-{part:05}-of-{count:05}-0123456789abcdef.parquet"
            table = pa.Table.from_pylist([_row(split, part * rows + at) for at in range(rows)])
            buffer = io.BytesIO()
            pq.write_table(table, buffer, row_group_size=16)
            files[path] = buffer.getvalue()
    return Repository("datasets", ULTRACHAT, files)


def _row(split, at):
    words = PROSE.split()
    said = [words[(at * 7 + step * (1 + at % 5)) % len(words)] for step in range(80 + at % 40)]
    text = f"Question {at} of {split}: {' '.join(said)}?"
    turns = [(text, "user"), ("An answer.", "assistant"), ("Go on.", "user"), ("So.", "assistant")]
    return {
        "prompt": text,
        "prompt_id": hashlib.sha256(text.encode()).hexdigest(),
        "messages": [{"content": content, "role": role} for content, role in turns],
    }
