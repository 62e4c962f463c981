"""Logs of engines in the formats that they write, whole and damaged, and the study of one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import TopK, certify
from analysis.acceptance.divergences import kl, total_variation
from analysis.rules import Additive, Rule, StrictGreedy, Tree, Typical
from analysis.statistics.bootstrap import FEW_PROMPTS
from benchmarks import engine_logs
from benchmarks.engine_logs import ENGINES, answers, contained, read_back
from pipeline import solve
from pipeline.errors import PipelineError
from pipeline.formats.engine_logs import EngineLog, check_tails, read_log
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_distributions
from tests.analysis.test_rounded import V, distributions
from tests.conftest import pipeline
from tests.pipeline.reading import page_text

STARTS = np.array([0, 30, 31, 70])
RULES: list[Rule] = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(2)]


def stored(share: float = 0.2) -> tuple[TopK, np.ndarray]:
    """Steps without zeros, and emitted tokens of which a share are not the most probable."""
    p = distributions(100, seed=3) + 1e-9
    dist = TopK.from_probabilities(p / p.sum(axis=1, keepdims=True))
    rng = np.random.default_rng(0)
    other = dist.ids[np.arange(100), rng.integers(0, V, 100)]
    return dist, np.where(rng.random(100) < share, other, dist.ids[:, 0])


def written(path: Path, engine: str, k: int = 6, digits: int = 7, share: float = 0.2) -> Path:
    dist, emitted = stored(share)
    lines = [
        line
        for name, answer in answers(dist, emitted, STARTS, k, digits)
        for line in ENGINES[engine](name, answer)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, part: str = "generated", k: int = 256) -> EngineLog:
    return read_log(path, part, k, None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_every_engine_is_read_back(engine: str, share: float, tmp_path: Path) -> None:
    dist, emitted = stored(share)
    path = written(tmp_path / "log.jsonl", engine, share=share)
    log = read(path, "prompt" if engine == "vllm prompt" else "generated")
    assert [len(item.tops) for item in log.trajectories] == [30, 1, 39, 30]
    assert [token for item in log.trajectories for token in item.emitted] == emitted.tolist()
    # a sampled token that vLLM put first may stand for the last of the list in the chat format
    assert log.k == (5 if engine in ("vllm chat", "vllm stream") and share else 6)
    assert (log.answers, log.excluded, log.error) == (4, {}, 1e-6)
    back = read_back(log, V)
    assert np.array_equal(back.ids, dist.ids[:, : log.k])
    assert contained(certify(back, RULES), certify(dist, RULES))


def test_the_digits_give_the_error(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "sglang generate", digits=4)
    assert read(path).error == 0.5e-4
    assert read_log(path, "generated", 256, 1e-2).error == 1e-2
    path = written(tmp_path / "log.jsonl", "sglang generate", digits=9)
    assert read(path).error == 1e-6  # float32


def test_answers_side_by_side_and_batches_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "vllm completions", share=0.0)
    whole = read(path)
    path.write_text("".join(path.read_text().split("\n")))  # as curl leaves them
    assert read(path).log_probs.tolist() == whole.log_probs.tolist()
    lines = [
        json.loads(line) for line in written(path, "vllm chat", share=0.0).read_text().splitlines()
    ]
    batch = [{"id": "x", "custom_id": f"question-{at}", "response": {"status_code": 200,
              "body": body}, "error": None} for at, body in enumerate(lines)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, batch)))
    assert [item.prompt_id for item in read(path).trajectories][:2] == ["question-0", "question-1"]


def test_tokens_without_ids_are_told_by_their_bytes(tmp_path: Path) -> None:
    dist, emitted = stored(0.0)
    path = tmp_path / "log.jsonl"
    lines = [line for name, answer in answers(dist, emitted, STARTS, 4, 6)
             for line in engine_logs.vllm_chat(name, answer, ids=False)]  # fmt: skip
    path.write_text("\n".join(lines))
    log = read(path)
    assert not log.given_ids
    first = dist.ids[0, 0]
    assert log.trajectories[0].emitted[0] == (f"<{first}>".encode(), 0)
    assert np.allclose(np.exp(log.log_probs), dist.probs[:, :4], atol=1e-5)


def edited(path: Path, change: Callable[[Any], None], line: int = 1) -> Path:
    lines = path.read_text().splitlines()
    body = json.loads(lines[line])
    change(body)
    lines[line] = json.dumps(body)
    path.write_text("\n".join(lines) + "\n")
    return path


def content(body: Any) -> list[Any]:
    found: list[Any] = body["choices"][0]["logprobs"]["content"]
    return found


def rename(body: Any) -> None:
    body["model"] = "other"


def no_logprobs(body: Any) -> None:
    body["choices"][0]["logprobs"] = None


def no_value(body: Any) -> None:
    del content(body)[0]["top_logprobs"][1]["logprob"]


def unsorted(body: Any) -> None:
    top = content(body)[0]["top_logprobs"]
    top[1], top[4] = top[4], top[1]


def too_much(body: Any) -> None:
    for entry in content(body)[0]["top_logprobs"]:
        entry["logprob"] = -1.0


def positive(body: Any) -> None:
    content(body)[0]["top_logprobs"][0]["logprob"] = 0.5


def masked(body: Any) -> None:
    content(body)[0]["top_logprobs"][-1]["logprob"] = -9999.0


def sampled(body: Any) -> None:
    content(body)[0]["prob"] = 0.5


def no_number(body: Any) -> None:
    content(body)[0]["top_logprobs"][0]["logprob"] = float("nan")


def not_one(body: Any) -> None:
    del body["choices"]


def twice(body: Any) -> None:
    body["id"] = "chatcmpl-answer-0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, "mixes two models: m in line 1 and other in line 2"),
        (no_logprobs, "line 2 has no logprobs: ask for"),
        (no_value, "line 2 holds a token without logprob"),
        (unsorted, "line 2: the log-probabilities of a step are not sorted"),
        (too_much, "line 2: the 6 probabilities of a step sum to 2.207277"),
        (positive, "line 2: a log-probability is 0.5, above 0"),
        (masked, "line 2: one of the 6 tokens of a step has a probability of 0"),
        (sampled, "line 2 holds probabilities after sampling"),
        (no_number, "line 2 holds a log-probability that is nan"),
        (not_one, "line 2 is no answer of an engine: choices"),
        (twice, "line 2 has answer chatcmpl-answer-0 again, which began in line 1"),
    ],
)
def test_what_cannot_be_is_one_line(
    change: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    path = edited(written(tmp_path / "log.jsonl", "vllm chat", share=0.0), change)
    with pytest.raises(PipelineError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "llama.cpp completion", share=0.0)
    text = path.read_text()
    path.write_text(text[: len(text) - 200])  # the last line is cut off
    log = read(path)
    assert log.excluded == {"truncated last line": 1}
    assert len(log.trajectories) == 3
    lines = text.splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-100], *lines[2:]]))
    with pytest.raises(PipelineError, match="line 2 is no JSON"):
        read(path)
    path.write_text("nonsense\n")
    with pytest.raises(PipelineError, match="line 1 is no JSON"):
        read(path)
    path.write_text("\n")
    with pytest.raises(PipelineError, match="no step with log-probabilities"):
        read(path)
    path.write_bytes(b'{"a": "\xff"}\n{}\n')
    with pytest.raises(PipelineError, match="line 1 is no UTF-8"):
        read(path)


def test_a_stream_that_was_cut_off_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "vllm stream", share=0.0)
    lines = path.read_text().splitlines()
    ends = [at for at, line in enumerate(lines) if "length" in line]
    path.write_text("\n".join(lines[: ends[-1]]) + "\n")
    log = read(path)
    assert log.excluded == {"ends of answers that were cut off": 1}
    assert len(log.trajectories[-1].tops) == 28


def test_steps_that_are_left_out_part_an_answer(tmp_path: Path) -> None:
    def shorten(body: Any) -> None:
        info = body["meta_info"]
        info["output_top_logprobs"][9] = info["output_top_logprobs"][9][:3]
        info["output_top_logprobs"][20] = None

    path = edited(written(tmp_path / "log.jsonl", "sglang generate", share=0.0), shorten, 0)
    log = read(path)
    assert [(item.prompt_id, len(item.tops)) for item in log.trajectories][:3] == [
        ("answer-0", 9), ("answer-0+10", 10), ("answer-0+21", 9)]  # fmt: skip
    assert log.excluded == {
        "steps with fewer log-probabilities than the others": 1,
        "steps without log-probabilities": 1,
    }
    assert log.k == 6


def test_errors_of_the_engine_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "vllm chat", share=0.0)
    with path.open("a") as file:
        file.write('{"error": {"message": "too long", "code": 400}}\n')
    assert read(path).excluded == {"answers with an error": 1}


def test_a_chunk_that_repeats_one_list_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", "vllm stream", share=0.0)
    lines = path.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.count('"top_logprobs"') == 2)
    body = json.loads(lines[at].removeprefix("data: "))
    both = content(body)
    both[1] = {**both[1], "token": "token_id:99", "top_logprobs": both[0]["top_logprobs"]}
    lines[at] = f"data: {json.dumps(body)}"
    path.write_text("\n".join(lines))
    with pytest.raises(PipelineError, match="holds 2 tokens that repeat one list"):
        read(path)


def test_a_cut_off_tail_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.full(V * 10, 0.3), 40)
    path = tmp_path / "log.jsonl"

    def write(p: np.ndarray) -> EngineLog:
        dist = TopK.from_probabilities(p, 6)
        lines = [line for name, answer in answers(dist, dist.ids[:, 0], np.array([0]), 6, 6)
                 for line in engine_logs.sglang_generate(name, answer)]  # fmt: skip
        path.write_text("\n".join(lines))
        return read(path)

    check_tails(path, write(p), V * 10)
    top = np.where(p >= -np.sort(-p, axis=1)[:, 5:6], p, 0.0)
    with pytest.raises(PipelineError, match="the 6 log-probabilities have all the mass"):
        check_tails(path, write(top / top.sum(axis=1, keepdims=True)), V * 10)


def test_the_study_of_a_log(tmp_path: Path) -> None:
    path = written(tmp_path / "answers.jsonl", "vllm completions", k=9)
    command = ["study=log", "study_name=mine", f"targets.log.path={path}",
               f"outputs={tmp_path / 'out'}", "statistics.resamples=20"]  # fmt: skip
    refused = pipeline(*command, "distributions.log.vocab_size=null", check=False)
    assert "error: distributions.log.vocab_size must be given" in refused.stderr
    command.append(f"distributions.log.vocab_size={V}")
    printed = ""
    for more, message in {
        "criteria=mars": "error: mars theta=0.9 can't be judged with distributions.source=logs",
        "certificates.temperature=0.5": "error: certificates.temperature=0.5 is not allowed with",
        "criteria=tree criteria.m=12": "answers.jsonl has 9 log-probabilities a step, and tree",
        "targets.log.path=nothing.jsonl": "error: targets.log.path=nothing.jsonl does not exist",
        f"distributions.log.vocab_size={V - 20}": "answers.jsonl has token id",
    }.items():
        done = pipeline(*command, *more.split(), "stage=certificates", check=False)
        assert message in done.stderr, more
        printed += done.stdout
    pipeline(*command)
    assert "100 steps of 4 answers, 9 log-probabilities each, off by at most 1e-06" in printed
    dist, emitted = stored()
    (place,) = (tmp_path / "out/artifacts/distributions").glob("log-*")
    artifact = Artifact(place)
    found = read_distributions(artifact, 1.0)
    assert artifact.read(columns=["token_id"])["token_id"].to_pylist() == emitted.tolist()
    assert contained(certify(found, RULES), certify(dist, RULES))
    page = page_text(tmp_path / "out/report/mine")
    for said in ("answers.jsonl, 4 answers", "9, of 60 tokens", "1e-06 nats", "taken as raw"):
        assert said in page
    assert len(STARTS) < FEW_PROMPTS


def scored(path: Path, digits: int = 7, k: int = 8) -> tuple[Path, np.ndarray]:
    """The log of a drafter that scored prompt and answer again, and its full distributions."""
    dist, emitted = stored()
    rng = np.random.default_rng(7)
    q = np.zeros((100, V))
    np.put_along_axis(q, dist.ids, dist.probs * np.exp(0.4 * rng.normal(size=(100, V))), axis=1)
    q /= q.sum(axis=1, keepdims=True)
    draft = TopK.from_probabilities(q)
    question = [
        (1, list(zip(range(k), np.round(np.log(np.full(k, 0.1)), 3).tolist(), strict=True)))
    ]
    lines = [
        line
        for name, answer in answers(draft, emitted, STARTS, k, digits)
        for line in engine_logs.vllm_prompt(f"other-{name}", question * 3 + answer)
    ]
    path.write_text("\n".join(lines).replace('"model": "m"', '"model": "small"'))
    return path, q


def test_a_drafter_that_scored_the_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "answers.jsonl", "vllm completions", k=9)
    other, q = scored(tmp_path / "scored.jsonl")
    dist, _ = stored()
    p = np.zeros((100, V))
    np.put_along_axis(p, dist.ids, dist.probs, axis=1)
    command = ["study=log", "study_name=pair", f"targets.log.path={path}", "drafter=log",
               f"drafter.path={other}", f"distributions.log.vocab_size={V}",
               f"outputs={tmp_path / 'out'}", "statistics.resamples=20"]  # fmt: skip
    printed = pipeline(*command).stdout
    assert "100 steps of 4 trajectories, 9 and 8 log-probabilities; left out: none" in printed
    (place,) = (tmp_path / "out/artifacts/drafts").glob("log-*")
    found = Artifact(place).read("logged").to_pydict()
    tv, true = total_variation(np.log(p), np.log(q)), kl(np.log(p), np.log(q))
    assert np.all((np.array(found["tv_low"]) <= tv) & (tv <= np.array(found["tv_high"])))
    assert np.all((np.array(found["kl_low"]) <= true) & (true <= np.array(found["kl_high"])))
    assert found["draft_token_id"] == q.argmax(axis=1).tolist()
    (place,) = (tmp_path / "out/artifacts/acceptance").glob("log-*")
    rows = {
        (row["rule"], row["statistic"]): row
        for row in Artifact(place).read("statistics").to_pylist()
    }
    greedy = rows["greedy", "acceptance"]
    share = np.mean(q.argmax(axis=1) == p.argmax(axis=1))
    assert greedy["value"] == greedy["optimistic"] == pytest.approx(share)
    assert 0 < rows["greedy", "certified_tv"]["value"] <= share
    solve.main([*command, "solve.eps=0.01", "solve.tokens=1.1", "solve.engine=vllm"])
    said = capsys.readouterr().out
    assert "vllm serve m --speculative-config" in said  # what the log names, not its path
    assert '"model": "small"' in said
    solve.main([*command, "solve.eps=0.01", "solve.tokens=1.1"])
    said = capsys.readouterr().out
    assert "log: mars is left out: it takes raw logits, which a log does not have" in said
    assert "log: tree is left out: it takes 33 log-probabilities a step, and the log has 9" in said
    assert re.search(r"absolute +certified +1.1 tokens, drafts of any length +theta +0\.\d", said)
    page = page_text(tmp_path / "out/report/pair")
    assert "Will log-drafter be accepted?" in page
    assert "scored.jsonl" in page
    lists = [(token, math.log(0.1)) for token in range(8)]
    other.write_text(engine_logs.vllm_prompt("x", [(5, lists)] * 50)[0])
    done = pipeline(*command, "stage=drafts", check=False)
    assert "scored.jsonl has none of the 4 trajectories of" in done.stderr
