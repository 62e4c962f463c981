"""What accepts drafted tokens: the laws of verification applied to a target's logits.

They are those of `analysis.decoding.laws` and `analysis.trees.laws`, on tensors of the device. Of
their distributions a call reads a few numbers, at once, and then the token that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from analysis.beyond.clip import FAMILIES, clip_law
from analysis.decoding import laws
from analysis.rules import Prefix, Rule, best_path
from analysis.trees import laws as tree_laws
from analysis.trees.laws import NOTHING
from analysis.trees.topology import ROOT, Topology, sequence
from pipeline.decoding.choices import (
    NOT_CUT,
    TEST,
    TOKEN,
    BrokenLogitsError,
    Choice,
    Inversion,
    Noise,
    Truncation,
    draw,
)
from pipeline.decoding.drafters import Draft
from pipeline.decoding.judging import asked, judged
from pipeline.decoding.shapes import inner_nodes
from pipeline.models.devices import read, send
from pipeline.models.logit_statistics import argmax


@dataclass(frozen=True)
class Verification:
    """The accepted nodes of a draft, from its root on, and the token emitted after them."""

    path: tuple[int, ...]
    token: int
    tested: int  # how many drafted tokens were accepted or rejected; of a tree, levels
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


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Any]]:
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


def on_chain(accepted: int, token: int, drafted: list[int]) -> Verification:
    """Return the verdict on a chain of drafted tokens."""
    return Verification(tuple(range(accepted)), token, min(accepted + 1, len(drafted)), drafted)


def on_tree(path: tuple[int, ...], token: int, tree: Topology, drafted: list[int]) -> Verification:
    """Return the verdict on a tree: tested are the levels of its path, and that where it ends."""
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
            return on_chain(*laws.match(drafted, choices), drafted)
        return on_tree(*tree_laws.match_tree(draft.tree, drafted, choices), draft.tree, drafted)


class Relaxed:
    """Accepts what a rule accepts; emits the argmax after it."""

    def __init__(self, rule: Rule) -> None:
        """Accept under `rule`."""
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:  # noqa: ARG002
        """Accept drafted tokens as long as the rule does."""
        before, n = logits[:-1], len(draft.tokens)
        wanted = asked(self._rule, before, draft.tokens) if n else []
        drafted, (best, *found) = read_call(logits, draft, argmax(logits), *wanted)
        accepts = best[:n] == drafted
        if not accepts.all():
            accepts |= judged(self._rule, before, draft.tokens, found)
        return on_chain(*laws.relaxed(accepts, best.tolist()), drafted)


class BestPath:
    """Accepts the path of a draft that is longest for what it costs (the prefix rule)."""

    def __init__(self, rule: Prefix) -> None:
        """Accept under `rule`."""
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:  # noqa: ARG002
        """Accept the best path of a chain or a tree; emit the argmax after it."""
        tree = sequence(len(draft.tokens)) if draft.tree is None else draft.tree
        exact, parents = logits.double(), send(tree.parents, logits.device) + 1
        if self._rule.cost == "probability":
            exact = exact.softmax(1)
        drafted = exact[parents, draft.ids]
        wanted = argmax(logits), exact.amax(1)[parents] - drafted
        tokens, (best, costs) = read_call(logits, draft, *wanted)
        costs = np.where(np.array(tokens) == NOTHING, np.inf, costs)
        path = best_path(tree.parents, costs.tolist(), self._rule.mu)
        token = int(best[path[-1] + 1 if path else 0])
        if draft.tree is None:
            return on_chain(len(path), token, tokens)
        return on_tree(path, token, tree, tokens)


class SpeculativeSampling:
    """Accepts with probability min(1, p/q), and what follows comes from the residual.

    With a rule, a token that the rule accepts at rank 2 or beyond is accepted as well: MARS
    above temperature 0. The argmax gets no such privilege, so that a rule that relaxes nothing
    leaves the law lossless.
    """

    def __init__(
        self, temperature: float, noise: Noise, rule: Rule | None = None, kept: Truncation = NOT_CUT
    ) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target = Inversion(temperature, noise, TOKEN, kept)
        self._uniforms, self._rule = noise.uniforms, rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test drafted tokens one after the other."""
        n, p = len(draft.tokens), self._target.weights(logits)
        wanted = asked(self._rule, logits[:n], draft.tokens) if self._rule and n else []
        drafted, (at, *found) = read_call(logits, draft, of_drafted(p, draft), *wanted)
        passed = laws.sampling_accepts(
            at[:, 0], at[:, 1], self._uniforms[position : position + n, TEST]
        )
        if self._rule and n:
            passed = passed | judged(self._rule, logits[:n], draft.tokens, found, least_rank=2)
        accepted = laws.leading(passed)
        uniform = self._uniforms[position + accepted, TOKEN]
        return on_chain(accepted, draw(left_over(p, draft, accepted), uniform), drafted)


class BudgetSampling:
    """Speculative sampling of the law that accepts most at a divergence from the target.

    What is emitted at a drafted position has the law r = clip(q, c2 p, c1 p).
    """

    def __init__(
        self,
        temperature: float,
        noise: Noise,
        budget: tuple[str, float],
        kept: Truncation = NOT_CUT,
    ) -> None:
        """Sample at `temperature`; `budget` is c1 or ratio, or a divergence, and its value."""
        self._target = Inversion(temperature, noise, TOKEN, kept)
        name, value = budget
        dial = ("divergence", value, name) if name in FAMILIES else (name, value)
        self._uniforms, self._dial = noise.uniforms, dial

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test drafted tokens one after the other."""
        weights = draft.weights
        if weights is None:  # q is 1 at the drafted token
            weights = one_hot(draft.tokens, logits.shape[1]).double()
        drafted, (p, qs) = read_call(logits, draft, self._target.weights(logits), weights)
        for at, (token, q) in enumerate(zip(drafted, qs, strict=True)):
            r, _, _ = clip_law(p[at], q, *self._dial)
            if not self._uniforms[position + at, TEST] * q[token] < r[token]:
                uniform = self._uniforms[position + at, TOKEN]
                return on_chain(at, laws.pick(laws.residual(r, q), uniform), drafted)
        n = len(drafted)
        return on_chain(n, laws.pick(p[n], self._uniforms[position + n, TOKEN]), drafted)


class TreeSampling:
    """Speculative sampling on trees that are drafted without replacement (GSS)."""

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = NOT_CUT) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test the children of a node one after the other, then those of the accepted one.

        After a rejection p becomes the residual max(0, p - q), q loses the rejected token, and both
        are normalised.
        """
        tree = sequence(len(draft.tokens)) if draft.tree is None else draft.tree
        drafted, _ = read_call(logits, draft)
        path: list[int] = []
        while True:
            node, at = (path[-1] if path else ROOT), position + len(path)
            p = self._target.weights(logits[node + 1][None])[0]
            q = p
            if tree.children[node] and draft.weights is not None:
                q = draft.weights[inner_nodes(tree).index(node)]
            for child in tree.children[node]:
                token = drafted[child]
                if token == NOTHING:
                    continue
                ((p_at, q_at),) = read(torch.stack([p[token], q[token]]))
                if self._noise.test(at, tree.siblings[child]) * q_at < p_at:
                    path.append(child)
                    break
                rest, q = or_else((p - q).clamp_(min=0), p), q.clone()
                q[token] = 0.0
                p, q = rest / rest.sum(), torch.where(q.any(), q / q.sum(), q)
            else:
                token = draw(p, self._noise.uniforms[at, TOKEN])
                return on_tree(tuple(path), token, tree, drafted)


class BlockVerification:
    """Tests a chain as a whole: a token that fails can be saved by a later one.

    What is accepted depends on all of the draft, so each call has numbers of its own.
    """

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = NOT_CUT) -> None:
        """Sample at `temperature` with the uniform numbers of `noise` for calls."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept the longest prefix whose own test succeeds."""
        n, uniforms = len(draft.tokens), self._noise.of_call(position)
        p = self._target.weights(logits)
        kept = [torch.ones_like(p[0, 0])]
        for p_at, q_at in of_drafted(p, draft):
            kept.append((kept[-1] * p_at / q_at).clamp(max=1))
        scaled = torch.stack(kept)[:, None] * p
        excess = [above_draft(scaled, draft, at).sum() for at in range(1, n)] + kept[n:]
        drafted, (found,) = read_call(logits, draft, torch.stack([*kept, *excess]))
        accepted = laws.block_accepts(found[1 : n + 1], found[n + 1 :][:n], uniforms[:, TEST])
        weights = left_over(scaled, draft, accepted)
        return on_chain(accepted, draw(weights, uniforms[accepted, TOKEN]), drafted)


def of_drafted(p: Tensor, draft: Draft) -> Tensor:
    """Return (n, 2) probabilities of drafted tokens: of the target, p (n + 1, V), and the draft.

    The draft's are 1 where its tokens were not drawn.
    """
    at = draft.tokens[:, None]
    p_at = p[: len(at)].gather(1, at)
    q_at = torch.ones_like(p_at) if draft.weights is None else draft.weights.gather(1, at)
    return torch.cat([p_at, q_at], 1)


def above_draft(p: Tensor, draft: Draft, at: int) -> Tensor:
    """Return max(0, p - q) (V,) after the first `at` drafted tokens, from p (n + 1, V)."""
    if draft.weights is None:  # q is 1 at the drafted token
        return p[at].scatter(0, draft.tokens[at : at + 1], 0.0)
    return (p[at] - draft.weights[at]).clamp_(min=0)


def left_over(p: Tensor, draft: Draft, at: int) -> Tensor:
    """Return the weights (V,) of the token after the first `at` drafted ones, from p (n + 1, V).

    max(0, p - q), or p where nothing is left of it and after all drafted tokens.
    """
    return p[at] if at == len(draft.tokens) else or_else(above_draft(p, draft, at), p[at])


def or_else(weights: Tensor, others: Tensor) -> Tensor:
    """Return weights (V,), or `others` where none is above 0."""
    return torch.where(weights.any(), weights, others)
