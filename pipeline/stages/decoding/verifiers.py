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
from analysis.trees.topology import ROOT, Topology
from pipeline.models.devices import read
from pipeline.models.logit_statistics import argmax
from pipeline.stages.decoding.choices import ALL, TEST, TOKEN, Choice, Inversion, Noise, Truncation
from pipeline.stages.decoding.drafters import Draft
from pipeline.stages.decoding.judging import Flags, Judge, Numbers, rule_accepts
from pipeline.stages.decoding.shapes import chain as chain_of
from pipeline.stages.decoding.shapes import parents


class NotFiniteError(Exception):
    """Logits of the target are NaN or infinite."""


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
            NotFiniteError: a logit is NaN or infinite.
        """
        ...


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Numbers]]:
    """Read the drafted tokens and all else that a verdict needs, at once.

    Raises:
        NotFiniteError: a logit (n + 1, V) is NaN or infinite.
    """
    extremes = torch.stack(torch.aminmax(logits)).double()  # a NaN is both
    between, drafted, *found = read(extremes, draft.tokens, *wanted)
    if not np.isfinite(between).all():
        raise NotFiniteError
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
        return on_tree(trees.match(draft.tree, drafted, choices), draft.tree, drafted)


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
        drafted, _ = read_call(logits, draft)
        p = self._target.weights(logits)
        at = draft.tokens[:, None]
        q = None if draft.weights is None else draft.weights.gather(1, at)[:, 0].cpu().numpy()

        def rows(accepted: int) -> tuple[np.ndarray, np.ndarray | None]:
            target = p[accepted].cpu().numpy()
            if accepted == n:
                return target, None
            if draft.weights is not None:
                return target, draft.weights[accepted].cpu().numpy()
            certain = np.zeros_like(target)
            certain[drafted[accepted]] = 1.0
            return target, certain

        also = None
        if self._rule is not None:
            best = argmax(logits[:n])
            also = rule_accepts(self._rule, logits[:n], draft.tokens, best)
            also &= (draft.tokens != best).cpu().numpy()
        return chain(
            verification.speculative_sampling(
                p[:n].gather(1, at)[:, 0].cpu().numpy(),
                np.ones(n) if q is None else q,
                self._uniforms[position : position + n, TEST],
                rows,
                lambda accepted: self._uniforms[position + accepted, TOKEN],
                also,
            ),
            drafted,
        )


class TreeSampling:
    """Speculative sampling on trees that are drafted without replacement (GSS)."""

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test the children of a node one after the other, then those of the accepted one."""
        drafted, _ = read_call(logits, draft)
        tree = chain_of(len(drafted)) if draft.tree is None else draft.tree
        row = {node: at for at, node in enumerate(parents(tree))}

        def rows(node: int) -> tuple[np.ndarray, np.ndarray | None]:
            target = self._target.weights(logits[node + 1][None])[0].cpu().numpy()
            if draft.weights is None or node not in row:
                return target, None
            return target, draft.weights[row[node]].cpu().numpy()

        tests = [
            self._noise.test(position + depth - 1, sibling)
            for depth, sibling in zip(tree.depths, tree.siblings, strict=True)
        ]
        verdict = trees.speculative_sampling(
            tree,
            drafted,
            np.array(tests),
            rows,
            lambda accepted: self._noise.uniforms[position + accepted, TOKEN],
        )
        return on_tree(verdict, tree, drafted)


class BlockVerification:
    """Tests a chain as a whole: a token that fails can be saved by a later one.

    What is accepted depends on all of the draft, so each call has numbers of its own.
    """

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise` for calls."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept the longest prefix whose own test succeeds."""
        drafted, (p,) = read_call(logits, draft, self._target.weights(logits))
        uniforms = self._noise.of_call(position)
        if draft.weights is None:
            q = np.zeros_like(p[:-1])
            q[np.arange(len(drafted)), drafted] = 1.0
        else:
            q = draft.weights.cpu().numpy()
        verdict = verification.block_verification(
            drafted, p, q, uniforms[:, TEST], lambda at: uniforms[at, TOKEN]
        )
        return chain(verdict, drafted)
