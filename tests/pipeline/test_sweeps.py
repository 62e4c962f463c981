"""The table of a sweep: both ends of what certificates leave open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.sweep_figure import sweep_figure
from pipeline import sweeps
from pipeline.artifacts import Store
from pipeline.runner import ensure
from tests.pipeline.studies import EPS, MadeUp

RULES = [{"rule": "greedy"}, {"rule": "absolute", "theta": 0.01}]  # 12 of 40 tokens are stored


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """Rows of certificates and of run lengths, and the certificates themselves."""
    store = Store(tmp_path_factory.mktemp("sweep"))
    made = MadeUp(store, RULES)
    dump, nodes = made.target("T", 0)
    for node, rule in zip(nodes, made.rules, strict=True):
        node.settings["rule"] = rule
    dump.settings["label"] = "T"
    found = ensure(nodes, store)
    lengths = made.run_lengths("T", nodes)
    return {
        "certificates": pd.DataFrame(sweeps.rows_of(nodes, found)),
        "run_lengths": pd.DataFrame(sweeps.rows_of([lengths], ensure([lengths], store))),
        **{
            rule.label: artifact.read(columns=["lo", "hi"]).to_pandas()
            for rule, artifact in zip(made.rules, found, strict=True)
        },
    }


def test_every_statistic_has_both_ends(rows: dict[str, pd.DataFrame]) -> None:
    table = rows["certificates"].set_index("rule")
    steps = rows["absolute theta=0.01"]
    rank = int(np.ceil(0.5 * len(steps))) - 1
    for name, column in (("median", "lo"), ("median_optimistic", "hi")):
        ordered = np.sort(steps[column].replace(np.inf, np.log(2)))
        assert table.loc["absolute theta=0.01", name] == ordered[rank]
    for name in ("mean", "median", "p5", "p25"):
        greedy = table.loc["greedy"]
        assert greedy[name] == greedy[f"{name}_optimistic"]
        assert (
            table.loc["absolute theta=0.01", name]
            <= table.loc["absolute theta=0.01", f"{name}_optimistic"]
        )
    lengths = rows["run_lengths"]
    assert set(lengths["eps"]) == set(EPS)
    assert (lengths["value"] < lengths["optimistic"]).any()


def test_the_printed_table_has_ranges_where_the_ends_differ(
    rows: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows["certificates"]
    sweeps.print_table(table.to_dict("records"))
    header, greedy, absolute = capsys.readouterr().out.splitlines()[:3]
    assert "optimistic" not in header
    assert "–" not in greedy
    ends = table.set_index("rule").loc["absolute theta=0.01"]
    assert f" {ends['mean']:.4g}–{ends['mean_optimistic']:.4g} " in absolute
    exact = table[table["rule"] == "greedy"]
    assert list(sweeps.in_ranges(exact)) == [
        *("target", "rule", "steps", "mean", "median", "p5", "p25", "empty", "inexact")
    ]
    assert sweeps.in_ranges(exact)["mean"].dtype == np.float64


def test_a_printed_length_is_a_lower_bound_where_ends_cut_it_and_few_prompts_are_named(
    rows: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows["run_lengths"]
    assert table["censored"].any()
    assert (table["censored_optimistic"] | ~table["censored"]).all()
    sweeps.print_table(table.to_dict("records"))
    header, *lines = capsys.readouterr().out.splitlines()
    assert "censored" not in header
    assert "few_prompts" not in header
    for line, row in zip(lines, table.to_dict("records"), strict=False):
        assert ("≥" in line) == (row["censored_optimistic"] and np.isfinite(row["value"]))
        if row["censored"]:
            assert f"≥ {row['value']:.4g}" in line
    assert "from 6 prompts, fewer than 30" in lines[len(table)]
    assert table["few_prompts"].all()


def test_the_plot_shades_between_the_ends(rows: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    for rule, shaded in (("greedy", 0), ("absolute theta=0.01", 1)):
        one = rows["certificates"][rows["certificates"]["rule"] == rule]
        table = pd.concat([one.assign(x=0), one.assign(x=1)])
        figure = sweep_figure(table, ["x"])
        assert figure is not None
        heights = [
            float(np.ptp(path.vertices[:, 1] - path.vertices[:, 1].min()))
            for band in figure.axes[0].collections
            for path in band.get_paths()
        ]
        assert (max(heights, default=0) > 0) == bool(shaded)


def test_a_plot_of_many_rules_says_how_many_are_drawn_and_none_looks_like_another() -> None:
    rules = [f"additive t={at / 100:g}" for at in range(40)]
    table = pd.DataFrame(
        [
            {"x": x, "target": target, "rule": rule, "coverage": 0.5}
            for x in (1, 2)
            for target in ("large", "small")
            for rule in rules
        ]
    )
    figure = sweep_figure(table, ["x"])
    assert figure is not None
    assert figure.get_suptitle() == "12 of 40 rules drawn"
    for axis in figure.axes:
        assert [line.get_label() for line in axis.lines] == [f"rule={rule}" for rule in rules[:12]]
        looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in axis.lines}
        assert len(looks) == 12
    assert "of accepted steps" in figure.axes[0].get_ylabel()
    few = sweep_figure(table[table["rule"].isin(rules[:12])], ["x"])
    assert few is not None
    assert few.get_suptitle() == ""
