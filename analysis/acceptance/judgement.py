"""The steps of a drafter, and which of them a rule accepts and its certificate guarantees.

At a step, a rule *accepts* the drafter's most probable token (a tree: the target's argmax is among
the drafter's top m). The step is *certified* if KL(p||q) is below the rule's certificate R.
Certified implies accepted (Theorems 4.4, 5.1), but not conversely. The *coverage* is the share of
accepted steps that are certified.

A head with a reduced vocabulary has KL(p||q) = inf. It is certified through an extension q' of q,
which keeps the head's logits and gives the tokens that the head lacks a probability, too. Where q
and q' draft the same token, a certificate for q' also holds for the head. For trees the head must
have the target's argmax as well: q' has more tokens, so the argmax ranks no lower under q than
under q'.
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
from .comparison import compare_arrays, logit_rows

if TYPE_CHECKING:
    import pandas as pd

CERTIFICATE_ROUNDING = 1e-12  # relative error allowed in a computed certificate
# Relative error allowed in p/q: log-probabilities down to -40 have an absolute error of a few 1e-15
# from the subtraction of logsumexp; 1e-13 also covers exp and the long sums.
RATIO_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Steps:
    """What a drafter drafts at the N steps of a target's answers, in order."""

    target: Distributions  # the target's distributions
    position: NDArray[np.int32]  # (N,) 0-based, within each trajectory
    # (N,) KL(p||q) over the full vocabulary, nats. Of a head with a reduced vocabulary: at depth 1
    # KL(p||q'), but inf where q' drafts another token or the head lacks the target's argmax; inf at
    # larger depths
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
            draft_logits: (N, V), of the same kinds. KL is +inf where they mask a token that the
                target can emit.
            prompts: (N,), a label of each step's prompt, of any hashable type. The steps of a
                prompt stand together, in order. None: all steps are of one prompt.
            k: number of target tokens stored per step, all by default. 256 are enough for nearly
                every rule, and take less memory.
            temperature: of both distributions, above 0.

        Raises:
            ValueError: an argument is not allowed; the message names it and says what is.

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
        return cls(dist, position.astype(np.int32), *compare_arrays(target, draft, temperature))

    def table(self, rules: Any) -> pd.DataFrame:
        """Return a row for each rule: acceptance, certified, coverage, tokens per call, and others.

        The columns are the measured statistics of `analysis.acceptance.drafter.rule_statistics`,
        and `usual_drafter`, the share of steps that a usual drafter at the KLs of these steps would
        have accepted according to a model (`analysis.acceptance.usual_drafter`). With several
        prompts there are also 95 % intervals: acceptance_ci_low, acceptance_ci_high, ... Rules are
        given as to `certify`.
        """
        from .drafter import statistics_table

        return statistics_table(self, rules_from(rules))

    def __len__(self) -> int:
        return len(self.kl)

    def drafted(
        self, part: NDArray[np.intp]
    ) -> tuple[NDArray[np.int32], Floats, NDArray[np.int32]]:
        """Return the ranks and log-probabilities that `Rule.accepts` takes, of selected steps."""
        return self.draft_rank[part], self.draft_log_prob[part], self.argmax_rank[part]

    @property
    def by_depth(self) -> list[Steps]:
        """The steps at each depth that was measured, from depth 1."""
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


def judgement_bytes(depths: int = 1) -> int:
    """Return what a judgement holds of each step: two ends of 8 bytes, two flags at each depth."""
    return 16 + 2 * depths


def slacks(certificate: Floats, kl: Floats) -> Floats:
    """Return (N,) certificates minus the KL; +inf where nothing is rejected, even if KL is inf."""
    rejects_nothing = np.isinf(certificate)
    finite = np.where(rejects_nothing, 0.0, certificate)
    return np.where(rejects_nothing, np.inf, finite - kl)


@dataclass(frozen=True, eq=False)
class Judgement:
    """Which steps of a drafter a rule accepts, and which it certifies."""

    rule: Rule
    lower: Floats  # (N,) lower ends of the certificates, nats; +inf where nothing is rejected
    upper: Floats  # (N,) upper ends; equal to `lower` where exact
    accepted: Flags  # (N,) whether the draft is accepted
    certified: Flags  # (N,) whether KL is below `lower` by more than rounding errors
    deeper: Sequence[Judgement] = ()  # the same at the depths `Steps.deeper`

    @property
    def by_depth(self) -> list[Judgement]:
        """The judgements at each depth, from depth 1."""
        return [self, *self.deeper]

    @property
    def accepted_by_depth(self) -> Flags:
        """(D, N) whether the draft is accepted, by depth from 1."""
        return np.stack([judgement.accepted for judgement in self.by_depth])

    @property
    def certified_by_depth(self) -> Flags:
        """(D, N) whether a step is certified at all depths from 1 to d.

        If only these steps count as accepted, the number of calls is an upper bound: a step that
        counts at some depth counts at all smaller ones, so a call that begins later ends no
        earlier.
        """
        return np.logical_and.accumulate([judgement.certified for judgement in self.by_depth])

    @property
    def violations(self) -> NDArray[np.intp]:
        """Indices of steps that are certified yet rejected: if there are any, there is a bug."""
        return np.flatnonzero(self.certified & ~self.accepted)


def rounding(kl: Floats) -> Floats:
    """Return (N,) a bound on the rounding error of a computed KL; the logits count as exact.

    A relative error e of every ratio p/q changes KL by at most e * sum p |log(p/q)|, which is at
    most e (KL + sqrt(2 KL)) by Pinsker's inequality.
    """
    return RATIO_ROUNDING * (kl + np.sqrt(2 * kl))


def judge(steps: Steps, rules: str | Rule | Sequence[str | Rule]) -> list[Judgement]:
    """Return the judgement of every rule on all steps, at every depth.

    Rules are given as to `certify`.

    KL = R does not guarantee acceptance, and both have rounding errors. So a step counts as
    certified only if KL + rounding(KL) < (1 - 1e-12) lower. A KL of exactly 0 has no rounding
    error. A step where nothing is rejected is certified, even with an infinite KL.
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
        for index, rule in enumerate(rules):
            count = certificates.accepted_count[:, index]
            for depth, at_depth in enumerate(depths):
                drafted = at_depth.drafted(part)
                accepted[index, depth, part] = rule.accepts(dist, *drafted, count)
    kl_upper = np.stack([at_depth.kl + rounding(at_depth.kl) for at_depth in depths])
    judgements = []
    for index, rule in enumerate(rules):
        low = lower[index]
        certified = np.isinf(low) | (kl_upper < (1 - CERTIFICATE_ROUNDING) * low)
        by_depth = [
            Judgement(rule, low, upper[index], accepted[index, depth], certified[depth])
            for depth in range(len(depths))
        ]
        judgements.append(replace(by_depth[0], deeper=by_depth[1:]))
    return judgements
