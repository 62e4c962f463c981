"""Laws of verification by exact enumeration; prompt look-up by a scan, and as vLLM drafted."""

from fractions import Fraction

import numpy as np
import pytest

from analysis.decoding import schemes
from analysis.decoding.lookup import SHORTEST, continuation, lookup_calls
from analysis.trees.topology import batch, expansion, sequence, symmetric
from tests.divergences import argmax_rank
from tests.engines import answer_ids, lines

from .exact import Uniform, distributions, outcomes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("relaxed", [(), (1,), (0, 1)], ids=["none", "rank 2", "ranks 1 and 2"])
def test_relaxed_sampling_emits_what_its_acceptance_gives(seed, relaxed):
    """r = q a + (1 - sum of q a) (p - q)+ / TV, a = 1 where relaxed, else min(1, p / q).

    MARS above temperature 0 relaxes rank 2 only. Relaxing rank 1 as well is another law.
    """
    p, q = (distributions(seed + more, 3)(()) for more in (0, 100))
    ranked = sorted(range(3), key=lambda token: -p[token])
    also = {ranked[rank] for rank in relaxed}

    def run(fork):
        drafted = schemes.pick(q, Uniform(fork))
        accepted, token = schemes.speculative_sampling(
            sequence(1),
            [drafted],
            [Uniform(fork)],
            lambda node: (p, q) if node < 0 else (q, None),  # a bonus token is of no interest
            lambda _: Uniform(fork),
            np.array([drafted in also]),
        )
        return drafted if accepted else token

    keep = [
        Fraction(1) if x in also or not q[x] else min(Fraction(1), p[x] / q[x]) for x in range(3)
    ]
    kept = sum(q[x] * keep[x] for x in range(3))
    rest = [max(Fraction(0), p[x] - q[x]) for x in range(3)]
    wanted = [q[x] * keep[x] + (1 - kept) * rest[x] / sum(rest) for x in range(3)]
    law = outcomes(run)
    assert [law[x] for x in range(3)] == wanted
    assert bool(relaxed) or wanted == list(p)


def child_after_child(tree, drafted, p, also, fork):
    """EAGLE-3's loop: a child is tested with its p, and a rejected token leaves p."""
    path = []
    while True:
        node = path[-1] if path else -1
        weights = p[node + 1].copy()
        for child in tree.children[node]:
            if also[child] or Uniform(fork) * weights.sum() < weights[drafted[child]]:
                path.append(child)
                break
            weights[drafted[child]] = Fraction(0)
        else:
            return tuple(path), schemes.pick(weights, Uniform(fork))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tree", [sequence(2), batch(3), expansion([2, 1])])
def test_following_draws_has_the_law_of_tests_in_order(tree, seed):
    """MARS on EAGLE-3's trees, any set of tokens being relaxed; without one it is lossless."""
    generator, size = np.random.default_rng(seed), 4
    p = [distributions(seed, size)((node,)) for node in range(len(tree) + 1)]
    drafted = [0] * len(tree)
    for children in tree.children:
        for child, token in zip(children, generator.permutation(size).tolist(), strict=False):
            drafted[child] = token
    for relaxed in (np.zeros(len(tree), bool), generator.random(len(tree)) < 0.4):

        def path(fork, also=relaxed):
            return schemes.matching_path(
                tree, drafted, lambda node, _: schemes.pick(p[node + 1], Uniform(fork)), also
            )

        def tested(fork, also=relaxed):
            return child_after_child(tree, drafted, p, also, fork)

        assert +outcomes(path) == +outcomes(tested)  # of what has a probability


def matched(tree, drafted, choices):
    return schemes.matching_path(tree, drafted, lambda node, _: choices[node + 1])


def test_a_path_follows_the_choices_of_the_target():
    assert matched(sequence(3), [4, 5, 6], [4, 5, 7, 8]) == ((0, 1), 7)
    assert matched(sequence(0), [], [9]) == ((), 9)
    tree = symmetric(2, 2)  # nodes 0, 1; 2, 3 behind 0; 4, 5 behind 1
    drafted = [7, 8, 1, 2, 1, 2]
    assert matched(tree, drafted, [8, 0, 2, 0, 0, 0, 5]) == ((1, 5), 5)
    assert matched(tree, drafted, [8, 0, 3, 0, 0, 0, 0]) == ((1,), 3)


def test_tree_greedy_accepts_a_level_as_the_rule_says():
    generator = np.random.default_rng(0)
    target, draft = generator.normal(size=(2, 200, 8))
    rank = argmax_rank(target, draft)
    for m in (1, 3):
        drafted = np.argsort(-draft, axis=1)[:, :m]
        for row, at in enumerate(rank):
            choices = [int(target[row].argmax()), *[0] * m]
            path, _ = matched(batch(m), drafted[row].tolist(), choices)
            assert bool(path) == (at <= m)


def test_impossible_rejection_and_rounding_leave_a_token_of_the_target():
    p = np.array([0.25, 0.75, 0.0])
    assert schemes.pick(schemes.residual(p, p), 0.5) == 1
    assert schemes.pick(p, np.nextafter(1.0, 0.0)) == 1  # never the token without mass
    assert schemes.pick(np.array([0.0, 1.0]), 0.0) == 1


def scanned(text, longest, count, match):
    """Look for an occurrence one by one, longer ones first."""
    for n in range(min(longest, len(text) - 1), min(longest, SHORTEST) - 1, -1):
        ends = range(n - 1, len(text) - 1)
        for end in ends if match == "earliest" else reversed(ends):
            if text[end - n + 1 : end + 1] == text[-n:]:
                grown = list(text)
                for at in range(end + 1, end + 1 + count):
                    grown.append(grown[at])
                drafted = grown[len(text) :]
                return drafted if match == "latest" else drafted[: len(text) - end - 1]
    return []


def test_it_drafts_what_a_scan_finds():
    generator = np.random.default_rng(0)
    texts = [generator.integers(3, size=size % 12).tolist() for size in range(300)]
    for match in ("latest", "earliest"):
        for text in texts:
            for longest in (1, 2, 3, 4):
                drafted = continuation(text, longest, 5, match)
                assert drafted == scanned(text, longest, 5, match), (text, match)
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert continuation(text, 2, 2) == [8, 1]  # 2 3 occurs twice, the later counts
    assert continuation(text, 9, 1) == [9]  # no more than the text has
    assert continuation([1, 2, 1], 3, 1) == []  # one token is too few where more are searched


def test_earliest_is_vllms_call_by_call():
    """vLLM 0.32, ngram, drafts of 4: all but each answer's last call, which may go beyond it."""
    calls = 0
    for line in lines("vllm_ngram"):
        counted = line["response"]["metrics"]["speculative_decoding"]
        theirs = list(zip(counted["per_step_drafted"], counted["per_step_accepted"], strict=True))
        replayed = lookup_calls(line["request"]["prompt"], answer_ids(line), 4, 3, "earliest")
        ours = [(drafted, kept) for drafted, kept, _ in replayed if drafted]
        assert len(ours) == len(theirs)
        assert ours[:-1] == theirs[:-1]
        calls += len(ours)
    assert calls == 224
