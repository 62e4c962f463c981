"""Results by category, and steps inside repeated passages."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.report.records import together
from analysis.report.render import lines
from analysis.report.sections.categories import ALL, category_statistics, category_table
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import inside_repeats


def slow(tokens: list[int], n: int) -> list[bool]:
    """Of one answer, as it is defined."""
    ends = range(len(tokens))
    window = {t: tokens[t - n + 1 : t + 1] for t in ends if t >= n - 1}
    return [t in window and any(window[t] == window[s] for s in window if s < t) for t in ends]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_repeats_as_defined(n: int) -> None:
    rng = np.random.default_rng(n)
    answers = [rng.integers(0, 2, size=size).tolist() for size in (1, n, n + 1, 40, 7, 40)]
    prompts = np.repeat(np.arange(6), [len(answer) for answer in answers])
    wanted = [flag for answer in answers for flag in slow(answer, n)]
    assert any(wanted)
    assert inside_repeats(np.concatenate(answers), prompts, n).tolist() == wanted


def test_sixteen_tokens_are_a_repetition_within_one_answer() -> None:
    tokens, prompts = np.tile(np.arange(20, dtype=np.int32), 2), np.zeros(40, dtype=np.intp)
    assert np.flatnonzero(inside_repeats(tokens, prompts)).tolist() == [35, 36, 37, 38, 39]
    assert not inside_repeats(tokens, np.repeat([0, 1], 20)).any()


CERTIFICATE = np.array([0.05, 0.2, 0.3, 0.4, 0.1, 0.6, 0.2, 0.2, 0.2, 0.01])
BOOTSTRAP = PromptBootstrap(np.repeat(np.arange(4), [3, 1, 2, 4]), 200, 0.95, 0)


def statistics(**more: np.ndarray) -> pd.DataFrame:
    """Of four prompts of 3, 1, 2 and 4 steps, at 0.1 nats."""
    means = {"p0": np.linspace(0.1, 1.0, 10), **more}
    ends = CERTIFICATE, CERTIFICATE
    return category_statistics(["b", "a", "b", "a"], StrictGreedy(), ends, means, 0.1, BOOTSTRAP, 0)


def test_each_category_has_its_own_steps() -> None:
    table = statistics(repeated=np.arange(10) >= 6)
    found = table.set_index(["category", "statistic"])["value"]
    assert table["category"].unique().tolist() == ["a", "b", ALL]
    a, b = [3, 6, 7, 8, 9], [0, 1, 2, 4, 5]  # its steps
    for name, rows in (("a", a), ("b", b), (ALL, [*a, *b])):
        assert found[name, "p0"] == pytest.approx(np.mean([0.1 + 0.1 * row for row in rows]))
        assert found[name, "mean"] == pytest.approx(CERTIFICATE[rows].mean())
    # R = 0.1 is not certified at 0.1; two trajectories end certified in b, one in a
    assert (found["a", "certified"], found["b", "certified"]) == (0.8, 0.6)
    assert found["a", "per_call"] == pytest.approx(5 / (1 + 1))
    assert found["b", "per_call"] == pytest.approx(5 / (2 + 2))
    assert (found["a", "repeated"], found["b", "repeated"]) == (0.8, 0.0)
    counts = table.groupby("category")[["steps", "prompts"]].max()
    assert counts.to_numpy().tolist() == [[5, 2], [10, 4], [5, 2]]
    assert (table["ci_low"] <= table["value"]).all()
    assert (table["value"] <= table["ci_high"]).all()


def test_a_drafter_adds_its_columns() -> None:
    bare = category_table(together({"own": statistics()}), StrictGreedy(), 0.1)
    data = statistics(kl=np.full(10, 0.25), accepted=np.arange(10) < 5)
    table = category_table(together({"own": data}), StrictGreedy(), 0.1)
    headings = [[column.heading for column in one.columns] for one in (bare, table)]
    assert headings[1] == [*headings[0], "KL", "accepted"]
    name, cells, _ = lines(table)[0][1][0]
    assert (name, cells) == (
        "a", ["2", "5", "0.760", "0.202", "0.200", "80 %", "≥ 2.50", "0.250", "20 %"]
    )  # fmt: skip
