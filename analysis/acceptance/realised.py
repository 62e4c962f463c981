"""Steps at which a rule accepts a drafter's token, and how many of them are certified.

At a step, a rule *accepts* the drafter's most probable token (a tree: has the target's argmax
among the drafter's top m), and the step is *certified* when KL(p||q) lies below the rule's
certificate R. Certified implies accepted (Theorems 4.4, 5.1); the converse need not hold, and
how far it does is the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..certificates.certify import certify
from ..rules.rule import Rule
from ..statistics.bootstrap import Flags, Floats
from ..statistics.trajectories import Trajectories
from ..topk import TopK

FULL = "full_kl"  # KL(p||q') of a q' over all tokens that proposes what the drafter proposes
CHUNK = 8192  # steps certified at once
CERTIFICATE_ROUNDING = 1e-12  # relative error allowed to a computed certificate
# Allowance for rounding, relative to p/q: log-probabilities down to -40 carry an absolute error
# of a few 1e-15 from the subtraction of logsumexp; 1e-13 also covers exp and the long sums.
RATIO_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Steps:
    """A drafter beside its target at the N steps of P trajectories, in order.

    Attributes:
        target: the target's distributions.
        position: (N,) 0-based, within each trajectory.
        kl: (N,) KL(p||q) over the full vocabulary, nats.
        draft_rank: (N,) target rank of the drafter's most probable token, from 1.
        draft_log_prob: (N,) its target log-probability.
        argmax_rank: (N,) rank of the target's argmax under the drafter, from 1.
        deeper: of a head, the same at depths 2, 3, ... of its drafts; empty of a language model,
            whose q does not depend on how many of the tokens before are drafted.
    """

    target: TopK
    position: NDArray[np.int32]
    kl: Floats
    draft_rank: NDArray[np.int32]
    draft_log_prob: Floats
    argmax_rank: NDArray[np.int32]
    deeper: Sequence[Steps] = ()

    def __len__(self) -> int:
        return len(self.kl)

    def drafted(
        self, part: slice | NDArray[np.intp]
    ) -> tuple[NDArray[np.int32], Floats, NDArray[np.int32]]:
        """Return rank, log-probability and the rank of the argmax at some of the steps."""
        return self.draft_rank[part], self.draft_log_prob[part], self.argmax_rank[part]

    @property
    def by_depth(self) -> list[Steps]:
        """These steps at depth 1, and at every deeper one that was measured."""
        return [self, *self.deeper]

    @cached_property
    def largest_kl(self) -> Floats:
        """(N,) the largest KL of all depths."""
        return np.asarray(np.max([steps.kl for steps in self.by_depth], axis=0))

    @cached_property
    def trajectories(self) -> Trajectories:
        """Where each prompt's trajectory lies."""
        return Trajectories.from_positions(self.position)

    def slack(self, certificate: Floats) -> Floats:
        """Return (N,) certificates less the KL; +inf where nothing is rejected, at any KL."""
        endless = np.isinf(certificate)
        return np.where(endless, np.inf, np.where(endless, 0.0, certificate) - self.kl)

    @cached_property
    def given_up(self) -> Floats:
        """(N,) p(x0) - p(y): target probability that emitting the drafted token y gives up."""
        given = self.target.top_probability - np.exp(self.draft_log_prob)
        return np.asarray(np.where(self.draft_rank == 1, 0.0, given))


@dataclass(frozen=True, eq=False)
class Verdict:
    """One rule on every step.

    Attributes:
        rule: the rule.
        lower: (N,) lower ends of the certificates, nats; +inf where nothing is rejected.
        upper: (N,) upper ends; equal to `lower` where exact.
        accepted: (N,) whether the drafter is accepted.
        certified: (N,) whether its KL, or the other divergence of the certificates, lies below
            `lower` by more than both numbers' rounding.
        certifiable: (N,) the same of `upper`; differs where the certificate is not exact.
        deeper: the same rule at the deeper depths of the steps.
    """

    rule: Rule
    lower: Floats
    upper: Floats
    accepted: Flags
    certified: Flags
    certifiable: Flags
    deeper: Sequence[Verdict] = ()

    @property
    def by_depth(self) -> list[Verdict]:
        """This verdict, of depth 1, and those of the deeper depths."""
        return [self, *self.deeper]

    @property
    def accepted_by_depth(self) -> Flags:
        """(D, N) where the drafter is accepted, by depth from 1."""
        return np.stack([verdict.accepted for verdict in self.by_depth])

    @property
    def certified_throughout(self) -> tuple[Flags, Flags]:
        """(N,) where it is certified at every depth, and where it may be.

        Calls that count these steps as accepted, at any depth, are no fewer than those made.
        """
        return (
            np.all([verdict.certified for verdict in self.by_depth], axis=0),
            np.all([verdict.certifiable for verdict in self.by_depth], axis=0),
        )

    @property
    def violations(self) -> NDArray[np.intp]:
        """Steps that are certified and rejected: none, unless something is wrong."""
        return np.flatnonzero(self.certified & ~self.accepted)


def rounding(divergence: str, distance: Floats) -> Floats:
    """Return how far a computed divergence may lie from that of the exact p and q of its logits.

    A relative error e of every ratio p/q moves KL and reverse KL by at most e * sum p |log(p/q)|,
    which is at most e (KL + sqrt(2 KL)) (Pinsker), and the squared Hellinger distance H by
    e TV <= e sqrt(2 H). Both vanish with the divergence. It moves total variation by at most e,
    which does not: only a distance of exactly 0 has none.

    Args:
        divergence: kl, reverse_kl, hellinger or tv.
        distance: (N,) as computed.
    """
    if divergence == "tv":
        return RATIO_ROUNDING * np.sign(distance)
    return RATIO_ROUNDING * (distance + np.sqrt(2 * distance))


def judge(
    steps: Steps, rules: Sequence[Rule], divergence: str = "kl", distance: Floats | None = None
) -> list[Verdict]:
    """Apply `rules` to all steps.

    Without `distance` the deeper depths of the steps are judged as well.

    KL = R does not guarantee acceptance, and both are known up to rounding only: a step counts
    as certified when KL + rounding(KL) < (1 - 1e-12) lower. A KL of exactly 0 has no rounding.
    Where nothing is rejected every step is certified, also at an infinite KL.

    Args:
        steps: a drafter beside its target.
        rules: what is applied.
        divergence: that of the certificates: kl, reverse_kl, hellinger or tv; or full_kl, which
            certifies no tree: another draft shares a drafter's first choice, not its first m.
        distance: (N,) by which target and drafter differ in it; the KL of `steps` if not given.
    """
    alike = [rule.judges_tokens or divergence != FULL for rule in rules]
    divergence = "kl" if divergence == FULL else divergence
    size, depths = (len(steps), len(rules)), steps.by_depth if distance is None else [steps]
    lower, upper = np.empty(size), np.empty(size)
    accepted = np.empty((len(depths), *size), dtype=bool)
    for start in range(0, len(steps), CHUNK):
        part = slice(start, start + CHUNK)
        dist = steps.target[part]
        found = certify(dist, rules, divergence=divergence)
        lower[part], upper[part] = found.lower, found.upper
        for depth, at_depth in enumerate(depths):
            drafted = at_depth.drafted(part)
            for at, rule in enumerate(rules):
                kept = rule.accepts(dist, *drafted, found.accepted_count[:, at])
                accepted[depth, part, at] = kept
    verdicts: list[list[Verdict]] = [[] for _ in rules]
    for kept, at_depth in zip(accepted, depths, strict=True):
        apart = at_depth.kl if distance is None else distance
        far = np.where(alike, (apart + rounding(divergence, apart))[:, None], np.inf)
        certified, certifiable = (
            np.isinf(end) | (far < (1 - CERTIFICATE_ROUNDING) * end) for end in (lower, upper)
        )
        for at, rule in enumerate(rules):
            verdicts[at].append(
                Verdict(
                    rule,
                    np.ascontiguousarray(lower[:, at]),
                    np.ascontiguousarray(upper[:, at]),
                    accepted=np.ascontiguousarray(kept[:, at]),
                    certified=np.ascontiguousarray(certified[:, at]),
                    certifiable=np.ascontiguousarray(certifiable[:, at]),
                )
            )
    return [replace(first, deeper=deeper) for first, *deeper in verdicts]
