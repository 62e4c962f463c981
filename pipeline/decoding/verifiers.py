"""Verifiers accept drafted tokens: verification schemes applied to a target's logits.

The schemes are those of `analysis.decoding.schemes`. A verifier reads their inputs from the device:
first the few numbers that decide, in one transfer, then the two distributions that the next token
depends on.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from analysis.decoding import schemes
from analysis.rules import Rule
from analysis.trees.topology import ROOT
from pipeline.decoding.choices import TEST, TOKEN, BrokenLogitsError, Choice, Inversion, Noise
from pipeline.decoding.drafters import Draft
from pipeline.decoding.judging import asked, judged
from pipeline.decoding.shapes import inner_nodes
from pipeline.models.devices import read, send
from pipeline.models.logit_statistics import argmax

# The accepted nodes of a draft from its root on, the token emitted after them, and all drafted.
Verified = tuple[tuple[int, ...], int, list[int]]


class Verifier(Protocol):
    """Accepts drafted tokens."""

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept drafted tokens and choose the next.

        Args:
            logits: (n + 1, V) of the target: after the text so far, and after each drafted token.
            draft: n tokens.
            position: of the first drafted token in the answer.

        Raises:
            BrokenLogitsError: the logits of the target or of the drafter are broken.
        """
        ...


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Any]]:
    """Read the drafted tokens and all else that a verdict needs, at once.

    A masked token has the logit -inf.

    Raises:
        BrokenLogitsError: a row of the target's logits (n + 1, V), or of those that the drafter
            chose from, has a NaN or +inf, or nothing but -inf.
    """
    of_target = logits.amax(1).double()  # a NaN is larger than all
    of_drafter = of_target[:0] if draft.first is None else draft.first.double()
    largest, first, drafted, *others = read(of_target, of_drafter, draft.tokens, *wanted)
    for model, values in (("target", largest), ("drafter", first)):
        if not np.isfinite(values).all():
            raise BrokenLogitsError(model)
    return drafted.tolist(), others


class Match:
    """Accepts the token that the target would choose itself.

    With `Greedy` this is strict greedy verification, with `Race` an exponential race, on chains
    and trees; without a draft it is autoregressive decoding.
    """

    def __init__(self, choice: Choice) -> None:
        """Let the target choose with `choice`."""
        self._choice = choice

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept drafted tokens as long as they are the target's choices."""
        drafted, (values,) = read_call(logits, draft, self._choice(logits, position, draft.tree))
        choices: list[int] = values.tolist()
        return *schemes.matching_path(draft.shape, drafted, lambda at, _: choices[at + 1]), drafted


class Relaxed:
    """Accepts by a rule; emits the argmax after it (Algorithm 1 of arXiv 2601.15498).

    Of a tree it accepts the longest path, of equally long ones the first.
    """

    def __init__(self, rule: Rule) -> None:
        """Accept under `rule`."""
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:  # noqa: ARG002
        """Accept the longest path of which the rule accepts every token."""
        parents, n = draft.shape.parents, len(draft.tokens)
        before = parent_rows(logits, draft)
        wanted = asked(self._rule, before, draft.tokens) if n else []
        drafted, (best, *values) = read_call(logits, draft, argmax(logits), *wanted)
        accepts = best[np.array(parents, dtype=np.intp) + 1] == drafted
        if not accepts.all():
            accepts |= judged(self._rule, before, draft.tokens, values)
        path = schemes.longest_path(parents, accepts)
        last = path[-1] if path else ROOT
        return path, int(best[last + 1]), drafted


class SpeculativeSampling:
    """Accepts with probability min(1, p/q); the next token is drawn from the residual.

    With a rule it also accepts the tokens of rank 2 or beyond that the rule accepts.
    """

    def __init__(self, temperature: float, noise: Noise, rule: Rule | None = None) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target = Inversion(temperature, noise, TOKEN)
        self._uniforms, self._rule = noise.uniforms, rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Test drafted tokens one after the other."""
        p, at = self._target.weights(logits), draft.tokens[:, None]
        n, size = len(at), p.shape[1]
        p_at = p[:n].gather(1, at)
        q_at = torch.ones_like(p_at) if draft.weights is None else draft.weights.gather(1, at)
        rule = self._rule if n else None
        wanted = asked(rule, logits[:n], draft.tokens) if rule else []
        drafted, (tested, *values) = read_call(logits, draft, torch.cat([p_at, q_at], 1), *wanted)
        also = judged(rule, logits[:n], draft.tokens, values, beyond_first=True) if rule else None

        def rows(at: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
            if at == n:
                return read(p[at])[0], None
            target, drawn = read(p[at], draft_probabilities(draft, at, size))
            return target, drawn

        uniforms = self._uniforms
        accepted, token = schemes.speculative_sampling(
            tested[:, 0],
            tested[:, 1],
            uniforms[position : position + n, TEST],
            rows,
            lambda at: uniforms[position + at, TOKEN],
            also,
        )
        return tuple(range(accepted)), token, drafted


class DrawnPath:
    """Accepts the tokens that the target draws, of a draft of most probable tokens.

    With a rule it also accepts the tokens of rank 2 or beyond that the rule accepts.
    """

    def __init__(self, temperature: float, noise: Noise, rule: Rule | None = None) -> None:
        """Draw at `temperature` with the uniform numbers of `noise`."""
        self._target = Inversion(temperature, noise, TOKEN)
        self._uniforms, self._rule = noise.uniforms, rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Follow the tree as long as a child is drawn or kept."""
        before, rule = parent_rows(logits, draft), self._rule if len(draft.tokens) else None
        wanted = asked(rule, before, draft.tokens) if rule else []
        drafted, values = read_call(logits, draft, *wanted)
        also = judged(rule, before, draft.tokens, values, beyond_first=True) if rule else None

        def draw(node: int, accepted: int) -> int:
            weights = read(self._target.weights(logits[node + 1][None])[0])[0]
            return schemes.pick(weights, self._uniforms[position + accepted, TOKEN])

        return *schemes.matching_path(draft.shape, drafted, draw, also), drafted


class TreeSampling:
    """Speculative sampling on trees that are drafted without replacement (GSS)."""

    def __init__(self, temperature: float, noise: Noise) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Test the children of a task one after the other, then those of the accepted one."""
        tree = draft.shape
        drafted, _ = read_call(logits, draft)
        places = zip(tree.depths, tree.siblings, strict=True)
        tests = [self._noise.test(position + depth - 1, sibling) for depth, sibling in places]

        def rows(task: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
            p = self._target.weights(logits[task + 1][None])[0]
            if not tree.children[task] or draft.weights is None:
                return read(p)[0], None
            target, drawn = read(p, draft.weights[inner_nodes(tree).index(task)])
            return target, drawn

        def token_uniform(accepted: int) -> float:
            return self._noise.uniforms[position + accepted, TOKEN]

        values = schemes.tree_speculative_sampling(
            tree, drafted, np.array(tests), rows, token_uniform
        )
        return *values, drafted


def parent_rows(logits: Tensor, draft: Draft) -> Tensor:
    """Return the rows (n, V) of a target's logits (n + 1, V) that drafted tokens are judged by."""
    if draft.tree is None:
        return logits[:-1]
    return logits[send(draft.tree.parents, logits.device) + 1]


def draft_probabilities(draft: Draft, at: int, size: int) -> Tensor:
    """Return the distribution (V,) of a drafted token: 1 at one that is not drawn."""
    if draft.weights is None:
        return one_hot(draft.tokens[at], size).double()
    return draft.weights[at]
