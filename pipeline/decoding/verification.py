"""Verification: which drafted tokens a target's logits accept, and the token after them.

One class for each scheme of `analysis.decoding.schemes`, on draft trees; a chain is a tree whose
nodes have one child. On a CPU draws are made node by node along the accepted path, from whole
distributions. A GPU, for which the host would wait at each node, tests and draws at all nodes, and
only the outcomes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from analysis.decoding import schemes
from analysis.decoding.schemes import NOTHING, Flags
from analysis.rules import Rule
from analysis.topk import TopK
from analysis.trees.topology import ROOT, Topology
from pipeline.decoding.sampling import TOKEN, BrokenLogitsError, InverseCdfSampler, Noise, Sampler
from pipeline.decoding.tree_drafting import Draft, inner_nodes, readable
from pipeline.models.devices import read, send
from pipeline.models.logit_statistics import (
    StatisticsColumns,
    argmax,
    invert,
    logit_statistics,
    top_k,
)

ALL_NODES_ON_CPU = False  # whether a CPU tests and draws at all nodes as well; the tests do

# The accepted nodes of a draft from its root on, the token emitted after them, and all drafted.
Verified = tuple[tuple[int, ...], int, list[int]]


class Verifier(Protocol):
    """Accepts drafted tokens."""

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept some of n drafted tokens, the first at `position` of the answer; choose the next.

        `logits` (n + 1, V) are the target's after the text so far, and after each drafted token.

        Raises:
            BrokenLogitsError: the logits of the target or of the drafter are broken.
        """
        ...


class ExactMatch:
    """Accepts the token that the target would choose itself.

    With `GreedySampler` this is strict greedy verification, with `GumbelSampler` an exponential
    race. Without a draft it is autoregressive decoding.
    """

    def __init__(self, choice: Sampler) -> None:
        self._choice = choice

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept drafted tokens as long as they are the target's choices."""
        drafted, (values,) = read_call(logits, draft, self._choice(logits, position, draft.tree))
        choices: list[int] = values.tolist()
        return *schemes.matching_path(draft.tree, drafted, lambda at, _: choices[at + 1]), drafted


class RuleVerifier:
    """Accepts by a rule; emits the argmax after it (Algorithm 1 of arXiv 2601.15498).

    Of a tree it accepts the longest path, of equally long ones the first.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:  # noqa: ARG002
        """Accept the longest path of which the rule accepts every token."""
        parents = draft.tree.parents
        before = parent_rows(logits, draft)
        wanted = asked(self._rule, before, draft.tokens) if parents else []
        drafted, (best, *values) = read_call(logits, draft, argmax(logits), *wanted)
        accepts = best[np.array(parents, dtype=np.intp) + 1] == drafted
        if not accepts.all():
            accepts |= apply_rule(self._rule, logits.shape[1], values)
        path = schemes.longest_path(parents, accepts)
        last = path[-1] if path else ROOT
        return path, int(best[last + 1]), drafted


class SampledPath:
    """Accepts drafted tokens that the target draws, and tokens of rank 2 and up that a rule allows.

    The draft holds the drafter's most probable tokens.
    """

    def __init__(self, temperature: float, noise: Noise, rule: Rule | None = None) -> None:
        self._target = InverseCdfSampler(temperature, noise, TOKEN)
        self._noise = noise
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Follow the tree as long as a child is drawn or kept."""
        if logits.is_cuda or ALL_NODES_ON_CPU:
            return self._verify_at_all_nodes(logits, draft, position)
        return self._verify_along_path(logits, draft, position)

    def _verify_at_all_nodes(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        drawn = self._draws(self._target.weights(logits), draft.tree, position)
        drafted, also, (values,) = self._read(logits, draft, drawn)
        draws: list[int] = values.tolist()
        path, token = schemes.matching_path(
            draft.tree, drafted, lambda node, _: draws[node + 1], also
        )
        return path, token, drafted

    def _verify_along_path(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        drafted, also, _ = self._read(logits, draft)

        def draw(node: int, accepted: int) -> int:
            weights = read(self._weights(logits, node))[0]
            return schemes.pick(weights, self._noise.uniforms[position + accepted, TOKEN])

        path, token = schemes.matching_path(draft.tree, drafted, draw, also)
        return path, token, drafted

    def _read(
        self, logits: Tensor, draft: Draft, *outcomes: Tensor
    ) -> tuple[list[int], Flags | None, list[NDArray[Any]]]:
        """Read the drafted tokens, (n,) which of them the rule accepts, and outcomes on the device.

        Without a rule, or without a draft, the second is None.
        """
        if self._rule is None or not len(draft.tokens):
            drafted, found = read_call(logits, draft, *outcomes)
            return drafted, None, found
        wanted = asked(self._rule, parent_rows(logits, draft), draft.tokens)
        drafted, values = read_call(logits, draft, *outcomes, *wanted)
        count = len(outcomes)
        also = apply_rule(self._rule, logits.shape[1], values[count:], beyond_first=True)
        return drafted, also, values[:count]

    def _draws(self, weights: Tensor, tree: Topology, position: int) -> Tensor:
        """Return a token (n + 1,) drawn from each of n + 1 distributions, after the text first."""
        uniforms = self._noise.uniforms[position + np.array((0, *tree.depths)), TOKEN]
        return invert(weights, send(uniforms, weights.device))

    def _weights(self, logits: Tensor, node: int) -> Tensor:
        return self._target.weights(logits[node + 1][None])[0]


class SpeculativeSampling(SampledPath):
    """Accepts drawn tokens with probability min(1, p/q); the next comes from the residual.

    Of a tree, whose siblings are drawn without replacement (GSS), it tests one after the other.
    """

    def _verify_at_all_nodes(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        uniforms = self._tests(draft.tree, position)
        accepted, left = tested(self._target.weights(logits), draft, uniforms)
        drawn = self._draws(left, draft.tree, position)
        drafted, also, (flags, tokens) = self._read(logits, draft, accepted, drawn)
        if also is not None:
            flags = flags | also
        path, token = schemes.first_accepted_path(draft.tree, flags, tokens.tolist())
        return path, token, drafted

    def _verify_along_path(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        tree = draft.tree
        uniforms = self._tests(tree, position)
        drafted, also, _ = self._read(logits, draft)

        def rows(node: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
            p = self._weights(logits, node)
            if not tree.children[node]:
                return read(p)[0], None
            if draft.weights is None:  # proposed, not drawn
                q = one_hot(draft.tokens[tree.children[node][0]], len(p)).double()
            else:
                q = draft.weights[inner_nodes(tree).index(node)]
            target, drawn = read(p, q)
            return target, drawn

        def token_uniform(accepted: int) -> float:
            return self._noise.uniforms[position + accepted, TOKEN]

        path, token = schemes.speculative_sampling(
            tree, drafted, uniforms, rows, token_uniform, also
        )
        return path, token, drafted

    def _tests(self, tree: Topology, position: int) -> list[float]:
        """Return the uniform number that tests each node."""
        places = zip(tree.depths, tree.siblings, strict=True)
        return [self._noise.test(position + depth - 1, sibling) for depth, sibling in places]


def tested(p: Tensor, draft: Draft, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the outcomes of speculative sampling at all nodes at once.

    `p` (n + 1, V) are the target's distributions after the text and each node; `uniforms` (n,)
    decide the tests. See `analysis.decoding.schemes.speculative_sampling`.

    Returns:
        (n,) whether a child passes its test once its siblings before it have failed; and (n + 1, V)
        what the next token is drawn from, up to a factor, if all children of a node fail.
    """
    tree = draft.tree
    device = p.device
    accepted = torch.zeros(len(tree), dtype=torch.bool, device=device)
    nodes = inner_nodes(tree) if len(tree) else ()
    if draft.weights is None:  # proposed, not drawn
        first = send([tree.children[node][0] for node in nodes], device)
        q = one_hot(readable(draft.tokens)[first], p.shape[1]).to(p.dtype)
    else:
        q = draft.weights.clone()
    tests = send(np.array(uniforms, dtype=np.float64), device)
    width = max((len(tree.children[node]) for node in nodes), default=0)
    for sibling in range(width):
        rows = [row for row, node in enumerate(nodes) if len(tree.children[node]) > sibling]
        children = send([tree.children[nodes[row]][sibling] for row in rows], device)
        others = send([len(tree.children[nodes[row]]) > sibling + 1 for row in rows], device)
        of_p = send([nodes[row] + 1 for row in rows], device)
        of_q = send(rows, device)
        is_drafted = (draft.tokens[children] != NOTHING)[:, None]
        token = readable(draft.tokens[children])[:, None]
        target = p[of_p]
        drawn = q[of_q]
        passes = tests[children, None] * drawn.gather(1, token) < target.gather(1, token)
        accepted[children] = (passes & is_drafted)[:, 0]
        rest = residual(target, drawn)
        rest = torch.where(others[:, None].bool(), rest / rest.sum(1, keepdim=True), rest)
        p[of_p] = torch.where(is_drafted, rest, target)
        left = drawn.scatter(1, token, 0)
        total = left.sum(1, keepdim=True)
        left = torch.where(total > 0, left / total, left)
        q[of_q] = torch.where(is_drafted, left, drawn)
    return accepted, p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return the unnormalised weights max(0, p - q), (r, V); p where p <= q everywhere."""
    weights = (p - q).clamp_(min=0)
    return torch.where(weights.any(1, keepdim=True), weights, p)


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Any]]:
    """Read the drafted tokens and all else that a verdict needs.

    Raises:
        BrokenLogitsError: a row of the target's logits (n + 1, V), or of those that the drafter
            chose from, has a NaN or +inf, or nothing but -inf (a masked token).
    """
    of_target = logits.amax(1).double()  # a NaN is larger than all
    of_drafter = of_target[:0] if draft.first is None else draft.first.double()
    largest, first, drafted, *others = read(of_target, of_drafter, draft.tokens, *wanted)
    for model, values in (("target", largest), ("drafter", first)):
        if not np.isfinite(values).all():
            raise BrokenLogitsError(model)
    return drafted.tolist(), others


def parent_rows(logits: Tensor, draft: Draft) -> Tensor:
    """Return the rows (n, V) of a target's logits (n + 1, V) that drafted tokens are judged by."""
    if draft.tree.is_chain:
        return logits[:-1]
    return logits[send(draft.tree.parents, logits.device) + 1]


def asked(rule: Rule, logits: Tensor, drafted: Tensor) -> list[Tensor]:
    """Return the values that a rule needs at drafted tokens (n,) under logits (n, V), as n rows.

    It sees as many of the most probable tokens as it says that it looks at; all where it does not
    say what decides.
    """
    all_ = rule.columns_read == Rule.columns_read
    k = logits.shape[1] if all_ else min(rule.minimum_k, logits.shape[1])
    found = StatisticsColumns()
    if rule.columns_read:
        found = logit_statistics(logits, k)
        values = found["top_logits"]
        ids = found["top_ids"]
    else:
        values, ids = top_k(logits, k)
    if values.itemsize < 4:  # NumPy has no bfloat16
        values = values.float()
    own = logits.gather(1, readable(drafted)[:, None])[:, 0].to(values.dtype)
    return [drafted, ids, values, own, *(found[name] for name in rule.columns_read)]


def apply_rule(
    rule: Rule, size: int, given: list[NDArray[Any]], *, beyond_first: bool = False
) -> Flags:
    """Return a mask (n,) of the drafted tokens that a rule accepts; NOTHING is none.

    `given` are the values that it asked for, read. Of a token that is not among those that it sees,
    only that counts. `beyond_first` leaves out the argmax, on which a draw decides above
    temperature 0.
    """
    tokens, ids, values, own, *statistics = given
    by_name = dict(zip(rule.columns_read, statistics, strict=True))
    unknown = np.full(len(tokens), np.nan)
    surprisal, log_tail, entropy = (by_name.get(name, unknown) for name in Rule.columns_read)
    dist = TopK(ids.astype(np.int32), values, surprisal, log_tail, entropy=entropy, vocab_size=size)
    is_it = ids == tokens[:, None]
    rank = np.where(is_it.any(1), is_it.argmax(1), ids.shape[1]) + 1
    log_prob = (own.astype(np.float64) - values[:, 0]) - dist.top_surprisal
    accepted = rule.accepts(dist, rank, log_prob) & (tokens != NOTHING)
    return accepted & (rank > 1) if beyond_first else accepted
