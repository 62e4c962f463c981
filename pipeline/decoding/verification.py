"""Verification: which drafted tokens are accepted given the target's logits, and the next token.

One class for each scheme of `analysis.decoding.schemes`, on draft trees; a chain is a tree whose
nodes have one child. On a CPU, sampling goes node by node along the accepted path. On a GPU the
host would wait at each node, so there all nodes are tested and sampled at once, and only the
outcomes are copied to the host.
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
from pipeline.models.devices import to_device, to_numpy
from pipeline.models.logit_statistics import (
    StatisticsColumns,
    argmax,
    inverse_cdf,
    logit_statistics,
    top_k,
)

ALL_NODES_ON_CPU = False  # tests set it to run on a CPU what a GPU does

# The accepted nodes, from the root on; the token emitted after them; and all drafted tokens.
Verified = tuple[tuple[int, ...], int, list[int]]


class Verifier(Protocol):
    """Accepts drafted tokens."""

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept some of the n drafted tokens, and choose the next token.

        `logits` (n + 1, V) are the target's, after the text so far and after each drafted token;
        `position` is that of the first drafted token in the answer.

        Raises:
            BrokenLogitsError: the logits of the target or of the drafter are broken.
        """
        ...


class ExactMatch:
    """Accepts a drafted token if the target chooses the same one.

    With `GreedySampler` this is strict greedy verification, with `GumbelSampler` exponential races
    (Gumbel coupling), and without a draft autoregressive decoding.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept drafted tokens as long as they are the target's choices."""
        drafted, (values,) = read_call(logits, draft, self._sampler(logits, position, draft.tree))
        choices: list[int] = values.tolist()
        path, token = schemes.matching_path(draft.tree, drafted, lambda node, _: choices[node + 1])
        return path, token, drafted


class RuleVerifier:
    """Accepts what a rule accepts, then emits the argmax (Algorithm 1 of arXiv 2601.15498).

    In a tree it takes the longest accepted path, the first of equally long ones.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:  # noqa: ARG002
        """Accept the longest path on which the rule accepts every token."""
        parents = draft.tree.parents
        inputs: list[Tensor] = []
        if parents:
            inputs = rule_inputs(self._rule, parent_rows(logits, draft), draft.tokens)
        drafted, (best, *values) = read_call(logits, draft, argmax(logits), *inputs)
        accepts = best[np.array(parents, dtype=np.intp) + 1] == drafted
        if not accepts.all():
            accepts |= apply_rule(self._rule, logits.shape[1], values)
        path = schemes.longest_path(parents, accepts)
        last = path[-1] if path else ROOT
        return path, int(best[last + 1]), drafted


class SampledPath:
    """Accepts the token that the target samples; with a rule also other tokens of rank 2 and up.

    The draft holds the drafter's most probable tokens, which were not sampled.
    """

    def __init__(self, temperature: float, noise: Noise, rule: Rule | None = None) -> None:
        self._target = InverseCdfSampler(temperature, noise, TOKEN)
        self._noise = noise
        self._rule = rule

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Follow the tree as long as a child is sampled, or accepted by the rule."""
        if logits.is_cuda or ALL_NODES_ON_CPU:
            return self._verify_at_all_nodes(logits, draft, position)
        return self._verify_along_path(logits, draft, position)

    def _verify_at_all_nodes(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        drawn = self._draws(self._target.weights(logits), draft.tree, position)
        drafted, by_rule, (values,) = self._read(logits, draft, drawn)
        draws: list[int] = values.tolist()
        path, token = schemes.matching_path(
            draft.tree, drafted, lambda node, _: draws[node + 1], by_rule
        )
        return path, token, drafted

    def _verify_along_path(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        drafted, by_rule, _ = self._read(logits, draft)

        def draw(node: int, accepted: int) -> int:
            weights = to_numpy(self._weights(logits, node))[0]
            return schemes.pick(weights, self._noise.uniforms[position + accepted, TOKEN])

        path, token = schemes.matching_path(draft.tree, drafted, draw, by_rule)
        return path, token, drafted

    def _read(
        self, logits: Tensor, draft: Draft, *outcomes: Tensor
    ) -> tuple[list[int], Flags | None, list[NDArray[Any]]]:
        """Copy the drafted tokens and `outcomes` to the host, and apply the rule.

        Returns:
            The drafted tokens; (n,) which of them the rule accepts, None without a rule or a
            draft; and the outcomes.
        """
        if self._rule is None or not len(draft.tokens):
            drafted, path = read_call(logits, draft, *outcomes)
            return drafted, None, path
        inputs = rule_inputs(self._rule, parent_rows(logits, draft), draft.tokens)
        drafted, values = read_call(logits, draft, *outcomes, *inputs)
        count = len(outcomes)
        by_rule = apply_rule(self._rule, logits.shape[1], values[count:], beyond_first=True)
        return drafted, by_rule, values[:count]

    def _draws(self, weights: Tensor, tree: Topology, position: int) -> Tensor:
        """Sample tokens (n + 1,) from distributions (n + 1, V), with the noise of their depths."""
        uniforms = self._noise.uniforms[position + np.array((0, *tree.depths)), TOKEN]
        return inverse_cdf(weights, to_device(uniforms, weights.device))

    def _weights(self, logits: Tensor, node: int) -> Tensor:
        return self._target.weights(logits[node + 1][None])[0]


class SpeculativeSampling(SampledPath):
    """Speculative sampling: accepts with probability min(1, p/q), else samples the residual.

    Siblings in a tree were drawn without replacement (GSS), and are tested one after the other.
    """

    def _verify_at_all_nodes(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        uniforms = self._acceptance_uniforms(draft.tree, position)
        accepted, residuals = outcomes_at_all_nodes(self._target.weights(logits), draft, uniforms)
        drawn = self._draws(residuals, draft.tree, position)
        drafted, by_rule, (flags, tokens) = self._read(logits, draft, accepted, drawn)
        if by_rule is not None:
            flags = flags | by_rule
        path, token = schemes.first_accepted_path(draft.tree, flags, tokens.tolist())
        return path, token, drafted

    def _verify_along_path(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        tree = draft.tree
        uniforms = self._acceptance_uniforms(tree, position)
        drafted, by_rule, _ = self._read(logits, draft)

        def distributions(node: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
            p = self._weights(logits, node)
            if not tree.children[node]:
                return to_numpy(p)[0], None
            if draft.weights is None:  # a text drafter's token, of probability 1
                q = one_hot(draft.tokens[tree.children[node][0]], len(p)).double()
            else:
                q = draft.weights[inner_nodes(tree).index(node)]
            target, drawn = to_numpy(p, q)
            return target, drawn

        def token_uniform(accepted: int) -> float:
            return self._noise.uniforms[position + accepted, TOKEN]

        path, token = schemes.speculative_sampling(
            tree, drafted, uniforms, distributions, token_uniform, by_rule
        )
        return path, token, drafted

    def _acceptance_uniforms(self, tree: Topology, position: int) -> list[float]:
        """Return the uniform number for the test of each node."""
        nodes = zip(tree.depths, tree.siblings, strict=True)
        return [
            self._noise.acceptance_uniform(position + depth - 1, sibling)
            for depth, sibling in nodes
        ]


def outcomes_at_all_nodes(
    p: Tensor, draft: Draft, uniforms: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Run the tests of speculative sampling at all nodes at once.

    The scheme is `analysis.decoding.schemes.speculative_sampling`.

    Args:
        p: (n + 1, V) the target's distributions after the text and each node; overwritten.
        draft: the n drafted tokens.
        uniforms: (n,) the uniform number for the test of each node.

    Returns:
        (n,) whether a node passes its test, given that the siblings before it failed; and
        (n + 1, V) unnormalised, what the next token is sampled from if all children of a node fail.
    """
    tree = draft.tree
    device = p.device
    accepted = torch.zeros(len(tree), dtype=torch.bool, device=device)
    nodes = inner_nodes(tree) if len(tree) else ()
    if draft.weights is None:  # a text drafter's tokens, of probability 1
        first = to_device([tree.children[node][0] for node in nodes], device)
        q = one_hot(readable(draft.tokens)[first], p.shape[1]).to(p.dtype)
    else:
        q = draft.weights.clone()
    tests = to_device(np.array(uniforms, dtype=np.float64), device)
    width = max((len(tree.children[node]) for node in nodes), default=0)
    for sibling in range(width):
        rows = [row for row, node in enumerate(nodes) if len(tree.children[node]) > sibling]
        children = to_device([tree.children[nodes[row]][sibling] for row in rows], device)
        has_next = to_device([len(tree.children[nodes[row]]) > sibling + 1 for row in rows], device)
        of_p = to_device([nodes[row] + 1 for row in rows], device)
        of_q = to_device(rows, device)
        is_drafted = (draft.tokens[children] != NOTHING)[:, None]
        token = readable(draft.tokens[children])[:, None]
        target = p[of_p]
        drawn = q[of_q]
        passes = tests[children, None] * drawn.gather(1, token) < target.gather(1, token)
        accepted[children] = (passes & is_drafted)[:, 0]
        rest = residual(target, drawn)
        rest = torch.where(has_next[:, None].bool(), rest / rest.sum(1, keepdim=True), rest)
        p[of_p] = torch.where(is_drafted, rest, target)
        left = drawn.scatter(1, token, 0)
        total = left.sum(1, keepdim=True)
        left = torch.where(total > 0, left / total, left)
        q[of_q] = torch.where(is_drafted, left, drawn)
    return accepted, p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return the unnormalised residual max(0, p - q), (r, V); p in rows where it is 0."""
    weights = (p - q).clamp_(min=0)
    return torch.where(weights.any(1, keepdim=True), weights, p)


def read_call(logits: Tensor, draft: Draft, *wanted: Tensor) -> tuple[list[int], list[Any]]:
    """Copy the drafted tokens and the tensors `wanted` to the host, and check the logits.

    Raises:
        BrokenLogitsError: a row of the target's logits (n + 1, V), or of the drafter's, has a NaN
            or +inf, or nothing but -inf (masked tokens).
    """
    of_target = logits.amax(1).double()  # NaN if the row has one
    of_drafter = of_target[:0] if draft.best_scores is None else draft.best_scores.double()
    target_best, drafter_best, drafted, *others = to_numpy(
        of_target, of_drafter, draft.tokens, *wanted
    )
    for model, values in (("target", target_best), ("drafter", drafter_best)):
        if not np.isfinite(values).all():
            raise BrokenLogitsError(model)
    return drafted.tolist(), others


def parent_rows(logits: Tensor, draft: Draft) -> Tensor:
    """Return, of the target's logits (n + 1, V), those (n, V) after the parent of each node."""
    if draft.tree.is_chain:
        return logits[:-1]
    return logits[to_device(draft.tree.parents, logits.device) + 1]


def rule_inputs(rule: Rule, logits: Tensor, drafted: Tensor) -> list[Tensor]:
    """Return what a rule needs to judge drafted tokens (n,) by logits (n, V), for `apply_rule`.

    The tensors, with n rows each, are the tokens, the ids and logits of the most probable tokens,
    the logits of the drafted tokens, and the columns that the rule reads. A rule gets the
    `minimum_k` most probable tokens; all tokens if it does not say which columns it reads.
    """
    reads_all = rule.columns_read == Rule.columns_read
    k = logits.shape[1] if reads_all else min(rule.minimum_k, logits.shape[1])
    statistics = StatisticsColumns()
    if rule.columns_read:
        statistics = logit_statistics(logits, k)
        values = statistics["top_logits"]
        ids = statistics["top_ids"]
    else:
        values, ids = top_k(logits, k)
    if values.itemsize < 4:  # NumPy has no bfloat16
        values = values.float()
    drafted_logits = logits.gather(1, readable(drafted)[:, None])[:, 0].to(values.dtype)
    return [drafted, ids, values, drafted_logits, *(statistics[name] for name in rule.columns_read)]


def apply_rule(
    rule: Rule, vocab_size: int, inputs: list[NDArray[Any]], *, beyond_first: bool = False
) -> Flags:
    """Return which of the n drafted tokens a rule accepts (n,); never NOTHING.

    `inputs` are those of `rule_inputs`, on the host. A token that is not among the most probable
    ones given there has the rank after them. `beyond_first` excludes the argmax: above temperature
    0 it is accepted only if the target samples it.
    """
    tokens, ids, values, drafted_logits, *statistics = inputs
    by_name = dict(zip(rule.columns_read, statistics, strict=True))
    unknown = np.full(len(tokens), np.nan)
    surprisal, log_tail, entropy = (by_name.get(name, unknown) for name in Rule.columns_read)
    dist = TopK(
        ids.astype(np.int32), values, surprisal, log_tail, entropy=entropy, vocab_size=vocab_size
    )
    matches = ids == tokens[:, None]
    rank = np.where(matches.any(1), matches.argmax(1), ids.shape[1]) + 1
    log_prob = (drafted_logits.astype(np.float64) - values[:, 0]) - dist.top_surprisal
    accepted = rule.accepts(dist, rank, log_prob) & (tokens != NOTHING)
    return accepted & (rank > 1) if beyond_first else accepted
