"""The verdict on made-up measurements, and right answers: every branch, each boundary."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.decoding.paired_accuracy import (
    ALL,
    Answered,
    accuracy,
    differing,
    losses,
    mcnemar_p,
    paired_difference_interval,
    wilson_interval,
)
from analysis.decoding.verdict import DO_NOT, DRAFT, OPEN, UNTIMED, Timed, engines
from analysis.report.accuracy_tables import accuracy_table
from analysis.report.text import speed_texts
from analysis.report.verdict_sentences import advise
from analysis.rules import Additive, StrictGreedy, Typical
from analysis.statistics.estimate import Estimate
from pipeline.engines.speed.comparison import Speed

ABOVE, BELOW = float(np.nextafter(1, 2)), float(np.nextafter(1, 0))
COMMAND = "python -m pipeline study=s"


def run(speedup, low, high, **given):
    return {
        "method": "Strict greedy",
        "scheme": "strict greedy",
        "drafter": "model",
        "drafter_title": "D",
        "rule": "greedy",
        "draft_length": 5,
        "temperature": 0.0,
        "lossless": True,
        "prompts": 30,
        "tested": 100,
        "accepted": 50,
        "rate": 0.5,
        "nats_given_up": 0.0,
        "engine": "vLLM",
        **{"speedup": speedup, "ci_low": low, "ci_high": high, **given},
    }


ALONE = run(1.0, 1.0, 1.0, drafter="none", method="Autoregressive", rule=None, draft_length=0)
LOOKUP = {"method": "Strict greedy, prompt lookup", "drafter": "prompt_lookup"}
LOOKUP |= {"drafter_title": "prompt look-up"}
RELAXED = {"method": "Additive (t = 0.1)", "rule": "additive t=0.1", "lossless": False}
RELAXED |= {"nats_given_up": 0.04, "accepted": 99, "scheme": "additive (t = 0.1)"}
SAMPLED = {"method": "Speculative sampling", "scheme": "speculative sampling", "rule": None}


def said(*runs, low=1.01, high=1.5, busy=(), predicted=None, **given):
    """The advice; the ratio of every relaxed run to every lossless one has these ends."""
    speeds = pd.DataFrame([ALONE, *runs])
    kinds = [speeds[speeds["lossless"] == kind] for kind in (False, True)]
    pairs = [
        {"relaxed": x, "lossless": y, "ratio": kinds[0]["speedup"][x] / kinds[1]["speedup"][y]}
        for x, y in product(*(kind.index for kind in kinds))
    ]
    ratios = pd.DataFrame(pairs).assign(ci_low=low, ci_high=high)
    return advise("T", "D", Timed(speeds, ratios, predicted, busy), command=COMMAND, **given)


@pytest.mark.parametrize(
    ("low", "high", "given", "outcome"),
    [
        (ABOVE, 1.2, {}, DRAFT),
        (1.0, 1.2, {}, OPEN),
        (0.8, 1.0, {}, OPEN),
        (0.8, BELOW, {}, DO_NOT),
        (math.nan, math.nan, {}, OPEN),
        (1.2, 1.4, {"prompts": 30}, DRAFT),
        (1.2, 1.4, {"prompts": 29}, OPEN),
        (1.2, 1.4, {"engine": ""}, OPEN),  # a tree
    ],
)
def test_an_interval_that_contains_1_decides_nothing(low, high, given, outcome):
    """Nor do an undefined one, fewer than 30 prompts, or a method that no engine runs."""
    found = said(run(1.3, low, high, **given))
    assert found.outcome == outcome
    assert len(found.drafters) == ("engine" not in given)
    assert f"{given.get('prompts', 30)} prompts, greedy decoding" in found.sentence


def test_one_prompt_has_no_interval_to_speak_of():
    one, other = (run(x, math.nan, math.nan, prompts=1) for x in (1.3, 1.2))
    found = said(one, {**other, **LOOKUP})
    assert found.outcome == OPEN
    assert "(1 prompt, greedy decoding)" in found.sentence
    assert "1.30 times as fast" in found.sentence


def test_a_busy_machine_and_relaxed_rules_alone_decide_nothing():
    busy = said(run(1.3, 1.2, 1.4), run(2, 1.9, 2.1, **RELAXED), busy=["gaps"])
    assert (busy.outcome, "the machine was busy (gaps)" in busy.sentence) == (OPEN, True)
    (line,) = busy.outlooks
    assert "`artifacts/decoding`" in line
    assert not any("It gives up" in text for text in busy.beside)
    only = said(run(2, 1.9, 2.1, **RELAXED))
    assert (only.outcome, only.drafters) == (OPEN, [])


def test_a_busy_machine_predicts_nothing_in_words():
    """Its costs are no surer than its times; the first sign stands in the sentence."""
    timed = run(0.8, 0.7, 0.9, draft_length=2, tokens_per_call=1.71)
    found = said(timed, predicted=outlook([1, 1.2, 1.1], [1, 1.4, 1.6]), busy=["gaps", "waits"])
    assert "waits" not in found.sentence
    (line,) = found.outlooks
    assert "gaps; waits." in line
    assert "1.2" not in line


def test_what_was_not_timed_is_said_with_the_command():
    for timed in (None, Timed(pd.DataFrame([ALONE]))):
        found = advise("T", "D", timed, command=COMMAND)
        assert found.outcome == UNTIMED
        assert f"`{COMMAND} stage=decoding`" in found.sentence
    alone = advise("T", "", None, command=COMMAND).sentence
    assert ("No drafter" in alone, "`" in alone) == (True, False)


def test_the_fastest_sure_lossless_method_comes_first():
    found = said(
        run(1.5, 0.9, 2.0, draft_length=2),
        run(1.1, 1.05, 1.2, draft_length=3),
        run(1.2, 1.1, 1.3, **LOOKUP),
        run(3, 2.9, 3.1, **RELAXED),
    )
    assert found.outcome == DRAFT
    best = "prompt look-up pays here under strict greedy (γ = 5): 1.20 [1.10, 1.30] times as fast"
    assert best in found.sentence
    (unsure,) = (text for text in found.beside if "not for sure" in text)
    assert "D under strict greedy (γ = 2) was 1.50 [0.90, 2.00] times as fast" in unsure
    answers = [(one["drafter"], one["draft_length"], one["answer"]) for one in found.drafters]
    assert answers == [("model", 3, "yes"), ("prompt_lookup", 5, "yes")]  # 3: the sure one


def test_a_further_kind_of_drafter_is_named_by_its_title_and_stands_behind_the_studys_own():
    bigram = {"drafter": "bigram", "drafter_title": "bigram table"}
    found = said(run(1.2, 1.1, 1.3), run(1.5, 1.4, 1.6, **bigram), run(1.3, 1.2, 1.4, **LOOKUP))
    assert "bigram table pays here under strict greedy (γ = 5)" in found.sentence
    assert [one["drafter"] for one in found.drafters] == ["model", "bigram", "prompt_lookup"]


def outlook(speeds, bound):
    lengths = np.arange(len(speeds))
    table = pd.DataFrame({"draft_length": lengths, "speed": speeds, "memory_bound": bound})
    return table.assign(cost=1 + 0.5 * lengths, drafter="model", rule="greedy")


@pytest.mark.parametrize(
    ("speeds", "bound", "says"),
    [
        ([1, 1.2, 1.1], [1, 1.4, 1.6], ["predicted: 1 drafted token, 1.2", "2 drafted tokens"]),
        ([1, 0.9, 0.8], [1, 0.9, 1.1], ["no draft length is", "2 drafted tokens, 1.10"]),
        ([1, 0.9, 0.8], [1, 0.9, 0.9], ["no draft length is", "nor where longer"]),
    ],
)  # fmt: skip
def test_a_drafter_is_told_what_its_calls_cost_and_which_length_would_pay(speeds, bound, says):
    timed = run(0.8, 0.7, 0.9, draft_length=2, tokens_per_call=1.71)
    found = said(timed, predicted=outlook(speeds, bound))
    assert "D does not pay here: the fastest lossless method, strict greedy" in found.sentence
    (line,) = found.outlooks
    assert "takes as long as 2.00 passes over one token here and gives 1.71 tokens" in line
    assert all(part in line for part in says)


def test_a_prediction_alone_decides_nothing():
    timed = run(1.1, 0.9, 1.3, draft_length=2, tokens_per_call=1.71)
    found = said(timed, predicted=outlook([1, 1.5, 1.4], [1, 2, 2]))
    assert found.outcome == OPEN
    beyond = said({**timed, "draft_length": 9}, predicted=outlook([1, 1.5, 1.4], [1, 2, 2]))
    assert beyond.outlooks == []


def test_only_what_an_engine_runs_is_named():
    """A tree is faster, and no engine runs it: the look-up that vLLM has is the verdict."""
    tree = run(2, 1.9, 2.1, engine="", method="Strict greedy, tree")
    found = said(tree, run(1.2, 1.1, 1.3, **LOOKUP))
    assert (found.outcome, found.drafters[0]["drafter"]) == (DRAFT, "prompt_lookup")
    assert "D under" not in " ".join([found.sentence, *found.beside])
    relaxed = {**RELAXED, "engine": "TensorRT-LLM"}
    (text,) = said(run(1.2, 1.1, 1.3), run(1.5, 1.4, 1.6, **relaxed)).beside
    assert "in TensorRT-LLM: D under additive" in text


def test_the_temperature_is_the_lowest_at_which_an_engine_runs_a_lossless_method():
    found = said(
        run(2, 1.9, 2.1, engine=""), run(1.2, 1.1, 1.3, temperature=0.5, **SAMPLED, tree=None)
    )
    assert found.outcome == DRAFT
    assert "its distribution stays the same (30 prompts, temperature 0.5" in found.sentence


def test_engines_run_chains_and_few_rules():
    rows = [
        ("none", None, None, True),
        ("model", None, None, True),
        ("prompt_lookup", None, None, True),
        ("model", {"shown": "batch of 2"}, None, True),
        ("model", None, "races", True),
        ("model", None, None, False),
    ]
    runs = pd.DataFrame(rows, columns=["drafter", "tree", "sampling", "lossless"])
    known = {rule.label: rule for rule in (Typical(0.1, 0.09), Additive(0.1))}
    known["typical of a user"] = Additive(0.2)  # the rule counts, not the words of its label
    runs["rule"] = Typical(0.1, 0.09).label
    of_drafters = {"model": "vLLM (eagle3)", "prompt_lookup": "vLLM (ngram)"}
    found = engines(runs, known, of_drafters)
    assert found == [*("", "vLLM (eagle3)", "vLLM (ngram)", "", "", "Medusa")]
    for other in list(known)[1:]:
        assert engines(runs.assign(rule=other), known, of_drafters)[5] == ""
    assert engines(runs, known, {})[1:3] == ["", ""]


def answers(**given):
    row = {"temperature": 0.0, "draft_length": 5, "items": 316, "right": 111}
    row |= {"method": "Additive (t = 0.1)", "drafter": "model", "alone": 118}
    row |= {"within": False, "falls": False, **given}
    return pd.DataFrame([row])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "not measured"),
        ({"answers": answers()}, "111 of 316 answers were right, 118 without it; a loss "
                                 "of 5 points is not excluded"),
        ({"answers": answers(within=True)}, "a loss of 5 points is excluded"),
        # another draft length is not this run
        ({"answers": answers(falls=True, draft_length=4)}, "not measured"),
        ({"answers": answers(falls=True, right=93)}, "fell from 118 to 93 of 316"),
    ],
)  # fmt: skip
def test_a_relaxed_rule_is_offered_beside_with_what_it_costs(given, says):
    found = said(run(1.2, 1.1, 1.3), run(1.5, 1.4, 1.6, **RELAXED), tolerated_loss=0.05, **given)
    assert found.outcome == DRAFT
    assert says in found.beside[0]
    assert ("It gives up 0.04 nats" in found.beside[0]) != ("fell" in says)


@pytest.mark.parametrize(
    ("accepted", "low", "offered"),
    [
        (99, 1.01, True),
        (100, 1.01, False),  # nothing was rejected
        (99, 1.0, False),  # not for sure above the lossless method
        (99, ABOVE, True),
        (99, math.nan, False),
    ],
)
@pytest.mark.parametrize("own", [(1.4, 1.6), (1.01, 2.2)])  # its own interval tells nothing of that
def test_a_relaxed_rule_is_offered_only_if_it_is_faster_and_rejects(accepted, low, offered, own):
    found = said(run(1.2, 1.1, 1.3), {**run(1.5, *own, **RELAXED), "accepted": accepted}, low=low)
    assert any("It gives up" in text for text in found.beside) == offered
    slower = (
        "than D under strict greedy (γ = 5). The only one timed, D under additive (t = 0.1; γ = 5)"
    )
    assert any(slower in text for text in found.beside) == (not offered and accepted == 99)
    (text,) = found.beside
    if accepted == 99 and low == 1.01:
        assert "as fast as T alone, and 1.25 [1.01, 1.50] times as fast as D under strict" in text


@pytest.mark.parametrize(("low", "offered"), [(ABOVE, True), (1.0, False)])
def test_beside_a_method_that_is_not_surely_faster_a_relaxed_rule_is_compared_with_1(low, offered):
    (text,) = said(run(1.05, 0.9, 1.4), run(1.5, low, 1.6, **RELAXED)).beside
    assert ("It gives up" in text) == offered
    assert text.count("as fast as") == 1
    assert ("No relaxed rule was surely faster than not drafting" in text) != offered


@pytest.mark.parametrize(
    ("low", "high", "printed"),
    [
        (1.0049, 1.17, "1.087 [1.005, 1.170]"),
        (1.0004, 1.17, "1.0870 [1.0004, 1.1700]"),
        (1.01, 1.17, "1.09 [1.01, 1.17]"),
        (0.9, 0.9951, "1.087 [0.900, 0.995]"),
        (1.0, 1.17, "1.09 [1.00, 1.17]"),
    ],
)
def test_ends_near_1_have_the_digit_that_decides_in_sentence_table_and_engine(low, high, printed):
    found = said(run(1.087, low, high))
    assert f"{printed} times as fast" in found.sentence
    (cell,) = speed_texts(Estimate([1.087], [low], [high]))
    assert cell == printed.replace(" ", "× ", 1)
    assert str(Speed(1.087, low, high)) == printed.replace(" ", " times ", 1)


def test_behind_one_that_fell_the_next_is_offered():
    loose = RELAXED | {"method": "Additive (t = 0.3)", "scheme": "additive (t = 0.3)"}
    found = said(
        run(0.8, 0.7, 0.9),
        run(1.9, 1.8, 2.0, **loose),
        run(1.5, 1.4, 1.6, **RELAXED),
        answers=answers(method="Additive (t = 0.3)", falls=True),
    )
    assert found.outcome == DO_NOT
    assert found.beside[0].startswith("Avoid D under additive (t = 0.3; γ = 5)")
    assert "additive (t = 0.1; γ = 5) was 1.50 [1.40, 1.60] times as fast" in found.beside[1]


TASK_RUNS = pd.DataFrame(
    {
        "method": ["Autoregressive", "Strict greedy", "Additive"],
        "drafter": ["none", "model", "model"],
        "draft_length": [0, 3, 3],
        "temperature": 0.0,
        "baseline": 0,
        "exact": [True, True, False],
    }
)
RIGHT = {  # of items a0..a3 of task a, and b0 of task b
    0: [True, True, False, False, True],
    1: [True, True, False, False, True],
    2: [False, False, True, False, True],
}


def answered():
    cells = [(at, run, run == 2 and at < 3) for at in range(5) for run in range(3)]
    at, run, changed = (np.array(column) for column in zip(*cells, strict=True))
    ids = np.where(at < 4, "a", "b"), at.astype(str)
    data = pd.DataFrame({"task": ids[0], "item_id": ids[1], "run": run}).assign(
        answer=[f"answer {at}{'x' * changed}" for at, _, changed in cells],
        correct=[RIGHT[run][at] for at, run, _ in cells],
        draft_length=3 * (run > 0),
        temperature=0.0,
        n_tokens=10,
        nats_given_up=4.0 + changed,
        departures=5 * changed,
        common_prefix=np.where(changed, 2, 10),
        gap=np.where(changed, 0.5, math.nan),
        calls=np.where(run == 0, 9, 3),
        emitted=9,
    )
    seconds = data[["task", "item_id", "run"]].assign(seconds=1.0 / (1 + data["run"]))
    return Answered("target", ["a", "b"], TASK_RUNS, data, seconds)


def row(table, task, run):
    return table[(table["task"] == task) & (table["run"] == run)].iloc[0]


def test_counts_by_task_and_of_all():
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    assert table["task"].unique().tolist() == ["a", "b", ALL]
    relaxed = row(table, "a", 2)
    assert (relaxed["items"], relaxed["right"], relaxed["lost"], relaxed["won"]) == (4, 1, 2, 1)
    assert relaxed["difference"] == -0.25
    assert relaxed["recovery"] == 0.5
    assert relaxed["changed"] == 0.75
    assert relaxed["nats_given_up"] == pytest.approx(3 / 40)
    assert relaxed["departures"] == pytest.approx(15 / 40)
    assert relaxed["tokens_per_call"] == 3.0
    assert relaxed["speedup"] == pytest.approx(3.0)
    assert row(table, ALL, 2)[["right", "items"]].tolist() == [2, 5]
    assert row(table, "b", 2)["difference"] == 0


def test_the_same_answers_lose_nothing_but_their_interval_has_a_width():
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    alone, strict = row(table, ALL, 0), row(table, ALL, 1)
    for one in (alone, strict):
        assert (one["lost"], one["won"], one["changed"], one["p_value"]) == (0, 0, 0.0, 1.0)
    assert strict["difference_ci_low"] < 0 < strict["difference_ci_high"]
    assert (alone["difference_ci_low"], alone["difference_ci_high"]) == (0.0, 0.0)
    assert alone["within"]
    assert not strict["within"]  # five items exclude no loss of 5 points
    low = row(accuracy(answered(), 10, 0.95, 0, 0.5), ALL, 2)["difference_ci_low"]
    assert not row(accuracy(answered(), 10, 0.95, 0, -low), ALL, 2)["within"]  # strictly
    assert row(accuracy(answered(), 10, 0.95, 0, -low + 1e-9), ALL, 2)["within"]


def test_no_call_no_right_answer_and_other_items():
    one = answered()
    one.answers["calls"] = one.answers["emitted"] = 0
    one.answers["correct"] = False
    table = accuracy(one, 10, 0.95, 0, 0.05)
    assert table[["tokens_per_call", "tokens_per_call_ci_low", "recovery"]].isna().all(axis=None)
    for frame in (one.answers, one.seconds):
        frame.loc[(frame["run"] == 2) & (frame["item_id"] == "0"), "item_id"] = "9"
    with pytest.raises(ValueError, match="different items"):
        accuracy(one, 10, 0.95, 0, 0.05)


def test_differing_answers_stand_side_by_side():
    found = differing(answered())
    assert found["item_id"].tolist() == ["0", "1", "2"]
    shown = ["method", "alone_answer", "answer", "alone_correct", "correct", "gap"]
    assert found.loc[0, shown].tolist() == ["Additive", "answer 0", "answer 0x", True, False, 0.5]


@pytest.mark.parametrize(
    ("right", "margin", "decision"), [([True] * 5, 0.9, "excluded"), ([False] * 5, 0.1, "open")]
)
def test_a_relaxed_rule_is_decided_by_its_interval(right, margin, decision):
    one = answered()
    runs = one.runs.assign(rule=[None, StrictGreedy(), Additive(0.1)])
    one.answers.loc[one.answers["run"] == 2, "correct"] = right
    table = accuracy(replace(one, runs=runs), 50, 0.95, 0, margin)
    (found,) = losses(table).to_dict("records")
    assert (found["rule"], found["decision"]) == ("additive t=0.1", decision)
    assert (found["right"], found["alone"], found["items"]) == (sum(right), 3, 5)
    (fell,) = losses(table.assign(falls=True))["decision"]
    assert "falls" in fell


@pytest.mark.parametrize(("right", "items"), [(0, 1), (1, 1), (3, 7), (50, 100), (299, 300)])
def test_the_interval_of_a_proportion_is_scipys(right, items):
    wanted = stats.binomtest(right, items).proportion_ci(0.9, method="wilson")
    assert wilson_interval(right, items, 0.9) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_mcnemar_is_the_enumeration_of_fair_coins():
    for lost, won in product(range(5), repeat=2):
        pairs = lost + won
        coins = [sum(toss) for toss in product((0, 1), repeat=pairs)]
        as_far = [abs(2 * heads - pairs) >= abs(lost - won) for heads in coins]
        assert mcnemar_p(lost, won) == pytest.approx(sum(as_far) / len(as_far), abs=1e-15)


def test_the_paired_interval_holds_the_truth_as_often_as_it_says():
    """Also where hardly a pair is discordant, and Wald's interval would have no width."""
    rng = np.random.default_rng(0)
    for lost, won, items in ((0.002, 0.0, 300), (0.05, 0.01, 100), (0.1, 0.1, 50), (0.3, 0.1, 80)):
        drawn = rng.multinomial(items, [lost, won, 1 - lost - won], size=2000)
        ends = [paired_difference_interval(int(c), int(b), items, 0.95) for c, b, _ in drawn]
        held = [low <= won - lost <= high for low, high in ends]
        assert np.mean(held) >= 0.93, (lost, won, items)

    assert (
        paired_difference_interval(0, 0, 1, 0.95)[0]
        < 0
        < paired_difference_interval(0, 0, 1, 0.95)[1]
    )
    assert paired_difference_interval(1, 0, 1, 0.95)[0] == -1.0
    low, high = paired_difference_interval(3, 8, 40, 0.95)
    assert paired_difference_interval(8, 3, 40, 0.95) == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("low", "high", "printed"),
    [
        (-0.04996, 0.01, "[-4.996, 1.000]"),  # a loss of 5 points is excluded
        (-0.0504, 0.01, "[-5.04, 1.00]"),  # is not
        (-0.05, 0.01, "[-5.0, 1.0]"),
        (-0.09, -0.0004, "[-9.00, -0.04]"),  # accuracy falls
        (-0.09, 0.0, "[-9.0, 0.0]"),
    ],
)
def test_the_interval_of_a_loss_has_the_digit_that_decides(low, high, printed):
    rules = [None, StrictGreedy(), Additive(0.1)]
    one = replace(answered(), runs=TASK_RUNS.assign(rule=rules))
    table = accuracy(one, 10, 0.95, 0, 0.05)
    relaxed = table["run"] == 2
    table.loc[relaxed, ["difference_ci_low", "difference_ci_high"]] = low, high
    shown = accuracy_table([one], [table], 0.05, 0.95).cells["difference"]
    assert printed in shown[relaxed.to_numpy()].iloc[0]
