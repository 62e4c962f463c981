"""The study of an engine's log."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from analysis import RuleError, TopK, certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import FEW_PROMPTS, Resampling
from pipeline import solve
from pipeline.errors import PipelineError
from pipeline.stage import Artifact
from pipeline.stages.distributions import STAGE
from pipeline.stages.report.setups import WORDS
from pipeline.stored import read_distributions, resampled
from pipeline.study import Study
from tests.analysis.test_truncation import V
from tests.conftest import pipeline
from tests.pipeline.reading import page_text
from tests.pipeline.test_engine_logs import (
    RULES,
    STARTS,
    contained,
    log_softmax,
    logged,
    read,
    read_back,
    stored,
    written,
)


@pytest.mark.thorough
def test_the_study_of_a_log(tmp_path, capsys):
    path = written(tmp_path / "answers.jsonl", "vllm completions", k=9)
    command = ["study=log", "study_name=mine", f"targets.log.path={path}",
               f"outputs={tmp_path / 'out'}", "statistics.resamples=20"]  # fmt: skip
    command.append(f"distributions.log.vocab_size={V}")
    for more, message in {
        "distributions.log.vocab_size=null": r"distributions\.log\.vocab_size must be given",
        "criteria=mars": r"mars theta=0\.9 can't be certified with distributions\.source=logs",
        "certificates.temperature=0.5": r"certificates\.temperature=0\.5 is not allowed with",
        "targets.log.path=nothing.jsonl": r"targets\.log\.path=nothing\.jsonl: there is no such",
        "drafter=mini": "drafter mini-drafter is not allowed with distributions.source=logs",
        "criteria=tree criteria.m=12": "needs the 13 most probable tokens of every step, and K=9",
        f"distributions.log.vocab_size={V - 20}": r"answers\.jsonl has token id",
    }.items():
        with pytest.raises((PipelineError, RuleError), match=message):
            Study(*command, *more.split(), "stage=certificates").make("certificates")
    pipeline(*command)
    printed = capsys.readouterr().out
    assert "100 steps of 4 answers, 9 log-probabilities each, off by at most 0.0001" in printed
    dist, emitted = stored()
    (place,) = (tmp_path / "out/artifacts/distributions").glob("log-*")
    artifact = Artifact(place, STAGE.tables)
    found = read_distributions(artifact)
    assert artifact.read(columns=["token_id"])["token_id"].to_pylist() == emitted.tolist()
    assert contained(certify(found, RULES), certify(dist, RULES))
    page = page_text(tmp_path / "out/report/mine")
    known = {"log": "answers.jsonl", "k": 9, "vocab_size": 60, "log_prob_error": 0.0001}
    for name, value in known.items():
        assert f"| {WORDS[f'distributions.{name}']} | {value} |" in page
    assert "taken as raw" in page
    sentence, relax, length, worth = (
        (tmp_path / "out/report/mine/timings/verdict.md").read_text().splitlines()
    )
    assert sentence.startswith("A log of m tells how much drafter error it tolerates, not whether")
    assert "vLLM and llama.cpp run no relaxed rule" in relax
    assert "pipeline.engine alone.jsonl drafted.jsonl" in length
    assert "The two runs above decide" in worth
    assert len(STARTS) < FEW_PROMPTS
    asked = ["solve.eps=0.01", "solve.tokens=1.1"]
    solve.main([*command, *asked])
    said = capsys.readouterr().out
    assert "log: mars is left out: it takes raw logits, which a log does not have" in said
    assert "log: tree is left out: it takes 33 log-probabilities a step, and the log has 9" in said
    assert re.search(r"absolute +any drafter within 0\.01 .*0\.\d", said)


def test_pieces_and_choices_of_a_prompt_are_resampled_together():
    ids = ["a", "a", "a+3", "a#1", "b", "b+2", "c#12", "c#13"]
    steps = pa.table({"prompt_id": ids, "position": [0, 1, 0, 0, 0, 0, 0, 0]})
    for settings, prompts in (({"log": {}}, 4), ({}, 7)):  # of a model every answer is a prompt
        task = SimpleNamespace(settings=settings)
        trajectories, bootstrap = resampled(steps, task, Resampling(50, 0.9, 0))
        assert (bootstrap.count, len(trajectories.starts)) == (prompts, 7)
        assert bootstrap.weights.shape == (50, prompts)
        np.testing.assert_array_equal(bootstrap.weights.sum(axis=1), prompts)


def test_a_sum_of_float32_in_one_pass(tmp_path):
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
    assert log.error == pytest.approx(size * 2.0**-24)
    assert contained(certify(read_back(log, size), StrictGreedy()), exact)
    narrow = certify(read_back(replace(log, error=1e-6), size), StrictGreedy())
    outside = (narrow.lower > exact.lower) | (narrow.upper < exact.upper)
    assert np.mean(outside) > 0.5


@pytest.mark.parametrize("digits", [6, 4])
def test_another_float32_pass_lies_inside(digits, tmp_path):
    """Passes of a model differ by up to 9e-5 nats; of their certificates 1e-6 holds few."""
    rng = np.random.default_rng(2)
    z = np.sort(rng.gumbel(size=(400, V)) * 3)[:, ::-1]
    other = z + rng.uniform(-4.5e-5, 4.5e-5, z.shape)  # log-probabilities differ by twice as much
    exact = certify(TopK.from_logits(other), RULES)
    values = np.round(log_softmax(z), digits)
    log = read(logged(tmp_path / "log", values, engine="vllm completions"))
    assert contained(certify(read_back(log, V), RULES), exact)
    narrow = certify(read_back(replace(log, error=0.5 * 10.0**-digits), V), RULES)
    outside = (narrow.lower > exact.lower) | (narrow.upper < exact.upper)
    assert np.mean(outside) > 0.1 * (digits - 4)
