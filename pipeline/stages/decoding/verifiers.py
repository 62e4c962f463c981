"""What accepts drafted tokens: the laws of verification applied to a target's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from analysis.decoding import laws as verification
from analysis.rules import Drafted, Rule
from analysis.topk import TopK
from analysis.trees import laws as trees
from analysis.trees.topology import ROOT, Topology
from pipeline.models.logit_statistics import logit_statistics, top_k
from pipeline.stages.decoding.choices import ALL, TEST, TOKEN, Choice, Inversion, Noise, Truncation
from pipeline.stages.decoding.drafters import Draft
from pipeline.stages.decoding.shapes import chain as chain_of
from pipeline.stages.decoding.shapes import parents

STORED = 16  # most probable tokens a rule sees first; a threshold decides on those beyond them,
# and a rule without one is shown all tokens when it has to


@dataclass(frozen=True)
class Verification:
    """The accepted nodes of a draft, from its root on, and the token emitted after them."""

    path: tuple[int, ...]
    token: int
    tested: int  # how many drafted tokens were accepted or rejected


class Verifier(Protocol):
    """Accepts drafted tokens."""

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept drafted tokens and choose the next.

        Args:
            logits: (n + 1, V) of the target: after the text so far, and after each drafted token.
            draft: n tokens.
            position: of the first drafted token in the answer.
        """
        ...


def chain(verdict: verification.ChainVerdict, drafted: int) -> Verification:
    """Return the verdict on a chain of `drafted` tokens."""
    accepted, token = verdict
    return Verification(tuple(range(accepted)), token, min(accepted + 1, drafted))


def on_tree(verdict: trees.TreeVerdict, tree: Topology) -> Verification:
    """Return the verdict on a tree: tested are the levels of its path, and that where it ends."""
    path, token = verdict
    ended_at_leaf = not tree.children[path[-1] if path else ROOT]
    return Verification(path, token, len(path) + (not ended_at_leaf))


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
        drafted = draft.tokens.tolist()
        choices = self._choice(logits, position, draft.tree).tolist()
        if draft.tree is None:
            return chain(verification.match(drafted, choices), len(drafted))
        return on_tree(trees.match(draft.tree, drafted, choices), draft.tree)


class Relaxed:
    """Accepts what a rule accepts; emits the argmax after it."""

    def __init__(self, rule: Rule) -> None:
        """Accept under `rule`."""
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:  # noqa: ARG002
        """Accept drafted tokens as long as the rule does."""
        n = len(draft.tokens)
        argmax = logits.argmax(-1)
        accepts = rule_accepts(self._rule, logits[:n], draft.tokens, argmax[:n])
        return chain(verification.relaxed(accepts, argmax.tolist()), n)


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
        at = draft.tokens[:, None]
        q = None if draft.weights is None else draft.weights.gather(1, at)[:, 0].cpu().numpy()

        def rows(accepted: int) -> tuple[np.ndarray, np.ndarray | None]:
            target = p[accepted].cpu().numpy()
            if accepted == n:
                return target, None
            if draft.weights is not None:
                return target, draft.weights[accepted].cpu().numpy()
            certain = np.zeros_like(target)
            certain[int(draft.tokens[accepted])] = 1.0
            return target, certain

        also = None
        if self._rule is not None:
            argmax = logits[:n].argmax(-1)
            also = rule_accepts(self._rule, logits[:n], draft.tokens, argmax)
            also &= (draft.tokens != argmax).cpu().numpy()
        return chain(
            verification.speculative_sampling(
                p[:n].gather(1, at)[:, 0].cpu().numpy(),
                np.ones(n) if q is None else q,
                self._uniforms[position : position + n, TEST],
                rows,
                lambda accepted: self._uniforms[position + accepted, TOKEN],
                also,
            ),
            n,
        )


class TreeSampling:
    """Speculative sampling on trees that are drafted without replacement (GSS)."""

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise`."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Test the children of a node one after the other, then those of the accepted one."""
        tree = chain_of(len(draft.tokens)) if draft.tree is None else draft.tree
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
            draft.tokens.tolist(),
            np.array(tests),
            rows,
            lambda accepted: self._noise.uniforms[position + accepted, TOKEN],
        )
        return on_tree(verdict, tree)


class BlockVerification:
    """Tests a chain as a whole: a token that fails can be saved by a later one.

    What is accepted depends on all of the draft, so each call has numbers of its own.
    """

    def __init__(self, temperature: float, noise: Noise, kept: Truncation = ALL) -> None:
        """Sample at `temperature` with the uniform numbers of `noise` for calls."""
        self._target, self._noise = Inversion(temperature, noise, TOKEN, kept), noise

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verification:
        """Accept the longest prefix whose own test succeeds."""
        p = self._target.weights(logits).cpu().numpy()
        drafted, uniforms = draft.tokens.tolist(), self._noise.of_call(position)
        if draft.weights is None:
            q = np.zeros_like(p[:-1])
            q[np.arange(len(drafted)), drafted] = 1.0
        else:
            q = draft.weights.cpu().numpy()
        verdict = verification.block_verification(
            drafted, p, q, uniforms[:, TEST], lambda at: uniforms[at, TOKEN]
        )
        return chain(verdict, len(drafted))


def rule_accepts(rule: Rule, logits: Tensor, drafted: Tensor, argmax: Tensor) -> np.ndarray:
    """Say which of the drafted tokens (n,) a rule accepts under raw logits (n, V).

    Every rule accepts the argmax, so only the other rows are looked at.
    """
    other = (argmax != drafted).nonzero()[:, 0]
    accepts = np.ones(len(drafted), dtype=np.bool_)
    if len(other) and rule.raw_ranks:
        largest = top_ranked(logits[other], drafted[other], rule.raw_ranks)
        accepts[other.cpu().numpy()] = rule.accepts(*largest)
    elif len(other):
        found = ranked(logits[other], drafted[other], max(STORED, rule.minimum_k))
        dist, beyond = found.dist, found.rank > found.dist.k
        if beyond.any() and rule.cut(dist) is None and min(rule.accepted_count(dist)[beyond]) < 0:
            found = ranked(logits[other], drafted[other], logits.shape[1])
        accepts[other.cpu().numpy()] = rule.accepts(found.dist, Drafted(found.rank, found.log_prob))
    return accepts


def top_ranked(logits: Tensor, tokens: Tensor, k: int) -> tuple[TopK, Drafted]:
    """Return the k largest of raw logits (n, V), and which of them `tokens` (n,) are.

    No probability is computed, and none is known of the result: those are NaN. A token behind the
    k has rank k + 1.
    """
    size = logits.shape[1]
    values, ids = top_k(logits, min(k, size))
    is_it = ids == tokens[:, None]
    rank = torch.where(is_it.any(1), is_it.long().argmax(1), ids.shape[1]) + 1
    unknown = np.full(len(ids), np.nan)
    numbers = values.float().cpu().numpy()
    dist = TopK(ids.cpu().numpy().astype(np.int32), numbers, unknown, unknown, unknown, size)
    return dist, Drafted(rank.cpu().numpy(), unknown)


class Ranked(NamedTuple):
    """The top K of n rows of logits, and where one token of each stands."""

    dist: TopK
    rank: np.ndarray  # (n,) from 1
    log_prob: np.ndarray  # (n,)


def ranked(logits: Tensor, tokens: Tensor, k: int) -> Ranked:
    """Return the top K of raw logits (n, V), and where `tokens` (n,) stand."""
    size = logits.shape[1]
    found = logit_statistics(logits, min(k, size))
    mine = logits.gather(1, tokens[:, None])
    before = torch.arange(size, device=logits.device)[None] < tokens[:, None]
    rank = 1 + ((logits > mine) | ((logits == mine) & before)).sum(1)
    log_prob = (mine[:, 0].double() - found.top_logits[:, 0]) - found.top_surprisal
    dist = TopK(
        found.top_ids.cpu().numpy().astype(np.int32),
        found.top_logits.cpu().numpy(),
        found.top_surprisal.cpu().numpy(),
        found.log_tail.cpu().numpy(),
        found.entropy.cpu().numpy(),
        size,
    )
    return Ranked(dist, rank.cpu().numpy(), log_prob.cpu().numpy())
