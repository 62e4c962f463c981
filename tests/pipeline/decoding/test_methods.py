"""Methods from their configuration: what is refused, and how lists multiply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.rules import Additive, StrictGreedy, Tree
from analysis.trees.topology import Growth, symmetric
from pipeline.errors import PipelineError
from pipeline.methods import build_methods, read_method, with_baselines
from pipeline.plan.specs import method_entries
from tests import methods

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}
RACED = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
MARS = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 1}
TAU = {"tree": "optimal", "nodes": 4, "acceptance": [0.6, 0.3]}
GROWN = GOOD | {"tree": "dynamic", "width": 4, "nodes": 20}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (GOOD | {"draft_length": 0}, r"decoding.methods.m0.draft_length=0 is not allowed"),
        (GOOD | {"draft_length": 2.5}, "draft_length=2.5"),
        (GOOD | {"temperature": float("inf")}, "temperature=inf is not allowed"),
        (GOOD | {"temperature": -0.5}, "temperature=-0.5 is not allowed"),
        (GOOD | {"draft_length": []}, r"draft_length=\[\] is not allowed: give a value, or"),
        (GOOD | {"temperature": 1.0}, "temperature=1.0 is not allowed: give 0 for a rule"),
        (GOOD | {"drafter": "eagle"}, "drafter=eagle is not allowed: give one of model, prompt_l"),
        (GOOD | {"rule": "tree", "m": 2, "tree": "sequence"}, "rule: rule0 is greedy on a symmet"),
        (GOOD | {"sampling": "races"}, "either rule or sampling"),
        (GOOD | {"draft_length": [3, 3]}, "draft_length=3, temperature=0 is given twice"),
        (RACED | {"temperature": 0}, "above 0: at 0 take rule: greedy"),
        ({"rule": "greedy"}, r"s.m0: the key 'drafter' is missing: give one of model"),
        # trees
        (GOOD | {"tree": {}}, r"methods.m0.tree={} is not allowed: give one of sequence, batch"),
        (GOOD | {"tree": "bush"}, r"methods.m0.tree=bush is not allowed: give one of sequence"),
        (GOOD | {"tree": "symmetric"}, r"s.m0: the key 'width' is missing: tree"),
        (GOOD | {"tree": "sequence", "width": 2}, "key 'width' is not known: tree: sequence"),
        (GOOD | {"tree": "symmetric", "width": 0}, "width=0 is not allowed: give an integer from"),
        (GOOD | {"tree": "symmetric", "width": 2, "draft_length": 12}, "has 8190 tokens: give one"),
        (GOOD | {"tree": "symmetric", "width": 2, "draft_length": 13}, "draft_length=13 is not"),
        (GOOD | {"tree": "symmetric", "width": 1, "draft_length": 4097}, "draft_length=4097 is no"),
        (GOOD | {"tree": "sequence", "draft_length": 10**9}, "draft_length=1000000000 is not"),
        (GOOD | {"tree": "sequence", "drafter": "prompt_lookup"}, "prompt_lookup drafts chains"),
        (GOOD | TAU | {"acceptance": ["x"]}, r"acceptance=\('x',\) is not allowed: give a list"),
        (GOOD | TAU | {"acceptance": [0.9, 0.9]}, "rates=.* are not allowed"),
        (GOOD | TAU | {"acceptance": []}, "acceptance=.* is not allowed"),
        (GOOD | TAU | {"acceptance": [[0.6], [0.9]], "nodes": 6}, "k=6 is not allowed"),
        (GOOD | TAU | {"acceptance": [[0.6, 0.3], [0.6, 0.3000001]]}, "one printed name, greedy"),
        (GOOD | {"width": 2}, "m0.width=2 is not allowed: give nothing, or tree as well"),
        (RACED | {"sampling": "speculative", "tree": "dynamic", "width": 2, "nodes": 4},
         "sampling=speculative is not lossless where nodes are chosen"),
        (GROWN | {"nodes": 257}, "nodes=257 is not allowed: give an integer from 1 to 256"),
        (GROWN | {"nodes": 0}, "nodes=0 is not allowed"),
        (GROWN | {"width": 2049}, "width=2049 is not allowed: give at most 4096 nodes with"),
        (GROWN | {"acceptance": [0.5]}, "key 'acceptance' is not known"),
        (RACED | {"share": 0.5}, "m0: the key 'share' is not known"),
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
    with pytest.raises(PipelineError, match="batch: draft_length=5 is not allowed: give 1"):
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
    assert method.topology == Growth(4, 20, 3)
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


def test_a_rule_is_named_and_criteria_stands_for_those_that_are_certified() -> None:
    rules = {"mild": [Additive(0.1)], "greedy": [StrictGreedy()], "criteria": [Additive(0.3)]}
    mine = {"drafter": "model", "draft_length": 2}

    def built(**entries: Any) -> list[str]:
        return [method.name for method in build_methods(entries, rules)]

    both = mine | {"rule": ["mild", "greedy"]}
    assert built(a=both) == ["additive t=0.1", "greedy"]
    assert built(a=mine | {"rule": "criteria"}, b=both) == [
        "additive t=0.1", "greedy", "additive t=0.3"
    ]  # fmt: skip
    rules["criteria"] = [Additive(0.1)]  # decoded anyway
    assert built(a=both, b=mine | {"rule": "criteria"}) == ["additive t=0.1", "greedy"]
    rules["criteria"] = []  # a grid
    assert built(a=both, b=mine | {"rule": "criteria"}, c=None) == ["additive t=0.1", "greedy"]
    rules["criteria"] = [Tree(8)]  # of 64 nodes at most, whatever the draft length
    for length in (None, 5):
        (method,) = build_methods({"a": mine | {"rule": "criteria"}}, rules, length)
        assert (method.draft_length, method.tree and method.tree.width) == (1, 8)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([GOOD], r"not a list any more: give every method a name, .*\+decoding.methods.mine="),
        ({}, "decoding.methods: give at least one method"),
        ({"a": None}, "decoding.methods: give at least one method"),
        ({"a": 3}, "decoding.methods.a=3 is not allowed: give a mapping"),
        ({"a": GOOD | {"rule": "gredy"}}, r"rule=gredy is not a name of `rules` \(did you mean g"),
        ({"a": GOOD | {"rule": {"rule": "additive", "t": 0.1}}}, r"give a name, .*\+rules.NAME="),
    ],
)  # fmt: skip
def test_entries_without_a_name_or_with_an_unknown_rule_are_refused(
    entries: Any, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods(entries, {"greedy": [StrictGreedy()]})
