"""Certificates: the least KL(p || q) at which a drafted token can be rejected.

`certify` takes many steps and rules at once. A certificate is exact where the stored tokens
determine it, elsewhere it is an interval that contains it (docs/method.md). `extremal_draft`
returns the draft that attains a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..array_input import as_array
from ..rule_base import UNKNOWN, Rule, check_k
from ..rule_text import rule_from, rules_from
from ..rules import Tree
from ..statistics.bootstrap import summarise
from ..statistics.prompts import prompt_bootstrap
from ..topk import Floats, TopK
from ..validation import described
from .intervals import certify_rounded, certify_tests
from .kernel import Certificates
from .rule_range import checked_test

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Certificates", "RuleCertificates", "certify", "extremal_draft"]
ACCEPTED = "accepted"  # the label of sets of accepted tokens, which have no rule


class RuleCertificates(Certificates):
    """Certificates of N steps under R rules, as arrays (N, R) and as tables."""

    labels: list[str]  # of the R rules
    ceilings: list[float]  # nats, the largest finite certificate that each rule can have

    def frame(self) -> pd.DataFrame:
        """Return a row for each rule and step, with the columns of stage certificates.

        Returns:
            rule, its label; step, from 0; lower and upper, in nats; active_size; accepted_count,
            missing for trees and where it is unknown.
        """
        import pandas as pd

        steps = len(self.lower)
        index = {
            "rule": np.repeat(self.labels, steps),
            "step": np.tile(np.arange(steps), len(self.labels)),
        }
        columns: dict[str, NDArray[Any]] = self._asdict()
        frame = pd.DataFrame(index | {name: column.T.ravel() for name, column in columns.items()})
        count = frame["accepted_count"].astype("Int32")
        return frame.assign(accepted_count=count.mask(count < 1))

    def table(self, prompts: Any = None) -> pd.DataFrame:
        """Return a row for each rule, with the columns of the paper's Table 2.

        Args:
            prompts: (N,), a label of each step's prompt, of any hashable type. With them the table
                has 95 % intervals over prompts: mean_ci_low, mean_ci_high, ...

        Returns:
            mean, median, p5 and p25 of the lower ends, in nats; empty, the share of steps where
            nothing can be rejected, which count as the rule's ceiling in the mean; inexact, the
            share of steps whose certificate is an interval.

        Raises:
            ValueError: there are no steps, or there is not one label per step.
        """
        import pandas as pd

        steps = len(self.lower)
        if not steps:
            raise ValueError("there are no steps")
        bootstrap = prompt_bootstrap(np.zeros(steps) if prompts is None else prompts)
        if len(bootstrap.answer_index) != steps:
            raise ValueError(
                f"prompts has {len(bootstrap.answer_index)} labels: give one per step, {steps}"
            )
        rows = []
        for column, (label, ceiling) in enumerate(zip(self.labels, self.ceilings, strict=True)):
            lower = self.lower[:, column]
            upper = self.upper[:, column]
            row: dict[str, Any] = {"rule": label, "steps": steps}
            for name, estimate in summarise(lower, ceiling, bootstrap).items():
                row |= estimate.columns(name) if bootstrap.count > 1 else {name: estimate.value}
            row |= {"empty": np.mean(np.isinf(lower)), "inexact": np.mean(lower < upper)}
            rows.append(row)
        return pd.DataFrame(rows).set_index("rule")


def certify(
    dist: TopK,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    accepted: ArrayLike | None = None,
) -> RuleCertificates:
    """Compute R = min KL(p || q) over all q that can be rejected, for every step and rule.

    Theorem 4.4 for rules of one token, Theorem 5.1 for trees.

    Args:
        dist: the target's distributions p at N steps.
        rules: a text such as "greedy" or "additive:0.3", a rule, or a list of these.
        accepted: instead of rules, the set of tokens that each step accepts: booleans by token id,
            (N, V), or (V,) for all steps alike.

    Returns:
        Certificates in nats, (N, R): intervals where the first rejected token is not stored. For
        the stored logits the relative error is below 1e-14 for rules of one token and trees of up
        to 8 tokens, and below 5e-14 for trees of up to 32.
        With `accepted` there is one column, for the most probable rejected token, and
        accepted_count is the number of ranks before it. Where the argmax is rejected, the
        certificate is 0: the target's own choice is rejected even if q = p.

    Raises:
        ValueError: `dist` is no `TopK`, or its ranks are not sorted; no rule is given, or one that
            does not exist; a rule needs more stored tokens or raw logits; a user's rule returns an
            impossible count; `accepted` is given beside rules or for rounded log-probabilities, or
            has another shape.

    >>> certify(TopK.from_probabilities([0.75, 0.25]), "greedy").lower.round(6).tolist()
    [[0.130812]]
    >>> p = TopK.from_probabilities([0.5, 0.3, 0.2])
    >>> certify(p, accepted=[True, False, True]).lower.round(6).tolist()  # 0.3 is rejected
    [[0.025267]]
    """
    check_top_k(dist)
    if accepted is not None:
        if rules is not None:
            raise ValueError("rules and accepted are both given: give one of them")
        sets = _certify_sets(dist, as_array(ACCEPTED, accepted))
        return _labelled(sets, [ACCEPTED], [math.log(2.0)])  # Theorem 4.6
    chosen = rules_from(() if rules is None else rules)
    check_k(chosen, dist.k, dist.vocab_size)
    if dist.log_prob_error is not None:
        certificates = certify_rounded(dist, chosen)
    else:
        certificates = certify_tests(dist, [checked_test(dist, rule) for rule in chosen])
    labels = [rule.label for rule in chosen]
    return _labelled(certificates, labels, [rule.ceiling for rule in chosen])


def check_top_k(dist: Any) -> None:
    """Raise a ValueError that says how to make a `TopK` if `dist` is none."""
    if not isinstance(dist, TopK):
        raise ValueError(
            f"dist is {described(dist)}: give TopK.from_logits(logits), or "
            "TopK.from_probabilities(p)"
        )


def extremal_draft(p: ArrayLike, rule: str | Rule) -> tuple[Floats, float]:
    """Return q* (V,), the closest draft to p (V,) that can be rejected, and KL(p || q*) in nats.

    q*(y) = c, the mean of p over the active tokens A, for y in A, and q*(y) = p(y) elsewhere (Lemma
    4.2; Theorem 5.1 for trees). Under q* a rejected token ties with the accepted ones; a tie counts
    as rejected, its worst case.

    Raises:
        ValueError: the rule rejects nothing at this p, or p is not one distribution.

    >>> q, kl = extremal_draft([0.1, 0.6, 0.3], "greedy")
    >>> q.round(6).tolist(), round(kl, 6)
    ([0.1, 0.45, 0.45], 0.05097)
    >>> extremal_draft([0.1, 0.6, 0.3], "tree:2")[0].round(6).tolist()
    [0.333333, 0.333333, 0.333333]
    """
    rule = rule_from(rule)
    probabilities = as_array("p", p)
    if probabilities.ndim != 1:
        raise ValueError(
            f"p has the shape {probabilities.shape}: give the (V,) probabilities of one step"
        )
    dist = TopK.from_probabilities(probabilities)
    certificate = certify(dist, rule)
    size = int(certificate.active_size[0, 0])
    if not size:
        raise ValueError(f"rule {rule.label!r} rejects nothing at this p")
    if isinstance(rule, Tree):  # x0, and the last of the ranks 2 to m + 1
        active = [0, *range(rule.m + 2 - size, rule.m + 1)]
    else:  # the first ranks, and the first rejected one
        active = [*range(size - 1), int(certificate.accepted_count[0, 0])]
    ids = dist.ids[0][active]
    q = probabilities.astype(np.float64)
    q[ids] = q[ids].mean()
    return q, float(certificate.lower[0, 0])


def _labelled(
    certificates: Certificates, labels: list[str], ceilings: list[float]
) -> RuleCertificates:
    labelled = RuleCertificates(*certificates)
    labelled.labels = labels
    labelled.ceilings = ceilings
    return labelled


def _certify_sets(dist: TopK, accepted: NDArray[Any]) -> Certificates:
    """Return the certificates of sets of accepted tokens (Theorem 4.4 for any rejection region)."""
    size = dist.vocab_size
    steps = len(dist)
    if accepted.dtype != np.bool_ or accepted.shape not in ((size,), (steps, size)):
        raise ValueError(
            f"accepted is {accepted.dtype} {accepted.shape}: give booleans by token id, "
            f"({steps}, {size}) or ({size},)"
        )
    if dist.log_prob_error is not None:
        raise ValueError("rounded log-probabilities are certified by rules only, not by accepted")
    accepted = np.broadcast_to(accepted, (steps, size))
    stored = np.take_along_axis(accepted, dist.ids, axis=1)
    # all stored tokens accepted: K ranks are, if no other token is; else their ranks are unknown
    beyond = np.where(accepted.sum(axis=1) == dist.k, dist.k, UNKNOWN)
    beyond = np.where(accepted.all(axis=1), size, beyond)
    count = np.where(stored.all(axis=1), beyond, np.argmin(stored, axis=1)).astype(np.int32)
    rejects_argmax = count == 0
    result = certify_tests(dist, [np.where(rejects_argmax, 1, count)])
    result.lower[rejects_argmax] = 0.0
    result.upper[rejects_argmax] = 0.0
    result.active_size[rejects_argmax] = 1
    result.accepted_count[rejects_argmax] = 0
    return result
