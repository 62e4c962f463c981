"""Methods from their configuration: what is refused, and how lists multiply."""

import json

import pytest

from analysis.rules import Additive, Tree
from analysis.trees.topology import DynamicTree, symmetric
from pipeline.core.errors import PipelineError
from pipeline.settings.method_config import build_methods
from pipeline.settings.methods import method_entries, read_method, with_baselines
from tests import methods

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}
RACED = {"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0.5}
MARS = {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 1}
TAU = {"tree": "optimal", "nodes": 4}
WIDE = {"tree": "symmetric", "width": 2}
GROWN = GOOD | {"tree": "dynamic", "width": 4, "nodes": 20}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, r"decoding.methods.m0=3 is not allowed: give a mapping"),
        (GOOD | {"draft_length": 0}, r"decoding.methods.m0: .* a draft_length of at least 1"),
        (GOOD | {"draft_length": [3, 3]}, "m0: greedy is given twice"),
        (GOOD | {"temperature": 1.0}, "temperature=1 is not allowed: give 0 for a rule"),
        (RACED | {"temperature": 0}, "a number above 0, or rule: greedy"),
        (GOOD | {"sampling": "races"}, "either rule or sampling"),
        (GOOD | {"draft_lenght": 5}, r"'draft_lenght' is not known \(did you mean draft_length"),
        (GOOD | {"tree": "symmetric"}, r"s.m0: tree: symmetric: the key 'width' is missing"),
        (GOOD | {"width": 2}, "m0.width=2 is not allowed without tree"),
        (GOOD | {"rule": "tree", "m": 2, "tree": "sequence"}, "rule: tree is greedy on a symmet"),
        (GOOD | {"tree": "sequence", "drafter": "prompt_lookup"}, "prompt_lookup drafts chains"),
        (GOOD | {"tree": "batch", "width": 2}, "draft_length=3 is not allowed: give 1"),
        (GOOD | WIDE | {"draft_length": 12}, "would read 8190 tokens a call; give a tree of at"),
        (RACED | {"sampling": "speculative", "tree": "dynamic", "width": 2, "nodes": 4},
         "sampling=speculative is not lossless where nodes are chosen"),
    ],
)  # fmt: skip
def test_methods_that_make_no_sense_are_refused(entry, message):
    with pytest.raises(PipelineError, match=message):
        methods.build([entry])


@pytest.mark.parametrize("key", ["width", "nodes"])
def test_a_tree_may_be_as_thin_as_a_chain(key):
    """Of one child or one node, and of no fewer; of no more than a verification reads."""
    for value, allowed in ((0, False), (1, True), (2, True), (4096, True), (4097, False)):
        shape = {"width": 1, "nodes": 1, key: value, "draft_length": 1}
        entry = GOOD | {"tree": "dynamic"} | shape
        if allowed:
            [method] = methods.build([entry])
            assert getattr(method.tree, key) == value
        else:
            with pytest.raises(PipelineError, match=rf"m0: {key}={value} is not"):
                methods.build([entry])


def test_lists_multiply_and_one_draft_length_takes_the_place_of_each():
    entries = [GOOD | {"draft_length": [1, 2]}, MARS | {"theta": [0.8, 0.9], "temperature": [0, 1]}]
    assert len(set(methods.build(entries))) == 6
    for nothing in ([], {"a": None}, [GOOD]):
        with pytest.raises(PipelineError, match="at least one"):
            build_methods(nothing, [])
    entries = [GOOD | {"draft_length": [1, 2, 7]}, RACED]
    found = [(method.name, method.draft_length) for method in methods.build(entries, 5)]
    assert found == [("greedy", 5), ("exponential races", 5)]  # three methods became one
    built = methods.build([GOOD | TAU | {"nodes": [4, 5]}])
    assert [method.tree and method.tree.nodes for method in built] == [4, 5]
    [wide] = methods.build([GOOD | WIDE | {"draft_length": [1, 3]}], 2)
    assert wide.topology == symmetric(2, 2)


def test_every_temperature_has_a_baseline_and_races_their_own():
    sampled = RACED | {"sampling": ["speculative", "races"], "draft_length": [1, 3]}
    built = methods.build([MARS | {"temperature": [1.0, 0]}, sampled, RACED | WIDE])
    alone = [(one.name, one.temperature) for one in with_baselines(built)[: -len(built)]]
    assert alone == [
        ("autoregressive", 0.0),
        ("autoregressive", 0.5),
        ("autoregressive (exponential races)", 0.5),
        ("autoregressive", 1.0),
    ]


@pytest.mark.parametrize(
    ("given", "parents", "name"),
    [
        ({"tree": "sequence"}, (-1, 0, 1), "sequence"),
        (WIDE | {"draft_length": 2}, (-1, -1, 0, 0, 1, 1), "symmetric, 2 wide"),
        ({"tree": "spec_infer", "draft_length": 4}, (-1, 0, 1, 1, 1, 2, 3, 4), "SpecInfer's tree"),
    ],
)
def test_trees_are_made_from_what_is_configured(given, parents, name):
    [method] = methods.build([GOOD | given])
    assert method.topology.parents == parents
    assert (method.name, method.lossless) == (f"greedy ({name})", True)


def test_the_rule_of_trees_is_greedy_on_a_symmetric_tree_and_trees_grow():
    [method] = methods.build([GOOD | {"rule": "tree", "m": 3, "draft_length": 2}])
    assert (method.topology, method.rule) == (symmetric(3, 2), Tree(3))
    assert method.lossless
    assert methods.build([GOOD | WIDE | {"draft_length": 11}])
    [method] = methods.build([GROWN])
    assert method.topology == DynamicTree(4, 20, 3)
    assert method.name == "greedy (dynamic, 4 wide, 20 nodes)"


@pytest.mark.parametrize(
    "entry",
    [
        GOOD | {"rule": "tree", "m": 2},
        GOOD | TAU,
        RACED | {"sampling": "argmax", "tree": "dynamic", "width": 2, "nodes": 4},
        MARS,
    ],
)
def test_a_method_and_its_baseline_are_read_from_their_mappings(entry):
    for method in with_baselines(methods.build([entry])):
        mapping = json.loads(json.dumps(method.to_mapping()))
        assert read_method(mapping | {"other": 1}) == method
        assert mapping.items() <= method_entries(method).items()


def test_mars_drafts_trees_as_the_paper_does():
    grown = {"tree": "dynamic", "width": 10, "nodes": 59}
    built = methods.build([MARS, MARS | grown])
    assert built[0].name == "mars theta=0.9"
    assert [one.drafts_most_probable for one in built] == [False, True]
    assert not any(one.lossless for one in built)
    drafts = methods.build([RACED | {"sampling": "argmax"} | grown])
    assert (drafts[0].lossless, drafts[0].drafts_most_probable) == (True, True)
    assert drafts[0].name.startswith("speculative sampling, argmax drafts (dynamic, 10 wide")


def test_criteria_stands_for_the_single_rules_that_are_certified():
    mine = {"drafter": "model", "draft_length": 2}
    mild = {"mild": mine | {"rule": "additive", "t": 0.1}, "greedy": mine | {"rule": "greedy"}}
    ours = {"ours": mine | {"rule": "criteria"}}

    def built(*rules):
        return [method.name for method in build_methods(ours | mild | {"none": None}, rules)]

    assert built(Additive(0.3)) == ["additive t=0.1", "greedy", "additive t=0.3"]
    assert built(Additive(0.1)) == built() == ["additive t=0.1", "greedy"]  # decoded anyway; a grid
    for m, depth in ((1, 5), (2, 5), (4, 2), (8, 1), (100, 1)):  # 64 nodes at most, if it can be
        (method,) = build_methods(ours, [Tree(m)], 5)
        assert (method.draft_length, method.tree and method.tree.width) == (depth, m)
