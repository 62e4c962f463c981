"""The study of an engine's log, and how far its values are from another pass of the model."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from analysis import RuleError, TopK, certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Resampling
from pipeline import solve
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Artifact
from pipeline.inputs.artifact_readers import read_distributions, resampled
from pipeline.stages.distributions import STAGE
from pipeline.study import Study
from tests.analysis.test_truncation import V
from tests.conftest import pipeline
from tests.pipeline import test_engine_logs as logs
from tests.pipeline.reading import page_text


def test_pieces_and_answers_of_a_prompt_are_resampled_together(tmp_path):
    path = logs.written(tmp_path / "log")
    prompts = ([1, 2], [3], [1, 2], [4])
    rows = [
        {"custom_id": f"c{at}", "request": {"prompt": prompt}, "response": json.loads(line)}
        for at, (prompt, line) in enumerate(
            zip(prompts, path.read_text().splitlines(), strict=True)
        )
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(logs.sizes(logs.read(path))) == ["c0", "c1", "c0#1", "c3"]
    ids = ["a", "a", "a+3", "a#1", "b", "b+2", "c#12", "c#13"]
    steps = pa.table({"prompt_id": ids, "position": [0, 1, 0, 0, 0, 0, 0, 0]})
    for settings, count in (({"log": {}}, 4), ({}, 7)):  # of a model every answer is a prompt
        task = SimpleNamespace(settings=settings)
        trajectories, bootstrap = resampled(steps, task, Resampling(50, 0.9, 0))
        assert (bootstrap.count, len(trajectories.starts)) == (count, 7)
        assert bootstrap.weights.shape == (50, count)
        np.testing.assert_array_equal(bootstrap.weights.sum(axis=1), count)


def outside(log, error, exact, rules, vocab_size):
    """The share of certificates that intervals from a smaller error do not hold."""
    narrow = certify(logs.read_back(replace(log, error=error), vocab_size), rules)
    return np.mean((narrow.lower > exact.lower) | (narrow.upper < exact.upper))


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
    path = logs.logged(
        tmp_path / "log", logs.steps_of((z + shift).astype(np.float64)), logs.llama_completion
    )
    log = logs.read(path, vocab_size=size)
    assert log.error == pytest.approx(size * 2.0**-24)
    assert logs.contained(certify(logs.read_back(log, size), StrictGreedy()), exact)
    assert outside(log, 1e-6, exact, StrictGreedy(), size) > 0.5


@pytest.mark.parametrize("digits", [6, 4])
def test_another_float32_pass_lies_inside(digits, tmp_path):
    """Passes of a model differ by up to 9e-5 nats; of their certificates 1e-6 holds few."""
    rng = np.random.default_rng(2)
    z = np.sort(rng.gumbel(size=(400, V)) * 3)[:, ::-1]
    other = z + rng.uniform(-4.5e-5, 4.5e-5, z.shape)  # log-probabilities differ by twice as much
    exact = certify(TopK.from_logits(other), logs.RULES)
    steps = logs.steps_of(np.round(logs.log_softmax(z), digits))
    log = logs.read(logs.logged(tmp_path / "log", steps, logs.vllm_completions))
    assert logs.contained(certify(logs.read_back(log, V), logs.RULES), exact)
    assert outside(log, 0.5 * 10.0**-digits, exact, logs.RULES, V) > 0.1 * (digits - 4)


@pytest.mark.thorough
def test_the_study_of_a_log(tmp_path, capsys):
    path = logs.written(tmp_path / "answers.jsonl", logs.vllm_completions, k=9, share=0.2)
    command = ["study=log", "study_name=mine", f"targets.log.path={path}",
               f"outputs={tmp_path / 'out'}", "statistics.resamples=20",
               f"distributions.log.vocab_size={V}"]  # fmt: skip
    for more, message in {
        "distributions.log.vocab_size=null": r"distributions\.log\.vocab_size must be given",
        "criteria=mars": r"mars theta=0\.9 can't be certified with distributions\.source=logs",
        "certificates.temperature=0.5": r"certificates\.temperature=0\.5 is not allowed with",
        "drafter=mini": "drafter mini-drafter is not allowed with distributions.source=logs",
        "criteria=tree criteria.m=12": "needs the 13 most probable tokens of every step, and K=9",
        f"distributions.log.vocab_size={V - 20}": r"answers\.jsonl has token id",
    }.items():
        with pytest.raises((PipelineError, RuleError), match=message):
            Study(*command, *more.split(), "stage=certificates").make("certificates")
    pipeline(*command)
    dist, emitted = logs.stored()
    (place,) = (tmp_path / "out/artifacts/distributions").glob("log-*")
    artifact = Artifact(place, STAGE.tables)
    assert artifact.read(columns=["token_id"])["token_id"].to_pylist() == emitted.tolist()
    assert logs.contained(
        certify(read_distributions(artifact), logs.RULES), certify(dist, logs.RULES)
    )
    assert "taken as raw" in page_text(tmp_path / "out/report/mine")
    capsys.readouterr()
    solve.main([*command, "solve.eps=0.01", "solve.tokens=1.1"])
    said = capsys.readouterr().out
    assert "log: mars is left out: it takes raw logits, which a log does not have" in said
    assert "log: tree is left out: it takes 33 log-probabilities a step, and the log has 9" in said
    assert re.search(r"absolute +any drafter within 0\.01 .*0\.\d", said)
