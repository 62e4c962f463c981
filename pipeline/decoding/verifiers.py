"""What accepts drafted tokens: the laws of verification applied to a target's logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from analysis.decoding import laws as verification
from analysis.rules import Rule
from analysis.trees import laws as trees
from analysis.trees.laws import NOTHING
from analysis.trees.topology import ROOT, Topology
from pipeline.decoding.choices import (
    ALL,
    TEST,
    TOKEN,
    BrokenLogitsError,
    Choice,
    Inversion,
    Noise,
    Truncation,
)
from pipeline.decoding.drafters import Draft
from pipeline.decoding.judging import Flags, Judge, Numbers
from pipeline.decoding.residuals import Follow, Siblings
from pipeline.decoding.shapes import chain as chain_of
from pipeline.decoding.shapes import parents
from pipeline.models.devices import read
from pipeline.models.logit_statistics import argmax


@dataclass(frozen=True)
class Verification:
    """The accepted nodes of a draft, from its root on, and the token emitted after them."""

    path: tuple[int, ...]
    token: int
    tested: int  # how many drafted tokens were accepted or rejected
    drafted: list[int]


class Verifier(Protocol):
    """Accepts drafted tokens."""

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept drafted tokens and choose the next.

        Args:
            logits: (n + 1, V) of the target: after the text so far, and after each drafted token.
            draft: n tokens.
            position: of the first drafted token in the answer.

        Raises:
            BrokenLogitsError: the logits of the target or of the drafter are broken.
        """
        ...


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Numbers]]:
    """Read the drafted tokens and all else that a verdict needs, at once.

    A masked token has the logit -inf.

    Raises:
        BrokenLogitsError: a row of the target's logits (n + 1, V), or of those that the drafter
            chose from, has a NaN or +inf, or nothing but -inf.
    """
    of_target = logits.amax(1).double()  # a NaN is larger than all
    of_drafter = of_target[:0] if draft.first is None else draft.first.double()
    largest, first, drafted, *found = read(of_target, of_drafter, draft.tokens, *wanted)
    for model, values in (("target", largest), ("drafter", first)):
        if not np.isfinite(values).all():
            raise BrokenLogitsError(model)
    return drafted.tolist(), found


def tested(passed: Flags, also: Callable[[int], bool]) -> Flags:
    """Return outcomes of tests (n,) up to the first failure; where one fails, `also` is asked."""
    found = passed.copy()
    for at in np.flatnonzero(~passed):
        found[at] = also(int(at))
        if not found[at]:
            break
    return found


def chain(verdict: verification.ChainVerdict, drafted: list[int]) -> Verification:
    """Return the verdict on a chain of drafted tokens."""
    accepted, token = verdict
    return Verification(tuple(range(accepted)), token, min(accepted + 1, len(drafted)), drafted)


def on_tree(verdict: trees.TreeVerdict, tree: Topology, drafted: list[int]) -> Verification:
    """Return the verdict on a tree: tested are the levels of its path, and that where it ends."""
    path, token = verdict
    ended_at_leaf = not tree.children[path[-1] if path else ROOT]
    return Verification(path, token, len(path) + (not ended_at_leaf), drafted)


class Match:
    """Accepts what the target would choose itself.

    With `Greedy` this is strict greedy verification, with `Race` an exponential race, on chains
    and trees; without a draft it is autoregressive decoding.
    """

    def __init__(self, choice: Choice) -> None:
        """Let the target choose with `choice`."""
        self._choice = choice

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept drafted tokens as long as they are the target's choices."""
        drafted, (found,) = read_call(logits, draft, self._choice(logits, position, draft.tree))
        choices = found.tolist()
        if draft.tree is None:
            return chain(verification.match(drafted, choices), drafted)
        return on_tree(trees.match_tree(draft.tree, drafted, choices), draft.tree, drafted)


class Relaxed:
    """Accepts what a rule accepts; emits the argmax after it."""

    def __init__(self, rule: Rule) -> None:
        """Accept under `rule`."""
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:  # noqa: ARG002
        """Accept drafted tokens as long as the rule does."""
        n = len(draft.tokens)
        judge = Judge(self._rule, logits[:n], draft.tokens)
        drafted, (best, *columns) = read_call(logits, draft, argmax(logits), *judge.columns)
        accepts = tested(best[:n] == drafted, judge.of(columns))
        return chain(verification.relaxed(accepts, best.tolist()), drafted)


class SpeculativeSampling:
    """Accepts with probability min(1, p/q), and what follows comes from the residual.

    With a rule, a token that the rule accepts at rank 2 or beyond is accepted as well: MARS
    above temperature 0. The argmax gets no such privilege, so that a rule that relaxes nothing
    leaves the law lossless.
    """

    def __init__(
        self, temperature: float, noise: Noise, rule: Rule | None = None, kept: Truncation = ALL
    ) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target = Inversion(temperature, noise, TOKEN, kept)
        self._uniforms = noise.uniforms
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test drafted tokens one after the other."""
        n = len(draft.tokens)
        p = self._target.weights(logits)
        follow = Follow(p, draft, self._uniforms[position : position + n + 1, TOKEN])
        judge = Judge(self._rule, logits[:n], draft.tokens, argmax=False)
        drafted, (at, *found) = read_call(
            logits, draft, of_drafted(p, draft), *follow.columns, *judge.columns
        )
        passed = verification.sampling_accepts(
            at[:, 0], at[:, 1], self._uniforms[position : position + n, TEST]
        )
        split = len(follow.columns)
        accepted = verification.leading(tested(passed, judge.of(found[split:])))
        token = follow.of(found[:split])(accepted)
        return chain((accepted, token), drafted)


class TreeSampling:
    """Speculative sampling on trees that are drafted without replacement (GSS)."""

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test the children of a node one after the other, then those of the accepted one.

        Where to read is to wait, that is once for each node of the path, the root included.
        """
        tree = chain_of(len(draft.tokens)) if draft.tree is None else draft.tree
        path: list[int] = []
        while True:
            node = path[-1] if path else ROOT
            siblings = self._siblings(logits, draft, tree, node, position + len(path))
            if node == ROOT:
                drafted, found = read_call(logits, draft, *siblings.columns)
            else:
                found = read(*siblings.columns)
            pairs, token = siblings.of(found)
            for (p, q), child in zip(pairs, tree.children[node], strict=False):
                test = self._noise.test(position + len(path), tree.siblings[child])
                if drafted[child] != NOTHING and test * q < p:
                    path.append(child)
                    break
            else:
                return on_tree((tuple(path), token()), tree, drafted)

    def _siblings(
        self, logits: Tensor, draft: Draft, tree: Topology, node: int, position: int
    ) -> Siblings:
        """Return the tests of the children of a node, which are drafted for `position`."""
        p = self._target.weights(logits[node + 1][None])
        uniform = self._noise.uniforms[position, TOKEN]
        if draft.weights is None or not tree.children[node]:
            return Siblings(p, p, [], uniform)
        q = draft.weights[parents(tree).index(node)][None]
        return Siblings(p, q, [draft.tokens[child] for child in tree.children[node]], uniform)


class BlockVerification:
    """Tests a chain as a whole: a token that fails can be saved by a later one.

    What is accepted depends on all of the draft, so each call has numbers of its own.
    """

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise` for calls."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept the longest prefix whose own test succeeds."""
        n, uniforms = len(draft.tokens), self._noise.of_call(position)
        p = self._target.weights(logits)
        kept = [torch.ones_like(p[0, :1])]
        for p_at, q_at in of_drafted(p, draft)[:, :, None]:
            kept.append((kept[-1] * p_at / q_at).clamp(max=1))
        scale = torch.cat(kept)
        follow = Follow(p, draft, uniforms[: n + 1, TOKEN], scale[:n])
        excess = torch.cat([follow.excess(1), scale[max(n, 1) :]])
        drafted, (of_prefix, *found) = read_call(
            logits, draft, torch.stack([scale[1:], excess], 1), *follow.columns
        )
        accepted = verification.block_accepts(of_prefix[:, 0], of_prefix[:, 1], uniforms[:, TEST])
        return chain((accepted, follow.of(found)(accepted)), drafted)


def of_drafted(p: Tensor, draft: Draft) -> Tensor:
    """Return (n, 2) probabilities of drafted tokens: of the target, p (n + 1, V), and the draft.

    The draft's are 1 where its tokens were not drawn.
    """
    at = draft.tokens[:, None]
    p_at = p[: len(at)].gather(1, at)
    q_at = torch.ones_like(p_at) if draft.weights is None else draft.weights.gather(1, at)
    return torch.cat([p_at, q_at], 1)
