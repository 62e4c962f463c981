"""Prompts sent to a server in this process, and what is left when it, or the command, fails."""

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx2
import pytest
from filelock import FileLock

from pipeline import ask
from pipeline.engines import servers
from pipeline.engines.counts import read_sums
from pipeline.study import Study

STUDY = ["study=mini", "target=mini_large", "prompts.count=5", "distributions.steps=7"]
PAGE = 'vllm:generation_tokens_total{engine="0",model_name="tiny"} %d.0\n'


@dataclass
class FakeServer:
    """What the server does, and what it was asked."""

    owner: str = "vllm"  # of the model, as /v1/models names it
    # of the next requests, in order: a status, an error, "slow" for no answer, bytes for a body
    faults: list[int | str | bytes | Exception] = field(default_factory=list)
    together: int = 1  # requests that must be there at once before any is answered
    text: str = "x"  # of every answer
    key: str = ""  # that requests must have, where it is not empty
    asked: list[tuple[str, dict]] = field(default_factory=list)  # with their path
    url: str = "http://server"

    async def handle(self, request):
        path = request.url.path
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return httpx2.Response(401, json={"error": "Unauthorized"})
        if path == "/metrics" and self.owner == "vllm":
            return httpx2.Response(200, text=PAGE % len(self.asked))
        if path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "tiny", "owned_by": self.owner}]})
        if request.method == "GET":
            return httpx2.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        self.asked.append((path, body))
        while len(self.asked) < self.together:
            await asyncio.sleep(0)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault == "slow":
            await asyncio.sleep(60)
        if isinstance(fault, int):
            return httpx2.Response(fault, json={"error": {"message": "no such thing"}})
        return httpx2.Response(200, content=fault or answer(self.owner, body, self.text))


def answer(owner, request, text="x"):
    """Return the answer to a request: its prompt's last token, as often as it may be."""
    tokens = [request["prompt"][-1]] * request["n_predict" if owner == "llamacpp" else "max_tokens"]
    choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": "length"}
    body = {"id": "cmpl-1", "model": "tiny", "choices": [choice]}
    if owner == "llamacpp":
        body = {"content": text, "tokens": tokens, "stop": True, "prompt": "its text"}
    return json.dumps(body).encode()


@contextmanager
def serving(fake):
    """Let the client reach the server until the end of the block."""
    client = partial(httpx2.AsyncClient, transport=httpx2.MockTransport(fake.handle))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx2, "AsyncClient", client)
        yield fake


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(ask, "WAIT", 0.001)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("ask")


@pytest.fixture(scope="module")
def prompts(outputs):
    rows = Study(*STUDY, f"outputs={outputs}", "stage=prompts").make("prompts")[0].read()
    return {row["prompt_id"]: row["token_ids"] for row in rows.to_pylist()}


def run(fake, outputs, name, *overrides):
    """Ask the server, one request at a time; return the lines of the file of answers."""
    words = [f"outputs={outputs}", f"ask.name={name}", "ask.concurrent=1", *overrides]
    ask.main([fake.url, *STUDY, *words])
    return lines(outputs, name)


def lines(outputs, name):
    text = (outputs / "answers" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_answers_are_saved_as_they_are_read(owner, outputs, prompts):
    """Whatever their text: Unicode's line separators, and half a surrogate pair."""
    text = "a\u2028b\u0085c\ud800"
    with serving(FakeServer(owner, text=text)) as fake:
        body = run(fake, outputs, owner)[0]["response"]
        run(fake, outputs, owner)  # nothing is left to ask
    assert (body["content"] if owner == "llamacpp" else body["choices"][0]["text"]) == text
    assert len(fake.asked) == 5
    answers = read_sums(outputs / "answers" / f"{owner}.jsonl").answers
    assert list(answers) == list(prompts)
    for one, ids in zip(answers.values(), prompts.values(), strict=True):
        assert (one.prompt, one.tokens, one.temperature) == (ids, [ids[-1]] * 7, 0.5)
    # llama.cpp's server without --metrics has no page
    assert (outputs / f"answers/{owner}.after.txt").exists() == (owner == "vllm")


def test_each_engine_is_asked_in_its_own_way(outputs, prompts):
    bodies = {}
    for owner in ("vllm", "llamacpp"):
        with serving(FakeServer(owner)) as fake:
            run(fake, outputs, f"{owner}-20", "ask.log_probs=20")
            path, bodies[owner] = fake.asked[0]
        assert path == {"vllm": "/v1/completions", "llamacpp": "/completion"}[owner]
    assert bodies["vllm"] == {
        "model": "tiny", "prompt": next(iter(prompts.values())), "max_tokens": 7,
        "temperature": 0.5, "top_p": 1.0, "top_k": 0, "seed": 0, "return_token_ids": True,
        "logprobs": 20, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    assert bodies["llamacpp"]["samplers"] == ["top_k", "top_p", "temperature"]  # and no min_p
    assert bodies["llamacpp"]["n_probs"] == 20


def test_a_server_that_is_busy_or_drops_connections_is_asked_again(outputs, prompts):
    faults = [503, httpx2.ReadError("cut off"), 429, b"<html>", 500]
    with serving(FakeServer(faults=faults)) as fake:
        assert [row["custom_id"] for row in run(fake, outputs, "faults")] == list(prompts)
    assert len(fake.asked) == 5 + 5


BAD = {
    b'{"model": "tiny"}': "the server sent no answer: {",
    b'{"choices": [{"index": 0, "token_ids": [1, "2"]}]}': r"has ids\.1='2'",
    b'{"choices": [{"index": 0, "token_ids": [1,2,3,4,5,6,7,8]}]}': "has 8 token ids: 1 to 7",
    b'{"model": "other", "choices": [{"index": 0, "token_ids": [1]}]}': "by other, not tiny",
    b" " * 3000: "can't be read: the body has more than 2000 bytes",
    400: "refuses it .status 400: {'message': 'no such thing'}",
    "slow": r"no answer in ask\.timeout=1 seconds",
}


@pytest.mark.parametrize("fault", BAD)
def test_what_is_no_answer_is_not_saved_and_asked_again(fault, outputs, prompts, monkeypatch):
    """The second request meets it, and is sent again by the next command only."""
    monkeypatch.setattr(servers, "MOST_BYTES", 2000)
    good = answer("vllm", {"prompt": [1], "max_tokens": 7})
    with serving(FakeServer(faults=[good, fault])) as fake:
        name = f"bad-{list(BAD).index(fault)}"
        with pytest.raises(SystemExit, match=f"1 of 5 prompts have no answer.*{BAD[fault]}"):
            run(fake, outputs, name, "ask.timeout=1")
        assert (len(fake.asked), len(lines(outputs, name))) == (5, 4)
        answered = run(fake, outputs, name)
        assert {row["custom_id"] for row in answered} == prompts.keys()
        assert len(fake.asked) == 6


def test_a_key_is_that_of_the_environment(outputs, monkeypatch):
    with serving(FakeServer(key="secret")) as fake:
        with pytest.raises(SystemExit, match=r"wants a key \(status 401\): set OPENAI_API_KEY"):
            run(fake, outputs, "key")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        rows = run(fake, outputs, "key")
    assert all(row["seconds"] > 0 for row in rows)
    assert not any(b"secret" in path.read_bytes() for path in (outputs / "answers").glob("key*"))


def test_two_at_once_are_refused(outputs):
    (outputs / "answers").mkdir(exist_ok=True)
    with FileLock(outputs / "answers/.twice.lock"), serving(FakeServer()) as fake:
        with pytest.raises(SystemExit, match=r"another command writes to .*twice\.jsonl"):
            run(fake, outputs, "twice")
        assert fake.asked == []


def test_requests_are_sent_at_once(outputs):
    """The server answers none before five are there."""
    with serving(FakeServer(together=5)) as fake:
        rows = run(fake, outputs, "together", "ask.concurrent=5", "ask.timeout=5")
    assert len(rows) == 5


def test_a_torn_line_is_asked_again(outputs):
    with serving(FakeServer()) as fake:
        run(fake, outputs, "torn")
        path = outputs / "answers" / "torn.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        assert len(run(fake, outputs, "torn")) == 5
        assert len(fake.asked) == 6
    assert path.read_bytes().splitlines()[:4] == whole.splitlines()[:4]  # not written again
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["answers"], about["answers_of_pages"]) == (5, 1)
    pages = [path.with_suffix(f".{name}.txt").read_text() for name in ("before", "after")]
    assert [page.split()[-1] for page in pages] == ["5.0", "6.0"]


def test_answers_to_other_requests_are_not_mixed(outputs):
    """The name is that of the study where none is given."""
    path = outputs / "answers" / "named.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"custom_id": ["a"], "request": {}}\n')
    with serving(FakeServer()) as fake:
        ask.main([fake.url, *STUDY, f"outputs={outputs}"])
        for name in ("mini-mini_large", "named"):
            with pytest.raises(SystemExit, match=rf"{name}\.jsonl, line 1 answers another request"):
                run(fake, outputs, name, "distributions.steps=8")
        assert len(fake.asked) == 5


def test_errors_name_the_address(outputs):
    for arguments, message in {
        (): "0 addresses of a server were given, not one",
        ("http://127.0.0.1:1",): "http://127.0.0.1:1/v1/models does not answer",
    }.items():
        with pytest.raises(SystemExit, match=message):
            ask.main([*arguments, *STUDY, f"outputs={outputs}"])
