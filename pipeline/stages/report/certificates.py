"""Reads what the report compares with the paper's closed forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.report.sections.certificates_bounds import Compared, has_closed_form
from analysis.rules import Rule, Tree
from analysis.topk import Floats, TopK
from pipeline.stages.report.inputs import Target
from pipeline.store import distributions
from pipeline.store.artifacts import Artifact


def comparisons(target: Target) -> list[Compared]:
    """Read the steps of a target at which each rule's certificate is exact and finite.

    An engine's log has none: its log-probabilities are rounded.
    """
    if "log_prob_error" in target.dump.record["facts"]:
        return []
    chosen = [
        (item, artifact)
        for item, artifact in zip(target.certificates, target.sources, strict=True)
        if has_closed_form(item.rule)
    ]
    if not chosen:
        return []
    rules = [item.rule for item, _ in chosen]
    rejected = [first_rejected_probability(item.rule, artifact) for item, artifact in chosen]
    p0, b, theta = first_probabilities(target, rules, rejected)
    compared = []
    for at, (item, artifact) in enumerate(chosen):
        active = artifact.read(columns=["active_size"])["active_size"].to_numpy()
        rows = (item.lower == item.upper) & np.isfinite(item.upper) & ~np.isnan(b[at])
        compared.append(
            Compared(
                item.rule,
                len(rows),
                item.lower[rows],
                active[rows].astype(np.float64),
                p0[rows],
                b[at][rows],
                theta[at][rows],
            )
        )
    return compared


def first_rejected_probability(rule: Rule, certificates: Artifact) -> np.ndarray:
    """Return the (N,) ranks, from 0, of the tokens whose tie is a rejection; -1 if unknown."""
    column = certificates.read(columns=["accepted_count"])["accepted_count"]
    if isinstance(rule, Tree):
        return np.full(len(column), rule.m)
    return np.asarray(column.fill_null(-1).to_numpy())


def first_probabilities(
    target: Target, rules: Sequence[Rule], rejected: Sequence[np.ndarray]
) -> tuple[Floats, Floats, Floats]:
    """Return p0 (N,), and for R rules (R, N) first rejected probabilities and thresholds.

    A probability that is not stored is NaN, and so is the threshold of a rule that has none.
    """
    p0, b, theta = [], [], []
    begun = 0
    for _, dist in distributions.chunks(target.dump, target.temperature):
        steps = slice(begun, begun + len(dist))
        begun = steps.stop
        p0.append(dist.top_probability)
        b.append([probability(dist, ranks[steps]) for ranks in rejected])
        theta.append([threshold(dist, rule) for rule in rules])
    shape = (len(rules), begun)
    return (
        np.concatenate(p0),
        np.concatenate(b, axis=1).reshape(shape),
        np.concatenate(theta, axis=1).reshape(shape),
    )


def probability(dist: TopK, ranks: np.ndarray) -> Floats:
    """Return the (N,) probabilities of the given ranks, from 0; NaN where they are not stored."""
    stored = (ranks >= 0) & (ranks < dist.k)
    at = np.where(stored, ranks, 0)[:, None]
    return np.where(stored, np.exp(np.take_along_axis(dist.log_probs, at, axis=1))[:, 0], np.nan)


def threshold(dist: TopK, rule: Rule) -> Floats:
    """Return the (N,) probability that a token must exceed, NaN for a rule without threshold."""
    cut = rule.cut(dist)
    return np.full(len(dist), np.nan) if cut is None else cut.threshold(dist)
