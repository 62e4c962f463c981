"""Draft trees in the loop: passes against plain passes of the branches, caches, what is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import (
    ROOT,
    DynamicTree,
    Topology,
    batch,
    expansion,
    optimal,
    sequence,
    spec_infer,
    symmetric,
)
from pipeline.decoding.loop import decode, tokens_before_eos
from pipeline.decoding.proposers import ModelProposer, Proposer
from pipeline.decoding.sampling import GreedySampler, GumbelSampler, Noise, first_tokens
from pipeline.decoding.tree_drafting import inner_nodes
from pipeline.decoding.verification import ExactMatch
from tests.pipeline import heads
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, UNEVEN, V, logits, plain_greedy
from tests.pipeline.heads import neural

TREES = [
    sequence(3),
    batch(4),
    symmetric(2, 3),
    spec_infer(5),
    UNEVEN,
    optimal([0.5, 0.25, 0.1], 12).by_level(),
]


def source_of(kind, target, drafter):
    if kind == "model":
        return drafter
    drafted = torch.arange(0, V, 2) if kind == "reduced head" else None
    return heads.random_head(target, drafted)


def branch(tree, tokens, node):
    """The drafted tokens that lead to a node, itself the last."""
    return [tokens[one] for one in path_to(tree, node)]


def path_to(tree, node):
    """The nodes from the root on to a node, itself the last."""
    return [] if node == ROOT else [*path_to(tree, tree.parents[node]), node]


def drafted_plainly(model, text, tree, race, position):
    """The tokens of a tree, each node's children from one plain pass over its branch."""
    tokens = [NOTHING] * len(tree)
    for node in inner_nodes(tree):
        row = logits(model, text + branch(tree, tokens, node))[-1]
        if race is not None:
            at = position + len(branch(tree, tokens, node))
            row = row.double() / race.temperature - race._noise.log_arrival_times(at, at + 1, V)[0]
        order = row.sort(descending=True, stable=True).indices.tolist()
        for child, token in zip(tree.children[node], order, strict=False):
            tokens[child] = token
    return tokens


GROWN = [
    DynamicTree(1, 1, 1),
    DynamicTree(3, 5, 3),
    DynamicTree(2, 3, 4),
    DynamicTree(4, 30, 4),
    DynamicTree(3, 99, 2),
]


def grown_plainly(model, text, growth, race, position):
    """Tokens and parents of a grown tree, each node's children from one pass over its branch."""
    values, paths, parents_ = [0.0], [[]], [ROOT]  # the text first
    level = [0]
    for depth in range(growth.depth):
        level = sorted(sorted(level, key=lambda at: -values[at])[: growth.width])
        read, level = level, []
        for at in read:
            row = logits(model, text + paths[at])[-1].double()
            if race is not None:
                row = row / race.temperature
                row -= race._noise.log_arrival_times(position + depth, position + depth + 1, V)[0]
            order = row.sort(descending=True, stable=True).indices[: growth.width].tolist()
            for token in order:
                level.append(len(values))
                values.append(values[at] + float(row.log_softmax(0)[token]))
                paths.append([*paths[at], token])
                parents_.append(at)
    kept = sorted(sorted(range(1, len(values)), key=lambda at: -values[at])[: growth.nodes])
    number = {0: ROOT, **{node: at for at, node in enumerate(kept)}}
    return [paths[at][-1] for at in kept], tuple(number[parents_[at]] for at in kept)


@pytest.mark.parametrize("tree", [*TREES, *GROWN], ids=str)
@pytest.mark.parametrize("raced", [False, True])
@torch.inference_mode()
def test_trees_are_drafted_as_plain_passes_of_their_branches_say(drafter, tree, raced):
    race = GumbelSampler(0.9, Noise(5, "a", 60, CPU, tree.depth)) if raced else None
    own = ModelProposer(drafter, race or GreedySampler(), tree)
    text = list(PROMPTS[1])
    own.begin(torch.tensor([text[:-1]]), 80, None)
    shapes = set()
    for accepted in (1, 0, tree.depth, 2, 1):  # drafts after roll-backs to paths of those before
        known = len(text)
        draft = own.propose(text, tree.depth, known)
        found, shape = draft.tokens.tolist(), draft.tree
        if isinstance(tree, DynamicTree):
            wanted = grown_plainly(drafter, text, tree, race, known)
            assert (found, shape.parents) == wanted
            assert len(found) == len(tree)
        else:
            assert found == drafted_plainly(drafter, text, tree, race, known)
            assert shape == tree
        shapes.add(shape)
        deep = [node for node in range(len(found)) if shape.depths[node] <= accepted]
        path = path_to(shape, deep[-1] if deep else ROOT)
        own.accept(known, path, None)
        text += [found[node] for node in path] + [9]
    if isinstance(tree, DynamicTree):
        assert len(shapes) > 1 or len(tree) in (1, 12)  # the last: all candidates are kept


SOURCES = ["model", "head", "reduced head"]
TRIED = [  # every tree with every source and every prompt, and every source with every prompt
    pytest.param(tree, source, PROMPTS[(at + turn) % 3], id=f"{tree}-{source}")
    for at, tree in enumerate([*TREES, *GROWN[1:4]])
    for turn, source in enumerate(SOURCES)
]


@pytest.mark.parametrize(("tree", "kind", "prompt"), TRIED)
def test_trees_decode_what_the_target_alone_does(target, drafter, tree, kind, prompt):
    source = source_of(kind, target, drafter)
    answer = greedy_on(target, source, tree, prompt)
    assert answer.tokens == plain_greedy(target, prompt)
    race = GumbelSampler(0.8, Noise(3, "a", LIMIT, CPU, tree.depth))
    alone = decode(target, Proposer(CPU), ExactMatch(race), prompt, 0, LIMIT)
    own = neural(source).proposer(race, tree, CPU)
    raced = decode(target, own, ExactMatch(race), prompt, tree.depth, LIMIT)
    assert raced.tokens == alone.tokens
    for one in (answer, raced):
        check_counts(one, tree)


def greedy_on(target, source, tree, prompt):
    own = neural(source).proposer(GreedySampler(), tree, CPU)
    return decode(target, own, ExactMatch(GreedySampler()), prompt, tree.depth, LIMIT)


def check_counts(answer, tree):
    """What the calls of an answer say fits together."""
    for call in answer.calls:
        left = min(tree.depth, LIMIT - call.position - 1)
        if isinstance(tree, Topology):
            cut = tree.within(left)
            assert (call.drafted, call.depth) == (len(cut), cut.depth)
        assert call.depth <= left
        assert call.drafted <= len(tree)
        assert call.accepted <= call.tested <= call.reach + 1
        assert call.tested == len(call.levels)
        if not answer.ended:
            assert call.emitted == call.accepted + 1
            taken = [True] * call.accepted + [False] * (call.tested - call.accepted)
            assert [accepted > 0 for _, accepted in call.levels] == taken
    assert sum(call.emitted for call in answer.calls) == len(answer.tokens) - 1


@pytest.mark.parametrize("tree", [symmetric(2, 3), UNEVEN])
def test_an_end_token_in_a_tree_ends_the_answer(target, drafter, tree):
    inside = 0
    for prompt in PROMPTS:
        free = plain_greedy(target, prompt)
        for end in set(free[1:]) - {free[0]}:
            answer = greedy_on(replace(target, eos=(end,)), drafter, tree, prompt)
            assert answer.tokens == free[: free.index(end) + 1]
            check_counts(answer, tree)
            inside += answer.calls[-1].accepted == answer.calls[-1].emitted
    assert inside > 0  # some end tokens were drafted and accepted


@pytest.mark.parametrize("tree", [symmetric(3, 2), DynamicTree(3, 20, 2)], ids=["fixed", "grown"])
def test_a_drafter_without_enough_tokens_drafts_nothing_in_their_place(target, tree):
    model = heads.random_head(target, torch.tensor([4, 7]))
    calls = []
    for prompt in PROMPTS:
        answer = greedy_on(target, model, tree, prompt)
        assert answer.tokens == plain_greedy(target, prompt)
        calls += answer.calls
    if isinstance(tree, DynamicTree):
        assert {call.drafted for call in calls if call.depth == 2} == {6}
    assert {accepted for call in calls for _, accepted in call.levels} <= {0, 1, 2}
    keys = torch.tensor([[0.0, -torch.inf, 2.0, 2.0]])
    assert first_tokens(keys, 2).tolist() == [[2, 3]]  # ties by id
    assert first_tokens(keys, 3).tolist() == [[2, 3, 0]]
    assert first_tokens(keys, 6).tolist() == [[2, 3, 0, NOTHING, NOTHING, NOTHING]]
    assert first_tokens(keys, 1).tolist() == [[2]]


def test_reach_by_hand():
    tree = expansion([2, 2])
    flags = np.ones(6, dtype=bool)
    assert tokens_before_eos(tree, flags) == 2
    assert tokens_before_eos(tree, ~flags) == 0
    flags[0] = flags[4] = flags[5] = False  # the first child, and both children of the second
    assert tokens_before_eos(tree, flags) == 1
    flags[4] = True
    assert tokens_before_eos(tree, flags) == 2
    # a node behind one that ends the answer counts for nothing
    ended = [[False, True, True], [True, False, True], [True, True, False]]
    assert [tokens_before_eos(sequence(3), np.array(flags)) for flags in ended] == [0, 1, 2]
