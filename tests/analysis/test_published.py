"""The transcription of the paper's tables: complete, and with the properties the paper's have."""

from __future__ import annotations

import itertools
import math

import pytest
import yaml

from analysis.report import published
from analysis.rules import Additive, Multiplicative, Rule, TopMAdditive, Typical, expand
from pipeline.paths import CONF

TARGETS = ["Qwen3-1.7B", "Qwen3-4B"]


def grid() -> list[Rule]:
    return expand(yaml.safe_load((CONF / "criteria/paper.yaml").read_text())["rules"])


def test_every_table_is_complete_and_its_rules_are_in_the_grid() -> None:
    rules = set(grid())
    assert len(rules) == 40
    for target in TARGETS:
        assert list(published.TOP_PROBABILITY[target]) == [1, 3, 5, 10, 25]
        assert len(published.CERTIFICATES[target]) == 9
        assert len(published.P5[target]) == 6 + 6 + 4 * 4
        assert published.RUN_LENGTHS[target].keys() == published.CERTIFICATES[target].keys()
        assert published.CERTIFICATES[target].keys() | published.P5[target].keys() <= rules
        assert {len(row) for row in published.TOP_PROBABILITY[target].values()} == {4}
        assert {len(row) for row in published.CERTIFICATES[target].values()} == {4}
        assert {len(row) for row in published.RUN_LENGTHS[target].values()} == {8}


@pytest.mark.parametrize("target", TARGETS)
def test_monotone_where_mathematics_says_so(target: str) -> None:
    """A slip of a digit would most likely break an order."""
    lengths = published.RUN_LENGTHS[target]
    for row in lengths.values():
        assert list(row) == sorted(row, reverse=True)
    for smaller, larger in itertools.pairwise(published.TOP_PROBABILITY[target].values()):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    for mean, median, p5, p25 in published.CERTIFICATES[target].values():
        assert 0 < p5 < p25 < median
        assert p5 < mean
    p5, ts, ms = published.P5[target], [0.01, 0.05, 0.1, 0.2], [2, 4, 6, 8]
    for family in (
        [Additive(t) for t in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)],
        [Multiplicative(alpha) for alpha in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1)],
        *([TopMAdditive(m, t) for t in ts] for m in ms),
        *([TopMAdditive(m, t) for m in ms] for t in ts),
    ):
        row = [p5[rule][0] for rule in family]
        assert row == sorted(row)


@pytest.mark.parametrize("target", TARGETS)
def test_tables_2_and_3_print_the_same_p5(target: str) -> None:
    shared = published.CERTIFICATES[target].keys() & published.P5[target].keys()
    assert len(shared) == 4
    for rule in shared:
        assert published.CERTIFICATES[target][rule][2] == published.P5[target][rule][0]


def test_the_known_contradictions_are_kept() -> None:
    """Copied as printed, also where the paper contradicts itself."""
    small = published.P5["Qwen3-4B"]
    assert small[TopMAdditive(2, 0.01)][0] > small[Additive(0.01)][0]  # a stricter rule
    medusa = published.CERTIFICATES["Qwen3-1.7B"][Typical(0.1, 0.09)][2]
    assert medusa > math.log(1 + published.TOP_PROBABILITY["Qwen3-1.7B"][1][2])  # R <= log(1 + p0)
