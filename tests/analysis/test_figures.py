"""Figures: what is drawn, and how the files are made."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import findfont

from analysis.acceptance.summary import margins
from analysis.decoding.answers import accuracy
from analysis.report.measured import Ends
from analysis.report.records import Figure, texts
from analysis.report.sections.acceptance import acceptance_section
from analysis.report.sections.accuracy import recovery_figure
from analysis.report.sections.decoding import margins_figure, ratios_figure
from analysis.report.sections.decoding_speed import thresholds_figure
from analysis.report.sections.decoding_trees import trees_figure
from analysis.report.sections.paper_figures import figure1, survival_figure
from analysis.report.style import STYLE, render
from analysis.report.sweep_figure import sweep_figure
from analysis.rules import Additive, Rule, expand
from analysis.statistics.bootstrap import PromptBootstrap, survival

from . import test_acceptance_section, test_answers, test_decoding_metrics, test_decoding_trees

STEPS = 400
BOOTSTRAP = PromptBootstrap(np.repeat(np.arange(8), STEPS // 8), 100, 0.95, 0)
RULES = expand(
    [
        {"rule": "greedy"},
        {"rule": "additive", "t": [0.1, 0.5]},
        {"rule": "multiplicative", "alpha": [0.5]},
        {"rule": "tree", "m": [2, 8]},
    ]
)


def certified(rule: Rule, seed: int) -> Ends:
    lower = np.random.default_rng(seed).beta(1, 2, STEPS) * rule.ceiling
    if rule.label == "additive t=0.5":
        lower[:100] = np.inf
    return lower, lower


def study(targets: int = 2) -> dict[str, Figure]:
    names = [f"target {at}" for at in range(targets)]
    panels = {name: {rule: certified(rule, at) for at, rule in enumerate(RULES)} for name in names}
    drawn = [
        figure1({name: np.random.default_rng(0).random(STEPS) for name in names}),
        *(
            survival_figure(f"figure{number}", panels, dict.fromkeys(names, BOOTSTRAP))
            for number in (2, 3, 4, 5)
        ),
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def curve(figure: Figure, label: str, panel: int = 0) -> tuple[np.ndarray, np.ndarray]:
    line = next(line for line in figure.drawing.axes[panel].lines if line.get_label() == label)
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_files_are_equal_byte_for_byte_with_embedded_fonts_and_no_date_or_version() -> None:
    first, again = study()["figure3"], study()["figure3"]
    for kind in ("pdf", "png"):
        content = render(first.drawing, kind)
        assert content == render(again.drawing, kind)
        assert b"CreationDate" not in content
        assert b"atplotlib" not in content
    pdf = render(first.drawing, "pdf")
    assert b"/FontFile2" in pdf  # an embedded TrueType program
    assert b"/Type3" not in pdf
    with matplotlib.rc_context(STYLE):
        font = Path(findfont(STYLE["font.family"])).resolve()
        assert font.is_relative_to(Path(matplotlib.get_data_path()).resolve())


def test_curves_are_shares_strictly_above() -> None:
    figure = study()["figure3"]
    data = figure.data[figure.data["target"] == "target 1"].set_index("rule")
    for at, rule in ((0, "Strict greedy"), (2, "Additive (t = 0.5)")):
        values = certified(RULES[at], at)[0]
        x, y = curve(figure, rule, panel=1)
        assert data.loc[RULES[at].label, "eps"].tolist() == x.tolist()  # the file has what is drawn
        assert data.loc[RULES[at].label, "share"].tolist() == y.tolist()
        assert [np.mean(values > eps) for eps in x[::50]] == pytest.approx(y[::50])
    assert y[-1] == 0.25  # empty regions stay above every level
    assert x[-1] > math.log(2)


def test_figures_2_to_5_share_their_limits_and_curves_that_end_early_have_an_inset() -> None:
    figures = study()
    drawn = {name: figures[name].drawing.axes for name in ("figure2", "figure3", "figure5")}
    limit = 1.06 * max(rule.ceiling for rule in RULES)
    for name, axes in drawn.items():
        for axis in axes:
            assert axis.get_xlim() == (0, pytest.approx(limit))
            insets = axis.child_axes
            assert len(insets) == (name != "figure5")
            for inset in insets:
                assert inset.get_xlim() == (0, pytest.approx(1.06 * math.log(2)))
                pairs = zip(inset.lines, axis.lines, strict=True)
                assert all(a.get_xydata().tolist() == b.get_xydata().tolist() for a, b in pairs)
    alone = survival_figure("figure2", {"a": {RULES[0]: certified(RULES[0], 0)}}, {"a": BOOTSTRAP})
    assert alone is not None
    assert not alone.drawing.axes[0].child_axes


def test_the_band_is_drawn() -> None:
    lower, _ = certified(RULES[1], 0)
    figure = survival_figure("figure3", {"a": {RULES[1]: (lower, lower)}}, {"a": BOOTSTRAP})
    assert figure is not None
    (band,) = figure.drawing.axes[0].collections
    drawn = band.get_paths()[0].vertices
    for end in ("ci_low", "ci_high"):
        assert set(figure.data[end].round(9)) <= set(np.asarray(drawn)[:, 1].round(9))


class Looser(Additive):
    """A user's rule that derives from one of the paper's."""


def test_figures_of_rules_that_a_study_lacks_or_a_user_wrote() -> None:
    mine = Looser(0.1)
    assert mine.own
    for name, rule in (("figure3", mine), ("figure5", RULES[0]), ("figure2", RULES[1])):
        assert survival_figure(name, {"a": {rule: certified(rule, 0)}}, {"a": BOOTSTRAP}) is None


def test_the_band_is_the_interval_of_the_share() -> None:
    values = np.round(np.random.default_rng(1).random(STEPS), 2)
    grid = np.array([0.0, 0.25, 0.9])
    curves = survival(values, grid, BOOTSTRAP)
    for at, eps in enumerate(grid):
        found = [curve[at] for curve in curves]
        np.testing.assert_allclose(found, BOOTSTRAP.share(values > eps), rtol=1e-12)


def every_figure(folder: Path) -> dict[str, Drawing]:
    """Each figure of the report by the name of its texts, and the plot of a sweep."""
    decoded, answers = test_decoding_metrics.made(), test_answers.answered()
    answers = replace(answers, runs=answers.runs.assign(rule=None))
    ratios = np.tile(np.linspace(0.05, 0.99, 40), 6)
    trajectory = pd.DataFrame(
        {"z1": 10.0, "z2": 10 * ratios, "draft_rank": 1 + np.arange(240) % 3, "top_surprisal": 1.0}
    )
    thetas = pd.DataFrame({"theta": [0.84, 0.9, 0.96], "temperature": 1.0, "draft_length": 7})
    thetas["method"] = [f"MARS (θ = {theta})" for theta in thetas["theta"]]
    speeds = thetas.assign(agreement=0.5, speedup=[1.5, 1.3, 1.1], ci_low=1.0, ci_high=2.0)
    swept = pd.DataFrame(
        {"target": "T", "t": [1e-6, 1e-3, 0.1], "rule": "r", "p5": [0.1, 0.2, 1e4]}
    )
    slack, accepted = np.linspace(-3, 1, 20), np.arange(20) > 6
    by_margin = {"T": margins(slack, accepted)}
    pair = acceptance_section(test_acceptance_section.measured(folder), margins=by_margin).shown
    drawn = {
        **{item.name: item for item in pair if isinstance(item, Figure)},
        **study(),
        "decoding_trees": trees_figure(
            [test_decoding_trees.made()], test_decoding_trees.STATISTICS
        ),
        "decoding_margins": margins_figure([replace(decoded, trajectory=trajectory)]),
        "decoding_ratios": ratios_figure([replace(decoded, trajectory=trajectory)]),
        "decoding_thresholds": thresholds_figure(
            ["T"], [speeds], "agreement", "decoding_thresholds"
        ),
        "accuracy_thresholds": thresholds_figure(
            ["T"], [speeds.assign(accuracy=0.5)], "accuracy", "accuracy_thresholds"
        ),
        "accuracy_recovery": recovery_figure([answers], [accuracy(answers, 50, 0.95, 0, 0.05)]),
    }
    drawings = {name: figure.drawing for name, figure in drawn.items() if figure is not None}
    plot = sweep_figure(swept, ["t"])
    return drawings if plot is None else {**drawings, "sweep": plot}


def test_every_figure_is_drawn_and_its_tick_labels_are_plain(tmp_path: Path) -> None:
    """Math text is off, so a power of ten as matplotlib writes it would show its dollar signs."""
    figures = every_figure(tmp_path)
    named = {x.get("name", name) for name, x in texts().items() if "title" in x and "row" not in x}
    assert figures.keys() == named | {"sweep"}
    for name, drawing in figures.items():
        assert len(render(drawing, "png")) > 1000
        labels = [
            label.get_text()
            for axes in drawing.axes
            for axis in (axes.xaxis, axes.yaxis)
            for label in (*axis.get_ticklabels(which="both"), axis.get_offset_text())
        ]
        assert any(labels), name
        assert not [label for label in labels if "$" in label], name


def test_mars_accepts_ranks_one_and_two_in_its_zone_only() -> None:
    """Figure 1 of MARS: z2 / z1 = 0.95 at p2 / p1 = e^-0.5, outcomes by the rank of the draft."""
    z1, z2 = np.array([10.0, 10, 10, 10, -1]), np.array([9.5, 9.5, 9.5, 8.9, -2])
    trajectory = pd.DataFrame(
        {"z1": z1, "z2": z2, "top_surprisal": 0.7, "draft_rank": [1, 2, 3, 2, 2]}
    )
    decoded = replace(test_decoding_metrics.made(), trajectory=trajectory)
    figure, counted = margins_figure([decoded]), ratios_figure([decoded])
    assert figure is not None
    assert counted is not None
    ends = ["above, accepted at rank 1", "above, accepted at rank 2 (relaxed)", "above, rejected"]
    assert figure.data["outcome"].tolist() == [*ends, *["ratio below the threshold"] * 2]
    np.testing.assert_allclose(figure.data["p1"], np.exp(-0.7))
    np.testing.assert_allclose(figure.data["p2"] / figure.data["p1"], np.exp(z2 - z1))
    assert figure.data["ratio"].tolist() == pytest.approx([0.95] * 3 + [0.89, 0.0])
    panels = [collection.get_offsets() for collection in figure.drawing.axes[3].collections]
    assert sum(map(len, panels)) == 3  # the zone alone
    of_ratio = counted.data[counted.data["of"] == "ratio"]
    assert of_ratio["steps"].sum() == 5
    assert of_ratio.loc[of_ratio["from"] >= 0.9, "steps"].sum() == 3


def test_thresholds_are_drawn_at_every_temperature_and_draft_length() -> None:
    scheme = "dynamic, 10 wide, 59 nodes"
    grid = pd.MultiIndex.from_product([[0.0, 1.0], [7, 10], [0.9, 0.84]])
    speeds = grid.to_frame(index=False, name=["temperature", "draft_length", "theta"])
    speeds["method"] = [
        f"MARS (θ = {theta:g}), dynamic, 10 wide, 59 nodes" for theta in speeds["theta"]
    ]
    speeds["speedup"] = np.arange(8.0)
    alone = speeds[:1].assign(theta=math.nan)
    figure = thresholds_figure(
        ["T"], [pd.concat([speeds, alone])], "agreement", "decoding_thresholds"
    )
    assert figure is not None
    labels = figure.drawing.axes[0].get_legend_handles_labels()[1]
    assert labels == [f"γ = {g}, T = {t}, {scheme}" for g in (7, 10) for t in (0, 1)]
    assert thresholds_figure(["T"], [alone], "agreement", "decoding_thresholds") is None
