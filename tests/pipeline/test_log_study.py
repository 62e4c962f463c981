"""The study of an engine's log, and of a drafter's log beside it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis import TopK, certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import FEW_PROMPTS
from pipeline import solve
from pipeline.stages.report.setups import WORDS
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_distributions
from tests.analysis.test_rounded import V
from tests.conftest import pipeline
from tests.divergences import kl, total_variation
from tests.pipeline import engine_formats
from tests.pipeline.engine_formats import answers, read_back
from tests.pipeline.reading import page_text
from tests.pipeline.test_engine_logs import RULES, STARTS, contained, logged, read, stored, written


@pytest.mark.thorough
def test_the_study_of_a_log(tmp_path: Path) -> None:
    path = written(tmp_path / "answers.jsonl", "vllm completions", k=9)
    command = ["study=log", "study_name=mine", f"targets.log.path={path}",
               f"outputs={tmp_path / 'out'}", "statistics.resamples=20"]  # fmt: skip
    refused = pipeline(*command, "distributions.log.vocab_size=null", check=False)
    assert "error: distributions.log.vocab_size must be given" in refused.stderr
    command.append(f"distributions.log.vocab_size={V}")
    printed = ""
    for more, message in {
        "criteria=mars": "error: mars theta=0.9 can't be certified with distributions.source=logs",
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
    known = {"log": "answers.jsonl", "k": 9, "vocab_size": 60, "log_prob_error": 1e-6}
    for name, value in known.items():
        assert f"| {WORDS[f'distributions.{name}']} | {value} |" in page
    assert "taken as raw" in page
    said = (tmp_path / "out/report/mine/timings/verdict.md").read_text()
    assert said == "Not measured for log: nothing was decoded with a drafter and timed.\n"
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
        for line in engine_formats.vllm_prompt(f"other-{name}", question * 3 + answer)
    ]
    path.write_text("\n".join(lines).replace('"model": "m"', '"model": "small"'))
    return path, q


@pytest.mark.thorough
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
    assert "Not measured for log: nothing was decoded with a drafter and timed." in said
    assert "log: mars is left out: it takes raw logits, which a log does not have" in said
    assert "log: tree is left out: it takes 33 log-probabilities a step, and the log has 9" in said
    assert re.search(r"absolute +any drafter within 0\.01 .*0\.\d", said)
    page = page_text(tmp_path / "out/report/pair")
    assert "Will log-drafter be accepted?" in page
    assert "scored.jsonl" in page
    lists = [(token, math.log(0.1)) for token in range(8)]
    other.write_text(engine_formats.vllm_prompt("x", [(5, lists)] * 50)[0])
    done = pipeline(*command, "stage=drafts", check=False)
    assert "scored.jsonl has none of the 4 trajectories of" in done.stderr


def test_a_sum_of_float32_in_one_pass(tmp_path: Path) -> None:
    """llama.cpp adds the vocabulary up one by one, largest first: small terms vanish."""
    size, rng = 49152, np.random.default_rng(0)
    z = rng.normal(size=(30, size)) * rng.uniform(1.5, 4, (30, 1))
    z[:, :20] += rng.gamma(2, 3, size=(30, 20)) + 9
    z = z.astype(np.float32)
    ranked = -np.sort(-z, axis=1)
    p = np.exp(ranked - ranked[:, :1])
    total = np.cumsum(p, axis=1, dtype=np.float32)[:, -1:]
    shift = np.log(p[:, :1] / total) - ranked[:, :1]
    exact = certify(TopK.from_logits(z), StrictGreedy())
    path = logged(tmp_path / "log", (z + shift).astype(np.float64), engine="llama.cpp completion")
    log = read(path, vocab_size=size)
    assert log.error == size * 2.0**-24
    assert contained(certify(read_back(log, size), StrictGreedy()), exact)
    narrow = certify(read_back(replace(log, error=1e-6), size), StrictGreedy())
    outside = (narrow.lower > exact.lower) | (narrow.upper < exact.upper)
    assert np.mean(outside) > 0.5
