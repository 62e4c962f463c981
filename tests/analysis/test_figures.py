"""Figures: what is drawn, and how the files are made."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.target import Target
from analysis.decoding.top_two_logits import top_two
from analysis.report import style
from analysis.report.mars_figures import ratios_figure, thresholds_figure
from analysis.report.paper_figures import figure1, survival_figure
from analysis.report.style import render
from analysis.rule_config import expand
from analysis.rules import Rule, StrictGreedy, Threshold, Tree
from analysis.statistics.bootstrap import PromptBootstrap

from . import test_decoding_metrics

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


def target(rules, seed=0):
    """Steps with random certificates; a quarter of one rule's are endless."""
    certificates = {}
    for at, rule in enumerate(rules):
        lower = np.random.default_rng(seed + at).beta(1, 2, STEPS) * rule.ceiling
        if rule.label == "additive t=0.5":
            lower[:100] = np.inf
        certificates[rule] = lower, lower
    return Target(f"target {seed}", certificates, BOOTSTRAP, np.zeros(STEPS, np.int32), [])


def drawn(number):
    figure = survival_figure(number, [target(RULES), target(RULES, 1)])
    return figure.draw()


class Half(Rule):
    """Accept half of it: p > p0 / 2."""

    def cut(self, _):
        return Threshold(slope=0.5, offset=0.0)


def test_a_rule_of_the_users_is_a_curve_of_figure_2_alone():
    own = [*RULES, Half()]
    labels = {
        number: [
            str(line.get_label())
            for line in survival_figure(number, [target(own)]).draw().axes[0].lines
        ]
        for number in (2, 3)
    }
    assert "Accept half of it" in labels[2]
    assert "Accept half of it" not in labels[3]
    assert "of your own" in survival_figure(2, [target(own)]).caption
    assert "of your own" not in survival_figure(2, [target(RULES)]).caption


def test_files_are_equal_byte_for_byte_with_embedded_fonts_and_no_date_or_version():
    for kind in ("pdf", "png"):
        content = render(drawn(3), kind)
        assert content == render(drawn(3), kind)
        assert b"CreationDate" not in content
        assert b"atplotlib" not in content
        assert (b"/FontFile2" in content) == (kind == "pdf")  # an embedded TrueType program


def test_curves_are_shares_strictly_above():
    """And their bands are the intervals over prompts."""
    axis, steps = drawn(3).axes[1], target(RULES, 1)
    lines = {str(line.get_label()): line for line in axis.lines}
    bands = [np.asarray(band.get_paths()[0].vertices)[:, 1].round(9) for band in axis.collections]
    for at, rule in ((0, RULES[0]), (2, RULES[2])):
        values, line = steps.certificates[rule][0], lines[rule.title]
        for eps, y in list(zip(line.get_xdata(), line.get_ydata(), strict=True))[::50]:
            share, low, high = BOOTSTRAP.ratio_interval(values > eps)
            assert y == pytest.approx(share)
            assert {low.round(9), high.round(9)} <= set(bands[at])
    assert line.get_ydata()[-1] == 0.25  # empty regions stay above every level


def test_figures_2_to_4_end_behind_log_2_and_figure_5_behind_its_trees():
    for number, ceiling in ((2, math.log(2)), (3, math.log(2)), (4, math.log(2)), (5, 2.197)):
        for axis in drawn(number).axes:
            assert axis.get_xlim() == (0, pytest.approx(1.06 * ceiling, rel=1e-3))


@pytest.mark.parametrize(("m", "longer"), [(1, False), (2, True)])
def test_only_trees_beyond_one_token_have_a_longer_axis(m, longer):
    """A tree of one token is strict greedy, whose ceiling is log 2."""
    figure = survival_figure(5, [target([StrictGreedy(), Tree(m)])])
    assert ("longer" in figure.caption) == longer


def test_mars_accepts_ranks_one_and_two_in_its_zone_only():
    """Figure 1 of MARS: z2 / z1 = 0.95 at p1 / p0 = e^-0.5, outcomes by the rank of the draft."""
    z1, z2 = np.array([10.0, 10, 10, 10, -1]), np.array([9.5, 9.5, 9.5, 8.9, -2])
    trajectory = pd.DataFrame(
        {"z1": z1, "z2": z2, "top_surprisal": 0.7, "draft_rank": [1, 2, 3, 2, 2]}
    )
    steps = top_two(trajectory)
    ends = ["above, accepted at rank 1", "above, accepted at rank 2 (relaxed)", "above, rejected"]
    assert steps["outcome"].tolist() == [*ends, *["ratio below the threshold"] * 2]
    np.testing.assert_allclose(steps["p0"], np.exp(-0.7))
    np.testing.assert_allclose(steps["p1"] / steps["p0"], np.exp(z2 - z1))
    assert steps["ratio"].tolist() == pytest.approx([0.95] * 3 + [0.89, 0.0])
    figure = ratios_figure([replace(test_decoding_metrics.made(), trajectory=trajectory)])
    of_ratio = figure.draw().axes[4]
    bars = {round(bar.get_x(), 9): bar.get_height() for bar in of_ratio.patches}
    assert sum(bars.values()) == 5
    assert sum(height for x, height in bars.items() if x >= 0.9) == 3
    assert of_ratio.get_title() == "60.0 % above 0.9"


def test_thresholds_are_drawn_at_every_temperature_and_draft_length():
    scheme = "dynamic, 10 wide, 59 nodes"
    grid = pd.MultiIndex.from_product([[0.0, 1.0], [7, 10], [0.9, 0.84]])
    speeds = grid.to_frame(index=False, name=["temperature", "draft_length", "theta"])
    speeds["method"] = [f"MARS (θ = {theta:g}), {scheme}" for theta in speeds["theta"]]
    speeds["speedup"] = np.arange(8.0)
    alone = speeds[:1].assign(theta=math.nan)
    figure = thresholds_figure(["T"], [pd.concat([speeds, alone])], "agreement")
    labels = figure.draw().axes[0].get_legend_handles_labels()[1]
    assert labels == [f"γ = {g}, T = {t}, {scheme}" for g in (7, 10) for t in (0, 1)]
    assert thresholds_figure(["T"], [alone], "agreement") is None


def test_a_pdf_has_no_titles_on_request_and_the_page_keeps_them(monkeypatch):
    titles = {}

    def render(drawing, kind):
        titles[kind] = [axis.get_title() for axis in drawing.axes]
        return b""

    monkeypatch.setattr(style, "render", render)
    figure = figure1({"A": np.array([0.5, 0.9]), "B": np.array([0.4, 0.8])})
    figure.files()
    assert titles == {"pdf": ["A", "B"], "png": ["A", "B"]}
    figure.files(titles=False)
    assert titles == {"pdf": ["", ""], "png": ["A", "B"]}
