"""A rule's judgement of a drafter's steps: accepted and certified.

At a step, a rule *accepts* the drafter's most probable token (a tree: the target's argmax is among
the drafter's top m). The step is *certified* if KL(p||q) is below the rule's certificate R.
Certified implies accepted (Theorems 4.4, 5.1). The converse need not hold; the share of accepted
steps that are certified is the coverage.

A head with a reduced vocabulary has KL(p||q) = inf. It is certified through a q' over all tokens
that keeps the head's logits, at the steps where both draft the same token: there, an accepted q'
token is also the head's. For trees the head must have the target's argmax as well: without the
tokens that it lacks, the argmax ranks no lower under q than under q'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..certificates.certify import certify
from ..rule_text import rules_from
from ..rules import Rule
from ..statistics.bootstrap import Flags
from ..statistics.prompts import positions
from ..statistics.trajectories import Trajectories
from ..topk import Distributions, Floats, TopK
from .comparison import compare_logits, logit_rows

if TYPE_CHECKING:
    import pandas as pd

CERTIFICATE_ROUNDING = 1e-12  # relative error allowed in a computed certificate
# Allowance for rounding, relative to p/q: log-probabilities down to -40 carry an absolute error
# of a few 1e-15 from the subtraction of logsumexp; 1e-13 also covers exp and the long sums.
RATIO_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Steps:
    """A drafter and its target at the N steps of A answers, in order."""

    target: Distributions  # its own
    position: NDArray[np.int32]  # (N,) 0-based, within each trajectory
    # (N,) KL(p||q) over the full vocabulary, nats; of a head with a reduced vocabulary KL(p||q') at
    # depth 1, inf where q' drafts another token or the head lacks the target's argmax, and inf at
    # deeper depths
    kl: Floats
    # (N,) target rank of the drafted token, the drafter's argmax, from 1
    draft_rank: NDArray[np.int32]
    draft_log_prob: Floats  # (N,) target log-probability of the drafted token
    argmax_rank: NDArray[np.int32]  # (N,) rank of the target's argmax under the drafter, from 1
    # for a head, the same at depths 2, 3, ... of its drafts; empty for a language model, whose q
    # does not depend on the depth
    deeper: Sequence[Steps] = ()

    @classmethod
    def from_logits(
        cls,
        target_logits: ArrayLike,
        draft_logits: ArrayLike,
        prompts: Any = None,
        *,
        k: int | None = None,
        temperature: float = 1.0,
    ) -> Steps:
        """Compare a drafter's logits with its target's, at the same N steps of the same text.

        Args:
            target_logits: (N, V), raw, NumPy or PyTorch on any device, of any floating type; -inf
                is a masked token.
            draft_logits: (N, V), likewise; KL is +inf where they mask a token of the target.
            prompts: (N,), the label of each step's prompt, of any kind. The steps of a prompt
                stand together, in order. None: all are of one.
            k: tokens of the target that are stored a step, all by default. 256 are enough for
                nearly every rule, and take less memory.
            temperature: of the distributions, above 0.

        Raises:
            ValueError: names the argument that is wrong, and says what is allowed.

        >>> steps = Steps.from_logits([[2.0, 1.0, 0.0]], [[1.0, 1.5, 0.0]])
        >>> steps.draft_rank.tolist(), steps.argmax_rank.tolist(), steps.kl.round(4).tolist()
        ([2], [2], [0.2394])
        """
        target = logit_rows("target_logits", target_logits)
        draft = logit_rows("draft_logits", draft_logits)
        if target.shape != draft.shape:
            raise ValueError(
                f"target_logits are {target.shape}, draft_logits {draft.shape}: give logits of the "
                "same steps and tokens; a token that the drafter lacks is -inf"
            )
        dist = TopK.from_logits(target, k, temperature)
        size = len(dist)
        position = np.arange(size) if prompts is None else positions("prompts", prompts, size)
        return cls(dist, position.astype(np.int32), *compare_logits(target, draft, temperature))

    def table(self, rules: Any) -> pd.DataFrame:
        """Return a row a rule: acceptance, certified, coverage, tokens per call, and others.

        The columns are `usual_drafter`, the share that a usual drafter at the KLs of these steps is
        predicted to have accepted (`analysis.acceptance.typical`, a model), and the measured
        statistics of `analysis.acceptance.drafter.rule_statistics`; with
        several prompts also their 95 % intervals, acceptance_ci_low, acceptance_ci_high, ... Rules
        are given as to `certify`.
        """
        from .drafter import statistics_table

        return statistics_table(self, rules_from(rules))

    def __len__(self) -> int:
        return len(self.kl)

    def drafted(
        self, part: NDArray[np.intp]
    ) -> tuple[NDArray[np.int32], Floats, NDArray[np.int32]]:
        """Return what `Rule.accepts` takes of a selection of the steps."""
        return self.draft_rank[part], self.draft_log_prob[part], self.argmax_rank[part]

    @property
    def by_depth(self) -> list[Steps]:
        """The steps by depth: these, of depth 1, and the measured deeper ones."""
        return [self, *self.deeper]

    @cached_property
    def trajectories(self) -> Trajectories:
        """The trajectories of the prompts."""
        return Trajectories.from_positions(self.position)

    @cached_property
    def given_up(self) -> Floats:
        """(N,) p(x0) - p(y), the target probability given up by emitting the drafted token y."""
        difference = self.target.top_probability - np.exp(self.draft_log_prob)
        return np.asarray(np.where(self.draft_rank == 1, 0.0, difference))


def slacks(certificate: Floats, kl: Floats) -> Floats:
    """Return (N,) certificates minus the KL; +inf where nothing is rejected, at any KL."""
    endless = np.isinf(certificate)
    return np.where(endless, np.inf, np.where(endless, 0.0, certificate) - kl)


@dataclass(frozen=True, eq=False)
class Judgement:
    """A rule applied to every step."""

    rule: Rule  # the rule
    lower: Floats  # (N,) lower ends of the certificates, nats; +inf where nothing is rejected
    upper: Floats  # (N,) upper ends; equal to `lower` where exact
    accepted: Flags  # (N,) whether the draft is accepted
    certified: Flags  # (N,) whether its KL is below `lower` by more than the rounding of both
    deeper: Sequence[Judgement] = ()  # the same at the deeper depths of the steps

    @property
    def by_depth(self) -> list[Judgement]:
        """The judgements by depth: this one, of depth 1, and the deeper ones."""
        return [self, *self.deeper]

    @property
    def accepted_by_depth(self) -> Flags:
        """(D, N) whether the draft is accepted, by depth from 1."""
        return np.stack([judgement.accepted for judgement in self.by_depth])

    @property
    def certified_by_depth(self) -> Flags:
        """(D, N) whether a step is certified at depths 1 to d.

        Counting only these steps as accepted gives no fewer calls than there are: at a later depth
        no more steps count, so a call that begins later ends no earlier.
        """
        return np.logical_and.accumulate([judgement.certified for judgement in self.by_depth])

    @property
    def violations(self) -> NDArray[np.intp]:
        """Steps that are certified yet rejected; there are none, or there is a bug."""
        return np.flatnonzero(self.certified & ~self.accepted)


def rounding(kl: Floats) -> Floats:
    """Return a bound on the rounding error of a computed KL (N,), given its logits.

    A relative error e of every ratio p/q changes it by at most e * sum p |log(p/q)|, which is at
    most e (KL + sqrt(2 KL)) (Pinsker).
    """
    return RATIO_ROUNDING * (kl + np.sqrt(2 * kl))


def judge(steps: Steps, rules: str | Rule | Sequence[str | Rule]) -> list[Judgement]:
    """Return the judgement of every rule on all steps, at every depth.

    Rules are given as to `certify`.

    KL = R does not guarantee acceptance, and both have rounding errors: a step counts as certified
    if KL + rounding(KL) < (1 - 1e-12) lower. A KL of exactly 0 has no rounding error. A step where
    nothing is rejected is certified, even with an infinite KL.
    """
    depths = steps.by_depth
    size = len(steps)
    rules = rules_from(rules)
    lower, upper = np.empty((2, len(rules), size))
    accepted = np.empty((len(rules), len(depths), size), dtype=bool)
    for part, dist in steps.target.parts():
        certificates = certify(dist, rules)
        lower[:, part] = certificates.lower.T
        upper[:, part] = certificates.upper.T
        for place, rule in enumerate(rules):
            count = certificates.accepted_count[:, place]
            for depth, at_depth in enumerate(depths):
                passed = rule.accepts(dist, *at_depth.drafted(part), count)
                accepted[place, depth, part] = passed
    far = np.stack([at_depth.kl + rounding(at_depth.kl) for at_depth in depths])
    judgements = []
    for rule, low, high, passed in zip(rules, lower, upper, accepted, strict=True):
        certified = np.isinf(low) | (far < (1 - CERTIFICATE_ROUNDING) * low)
        first, *deeper = (
            Judgement(rule, low, high, accepted_there, certified_there)
            for accepted_there, certified_there in zip(passed, certified, strict=True)
        )
        judgements.append(replace(first, deeper=deeper))
    return judgements
