"""Distributions that stay in their file: the same steps, in parts, and few of them held."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.acceptance import judgement
from analysis.acceptance.judgement import judge
from analysis.acceptance.parameter_range import build_range
from analysis.acceptance.solve import Goal, solve, solve_accepted, solve_all
from analysis.rules import StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline.core.stage import Out
from pipeline.inputs import artifact_readers as stored
from pipeline.stages import acceptance
from pipeline.stages.report import inputs as report_inputs
from pipeline.stages.report.inputs import ByRule, read_content
from pipeline.study import Study

COLUMNS = ("ids", "logits", "top_surprisal", "log_tail", "entropy")


@pytest.fixture(scope="module")
def study(small_study):
    return Study(*small_study.overrides)


@pytest.fixture
def artifact(study):
    return study.artifact("distributions", study.targets[0])


def holding(artifact, monkeypatch, steps):
    """Distributions of which at most so many steps are held."""
    made = stored.StoredDistributions(artifact)
    monkeypatch.setattr(stored, "MAX_HELD", steps * made.k)
    return made


def assert_equal(found, wanted):
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("held", [0, 20, 10**9])
def test_parts_are_the_steps_that_are_wanted(artifact, monkeypatch, held, share):
    whole, made = stored.read_distributions(artifact), holding(artifact, monkeypatch, held)
    wanted = np.random.default_rng(0).random(len(whole)) < share
    for _ in range(2):  # read, and held
        found = list(made.parts(wanted))
        at = np.concatenate([np.zeros(0, int), *(steps for steps, _ in found)])
        np.testing.assert_array_equal(at, np.flatnonzero(wanted))
        for steps, part in found:
            assert_equal(part, whole[steps])
    np.testing.assert_array_equal(
        np.concatenate([x for x, _ in made.parts()]), np.arange(len(made))
    )
    np.testing.assert_array_equal(made.top_probability, whole.top_probability)
    assert (len(made), made.k) == (len(whole), whole.k)


def test_steps_that_are_held_are_not_read_again(artifact, monkeypatch):
    made = holding(artifact, monkeypatch, 20)
    wanted = np.zeros(len(made), dtype=bool)
    wanted[3:23] = True
    list(made.parts(wanted))
    monkeypatch.setattr(type(artifact), "batches", lambda *_: pytest.fail("read again"))
    wanted[10:] = False
    ((steps, _),) = made.parts(wanted)
    assert steps.tolist() == list(range(3, 10))
    wanted[23] = True
    with pytest.raises(pytest.fail.Exception, match="read again"):
        list(made.parts(wanted))


@pytest.mark.parametrize("held", [0, 50])
def test_searches_and_judgements_do_not_depend_on_where_the_steps_are(
    study, artifact, monkeypatch, held
):
    whole, made = stored.read_distributions(artifact), holding(artifact, monkeypatch, held)
    task, drafts = (
        study.task("distributions", study.targets[0]),
        study.artifact("drafts", study.targets[0]),
    )
    table = artifact.read(columns=["prompt_id", "position"])
    steps, bootstrap = stored.resampled(table, task, study.statistics)
    ranges = [build_range({"rule": name}) for name in ("additive", "absolute", "tree")]
    goals = [Goal(0.5), Goal(0.9), Goal(1.5, True, 3)]
    together = solve_all(made, ranges, 0.05, goals, bootstrap, steps)
    alone = [solve(whole, searched, 0.05, goals, bootstrap, steps) for searched in ranges]
    assert str(together) == str(alone)  # NaN is NaN
    drafted = stored.read_steps(drafts)
    assert isinstance(drafted.target, stored.StoredDistributions)
    in_memory = replace(drafted, target=stored.read_distributions(drafts))
    for searched in ranges:
        pair = [solve_accepted(of, searched, goals, bootstrap) for of in (drafted, in_memory)]
        assert str(pair[0]) == str(pair[1])
    rules = [StrictGreedy(), Tree(2)]
    names = ("lower", "upper", "accepted", "certified")
    for one, other in zip(judge(drafted, rules), judge(in_memory, rules), strict=True):
        for name in names:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        held = sum(getattr(one, name).itemsize for name in names)
        assert held == judgement.judgement_bytes(depths=1)
    np.testing.assert_array_equal(drafted.given_up, in_memory.given_up)


def test_what_is_stored_by_rule_is_read_when_asked_and_the_last_are_held(monkeypatch):
    read = []
    monkeypatch.setattr(report_inputs, "HELD", 2 * 10 * judgement.judgement_bytes())
    rules = {rule.label: rule for rule in (StrictGreedy(), Tree(2), Tree(4))}
    by_rule = ByRule(rules, 10, lambda rule: read.append(rule.label) or rule.label)
    assert (len(by_rule), list(by_rule), read) == (3, list(rules), [])
    for label in (*rules, *list(rules)[1:], StrictGreedy().label):
        assert by_rule[label] == label
    assert read == [*rules, StrictGreedy().label]
    assert by_rule.get("another") is None


def test_acceptance_judges_rules_a_few_at_a_time(study, monkeypatch, tmp_path):
    [task, *_] = study.tasks["acceptance"]
    found = {name: study.store.find(of) for name, of in task.inputs.items()}
    together = []
    monkeypatch.setattr(
        judgement, "judge", lambda steps, rules: together.append(len(rules)) or judge(steps, rules)
    )
    metadata = {}
    rules = 1 + len(task.settings["rules"])  # strict greedy, too
    step = len(stored.read_steps(found["drafts"])) * judgement.judgement_bytes()
    for at_once, held in {rules: rules * step, 2: 3 * step - 1, 1: 0}.items():
        monkeypatch.setattr(acceptance, "HELD", held)
        out = Out(acceptance.STAGE, tmp_path / str(at_once), tmp_path / "shards")
        acceptance.compute(task, found, out)
        assert max(together) <= at_once
        assert (len(together) == 1) == (at_once == rules)
        together.clear()
        metadata[at_once] = out.metadata
    assert metadata[1] == metadata[2] == metadata[rules]
    for file in acceptance.STAGE.tables:
        first, *others = (pq.read_table(tmp_path / str(of) / f"{file}.parquet") for of in metadata)
        assert first.num_rows
        assert all(map(first.equals, others)), file


def test_the_report_compares_rules_a_few_at_a_time(study, monkeypatch):
    [task] = study.tasks["report"]
    made = read_content(task, {name: study.store.find(of) for name, of in task.inputs.items()})
    target, source = made.targets[0], made.sources[0]
    together = dict(report_inputs.comparisons(target, source))
    monkeypatch.setattr(report_inputs, "LEVELS", 0)
    for rule, frame in report_inputs.comparisons(target, source):
        pd.testing.assert_frame_equal(frame, together.pop(rule))
    assert not together


def test_one_prompt_has_no_interval_in_a_search_together(artifact):
    dist = stored.read_distributions(artifact)[:5]
    one = PromptBootstrap(np.zeros(5, int), 20, 0.9, 0)
    steps = stored.Trajectories.from_positions(np.arange(5))
    ((found,),) = solve_all(dist, [build_range({"rule": "tree"})], 0.01, [Goal(0.5)], one, steps)
    assert np.isnan(found.ci_low)
    assert solve_all(dist, [], 0.01, [Goal(0.5)], one, steps) == []
