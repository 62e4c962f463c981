"""The report's tables and figures of draft trees, on calls that are counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.metrics import LEVELS, Decoded
from analysis.decoding.tree_curves import (
    BEST_M_BOUND,
    FIXED_M_BOUND,
    bound_curves,
    predicted_curves,
    tree_curves,
)
from analysis.decoding.tree_runs import entropies, group_rates, judged_levels, tree_runs
from analysis.report.tree_figure import trees_figure
from analysis.report.tree_summary import tree_sentence, tree_summary
from analysis.report.tree_tables import trees_table
from analysis.rules import Tree
from analysis.trees.topology import batch, sequence, symmetric, tree_tokens_per_call

STATISTICS = (60, 0.9, 0)
RULE = Tree(2)


def run(law, name, parents, rule=None):
    shape = {"name": name, "nodes": len(parents), "depth": 1}
    if name != "dynamic":
        shape["parents"] = list(parents)
    return {
        "method": f"{law or rule}, {name} {len(parents)}",
        "drafter": "model",
        "sampling": law,
        "rule": rule,
        "draft_length": 1,
        "temperature": 0.0 if rule else 1.0,
        "tree": shape,
    }


def made():
    """Four prompts; batches of 1 and 3 by both laws, ten calls each, and tree-greedy on two."""
    accepted = {  # of ten calls with one level, the sibling index that was accepted
        1: [1] * 7 + [0] * 3,  # GSS, one child
        2: [1] * 5 + [0] * 5,  # ERSS
        3: [1] * 6 + [2, 0, 0, 0],  # GSS, three children
        4: [1] * 5 + [2, 2, 3, 3, 0],
        5: [1] * 6 + [2] * 2 + [0] * 2,  # the rule
        6: [1] * 8 + [2] * 2,  # dynamic
    }
    alone = run("x", "none", []) | {"drafter": "none", "sampling": None, "tree": None}
    runs = [
        alone | {"draft_length": 0},
        run("speculative", "batch", [-1]),
        run("races", "batch", [-1]),
        run("speculative", "batch", [-1] * 3),
        run("races", "batch", [-1] * 3),
        run(None, "symmetric", [-1] * 2, RULE.label),
        run("races", "dynamic", [-1] * 3),
    ]
    rows = [
        (prompt, at, position, index, runs[at]["tree"]["nodes"])
        for prompt in "abcd"
        for at, found in accepted.items()
        for position, index in enumerate(found)
    ]
    names = ["prompt_id", "run", "position", "accepted", "children"]
    levels = pd.DataFrame(rows, columns=names).assign(level=1)
    calls = levels.assign(drafted=levels["children"], depth=1, reach=1, tested=1)
    calls["accepted"] = (calls["accepted"] > 0).astype(int)
    calls["emitted"] = calls["accepted"] + 1
    data = pd.DataFrame([{"prompt_id": prompt, "run": 0} for prompt in "abcd"])
    empty = pd.DataFrame()
    return Decoded(
        "target", "drafter", pd.DataFrame(runs), data, calls, empty, empty, empty,
        {}, {RULE.label: RULE}, levels[LEVELS],
    )  # fmt: skip


def test_runs_of_a_law_share_their_acceptance():
    one = made()
    table = tree_runs(one, *STATISTICS).set_index("run")
    assert table["group"].tolist() == [
        "GSS, T = 1", "ERSS, T = 1", "GSS, T = 1", "ERSS, T = 1", "Tree-greedy", "ERSS, T = 1",
    ]  # fmt: skip
    # child 1 of GSS: 13 of 20; child 2, where it was tested and child 1 was not accepted: 1 of 4
    found = group_rates(one, table.reset_index(), "GSS, T = 1")
    assert found == pytest.approx([0.65, 0.35 / 4, 0])
    assert table["predicted"][1] == pytest.approx(1.65)
    assert table["predicted"][3] == pytest.approx(1.65 + 0.35 / 4)
    assert np.isnan(table["predicted"][6])  # the shape of a dynamic tree is not known
    assert table["tokens_per_call"].tolist() == pytest.approx([1.7, 1.5, 1.7, 1.9, 1.8, 2.0])
    assert (table["ci_low"] == table["ci_high"]).all()  # all prompts are alike
    assert table["calls"].tolist() == [40] * 6
    # dynamic trees say nothing of R: their children are chosen
    assert group_rates(one, table.reset_index(), "ERSS, T = 1") == pytest.approx([0.5, 0.2, 0.2])


def test_chains_have_a_level_a_token():
    one = made()
    calls = pd.DataFrame({"run": [1, 1, 1], "tested": [2, 0, 3], "accepted": [1, 0, 3]})
    runs = one.runs.assign(tree=None)
    empty = [pd.DataFrame()] * 3
    found = judged_levels(Decoded("t", "d", runs, one.answers, calls, *empty, {}, {}))
    assert found.to_numpy().tolist() == [
        [1, 1, 1, 1], [1, 2, 1, 0], [1, 1, 1, 1], [1, 2, 1, 1], [1, 3, 1, 1],
    ]  # fmt: skip


def test_curves_are_the_predictions_and_bounds_of_their_shapes():
    found = np.array([0.6, 0.2, 0.05])
    curves = predicted_curves(found, 7)
    shapes = {"sequence": sequence(4), "batch": batch(3), "symmetric": symmetric(2, 2)}
    for name, tree in shapes.items():
        (tokens,) = curves[name][1][curves[name][0] == len(tree)]
        assert tokens == pytest.approx(tree_tokens_per_call(tree, found))
    assert curves["batch"][0].tolist() == [1, 2, 3]  # R of a fourth is not known
    bounds = bound_curves(found, 7)
    assert set(bounds) == {FIXED_M_BOUND, BEST_M_BOUND}
    for k, tokens in curves.values():
        for name, (at, bound) in bounds.items():
            assert (bound[np.isin(at, k)] >= tokens - 1e-12).all(), name


def test_kl_and_entropies_stand_beside_the_tokens_that_they_bound():
    values = {"kl": [0.1, 0.3], "greedy_entropy": [0.5, 0.9], "races_entropy": [0.4, 0.2]}
    place = {"prompt_id": [*"aabbccdd"], "run": 0, "position": [0, 1] * 4}
    contexts = pd.DataFrame(place | {name: two * 4 for name, two in values.items()})
    one = made()
    runs = one.runs.copy()
    runs.loc[0, "temperature"] = 1.0
    one = replace(one, runs=runs, contexts=contexts, vocabulary=100)
    found = entropies(one, tree_runs(one, *STATISTICS)).set_index("group")
    assert found["kl"].tolist() == pytest.approx([0.2, 0.2])
    assert found["entropy"].to_dict() == pytest.approx({"GSS, T = 1": 0.7, "ERSS, T = 1": 0.3})
    assert np.isnan(found.loc["GSS, T = 1", "entropy_upper"])
    bits = [nats / math.log(2) for nats in values["kl"]]
    upper = np.mean([kl + math.log2(kl + 1) + 4 for kl in bits]) * math.log(2)
    assert found.loc["ERSS, T = 1", "entropy_upper"] == pytest.approx(upper)
    theorem = (math.log(100) + math.log(4)) / 0.7
    assert found.loc["GSS, T = 1", "theorem"] == pytest.approx(theorem)
    table = trees_table([one], [tree_runs(one, *STATISTICS)])
    rows = table.data.set_index("run")
    assert rows.loc[[1, 3], "entropy"].tolist() == pytest.approx([0.7, 0.7])
    assert rows.loc[3, "theorem"] == pytest.approx(theorem)


def test_gains_are_drawn_over_the_gaps_that_were_decoded():
    runs = [tree_runs(made(), *STATISTICS)]
    curves = tree_curves([made()], runs)
    added = curves[(curves["quantity"] == "added") & (curves["scheme"] == "GSS")]
    batch_ = added[added["curve"] == "batch"].set_index("kind")
    assert batch_.loc["measured", "value"].tolist() == pytest.approx([0.7, 0.0])
    # from 1 to 3 alternatives, a mean of two tokens, as of the points
    assert batch_.loc["predicted", "value"].tolist() == pytest.approx([0.65, 0.35 / 4 / 2])
    assert set(curves["scheme"]) == {"GSS", "ERSS"}  # of tree-greedy there is one size
    assert trees_figure([made()], runs).draw().axes


def test_the_table_has_what_was_measured_predicted_and_bounded():
    one = made()
    table = trees_table([one], [tree_runs(one, *STATISTICS)])
    rows = table.data.set_index("run")
    assert rows.loc[3, "acceptance"] == "0.65 0.0875 0"
    assert rows.loc[3, ["nodes", "levels"]].tolist() == [3, 1]
    known = rows[rows["predicted"].notna()]
    assert (known["bound"] >= known["predicted"]).all()
    assert rows["first_level"].tolist() == pytest.approx([0.7, 0.5, 0.7, 0.9, 0.8, 1.0])
    # two levels: child 1 is accepted at 1 of 2 first and at 1 of 1 second levels
    chain = run("speculative", "sequence", [-1, 0])
    levels = pd.DataFrame(
        [("a", 1, 1, 1, 1, 1), ("a", 1, 1, 2, 1, 1), ("a", 1, 4, 1, 1, 0)], columns=LEVELS
    )
    runs = pd.DataFrame([one.runs.iloc[0].to_dict(), chain])
    calls = one.calls[one.calls["run"] == 1]
    changed = replace(one, runs=runs, calls=calls, levels=levels)
    found = trees_table([changed], [tree_runs(changed, *STATISTICS)])
    shown = found.data.iloc[0]
    assert (shown["first_level"], shown["later_levels"]) == (0.5, 1.0)


def methods_of(one, trees=(1, 3, 4)):
    """The runs of `made` as methods at temperature 1 with tokens per call, some of them trees."""
    shapes = [shape if at in trees else None for at, shape in enumerate(one.runs["tree"])]
    tokens = [1.0, 1.7, 1.5, 1.7, 1.9, 1.8, 2.0]
    accepted = one.runs.drop(columns="tree").assign(
        lossless=[True] * 5 + [False] * 2,
        temperature=1.0,
        tokens_per_call=tokens,
        tokens_per_call_ci_low=[value - 0.1 for value in tokens],
        tokens_per_call_ci_high=[value + 0.1 for value in tokens],
        drafted_per_call=3.0,
        agreement=0.5,
        nats_given_up=0.25,
    )
    return replace(one, runs=one.runs.assign(tree=shapes)), accepted


def test_a_study_of_trees_says_first_what_they_give():
    one, accepted = methods_of(made())
    sentence = tree_sentence(one, accepted)
    found = dict.fromkeys(["races, batch 3", "races, batch 1", "races, dynamic 3"])
    assert all(name in sentence for name in found)
    places = [sentence.index(f"{value} [") for value in ("1.90", "1.50", "2.00")]
    assert places == sorted(places)  # the best tree, the best chain, what changes the text
    table = tree_summary([one], [accepted])
    assert table.cells["tokens per call"].iloc[3] == "1.90 [1.80, 2.00]"
    assert table.cells["same tokens"].tolist() == ["50.0 %"] * 6  # lossless answers part as well
    assert table.cells["nats given up"].tolist() == ["–"] * 4 + ["0.250"] * 2
    assert len(table.data) == 6  # without the target alone


def test_lossless_methods_alone_give_nothing_up():
    one, accepted = methods_of(made())
    table = tree_summary([one], [accepted.assign(lossless=True)])
    assert not {"same tokens", "nats given up"} & set(table.cells.columns)


def test_a_sequence_is_a_chain():
    one, accepted = methods_of(made())
    one.runs["tree"] = [shape and shape | {"name": "sequence"} for shape in one.runs["tree"]]
    assert tree_sentence(one, accepted) == ""


def test_only_the_highest_temperature_is_compared():
    one, accepted = methods_of(made())
    accepted.loc[4, "temperature"] = 0.5
    assert "1.70 [" in tree_sentence(one, accepted)
    assert len(tree_summary([one], [accepted]).data) == 5


def test_a_study_without_trees_has_no_such_answer():
    one, accepted = methods_of(made(), trees=())
    assert tree_sentence(one, accepted) == ""
    assert tree_summary([one], [accepted]) is None


def test_the_legend_of_trees_names_each_shape_scheme_and_bound_once():
    one = made()
    drawing = trees_figure([one], [tree_runs(one, *STATISTICS)]).draw()
    (legend,) = drawing.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert len(names) == len(set(names))
    for scheme in ("GSS", "ERSS"):
        assert sum(name.startswith(scheme) for name in names) == 1
    assert {"batch", "dynamic", FIXED_M_BOUND, BEST_M_BOUND} <= set(names)
