"""Prompts sent to a server on loopback, and what is left when it, or the command, fails."""

import json

import pytest
from filelock import FileLock

from pipeline import ask
from pipeline.engines import servers
from pipeline.engines.counts import read_sums
from pipeline.study import Study
from tests.pipeline.fake_server import FakeServer, answer, serving

STUDY = ["study=mini", "target=mini_large", "prompts.count=5", "distributions.steps=7"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(ask, "WAIT", 0.001)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("ask")


def run(fake, outputs, name, *overrides):
    """Ask the server, one request at a time; return the lines of the file of answers."""
    one = [] if any("concurrent" in word for word in overrides) else ["ask.concurrent=1"]
    ask.main([fake.url, *STUDY, f"outputs={outputs}", f"ask.name={name}", *one, *overrides])
    return lines(outputs, name)


def lines(outputs, name):
    text = (outputs / "answers" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def prompts(outputs):
    rows = Study(*STUDY, f"outputs={outputs}").artifact("prompts").read().to_pylist()
    return {row["prompt_id"]: row["token_ids"] for row in rows}


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_answers_are_saved_as_they_are_read(owner, outputs):
    """Whatever their text: Unicode's line separators, and half a surrogate pair."""
    text = "a\u2028b\u0085c\ud800"
    with serving(FakeServer(owner, text=text)) as fake:
        body = run(fake, outputs, owner)[0]["response"]
        run(fake, outputs, owner)  # nothing is left to ask
    assert (body["content"] if owner == "llamacpp" else body["choices"][0]["text"]) == text
    assert len(fake.asked) == 5
    answers, wanted = (
        read_sums(outputs / "answers" / f"{owner}.jsonl").answers, prompts(outputs)
    )  # fmt: skip
    assert list(answers) == list(wanted)
    for one, ids in zip(answers.values(), wanted.values(), strict=True):
        assert (one.prompt, one.tokens, one.temperature) == (ids, [ids[-1]] * 7, 0.5)


def test_each_engine_is_asked_in_its_own_way(outputs):
    bodies = {}
    for owner in ("vllm", "llamacpp"):
        with serving(FakeServer(owner)) as fake:
            run(fake, outputs, f"{owner}-20", "ask.log_probs=20")
            path, bodies[owner] = fake.asked[0]
        assert path == {"vllm": "/v1/completions", "llamacpp": "/completion"}[owner]
    assert bodies["vllm"] == {
        "model": "tiny", "prompt": next(iter(prompts(outputs).values())), "max_tokens": 7,
        "temperature": 0.5, "top_p": 1.0, "top_k": 0, "seed": 0, "return_token_ids": True,
        "logprobs": 20, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    assert bodies["llamacpp"]["samplers"] == ["top_k", "top_p", "temperature"]  # and no min_p
    assert bodies["llamacpp"]["n_probs"] == 20


def test_a_server_that_is_busy_or_drops_connections_is_asked_again(outputs):
    faults = [503, "drop", 429, "text", 500]
    with serving(FakeServer(faults=faults)) as fake:
        assert [row["custom_id"] for row in run(fake, outputs, "faults")] == list(prompts(outputs))
    assert len(fake.asked) == 5 + 5


BAD = {
    b"{}": "the server sent no answer: {}",
    b'{"choices": [{"index": 0, "text": "x"}]}': "has 0 token ids: 1 to 7 were asked for",
    b'{"choices": [{"index": 0, "token_ids": [1, "2"]}]}': r"has ids\.1='2'",
    b'{"choices": [{"index": 0, "token_ids": [1,2,3,4,5,6,7,8]}]}': "has 8 token ids: 1 to 7",
    b"<html>no such page": "refuses it .status 404: '<html>no such page'",
    b'{"model": "other", "choices": [{"index": 0, "token_ids": [1]}]}': "by other, not tiny",
    b" " * 3000: "can't be read: the body has more than 2000 bytes",
    "slow": r"no answer in ask\.timeout=1 seconds",
}


@pytest.mark.parametrize("fault", BAD)
def test_what_is_no_answer_is_not_saved(fault, outputs, monkeypatch):
    """The second request meets it, and is not sent again."""
    monkeypatch.setattr(servers, "MOST_BYTES", 2000)
    good = json.dumps(answer("vllm", {"prompt": [1], "max_tokens": 7}, "x")).encode()
    with serving(FakeServer(faults=[good, fault])) as fake:
        name = f"bad-{abs(hash(fault))}"
        with pytest.raises(SystemExit, match=BAD[fault]):
            run(fake, outputs, name, "ask.timeout=1")
        assert len(fake.asked) == 5
        assert len(lines(outputs, name)) == 4


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
        assert len(run(fake, outputs, "together", "ask.concurrent=5")) == 5


def test_a_refused_prompt_costs_no_other_answer_and_is_asked_again(outputs):
    with serving(FakeServer(faults=[400])) as fake:
        with pytest.raises(SystemExit, match="1 of 5 prompts have no answer") as refused:
            run(fake, outputs, "refused")
        assert "status 400: {'message': 'no such thing'}" in str(refused.value)
        assert len(lines(outputs, "refused")) == 4
        answered = run(fake, outputs, "refused")
        assert {row["custom_id"] for row in answered} == prompts(outputs).keys()
        assert len(fake.asked) == 6


def test_a_torn_line_is_asked_again(outputs):
    with serving(FakeServer()) as fake:
        run(fake, outputs, "torn")
        path = outputs / "answers" / "torn.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        assert len(run(fake, outputs, "torn")) == 5
        assert len(fake.asked) == 6
    lines_before = whole.splitlines()[:4]
    assert path.read_bytes().splitlines()[:4] == lines_before  # not written again
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["answers"], about["answers_of_pages"]) == (5, 1)
    pages = [path.with_suffix(f".{name}.txt").read_text() for name in ("before", "after")]
    assert [page.split()[-1] for page in pages] == ["5.0", "6.0"]


def test_a_server_whose_page_has_no_counts_is_asked(outputs):
    """llama.cpp's without --metrics; the name is that of the study."""
    with serving(FakeServer("llamacpp")) as fake:
        ask.main([fake.url, *STUDY, f"outputs={outputs}"])
    assert len(lines(outputs, "mini-mini_large")) == 5
    assert not (outputs / "answers" / "mini-mini_large.after.txt").exists()


def test_answers_to_other_requests_are_not_mixed(outputs):
    path = outputs / "answers" / "named.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"custom_id": ["a"], "request": {}}\n')
    with serving(FakeServer()) as fake:
        run(fake, outputs, "mixed")
        for name in ("mixed", "named"):
            with pytest.raises(SystemExit, match=rf"{name}\.jsonl, line 1 answers another request"):
                run(fake, outputs, name, "distributions.steps=8")
        assert len(fake.asked) == 5


def test_errors_name_the_address(outputs):
    for arguments, message in {
        (): "0 addresses of a server were given, not one",
        ("http://127.0.0.1:1",): "http://127.0.0.1:1/v1/models does not answer",
        ("http://127.0.0.1:80000",): "127.0.0.1:80000/v1/models does not answer",
        ("localhost:8000",): "localhost:8000/v1/models does not answer .*give its address, for in",
    }.items():
        with pytest.raises(SystemExit, match=message):
            ask.main([*arguments, *STUDY, f"outputs={outputs}"])
    with serving(FakeServer("sglang")) as fake, pytest.raises(SystemExit, match="of sglang: give"):
        run(fake, outputs, "other")
    refusal = pytest.raises(SystemExit, match=r"serves tiny: give ask\.model")
    with serving(FakeServer()) as fake, refusal:
        run(fake, outputs, "model", "ask.model=huge")
