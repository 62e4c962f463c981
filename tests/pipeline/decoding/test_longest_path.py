"""A rule on a tree accepts the longest path, by brute force."""

from __future__ import annotations

import pytest
import torch

from analysis.decoding.schemes import NOTHING
from analysis.rules import Mars
from analysis.trees.topology import ROOT, Topology, sequence, spec_infer, symmetric
from pipeline.decoding.drafters import Draft
from pipeline.decoding.verify import Relaxed
from tests.pipeline.decoding.pair import UNEVEN, V

TREES = [sequence(1), sequence(5), symmetric(2, 3), spec_infer(5), UNEVEN]


def paths(tree: Topology) -> list[tuple[int, ...]]:
    """All paths of a tree from the root on, the empty one first."""
    found: list[tuple[int, ...]] = [()]
    for path in found:
        found += [(*path, child) for child in tree.children[path[-1] if path else ROOT]]
    return found


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_a_rule_accepts_the_longest_path_of_a_tree(tree: Topology) -> None:
    """Algorithm 1 of MARS on trees: of all paths whose tokens it accepts the longest, the first."""
    generator = torch.Generator().manual_seed(3)
    above, lengths, relaxed = torch.tensor(tree.parents) + 1, set(), 0
    for _ in range(120):
        z = 12 + torch.randn((len(tree) + 1, V), generator=generator)
        rank = torch.randint(3, (len(tree),), generator=generator)
        tokens = z[above].topk(3).indices.gather(1, rank[:, None])[:, 0]
        tokens[-1] = NOTHING
        first, second = z[above].topk(2).values.T
        accepts = (rank == 0) | ((rank == 1) & (second / first > 0.95))
        accepts[-1] = False
        key = [path for path in paths(tree) if all(accepts[node] for node in path)]
        longest = max(map(len, key))
        path, token, _ = Relaxed(Mars(0.95)).verify(z, Draft(tokens, tree), 0)
        assert path == min(one for one in key if len(one) == longest)
        assert token == int(z[path[-1] + 1 if path else 0].argmax())
        lengths.add(len(path))
        relaxed += any(rank[node] == 1 for node in path)
    assert len(lengths) > min(tree.depth, 2) - 1
    assert relaxed > 0 or len(tree) == 1
