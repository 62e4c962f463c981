"""`analysis` as a library: names, rules by text, tables, a drafter from logits, errors."""

import json
import re
import subprocess
import sys
from collections import UserList
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import analysis
from analysis import (
    RuleError,
    Steps,
    TopK,
    certify,
    judge,
    prompt_bootstrap,
    rules,
    typical_acceptance,
)
from analysis.acceptance.drafter import rule_statistics
from analysis.certificates.certify import extremal_draft
from analysis.rule_text import rule_from, rules_from
from analysis.statistics.bootstrap import PromptBootstrap, summarise
from analysis.statistics.prompts import positions
from tests.analysis.cases import RULES, drafted_steps, noisy
from tests.divergences import compare_logits

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [7, 5, 9, 3]
LABELS = np.repeat(["d", "a", "c", "b"], LENGTHS)
Z, W = noisy(sum(LENGTHS), 12, 3.0, 1.0, 0)
DIST = TopK.from_logits(Z, 6)
# the libraries that a user of `analysis` need not have
ABSENT = ("torch", "transformers", "tokenizers", "datasets", "hydra", "omegaconf", "matplotlib")


def first_lines():
    """The program that docs/library.md begins with."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.S)[0]


@pytest.mark.thorough
def test_the_first_lines_run_without_torch_and_hydra():
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + first_lines()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "greedy" in done.stdout
    assert "acceptance" in done.stdout


def test_the_first_lines_are_ten_and_those_of_the_notebook():
    lines = [line for line in first_lines().splitlines() if line and not line.startswith("#")]
    assert len(lines) == 10
    cells = json.loads((ROOT / "notebooks/02_certificates.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells[3:4]] == [first_lines().strip()]


def test_names_complete_and_lead_somewhere():
    assert {"TopK", "certify", "Steps", "rules"} <= set(dir(analysis))
    for name in dir(analysis):
        assert getattr(analysis, name) is not None
    with pytest.raises(AttributeError, match="certfy"):
        _ = analysis.certfy


@pytest.mark.parametrize("rule", [*RULES, rules.Typical(0.1, 0.09)], ids=lambda rule: rule.label)
def test_a_rule_by_its_text_is_the_rule(rule):
    values = ",".join(map(str, rule.parameters.values()))
    assert rule_from(f"{rule.name}:{values}" if values else rule.name) == rule
    assert rule_from(rule.label) == rule  # as tables print it
    assert rules_from((rule, rule.label)) == [rule, rule]
    assert rule_from({"rule": rule.name, **rule.parameters}) == rule


def test_numpy_scalars_are_parameters():
    assert rules.TopMAdditive(np.int64(3), np.float64(0.25)) == rules.TopMAdditive(3, 0.25)
    assert isinstance(rules.Tree(m=np.int32(2)).m, int)


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_the_ends_of_a_parameter_are_allowed(edge):
    assert rules.Additive(edge).t == edge
    with pytest.raises(RuleError, match="t="):
        rules.Additive(np.nextafter(edge, 3 * edge - 1))


WRONG = [
    (lambda: certify(DIST, np.int64(3)), RuleError, "np.int64(3)"),
    (lambda: certify(DIST, torch.tensor(3)), RuleError, "tensor(3)"),
    (lambda: certify(DIST, Z), RuleError, "ndarray of shape (24, 12)"),
    (lambda: certify(DIST, torch.eye(2)), RuleError, "Tensor of shape (2, 2)"),
    (lambda: certify(DIST, []), RuleError, "no rule"),
    (lambda: certify(DIST), RuleError, "no rule"),
    (lambda: certify(DIST, "gredy"), RuleError, "'gredy' is not known (did you mean greedy?)"),
    (lambda: certify(DIST, ["greedy", "additive"]), RuleError, "'t' is missing"),
    (lambda: certify(DIST, "additive:x"), RuleError, "'x' is not a number"),
    (lambda: certify(DIST, "additive:0.1,0.2"), RuleError, "0.2"),
    (lambda: certify(DIST, "additive:q=0.1"), RuleError, "q=0.1"),
    (lambda: certify(DIST, rules.Additive), RuleError, "Additive is a class"),
    (lambda: certify(DIST, "tree:6"), RuleError, "set k to 7"),
    (lambda: certify(Z, "greedy"), ValueError, "TopK.from_logits"),
    (lambda: certify(torch.eye(2), "greedy"), ValueError, "dist is Tensor"),
    (lambda: certify(DIST, "greedy", accepted=[True] * 12), ValueError, "accepted"),
    (lambda: certify(DIST, "greedy").table(LABELS[:-1]), ValueError, "prompts has 23"),
    (lambda: rules.Additive(1.5), RuleError, "rule additive: t=1.5"),
    (lambda: rules.Additive(t=np.eye(2)), RuleError, "t=array"),
    (lambda: rules.Additive(torch.eye(2)), RuleError, "t=tensor"),
    (lambda: rules.TopMAdditive(2.5, 0.1), RuleError, "m=2.5"),
    (lambda: rules.StrictGreedy(1), RuleError, "no parameters"),
    (lambda: TopK.from_logits(Z, 2.5), ValueError, "k=2.5"),
    (lambda: TopK.from_logits(Z, 13), ValueError, "k=13"),
    (lambda: extremal_draft([0.5, 0.5], 1), RuleError, "1 is not a rule"),
    (lambda: Steps.from_logits(Z, W[:3]), ValueError, "draft_logits (3, 12)"),
    (lambda: Steps.from_logits(Z, Z + np.nan), ValueError, "draft_logits: the largest"),
    (lambda: Steps.from_logits("z", W), ValueError, "target_logits is"),
    (lambda: Steps.from_logits(Z, W, temperature=0), ValueError, "temperature=0"),
    (lambda: Steps.from_logits(Z, W, ["a", "b"] * 12), ValueError, "prompt of step 2"),
    (lambda: Steps.from_logits(Z, W, "a"), ValueError, "prompts is 'a'"),
    (lambda: Steps.from_logits(Z, W, [None] * 24), ValueError, "step 0 has no label"),
    (lambda: judge(Steps.from_logits(Z, W), 3), RuleError, "3 is not a rule"),
    (lambda: prompt_bootstrap(LABELS, resamples=0), ValueError, "resamples=0"),
    (lambda: prompt_bootstrap(LABELS, confidence=1), ValueError, "confidence=1"),
    (lambda: TopK.from_logits(Z, True), ValueError, "k=True"),
    (lambda: TopK.from_logits(Z, temperature="1"), ValueError, "temperature='1'"),
    (lambda: TopK.from_logits(torch.eye(2).to(torch.complex128)), ValueError, "logits is complex"),
    (lambda: TopK.from_logits([[1.0], [1.0, 2.0]]), ValueError, "logits is [[1.0], [1.0, 2.0]]"),
    (lambda: TopK.from_log_probs([[0]], [[-1]], 0, None), ValueError, "vocab_size=None"),
    (lambda: TopK.from_log_probs([[0]], [[-1]], 0, True), ValueError, "vocab_size=True"),
    (lambda: TopK.from_log_probs([[0.7]], [[-1]], 0, 9), ValueError, "ids are float64"),
    (lambda: TopK.from_log_probs([[1 << 32]], [[-1]], 0, 9), ValueError, "ids has 4294967296"),
    (lambda: TopK.from_log_probs([[1, 1]], [[-1, -2]], 0, 9), ValueError, "token twice"),
    (lambda: TopK.from_log_probs([[1]], [[-1]], "x", 9), ValueError, "error is 'x'"),
    (lambda: typical_acceptance(DIST, "greedy", 0.1, draws=True), ValueError, "draws=True"),
    (lambda: typical_acceptance(DIST, "greedy", 0.1, seed=1.5), ValueError, "seed=1.5"),
    (lambda: prompt_bootstrap(LABELS, resamples=1.5), ValueError, "resamples=1.5"),
    (lambda: prompt_bootstrap(LABELS, seed=-1), ValueError, "seed=-1"),
    (lambda: prompt_bootstrap([[1], [2]]), ValueError, "prompts: give labels"),
    (lambda: certify(DIST, "additive t=0.3 t=0.4"), RuleError, "t twice"),
    (lambda: Steps.from_logits(Z[:0], W[:0]).table("greedy"), ValueError, "no steps"),
]


@pytest.mark.parametrize(("call", "kind", "named"), WRONG, ids=[named for *_, named in WRONG])
def test_an_error_is_one_line_that_names_what_is_wrong(call, kind, named):
    with pytest.raises(ValueError, match=re.escape(named)) as caught:
        call()
    assert caught.type is kind
    assert "\n" not in str(caught.value)
    assert not re.search(r"distributions\.|pydantic", str(caught.value))


MASKED = np.ma.masked_array([[3.0, 2.0, 1.0, 0.0]], mask=[[0, 0, 0, 1]])
IDS = np.ma.masked_array([[0, 1]], mask=[[0, 1]])
FOUR = TopK.from_logits(MASKED.data)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("logits", lambda: TopK.from_logits(MASKED)),
        ("logits", lambda: TopK.from_logits([MASKED[0]])),
        ("p", lambda: TopK.from_probabilities(MASKED / 6)),
        ("p", lambda: extremal_draft(MASKED[0] / 6, "greedy")),
        ("ids", lambda: TopK.from_log_probs(IDS, [[-1, -2]], 0.1, 9)),
        ("log_probs", lambda: TopK.from_log_probs([[0, 1]], IDS - 1.0, 0.1, 9)),
        ("error", lambda: TopK.from_log_probs([[0, 1]], [[-1, -2]], 0.1 * IDS, 9)),
        ("draft_logits", lambda: Steps.from_logits(MASKED.data, MASKED)),
        ("accepted", lambda: certify(FOUR, accepted=MASKED > 0)),
        ("kl", lambda: typical_acceptance(FOUR, "greedy", MASKED[0, 3:])),
        ("prompts", lambda: prompt_bootstrap(MASKED[0])),
    ],
)
def test_masked_values_are_refused_by_name(name, call):
    with pytest.raises(ValueError, match=f"^{name} has masked values"):
        call()


def test_arrays_of_any_class_are_their_numbers():
    z = FOUR.logits
    half = torch.tensor(z[0]).bfloat16()
    for given in (np.ma.masked_array(z), z.view(np.matrix), [half], torch.tensor(z).to_sparse()):
        found = TopK.from_logits(given)
        assert type(found.logits) is np.ndarray
        np.testing.assert_array_equal(found.probs, TopK.from_logits(z.astype(np.float32)).probs)
    assert prompt_bootstrap(half).count == 4


def test_several_rules_are_any_sequence():
    assert typical_acceptance(FOUR, UserList(["greedy", "tree:2"]), 0.1).shape == (1, 2)
    assert typical_acceptance(FOUR, UserList(["greedy"]), 0.1).shape == (1, 1)


def test_a_frame_has_every_certificate():
    found = certify(DIST, ["greedy", "absolute:0.0", "tree:3"])
    frame = found.frame()
    assert len(frame) == 3 * len(DIST)
    for at, label in enumerate(("greedy", "absolute theta=0", "tree m=3")):
        rows = frame[frame["rule"] == label]
        assert rows["step"].tolist() == list(range(len(DIST)))
        np.testing.assert_array_equal(rows["lower"], found.lower[:, at])
        np.testing.assert_array_equal(rows["upper"], found.upper[:, at])
        np.testing.assert_array_equal(rows["active_size"], found.active_size[:, at])
    count = frame.set_index("rule")["accepted_count"]
    assert (count["greedy"] == 1).all()
    assert count["tree m=3"].isna().all()  # a tree accepts no number of ranks
    assert count["absolute theta=0"].isna().all()  # nor is the number known behind rank 6
    sets = certify(DIST, accepted=np.arange(12) < 5).frame()
    assert set(sets["rule"]) == {"accepted"}


def test_a_table_has_the_columns_of_table_2():
    found = certify(DIST, ["greedy", "additive:0.9"])
    plain, table = found.table(), found.table(LABELS)
    assert list(plain) == ["steps", "mean", "median", "p5", "p25", "empty", "inexact"]
    prompts = np.repeat(np.arange(4), LENGTHS)
    for at, rule in enumerate((rules.StrictGreedy(), rules.Additive(0.9))):
        bootstrap = PromptBootstrap(prompts, 1000, 0.95, 0)
        for name, ends in summarise(found.lower[:, at], rule.ceiling, bootstrap).items():
            row = table.loc[rule.label]
            assert row[name] == ends.value == pytest.approx(plain.loc[rule.label, name])
            assert [row[f"{name}_ci_low"], row[f"{name}_ci_high"]] == [*ends[1:]]
    assert (table["empty"] > 0).tolist() == [False, True]


@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_steps_from_logits_are_those_of_the_plain_formulas(given, masked, rounded):
    z, w = noisy(90, 40, 3.0, 0.5, 3)
    w[60:] = z[60:] + 1e-6 * w[60:]  # a KL of about 1e-12
    if rounded:  # ties
        z, w = z.round(), w.round()
    if masked:
        z[:, 3:6] = w[:, 5:9] = -np.inf
        w[30:, 6:9] = 0.0
        w[30:, 5] = z[30:, 5]
    if isinstance(given, torch.dtype):
        z, w = (torch.from_numpy(x).to(given) for x in (z, w))
        steps = Steps.from_logits(z, w, k=8)
        z, w = (x.to(torch.float32).numpy() for x in (z, w))
    else:
        z, w = z.astype(given), w.astype(given)
        steps = Steps.from_logits(z, w, k=8)
    wanted = compare_logits(z, w)
    np.testing.assert_array_equal(steps.draft_rank, wanted.draft_rank)
    np.testing.assert_array_equal(steps.argmax_rank, wanted.argmax_rank)
    np.testing.assert_allclose(steps.draft_log_prob, wanted.draft_log_prob, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(steps.kl, wanted.kl, rtol=1e-9, atol=1e-18)
    assert masked == np.isinf(steps.kl).any()
    assert not any(len(found.violations) for found in judge(steps, RULES))


def test_steps_of_a_temperature_and_of_many_rows():
    z, w = noisy(3000, 900, 3.0, 0.5, 4)  # of more than one chunk
    steps = Steps.from_logits(z, w, k=2, temperature=2.0)
    wanted = compare_logits(z / 2, w / 2)
    np.testing.assert_allclose(steps.kl, wanted.kl, rtol=1e-11)
    np.testing.assert_array_equal(steps.draft_rank, wanted.draft_rank)
    assert steps.target.temperature == 2.0
    assert len(Steps.from_logits(z[0], w[0])) == 1
    assert Steps.from_logits(z[:5], z[:5]).kl.tolist() == [0.0] * 5


def test_a_drafters_table_has_the_statistics_of_the_stage():
    steps = Steps.from_logits(Z, W, LABELS)
    wanted, _ = drafted_steps(Z, W, 12, LENGTHS)
    np.testing.assert_array_equal(steps.position, wanted.position)
    bootstrap = PromptBootstrap(wanted.trajectories.answer_index, 1000, 0.95, 0)
    table = steps.table(["greedy", "tree:2"])
    for judgement in judge(wanted, ["greedy", "tree:2"]):
        for row in rule_statistics(wanted, judgement, bootstrap):
            found = table.loc[judgement.rule.label]
            name = row["statistic"]
            columns = [name, f"{name}_ci_low", f"{name}_ci_high"]
            ends = [row[end] for end in ("value", "ci_low", "ci_high")]
            np.testing.assert_allclose(found[columns].astype(float), ends, rtol=1e-9)
    alone = Steps.from_logits(Z, W).table("greedy")
    assert not [name for name in alone if name.endswith("ci_low")]


KINDS = [
    LABELS,
    LABELS.tolist(),
    pd.Series(LABELS, index=range(100, 124)),
    pd.Categorical(LABELS),
    [("prompt", label) for label in LABELS],
    [{"d": 3, "a": None.__class__, "c": "c", "b": 2.5}[label] for label in LABELS],
    np.repeat([40, 30, -2, 7], LENGTHS),
    torch.repeat_interleave(torch.tensor([4, 3, 2, 7]), torch.tensor(LENGTHS)),
]


@pytest.mark.parametrize("labels", KINDS, ids=lambda labels: type(labels).__name__)
def test_prompts_are_labels_of_any_kind(labels):
    bootstrap = prompt_bootstrap(labels, 20)
    assert bootstrap.count == 4
    assert sorted(bootstrap.answer_steps) == sorted(LENGTHS)
    expected = np.concatenate([np.arange(length) for length in LENGTHS])
    np.testing.assert_array_equal(positions("prompts", labels, 24), expected)


def test_numbers_of_prompts_stay_as_they_are():
    prompts = np.repeat([2, 0, 1], [3, 1, 2])
    given, wanted = prompt_bootstrap(prompts, 30, 0.9, 5), PromptBootstrap(prompts, 30, 0.9, 5)
    np.testing.assert_array_equal(given.answer_index, prompts)
    np.testing.assert_array_equal(given.weights, wanted.weights)
