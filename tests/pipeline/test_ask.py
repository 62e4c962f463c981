"""Prompts sent to a server in this process, and what is left when it, or the command, fails."""

import asyncio
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx2
import pytest
from filelock import FileLock

from pipeline import ask
from pipeline.engines.answers.checksums import CHANGED
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.asking import saved_answers, servers
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
    # what /v1/models says of the model besides its owner
    card: dict = field(default_factory=lambda: {"id": "tiny"})
    page: str = PAGE
    asked: list[tuple[str, dict]] = field(default_factory=list)  # with their path
    headers: list[str] = field(default_factory=list)  # with which it was asked for its models
    at_request: Callable = lambda: None  # called for each prompt
    url: str = "http://server"

    async def handle(self, request):
        path = request.url.path
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return httpx2.Response(401, json={"error": "Unauthorized"})
        if path == "/metrics" and self.owner == "vllm":
            return httpx2.Response(200, text=self.page % len(self.asked))
        if path == "/v1/models":
            self.headers.append(request.headers.get("Authorization", ""))
            return httpx2.Response(200, json={"data": [self.card | {"owned_by": self.owner}]})
        if request.method == "GET":
            return httpx2.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        self.asked.append((path, body))
        self.at_request()
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
    answers = read_answer_counts(outputs / "answers" / f"{owner}.jsonl").answers
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
    monkeypatch.setattr(servers, "MAX_BYTES", 2000)
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


def interrupted(fake, outputs, name, *overrides):
    """Ask a server that answers two prompts and refuses the others."""
    good = [answer(fake.owner, {"prompt": [1], "n_predict": 7, "max_tokens": 7})] * 2
    fake.faults[:] = [*good, *[400] * 3]
    with serving(fake), pytest.raises(SystemExit, match="3 of 5 prompts have no answer"):
        run(fake, outputs, name, *overrides)


DRAFTS = "".join(
    f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="tiny"{place}}} 0.0\n'
    for name, place in (
        *((name, "") for name in ("drafts", "draft_tokens", "accepted_tokens")),
        *(("accepted_tokens_per_pos", f',position="{at}"') for at in range(2)),
    )
)
OTHER_SERVERS = {
    "model": (FakeServer("llamacpp"), FakeServer("llamacpp", card={"id": "other"})),
    "engine": (FakeServer("llamacpp"), FakeServer("vllm")),
    "weights": (FakeServer(card={"id": "tiny", "root": "/a"}),
                FakeServer(card={"id": "tiny", "root": "/b"})),
    "n_params": (FakeServer("llamacpp", card={"id": "tiny", "meta": {"n_params": 3}}),
                 FakeServer("llamacpp", card={"id": "tiny", "meta": {"n_params": 4}})),
    "draft_length": (FakeServer(), FakeServer(page=PAGE + DRAFTS)),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_SERVERS)
def test_answers_of_two_models_are_not_mixed(what, outputs):
    """Another model, engine, source of the weights or draft length under the same name."""
    first, second = OTHER_SERVERS[what]
    name = f"mixed-{what}"
    interrupted(first, outputs, name)
    kept = lines(outputs, name)
    key = "weights" if what == "n_params" else what
    said = "answers another request" if what == "engine" else f"answers of {key}="
    with serving(second), pytest.raises(SystemExit, match=rf"{name}\.json.*{said}"):
        run(second, outputs, name)
    assert second.asked == []
    assert lines(outputs, name) == kept
    first.faults.clear()
    with serving(first):
        assert len(run(first, outputs, name)) == 5


def test_what_is_asked_is_written_before_the_first_request(outputs):
    record = outputs / "answers" / "early.json"
    seen = []
    fake = FakeServer("llamacpp")
    fake.at_request = lambda: seen.append(json.loads(record.read_text()))
    with serving(fake):
        run(fake, outputs, "early")
    assert {about["model"] for about in seen} == {"tiny"}
    assert {about["answers_of_pages"] for about in seen} == {0}
    assert json.loads(record.read_text())["answers_of_pages"] == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.unlink(), "is missing"),
        (lambda record: record.write_text("{"), "can't be read .JSONDecodeError"),
        (lambda record: record.write_text("[1]"), "can't be read .TypeError"),
    ],
)
def test_answers_that_nothing_names_are_not_gone_on_with(change, said, outputs):
    """Those of vLLM do: its requests name the model."""
    fake = FakeServer("llamacpp")
    interrupted(fake, outputs, "nameless")
    change(outputs / "answers" / "nameless.json")
    fake.asked.clear()
    with serving(fake), pytest.raises(SystemExit, match=rf"nameless\.json.*{said}"):
        run(fake, outputs, "nameless")
    assert fake.asked == []
    for path in (outputs / "answers").glob("nameless.*"):
        path.unlink()


def test_files_behind_links_stay_as_they_are(outputs, tmp_path):
    folder = outputs / "answers"
    folder.mkdir(exist_ok=True)
    own = tmp_path / "own"
    own.write_text("the user's own")
    ends = (".json", ".json.tmp", ".before.txt", ".after.txt", ".after.txt.tmp")
    for end in ends:
        (folder / f"linked{end}").symlink_to(own)
    with serving(FakeServer()) as fake:
        run(fake, outputs, "linked")
        (folder / "behind.jsonl").symlink_to(own)
        with pytest.raises(SystemExit, match=r"behind\.jsonl is a link: give ask\.name"):
            run(fake, outputs, "behind")
    assert own.read_text() == "the user's own"
    assert not any(path.is_symlink() for path in folder.glob("linked*"))
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("text", ["the user's own", '{"custom_id": "x"}', "line\nthe last"])
def test_a_file_of_ones_own_is_not_cut(text, outputs):
    """Without a line's end it looks like one with a torn last line."""
    path = outputs / "answers" / "own.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with serving(FakeServer()) as fake, pytest.raises(SystemExit, match=r"own\.jsonl"):
        run(fake, outputs, "own")
    assert path.read_text() == text


def test_a_login_is_sent_and_neither_printed_nor_stored(outputs, capsys, monkeypatch):
    address = "http://me:p%40ssw0rd@server/v1"
    monkeypatch.setattr("sys.argv", ["ask", address, "hydra.job.env_set.HF_TOKEN=hf_t0ken"])
    own = outputs / "login"
    with serving(FakeServer(url=address)) as fake:
        run(fake, own, "login")
        assert fake.headers == ["Basic bWU6cEBzc3cwcmQ="]
        fake.card = {"id": "other"}
        with pytest.raises(SystemExit) as refused:
            run(fake, own, "login")
    (record,) = own.glob("artifacts/prompts/*/record.json")  # of the prompts that it has made
    assert "http://***@server/v1" in json.loads(record.read_text())["argv"]
    assert json.loads((own / "answers/login.json").read_text())["url"] == "http://server"
    stored = "".join(path.read_text(errors="replace") for path in own.rglob("*") if path.is_file())
    printed = capsys.readouterr()
    for text in (stored, printed.out, printed.err, str(refused.value)):
        assert "ssw0rd" not in text
        assert "hf_t0ken" not in text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("me:p4ss@server:8000", r"\*\*\*@server:8000 is no address"),
        ("http://me:p4/ss@server", r"http://\*\*\*@server is no address"),
        ("http://server?api_key=p4ss", r"http://server\?api_key=\*\*\* is no address"),
        ("http://me:p4ss@127.0.0.1:1", r"http://127\.0\.0\.1:1/v1/models does not answer"),
        ("ftp://server", r"ftp://server is no address"),
    ],
)
def test_an_address_that_is_wrong_is_named_without_its_login(address, said, outputs):
    with pytest.raises(SystemExit, match=said) as refused:
        ask.main([address, *STUDY, f"outputs={outputs}"])
    assert "p4" not in str(refused.value)


def test_names_that_differ_are_files_that_differ(outputs):
    pages = None, PAGE % 0 + DRAFTS
    names = set()
    long = "s" * 99
    for name in ("a b", "a_b", "null"):
        for study in (long, f"{long}t", "a b", "a_b"):
            words = [*STUDY, f"outputs={outputs}", f"ask.name={name}", "stage=prompts"]
            made = Study(*words)
            config = made.config.model_copy(update={"study": study})
            made.config = config
            names |= {ask._name(made, page) for page in pages}
    assert len(names) == 2 + 4 * 2
    assert all(len(name.encode()) < 120 for name in names)


def test_a_changed_token_is_not_used(outputs):
    path = outputs / "answers" / "sealed.jsonl"
    with serving(FakeServer()) as fake:
        rows = run(fake, outputs, "sealed")
        changed = json.loads(json.dumps(rows))
        changed[2]["response"]["choices"][0]["token_ids"][3] += 1
        path.write_text("".join(json.dumps(row) + "\n" for row in changed))
        counts = read_answer_counts(path)
        assert counts.excluded == {CHANGED: 1}
        assert rows[2]["custom_id"] not in counts.answers
        with pytest.raises(SystemExit, match=r"sealed\.jsonl, line 3 was changed"):
            run(fake, outputs, "sealed")
        assert len(fake.asked) == 5
    tight = (json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows)
    path.write_text("\n".join(tight) + "\n")  # written in another way, the same
    assert len(read_answer_counts(path).answers) == 5


def test_a_list_of_loads_is_asked_load_by_load(outputs, prompts):
    """The server answers none of the second load before three are there, in files of its own."""
    folder = outputs / "answers"
    fake = FakeServer()
    fake.at_request = lambda: setattr(fake, "together", 5 + 3 if len(fake.asked) > 5 else 1)
    words = [f"outputs={outputs}", "ask.name=loads", "ask.concurrent=[1,3]", "ask.timeout=5"]
    with serving(fake):
        ask.main([fake.url, *STUDY, *words])
        assert len(fake.asked) == 10
        ask.main([fake.url, *STUDY, *words])  # nothing is left
        assert len(fake.asked) == 10
    assert not (folder / "loads.jsonl").exists()
    for load, first in ((1, 0), (3, 5)):
        rows = lines(outputs, f"loads-at-{load}")
        assert {row["custom_id"] for row in rows} == prompts.keys()
        assert {row["concurrent"] for row in rows} == {load}
        assert {row["source"] for row in rows} == {"prompts.jsonl"}
        about = json.loads((folder / f"loads-at-{load}.json").read_text())
        assert about["concurrent"] == load
        assert 1 <= about["in_flight"] <= load
        pages = [(folder / f"loads-at-{load}.{end}.txt").read_text() for end in ("before", "after")]
        assert [page.split()[-1] for page in pages] == [f"{first}.0", f"{first + 5}.0"]
        assert {
            answer.load
            for answer in read_answer_counts(folder / f"loads-at-{load}.jsonl").answers.values()
        } == {load}


def test_each_load_goes_on_where_it_was_stopped(outputs):
    """The second load fails at two prompts; the first is not asked again."""
    words = [f"outputs={outputs}", "ask.name=stopped", "ask.concurrent=[1,2]"]
    good = answer("vllm", {"prompt": [1], "max_tokens": 7})
    with serving(FakeServer(faults=[good] * 8 + [400] * 2)) as fake:
        with pytest.raises(SystemExit, match="2 of 5 prompts have no answer"):
            ask.main([fake.url, *STUDY, *words])
        counts = [len(lines(outputs, f"stopped-at-{load}")) for load in (1, 2)]
        assert counts == [5, 3]
        ask.main([fake.url, *STUDY, *words])
        assert len(fake.asked) == 10 + 2
    assert len(lines(outputs, "stopped-at-2")) == 5


def test_two_loads_are_not_mixed_in_a_file(outputs):
    interrupted(FakeServer(), outputs, "one-load", "ask.concurrent=2")
    with serving(FakeServer()) as fake:
        with pytest.raises(SystemExit, match=r"one-load\.json has answers of concurrent=2, not 1"):
            run(fake, outputs, "one-load")
        assert fake.asked == []
        assert len(run(fake, outputs, "one-load", "ask.concurrent=2")) == 5


def test_the_mean_in_flight_is_that_while_any_is(tmp_path):
    """Two requests of 2 s, one of which begins a second later, and after a pause one of 3 s."""
    path = tmp_path / "a.jsonl"
    spans = [(11.0, 2.0), (10.0, 2.0), (100.0, 3.0)]
    path.write_text("".join(json.dumps({"began": b, "seconds": s}) + "\n" for b, s in spans))
    assert saved_answers.mean_in_flight(path) == pytest.approx(7 / 6, abs=1e-3)
    path.write_text(path.read_text() + '{"seconds": 2.0}\n')  # of an earlier version
    assert saved_answers.mean_in_flight(path) is None
    path.write_text("")
    assert saved_answers.mean_in_flight(path) is None


@pytest.mark.parametrize("loads", ["0", "[]", "[1,1]", "[1,0]", "[1,2.5]", "a", "1.5", "true"])
def test_a_load_is_a_number_or_different_ones(loads, outputs):
    with pytest.raises(SystemExit, match=r"ask\.concurrent=.*whole number from 1 on"):
        ask.main(["http://server", *STUDY, f"outputs={outputs}", f"ask.concurrent={loads}"])


@pytest.mark.parametrize("load", [1, 3])
def test_no_more_requests_run_than_asked_for(load, outputs):
    running = []
    most = []

    class Counting(FakeServer):
        async def handle(self, request):
            if request.method == "GET":
                return await super().handle(request)
            running.append(request)
            most.append(len(running))
            await asyncio.sleep(0.01)
            running.pop()
            return await super().handle(request)

    with serving(Counting()) as fake:
        run(fake, outputs, f"most-{load}", f"ask.concurrent={load}")
    assert max(most) == load
