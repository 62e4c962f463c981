"""The data of the page: what its scripts are given, against the arrays it stands for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.page import explorer, rows, steps
from analysis.page.answer import BUDGET, by_any_divergence, of_target, recommended
from analysis.page.charts import charts
from analysis.page.packing import ALPHABET, LEVELS, pack_certificates, pack_counts, pack_flags
from analysis.page.steps import Drafted, TargetSteps
from analysis.report.measured import Certified, certificate_statistics
from analysis.report.records import Results
from analysis.report.text import share_text
from analysis.rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline.paths import CONF

GREEDY, SIZE = StrictGreedy(), 40


def unpacked(text: str) -> np.ndarray:
    return np.array([ALPHABET.index(character) for character in text])


def made(rules: tuple[Rule, ...] = (Additive(0.3), GREEDY), drafter: bool = True) -> TargetSteps:
    """Four answers of ten steps; the certificates of answer n are near n / 10 nats."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(4), SIZE // 4)
    base = prompts / 10 + rng.uniform(0.001, 0.05, SIZE)
    certificates = [
        Certified(rule, base * (1 + at), base * (1 + at)) for at, rule in enumerate(rules)
    ]
    top = np.sort(rng.dirichlet(np.ones(6), SIZE))[:, ::-1]
    accepted = {rule.label: rng.uniform(size=SIZE) < 0.2 + 0.2 * prompts for rule in rules}
    tokens = np.arange(SIZE, dtype=np.int32)
    drafted = Drafted(rng.exponential(0.1, SIZE), tokens + 1, top[:, 1], top[:, 2], accepted)
    return TargetSteps(
        "target",
        certificates,
        PromptBootstrap(prompts, 30, 0.9, 0),
        tokens,
        np.arange(SIZE * 6, dtype=np.int32).reshape(SIZE, 6),
        top,
        drafted if drafter else None,
        [(f"id-{at}", f"prompt {at}") for at in range(4)],
        {0: "<b>", 1: "word"},
    )


def test_a_step_is_certified_at_the_levels_below_its_certificate_and_at_no_other() -> None:
    lower = np.concatenate([LEVELS, np.nextafter(LEVELS, 2), np.nextafter(LEVELS, -1), [np.inf]])
    codes = unpacked(pack_certificates(lower))
    for level, eps in enumerate(LEVELS):
        assert np.array_equal(codes > level, lower > eps), eps


def test_the_levels_hold_those_of_the_default_study() -> None:
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    assert {*config["run_lengths"]["eps"], config["solve"]["eps"]} <= set(LEVELS)
    assert np.all(np.diff(LEVELS) > 0)


@pytest.mark.parametrize("size", [1, 5, 6, 7, 12, 13])
def test_flags_come_back_from_six_a_character(size: int) -> None:
    flags = np.random.default_rng(size).uniform(size=size) < 0.5
    packed = pack_flags(flags)
    assert len(packed) == math.ceil(size / 6)
    bits = unpacked(packed)[:, None] >> np.arange(5, -1, -1) & 1
    assert np.array_equal(bits.ravel()[:size].astype(bool), flags)


def test_counts_stop_below_64() -> None:
    assert unpacked(pack_counts(np.array([0, 63]))).tolist() == [0, 63]
    for wrong in (64, -1):
        with pytest.raises(ValueError, match=r"\[0, 64\)"):
            pack_counts(np.array([0, wrong]))


def test_rules_are_ordered_by_family_from_strict_to_relaxed() -> None:
    given = [Tree(4), Multiplicative(0.1), Additive(0.3), Tree(2), Multiplicative(0.5), GREEDY]
    found = steps.in_order([*given, Additive(0.1)])
    assert found == [
        *(GREEDY, Additive(0.1), Additive(0.3)),
        *(Multiplicative(0.5), Multiplicative(0.1), Tree(2), Tree(4)),
    ]


def test_a_large_study_embeds_as_many_rules_as_the_page_has_room_for() -> None:
    rules = [TopMAdditive(m, 0.1) for m in range(1, 9)] + [GREEDY, Mars(0.9)]
    assert len(steps.embedded(rules, steps.MOST // 10)) == 10
    assert len(steps.embedded(rules, steps.MOST // 9)) == 9
    assert steps.embedded(rules, 10 * steps.MOST) == [GREEDY]  # one in any case, the first


def test_packed_steps_are_those_of_each_rule() -> None:
    target = made()
    packed = steps.packed(target, [GREEDY, Additive(0.3)])
    assert packed["lengths"] == [10] * 4
    for at, rule in enumerate((GREEDY, Additive(0.3))):
        (lower,) = (item.lower for item in target.certificates if item.rule == rule)
        assert packed["certificates"][at] == pack_certificates(lower)
        assert target.drafted is not None
        assert packed["accepted"][at] == pack_flags(target.drafted.accepted[rule.label])
    assert steps.packed(made(drafter=False), [GREEDY])["accepted"] == [None]


def test_targets_of_as_many_prompts_share_their_resamples() -> None:
    target = made()
    shared = steps.resamples([target, target])
    assert list(shared["weights"]) == ["4"]
    assert np.array_equal(unpacked(shared["weights"]["4"]), target.bootstrap.weights.ravel())


def test_curves_are_shares_of_steps_above_each_level_within_their_band() -> None:
    target = made()
    found = steps.curves(target, [GREEDY])
    (lower,) = (item.lower for item in target.certificates if item.rule == GREEDY)
    (curve,) = found["rules"]
    eps = np.linspace(0, 1.06 * math.log(2), steps.POINTS)
    assert curve["share"] == pytest.approx([float(np.mean(lower > x)) for x in eps], abs=1e-4)
    assert all(low <= high for low, high in zip(curve["low"], curve["high"], strict=True))


def test_the_explorer_shows_answers_from_the_least_accepted_to_the_most() -> None:
    target = made()
    found = explorer.answers(target, [GREEDY, Additive(0.3)])
    assert target.drafted is not None
    accepted = target.drafted.accepted[GREEDY.label].reshape(4, 10).mean(axis=1)
    shown = [one["share"] for one in found["answers"]]
    assert shown == [f"{share_text(share)} accepted" for share in sorted(accepted)]
    assert "share of accepted tokens under Strict greedy, 4 at" in found["chosen_by"]
    for one in found["answers"]:
        place = int(one["id"][-1])
        assert one["begin"] == 10 * place
        step = one["steps"][3]
        assert step["t"] == 10 * place + 3
        assert step["p"] == pytest.approx(target.probabilities[step["t"], :5], rel=5e-3)
        assert len(step["r"]) == 2
    assert found["words"] == {"0": "<b>", "1": "word"}  # as it is: the page sets it as text


def test_without_a_drafter_certificates_choose_the_answers() -> None:
    found = explorer.answers(made(drafter=False), [GREEDY])
    assert [one["id"] for one in found["answers"]] == [f"id-{at}" for at in range(4)]
    assert "mean certificate" in found["chosen_by"]
    assert "d" not in found["answers"][0]["steps"][0]


def test_an_empty_rejection_region_is_null_in_json() -> None:
    endless = Certified(GREEDY, np.full(SIZE, np.inf), np.full(SIZE, np.inf))
    found = explorer.answers(replace(made(), certificates=[endless]), [GREEDY])
    assert found["answers"][0]["steps"][0]["r"] == [None]


def pairs(given_up: dict[str, float], length: dict[str, float]) -> Results:
    """Strict greedy and Additive (0.1) on target "a"."""
    rules = {rule.label: rule for rule in (GREEDY, Additive(0.1), Tree(2))}
    listing = pd.DataFrame(
        {"group": "criteria", "name": "", "parameter": "", "setting": 0.0, "rule": list(rules)}
    )
    statistics = [
        {"target": "a", "rule": rule, "statistic": name, "value": value, "optimistic": value}
        | {"ci_low": value, "ci_high": value, "cut": 0.0, "cut_optimistic": 0.0, "prompts": 40}
        for name, values in (("given_up", given_up), ("realised_per_call", length))
        for rule, value in values.items()
    ]
    breakdown = pd.DataFrame(columns=["target", "rule", "depth", "divergence", "statistic"])
    frames = {"acceptance": pd.DataFrame(statistics), "listing": listing, "breakdown": breakdown}
    return Results(["a"], rules, frames, "drafter")


@pytest.mark.parametrize(
    ("price", "expected"),
    [(BUDGET, "additive t=0.1"), (BUDGET * 1.001, "greedy"), (0.0, "additive t=0.1")],
)
def test_the_recommended_rule_accepts_most_within_its_budget(price: float, expected: str) -> None:
    lengths = {"greedy": 2.0, "additive t=0.1": 3.0, "tree m=2": 9.0}  # a tree judges no tokens
    found = pairs({"greedy": 0.0, "additive t=0.1": price, "tree m=2": 0.0}, lengths)
    assert recommended(found, "a") == expected


def test_what_another_divergence_certifies_is_said_where_there_is_one() -> None:
    one = pairs({"greedy": 0.0}, {"greedy": 2.0})
    assert by_any_divergence(one, "a", ["greedy"]) == []
    rows = [
        {"target": target, "rule": rule, "depth": 0, "divergence": kind, "statistic": statistic}
        | {"value": value, "ci_low": value - 0.01, "ci_high": value + 0.01}
        for target, rule, kind, statistic, value in (
            ("a", "greedy", "tv", "certified", 0.2),
            ("a", "greedy", "union", "coverage", 0.5),
            ("a", "greedy", "union", "certified", 0.26),
            ("b", "greedy", "union", "certified", 0.9),
        )
    ]
    some = Results(one.targets, one.rules, {"breakdown": pd.DataFrame(rows[:2])})
    assert by_any_divergence(some, "a", ["greedy"]) == []
    some = Results(one.targets, one.rules, {"breakdown": pd.DataFrame(rows)})
    (fact,) = by_any_divergence(some, "a", ["greedy", "tree m=2"])
    assert list(fact.values) == ["26 % [25, 27 %]", "–"]


@pytest.mark.parametrize(("share", "says"), [(0.95, "Additive (t = 0.2)"), (0.9, "none certifies")])
def test_without_a_drafter_the_strictest_setting_that_certifies_enough_is_recommended(
    share: float, says: str
) -> None:
    lower = np.where(np.arange(SIZE) < share * SIZE, 0.5, 0.05)
    items = [
        Certified(GREEDY, np.full(SIZE, 0.05), np.full(SIZE, 0.05)),
        Certified(Additive(0.5), np.full(SIZE, 0.5), np.full(SIZE, 0.5 + 0)),
        Certified(Additive(0.2), lower, lower),
    ]
    if share < 0.95:
        items.pop(1)
    bootstrap = made().bootstrap
    frames = [certificate_statistics("a", x.rule, x.lower, x.upper, bootstrap) for x in items]
    rules = {item.rule.label: item.rule for item in items}
    measured = Results(["a"], rules, {"certificates": pd.concat(frames)})
    answer = of_target(measured, items, bootstrap, "a")
    assert says in answer.setting
    assert len(answer.facts) == 4


def test_every_chart_names_its_data_and_asks_for_nothing_else() -> None:
    def keys(part: object) -> set[str]:
        if isinstance(part, dict):
            return set(part) | {key for value in part.values() for key in keys(value)}
        return {key for value in part for key in keys(value)} if isinstance(part, list) else set()

    for name, spec in charts().items():
        assert not {"url", "values", "href", "datasets"} & keys(spec), name
        assert spec["width"] == "container"


def test_published_numbers_stand_beside_ours() -> None:
    line = {"target": "a", "paper": "P", "table": "2", "name": "Strict greedy", "statistic": "mean"}
    numbers = {
        "temperature": 0.35,
        "matched": 0.5,
        "ci_low": 0.4,
        "ci_high": 0.6,
        "published": 0.44,
    }
    other = {**line, **numbers, "table": "3"}
    found = rows.published_rows(pd.DataFrame([{**line, **numbers}, other]), "a")
    assert [row["value"] for row in found] == [0.5, 0.44]
    assert found[0]["kind"] == "this study, temperature 0.35"
