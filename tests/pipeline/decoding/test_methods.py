"""Methods from their configuration: what is refused, and how lists multiply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.rules import Additive, Rule, Tree
from analysis.trees.topology import DynamicTree, symmetric
from pipeline.errors import PipelineError
from pipeline.methods import build_methods, method_entries, read_method, with_baselines
from tests import methods

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}
RACED = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
MARS = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 1}
TAU = {"tree": "optimal", "nodes": 4, "acceptance": [0.6, 0.3]}
GROWN = GOOD | {"tree": "dynamic", "width": 4, "nodes": 20}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (GOOD | {"draft_length": 0}, r"decoding.methods.m0: .* a draft_length of at least 1"),
        (GOOD | {"draft_length": 2.5}, "draft_length=2.5"),
        (GOOD | {"temperature": float("inf")}, "temperature=inf is not allowed"),
        (GOOD | {"temperature": -0.5}, "temperature=-0.5 is not allowed"),
        (GOOD | {"draft_length": []}, r"m0: draft_length=\[\]: give a value, or"),
        (GOOD | {"temperature": 1.0}, "temperature=1 is not allowed: give 0 for a rule"),
        (GOOD | {"drafter": "eagle"}, "drafter='eagle' is not allowed: it should be 'model"),
        (GOOD | {"rule": "tree", "m": 2, "tree": "sequence"}, "rule: tree is greedy on a symmet"),
        (GOOD | {"sampling": "races"}, "either rule or sampling"),
        (GOOD | {"draft_length": [3, 3]}, "draft_length=3, temperature=0 is given twice"),
        (RACED | {"temperature": 0}, "a number above 0, or rule: greedy"),
        ({"rule": "greedy"}, r"s.m0: the key 'drafter' is missing; the key 'draft_length' is"),
        # trees
        (GOOD | {"tree": {}}, r"methods.m0: shape={} is not allowed: it should be 'sequence'"),
        (GOOD | {"tree": "bush"}, r"methods.m0: shape='bush' is not allowed: it should be 'seq"),
        (GOOD | {"tree": "symmetric"}, r"s.m0: tree: symmetric: the key 'width' is missing"),
        (GOOD | {"tree": "sequence", "width": 2}, "tree: sequence: the key 'width' is not known"),
        (GOOD | {"tree": "symmetric", "width": 0}, "width=0 is not allowed"),
        (GOOD | {"tree": "symmetric", "width": 2, "draft_length": 12}, "has 8190 tokens: give"),
        (GOOD | {"tree": "symmetric", "width": 2, "draft_length": 13}, "draft_length=13 is not"),
        (GOOD | {"tree": "symmetric", "width": 1, "draft_length": 4097}, "draft_length=4097 is no"),
        (GOOD | {"tree": "sequence", "draft_length": 10**9}, "draft_length=1000000000 is not"),
        (GOOD | {"tree": "sequence", "drafter": "prompt_lookup"}, "prompt_lookup drafts chains"),
        (GOOD | TAU | {"acceptance": ["x"]}, r"acceptance='x' is not allowed"),
        (GOOD | TAU | {"acceptance": [0.9, 0.9]}, "rates=.* are not allowed"),
        (GOOD | TAU | {"acceptance": []}, "acceptance=.*: give a value, or"),
        (GOOD | TAU | {"acceptance": [[0.6], [0.9]], "nodes": 6}, "k=6 is not allowed"),
        (GOOD | TAU | {"acceptance": [[0.6, 0.3], [0.6, 0.3000001]]}, "tau.* is given twice"),
        (GOOD | {"width": 2}, "m0.width=2 is not allowed without tree"),
        (RACED | {"sampling": "speculative", "tree": "dynamic", "width": 2, "nodes": 4},
         "sampling=speculative is not lossless where nodes are chosen"),
        (GROWN | {"nodes": 257}, "nodes=257 is not allowed: give at most 256"),
        (GROWN | {"nodes": 0}, "nodes=0 is not allowed"),
        (GROWN | {"width": 2049}, "width=2049 is not allowed: give at most 4096 nodes with"),
        (GROWN | {"acceptance": [0.5]}, "key 'acceptance' is not known"),
        (RACED | {"share": 0.5}, "m0: the key 'share' is not known"),
        (GOOD | {"draft_lenght": 5}, r"'draft_lenght' is not known \(did you mean draft_length"),
        (GOOD | {"rule": "gredy"}, r"rule='gredy' is not known \(did you mean greedy"),
        (GOOD | {"rule": {"rule": "tree"}}, r"rule={'rule': 'tree'} is not known"),
    ],
)  # fmt: skip
def test_methods_that_make_no_sense_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        methods.build([entry])


def test_lists_multiply_and_one_draft_length_takes_the_place_of_each() -> None:
    mars = {"drafter": "model", "rule": "mars", "theta": [0.8, 0.9], "draft_length": 3}
    entries = [GOOD | {"draft_length": [1, 2]}, mars | {"temperature": [0, 1.0]}]
    assert len(set(methods.build(entries))) == 6
    with pytest.raises(PipelineError, match="at least one"):
        methods.build([])
    entries = [GOOD | {"draft_length": [1, 2, 7]}, RACED]
    found = [(method.name, method.draft_length) for method in methods.build(entries, 5)]
    assert found == [("greedy", 5), ("exponential races", 5)]  # three methods became one
    assert methods.build(entries, None) == methods.build(entries)
    with pytest.raises(PipelineError, match="draft_length=3, temperature=0 is given twice"):
        methods.build([GOOD | {"draft_length": [3, 3]}], 5)  # as without it
    # a list of numbers is one tree, a list of lists several
    assert [len(m.topology or ()) for m in methods.build([GOOD | TAU | {"nodes": [4, 5]}])] == [
        4,
        5,
    ]
    two = GOOD | TAU | {"nodes": 6, "acceptance": [[0.6, 0.3], [0.9]], "draft_length": 6}
    assert len(methods.build([two])) == 2
    batch = GOOD | {"tree": "batch", "width": 2, "draft_length": 1}
    with pytest.raises(PipelineError, match="draft_length=5 is not allowed: give at most 1"):
        methods.build([batch], 5)
    wide = GOOD | {"tree": "symmetric", "width": 2, "draft_length": [1, 3]}
    assert [m.topology and m.topology.depth for m in methods.build([wide], 2)] == [2]


def test_every_temperature_has_a_baseline_and_races_their_own() -> None:
    sampled = {"drafter": "model", "sampling": ["speculative", "races"], "draft_length": [1, 3]}
    mars = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3}
    built = methods.build([mars | {"temperature": [1.0, 0]}, sampled | {"temperature": 0.5}])
    alone = [(one.name, one.temperature) for one in with_baselines(built)[: -len(built)]]
    assert alone == [
        ("autoregressive", 0.0),
        ("autoregressive", 0.5),
        ("autoregressive (exponential races)", 0.5),
        ("autoregressive", 1.0),
    ]
    [raced] = with_baselines(methods.build([RACED]))[:-1]
    for change in (
        {"tree": "symmetric", "width": 2},
        {"draft_length": 1},
    ):  # what shapes a draft needs no baseline of its own
        built = methods.build([RACED, RACED | change])
        assert with_baselines(built) == [raced, *built]


@pytest.mark.parametrize(
    ("given", "parents", "name"),
    [
        ({"tree": "sequence"}, (-1, 0, 1), "sequence"),
        ({"tree": "batch", "width": 2, "draft_length": 1}, (-1, -1), "batch of 2"),
        ({"tree": "symmetric", "width": 2, "draft_length": 2}, (-1, -1, 0, 0, 1, 1),
         "symmetric, 2 wide"),
        ({"tree": "spec_infer", "draft_length": 4}, (-1, 0, 1, 1, 1, 2, 3, 4), "SpecInfer's tree"),
        (TAU, (-1, -1, 0, 2), "tau* of 4, R = 0.6 0.3"),  # in level order
        (TAU | {"draft_length": 2}, (-1, -1, 0, 0), "tau* of 4, R = 0.6 0.3"),
    ],
)  # fmt: skip
def test_trees_are_made_from_what_is_configured(
    given: dict[str, Any], parents: tuple[int, ...], name: str
) -> None:
    [method], [again] = methods.build([GOOD | given]), methods.build([GOOD | given])
    assert method.topology is not None
    assert method.topology is again.topology  # a shape is made once
    assert method.topology.parents == parents
    assert method.name == f"greedy ({name})"
    assert method.lossless


def test_the_rule_of_trees_is_greedy_on_a_symmetric_tree_and_trees_grow() -> None:
    [method] = methods.build([GOOD | {"rule": "tree", "m": 3, "draft_length": 2}])
    assert (method.topology, method.rule) == (symmetric(3, 2), Tree(3))
    assert method.lossless
    assert methods.build([GOOD | {"tree": "symmetric", "width": 4096, "draft_length": 1}])
    assert methods.build([GOOD | {"tree": "symmetric", "width": 2, "draft_length": 11}])
    [method] = methods.build([GROWN])
    assert method.topology == DynamicTree(4, 20, 3)
    assert method.name == "greedy (dynamic, 4 wide, 20 nodes)"
    [method] = methods.build([RACED | {"tree": "dynamic", "width": 4, "nodes": 256}])
    assert method.lossless


@pytest.mark.parametrize(
    "entry",
    [
        *(GOOD | change for change in (
            {"rule": "additive", "t": 0.1}, {"rule": "tree", "m": 2}, TAU,
            {"drafter": "prompt_lookup"}, {"tree": "dynamic", "width": 2, "nodes": 4},
        )),
        RACED | {"sampling": "argmax", "tree": "dynamic", "width": 2, "nodes": 4},
        MARS,
    ],
)  # fmt: skip
def test_a_method_and_its_baseline_are_read_from_their_mappings(entry: dict[str, Any]) -> None:
    for method in with_baselines(methods.build([entry])):
        mapping = json.loads(json.dumps(method.to_mapping()))
        assert read_method(mapping | {"other": 1}) == method


def test_names_say_what_differs_and_entries_what_is_decoded() -> None:
    looked_up = GOOD | {"drafter": "prompt_lookup"}
    built = methods.build([looked_up])
    assert [(one.name, one.draft_length) for one in built] == [("greedy (prompt lookup)", 3)]
    assert all(one.lossless for one in built)
    # a chain is identified as before there were trees
    plain = {"drafter", "sampling", "draft_length", "temperature", "rule"}
    assert set(method_entries(methods.build([GOOD])[0])) == plain
    assert TAU.items() <= method_entries(methods.build([GOOD | TAU])[0]).items()


def test_mars_drafts_trees_as_the_paper_does() -> None:
    grown = {"tree": "dynamic", "width": 10, "nodes": 59}
    built = methods.build([MARS, MARS | grown])
    assert built[0].name == "mars theta=0.9"
    assert [one.drafts_most_probable for one in built] == [False, True]
    assert not any(one.lossless for one in built)
    drafts = methods.build([RACED | {"sampling": "argmax"} | grown])
    assert (drafts[0].lossless, drafts[0].drafts_most_probable) == (True, True)
    assert drafts[0].name.startswith("speculative sampling, argmax drafts (dynamic, 10 wide")


def test_criteria_stands_for_the_single_rules_that_are_certified() -> None:
    mine = {"drafter": "model", "draft_length": 2}
    mild = {"mild": mine | {"rule": "additive", "t": 0.1}, "greedy": mine | {"rule": "greedy"}}
    ours = {"ours": mine | {"rule": "criteria"}}

    def built(*rules: Rule) -> list[str]:
        return [method.name for method in build_methods(ours | mild | {"none": None}, rules)]

    assert built(Additive(0.3)) == ["additive t=0.1", "greedy", "additive t=0.3"]
    assert built(Additive(0.1)) == built() == ["additive t=0.1", "greedy"]  # decoded anyway; a grid
    for length in (None, 5):  # 64 nodes at most, whatever the draft length
        (method,) = build_methods(ours, [Tree(8)], length)
        assert (method.draft_length, method.tree and method.tree.width) == (1, 8)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([GOOD], r"at least one method by name, .*\+decoding.methods.mine="),
        ({"a": None}, "decoding.methods: give at least one method"),
        ({"a": 3}, "decoding.methods.a=3 is not allowed: give a mapping"),
    ],
)
def test_entries_that_are_no_methods_are_refused(entries: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods(entries, [])
