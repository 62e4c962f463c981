"""Methods from their configuration: what is refused, and how lists multiply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.rules import Tree
from analysis.trees.topology import Growth, symmetric
from pipeline.errors import PipelineError
from pipeline.plan.method import method_mapping, read_method, with_baselines
from pipeline.plan.methods import build_methods
from pipeline.plan.slices import method_slice

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_length": 0}, r"decoding.methods\[0\].draft_length=0 is not allowed"),
        ({"draft_length": 2.5}, "draft_length=2.5"),
        ({"temperature": -0.5}, "temperature=-0.5 is not allowed"),
        ({"temperature": float("inf")}, "temperature=inf is not allowed"),
        ({"draft_length": []}, r"methods\[0\].draft_length=\[\] is not allowed: give a value, or"),
        ({"drafter": {"a": 1}}, "drafter={'a': 1} is not allowed"),
        ({"temperature": 1.0}, "temperature=1.0 is not allowed: give 0 for a rule"),
        ({"drafter": "eagle"}, "drafter=eagle is not allowed: give one of model, prompt_lookup"),
        ({"rule": "tree", "m": 2, "tree": "sequence"}, "rule: tree is greedy on a symmetric tree"),
        ({"rule": "additive"}, "'t' is missing"),
        ({"sampling": "races"}, "either rule or sampling"),
        ({"draft_length": [3, 3]}, "given twice"),
        ({"model_length": 2}, r"\[0\].model_length=2 is not allowed: .*drafter: lookup_first"),
        ({"drafter": "lookup_first", "model_length": 4}, "model_length=4 is .* draft_length=3"),
        ({"drafter": "lookup_first", "model_length": 0}, "model_length=0 is not allowed"),
    ],
)
def test_methods_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods([GOOD | change])


def test_sampling_needs_heat_and_lists_multiply() -> None:
    with pytest.raises(PipelineError, match="above 0: at 0 take rule: greedy"):
        build_methods(
            [{"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0}]
        )
    methods = build_methods(
        [
            GOOD | {"draft_length": [1, 2]},
            {
                "drafter": "model",
                "rule": "mars",
                "theta": [0.8, 0.9],
                "draft_length": 3,
                "temperature": [0, 1.0],
            },
        ]
    )
    assert len(set(methods)) == 6
    with pytest.raises(PipelineError, match="at least one"):
        build_methods([])


def test_one_draft_length_for_all_takes_the_place_of_each() -> None:
    entries = [
        GOOD | {"draft_length": [1, 2, 7]},
        {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 1.0},
    ]
    found = build_methods(entries, 5)
    assert [(method.name, method.draft_length) for method in found] == [
        ("greedy", 5),  # three methods became one
        ("exponential races", 5),
    ]
    assert build_methods(entries, None) == build_methods(entries)
    with pytest.raises(PipelineError, match="draft_length=3, temperature=0 is given twice"):
        build_methods([GOOD | {"draft_length": [3, 3]}], 5)  # as without it


def test_every_temperature_has_a_baseline_and_races_their_own() -> None:
    sampled = {"drafter": "model", "sampling": ["speculative", "races"], "draft_length": [1, 3]}
    mars = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3}
    methods = build_methods([mars | {"temperature": [1.0, 0]}, sampled | {"temperature": 0.5}])
    alone = [(one.name, one.temperature) for one in with_baselines(methods)[: -len(methods)]]
    assert alone == [
        ("autoregressive", 0.0),
        ("autoregressive", 0.5),
        ("autoregressive (exponential races)", 0.5),
        ("autoregressive", 1.0),
    ]


TREE = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("given", "draft_length", "parents", "name"),
    [
        ({"tree": "sequence"}, 3, (-1, 0, 1), "sequence"),
        ({"tree": "batch", "width": 2}, 1, (-1, -1), "batch of 2"),
        ({"tree": "symmetric", "width": 2}, 2, (-1, -1, 0, 0, 1, 1), "symmetric, 2 wide"),
        ({"tree": "spec_infer"}, 4, (-1, 0, 1, 1, 1, 2, 3, 4), "SpecInfer's tree"),
        (
            {"tree": "optimal", "nodes": 4, "acceptance": [0.6, 0.3]},
            3,
            (-1, -1, 0, 2),  # in level order
            "tau* of 4, R = 0.6 0.3",
        ),
        (
            {"tree": "optimal", "nodes": 4, "acceptance": [0.6, 0.3]},
            2,
            (-1, -1, 0, 0),
            "tau* of 4, R = 0.6 0.3",
        ),
        (
            {"tree": "by_cost", "acceptance": [0.6, 0.3], "costs": [1, 1, 1, 9], "draft_cost": 0.2},
            4,
            (-1, -1),  # 1.9 tokens for 1.2; a chain of two has 1.96 for 1.4
            "tau* by cost, R = 0.6 0.3",
        ),
    ],
)
def test_trees_are_made_from_what_is_configured(
    given: dict[str, Any], draft_length: int, parents: tuple[int, ...], name: str
) -> None:
    [method] = build_methods([TREE | given | {"draft_length": draft_length}])
    assert method.topology is not None
    assert method.topology.parents == parents
    assert method.name == f"greedy ({name})"
    assert method.lossless


def test_the_rule_of_trees_is_greedy_on_a_symmetric_tree() -> None:
    [method] = build_methods([TREE | {"rule": "tree", "m": 3, "draft_length": 2}])
    assert method.topology == symmetric(3, 2)
    assert method.lossless
    assert method.rule == Tree(3)


def test_lists_of_numbers_are_one_tree_and_lists_of_them_several() -> None:
    tree = TREE | {"tree": "optimal", "nodes": [4, 5], "acceptance": [0.6, 0.3]}
    assert [m.topology and len(m.topology) for m in build_methods([tree])] == [4, 5]
    tree = TREE | {"tree": "optimal", "nodes": 6, "acceptance": [[0.6, 0.3], [0.9]]}
    with pytest.raises(PipelineError, match="k=6 is not allowed"):
        build_methods([tree])
    assert len(build_methods([tree | {"draft_length": 6}])) == 2
    tree = TREE | {"tree": "by_cost", "acceptance": [0.6], "draft_cost": [0.1, 0.2]}
    with pytest.raises(PipelineError, match="printed alike, greedy"):
        build_methods([tree | {"costs": [1, 1, 1]}])
    one = [TREE | {"tree": "batch", "width": 2, "draft_length": 1}]
    with pytest.raises(PipelineError, match="batch: draft_length=5 is not allowed: give 1"):
        build_methods(one, 5)
    two = [TREE | {"tree": "symmetric", "width": 2, "draft_length": [1, 3]}]
    assert [m.topology and m.topology.depth for m in build_methods(two, 2)] == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tree": {}}, r"methods\[0\].tree={} is not allowed: give one of sequence, batch"),
        ({"drafting": {}}, r"methods\[0\].drafting={} is not allowed: give one of"),
        ({"tree": "bush"}, r"methods\[0\].tree=bush is not allowed: give one of sequence, batch"),
        ({"tree": "symmetric"}, "key 'width' is missing: tree: symmetric takes it"),
        ({"tree": "sequence", "width": 2}, "key 'width' is not known: tree: sequence takes no"),
        ({"tree": "symmetric", "width": 0}, "width=0 is not allowed: give an integer from 1 to"),
        ({"tree": "symmetric", "width": 2.5}, "width=2.5 is not allowed"),
        ({"tree": "symmetric", "width": 4096, "draft_length": 1}, None),
        ({"tree": "symmetric", "width": 2, "draft_length": 11}, None),
        ({"tree": "symmetric", "width": 2, "draft_length": 12}, "has 8190 tokens: give one with 1"),
        ({"tree": "symmetric", "width": 2, "draft_length": 13}, "draft_length=13 is not allowed"),
        ({"tree": "symmetric", "width": 1, "draft_length": 4097}, "draft_length=4097 is not"),
        ({"tree": "sequence", "draft_length": 10**9}, "draft_length=1000000000 is not allowed"),
        ({"tree": "sequence", "drafter": "prompt_lookup"}, "prompt_lookup drafts chains only"),
        ({"tree": "sequence", "rule": "additive", "t": 0.1}, "rule=additive judges chains only"),
        (
            {"tree": "optimal", "nodes": 3, "acceptance": ["x"]},
            r"acceptance=\['x'\] is not allowed: give a list",
        ),
        ({"tree": "optimal", "nodes": 3, "acceptance": [0.9, 0.9]}, "rates=.* are not allowed"),
        ({"tree": "optimal", "nodes": 3, "acceptance": []}, "acceptance=.* is not allowed"),
        (
            {"tree": "by_cost", "acceptance": [0.1], "costs": [1, 5], "draft_cost": 1},
            "has 0 tokens: give one with 1",
        ),
        ({"width": 2}, "width"),  # without a tree it is a parameter of the rule, which has none
    ],
)
def test_trees_that_make_no_sense_are_refused(change: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert build_methods([TREE | change])
        return
    with pytest.raises(PipelineError, match=message):
        build_methods([TREE | change])


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "additive", "t": 0.1}, {"rule": "tree", "m": 2},
        {"drafter": "lookup_first", "model_length": 2}, {"drafting": "entropy", "threshold": 2},
        {"tree": "optimal", "nodes": 3, "acceptance": [0.6, 0.3]},
        {"tree": "dynamic", "width": 2, "nodes": 4},
    ],
)  # fmt: skip
def test_a_method_and_its_baseline_are_read_from_their_mappings(change: dict[str, Any]) -> None:
    for method in with_baselines(build_methods([GOOD | change])):
        assert read_method(json.loads(json.dumps(method_mapping(method)))) == method
    raced = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
    for method in with_baselines(build_methods([raced | {"top_p": 0.9, "top_k": 5}])):
        assert read_method(method_mapping(method) | {"other": 1}) == method


def test_the_shape_of_a_tree_is_made_once() -> None:
    rates = [*[0.001] * 63, 0.5]  # not monotone: k^3 steps
    entry = TREE | {"tree": "optimal", "nodes": 64, "acceptance": rates, "draft_length": 4}
    [method], [again] = build_methods([entry]), build_methods([entry])
    assert method.topology is again.topology is not None


def test_blocks_are_chains_above_zero() -> None:
    block = {"drafter": "model", "sampling": "block", "draft_length": 3, "temperature": 0.5}
    [method] = build_methods([block])
    assert method.name == "block verification"
    assert method.lossless
    with pytest.raises(PipelineError, match="sampling=block verifies chains only"):
        build_methods([block | {"tree": "sequence"}])
    with pytest.raises(PipelineError, match="above 0: at 0 take rule: greedy"):
        build_methods([block | {"temperature": 0}])


def test_a_model_may_draft_less_than_look_up_finds() -> None:
    first = GOOD | {"drafter": "lookup_first"}
    methods = build_methods([first | {"model_length": [1, 3]}, first])
    assert [(one.name, one.draft_length) for one in methods] == [
        ("greedy (look-up first) (model drafts 1)", 3),
        ("greedy (look-up first) (model drafts 3)", 3),
        ("greedy (look-up first)", 3),
    ]
    assert method_slice(methods[0]) == method_slice(methods[2]) | {"model_length": 1}


def test_what_stops_or_shapes_a_draft_needs_no_baseline_of_its_own() -> None:
    sampled = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
    [alone] = with_baselines(build_methods([sampled]))[:-1]
    for change in (
        {"drafting": "max_q", "threshold": 0.5},
        {"tree": "symmetric", "width": 2},
        {"drafter": "lookup_first", "model_length": 2},
        {"draft_length": 1},
    ):
        methods = build_methods([sampled, sampled | change])
        assert with_baselines(methods) == [alone, *methods]


def test_top_p_and_top_k_cut_what_is_drawn() -> None:
    cut = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
    methods = build_methods([cut, cut | {"top_p": 0.9}, cut | {"top_p": 0.9, "top_k": 5}])
    assert [one.name for one in with_baselines(methods)] == [
        "autoregressive (exponential races)",
        "autoregressive (exponential races) (top-p 0.9)",
        "autoregressive (exponential races) (top-p 0.9, top-k 5)",
        "exponential races",
        "exponential races (top-p 0.9)",
        "exponential races (top-p 0.9, top-k 5)",
    ]
    assert method_slice(methods[2])["top_p"] == 0.9
    assert build_methods([cut | {"top_p": 1.0, "top_k": 0}]) == build_methods([cut])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_p": 0}, r"methods\[0\].top_p=0 is not allowed: give a number in \(0, 1\]"),
        ({"top_p": 1.01}, r"top_p=1.01 is not allowed"),
        ({"top_k": -1}, r"top_k=-1 is not allowed: give an integer of at least 0"),
        ({"top_k": 1.5}, r"top_k=1.5 is not allowed"),
    ],
)
def test_truncations_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    drawn = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
    with pytest.raises(PipelineError, match=message):
        build_methods([drawn | change])


def test_where_nothing_is_drawn_nothing_is_cut() -> None:
    with pytest.raises(PipelineError, match=r"top_p=0.9 is not allowed: give 1 at"):
        build_methods([GOOD | {"top_p": 0.9}])
    with pytest.raises(PipelineError, match=r"top_k=5 is not allowed: give 0 at"):
        build_methods([GOOD | {"top_k": 5}])


def test_trees_that_grow() -> None:
    [method] = build_methods([GROWN])
    assert method.topology == Growth(4, 20, 3)
    assert method.name == "greedy (dynamic, 4 wide, 20 nodes)"
    [method] = build_methods([RACED | {"tree": "dynamic", "width": 4, "nodes": 256}])
    assert method.lossless


GROWN = GOOD | {"tree": "dynamic", "width": 4, "nodes": 20}
RACED = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (RACED | {"sampling": "speculative", "tree": "dynamic", "width": 2, "nodes": 4},
         "sampling=speculative is not lossless where nodes are chosen"),
        (GROWN | {"nodes": 257}, "nodes=257 is not allowed: give an integer from 1 to 256"),
        (GROWN | {"nodes": 0}, "nodes=0 is not allowed"),
        (GROWN | {"width": 2049}, "width=2049 is not allowed: give at most 4096 nodes with"),
        (GROWN | {"drafter": "lookup_first"}, "drafts chains only"),
        ({**GROWN, "tree": "dynamic", "acceptance": [0.5]}, "key 'acceptance' is not known"),
    ],
)  # fmt: skip
def test_trees_that_cannot_grow_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods([entry])


def test_a_chain_is_identified_as_before_there_were_trees() -> None:
    [chain] = build_methods([TREE])
    assert set(method_slice(chain)) == {
        "drafter", "sampling", "draft_length", "temperature", "rule",
    }  # fmt: skip
    tree = {"tree": "optimal", "nodes": 4, "acceptance": [0.6, 0.3]}
    [method] = build_methods([TREE | tree])
    assert method_slice(method)["tree"] == tree
