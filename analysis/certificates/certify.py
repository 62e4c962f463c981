"""Certificates: the least KL(p || q) at which a drafted token can be rejected.

`certify` handles many steps and rules at once. The certificate is exact where the stored tokens
determine it, and an interval that contains it elsewhere (docs/method.md). `extremal_draft` gives
the draft that attains a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..rule_base import UNKNOWN, Rule, check_k
from ..rule_text import rule_from, rules_from
from ..rules import Tree
from ..statistics.bootstrap import summarise
from ..statistics.prompts import prompt_bootstrap
from ..topk import Floats, TopK, as_array
from ..validation import described
from .intervals import certify_rounded, certify_tests
from .kernel import Certificates
from .rule_range import checked_test

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Certificates", "RuleCertificates", "certify", "extremal_draft"]
ACCEPTED = "accepted"  # stands for the label of a rule where sets of tokens are given


class RuleCertificates(Certificates):
    """Certificates of N steps under R rules, as arrays (N, R) and as tables."""

    labels: list[str]  # of the rules
    ceilings: list[float]  # nats, of each rule's finite certificates

    def frame(self) -> pd.DataFrame:
        """Return a row for each rule and step, with the columns of stage certificates.

        rule, step (from 0), lower and upper (nats), active_size, accepted_count (missing for trees,
        or where it is unknown).
        """
        import pandas as pd

        steps = len(self.lower)
        named = {
            "rule": np.repeat(self.labels, steps),
            "step": np.tile(np.arange(steps), len(self.labels)),
        }
        columns: dict[str, NDArray[Any]] = self._asdict()
        frame = pd.DataFrame(named | {name: column.T.ravel() for name, column in columns.items()})
        count = frame["accepted_count"].astype("Int32")
        return frame.assign(accepted_count=count.mask(count < 1))

    def table(self, prompts: Any = None) -> pd.DataFrame:
        """Return a row for each rule, with the columns of the paper's Table 2, in nats.

        mean, median, p5 and p25 of the lower ends, then the shares of empty and inexact
        certificates. Given the label of each step's prompt, of any kind, it has the 95 % intervals
        over prompts as well: mean_ci_low, mean_ci_high, ... Where nothing is rejected a mean takes
        the rule's ceiling.

        Raises:
            ValueError: there is not one label a step.
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
        for at, (label, ceiling) in enumerate(zip(self.labels, self.ceilings, strict=True)):
            lower, upper = self.lower[:, at], self.upper[:, at]
            row: dict[str, Any] = {"rule": label, "steps": steps}
            for name, estimate in summarise(lower, ceiling, bootstrap).items():
                columns = estimate.columns(name)
                row |= columns if bootstrap.count > 1 else {name: estimate.value}
            row |= {"empty": np.mean(np.isinf(lower)), "inexact": np.mean(lower < upper)}
            rows.append(row)
        return pd.DataFrame(rows).set_index("rule")


def certify(
    dist: TopK,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    accepted: ArrayLike | None = None,
) -> RuleCertificates:
    """Compute the certificates of every step under every rule, in one pass.

    A rule is a text such as "greedy" or "additive:0.3", or an object; several come as a list.
    Instead of R rules, `accepted` gives the tokens that each of the N steps accepts, whichever they
    are: (N, V) booleans by token id, or (V,) for all steps alike. R is 1 then.

    Returns:
        Theorem 4.4 for rules of one token, Theorem 5.1 for trees, with intervals where the first
        rejected token is not stored. The relative error, of the stored logits, is below 1e-14 for
        rules of one token and trees of up to 8, and below 5e-14 for trees of up to 32.
        With `accepted`, the certificate is that of the most probable rejected token, and the
        accepted count is the number of ranks before it. It is 0 where the argmax is rejected: the
        target's own choice is then refused at no divergence.

    Raises:
        ValueError: `dist` is no `TopK`, or there is no rule or one that does not exist; too few
            tokens are stored for a rule, a rule needs raw logits and there are
            none, a rule of the user's gives an impossible count, or the ranks are not sorted.
            `accepted` comes with rules, or has another shape, or log-probabilities are rounded.

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
        return _named(sets, [ACCEPTED], [math.log(2.0)])  # Theorem 4.6
    chosen = rules_from(() if rules is None else rules)
    check_k(chosen, dist.k, dist.vocab_size)
    if dist.log_prob_error is not None:
        found = certify_rounded(dist, chosen)
    else:
        found = certify_tests(dist, [checked_test(dist, rule) for rule in chosen])
    return _named(found, [rule.label for rule in chosen], [rule.ceiling for rule in chosen])


def check_top_k(dist: Any) -> None:
    """Check that `dist` is a `TopK`; else a ValueError says how to make one."""
    if not isinstance(dist, TopK):
        raise ValueError(
            f"dist is {described(dist)}: give TopK.from_logits(logits), or "
            "TopK.from_probabilities(p)"
        )


def extremal_draft(p: ArrayLike, rule: str | Rule) -> tuple[Floats, float]:
    """Return q* (V,), the closest draft to p (V,) that can be rejected, and KL(p || q*) in nats.

    q*(y) = c for y in A, the mean of p over A, and q*(y) = p(y) elsewhere (Lemma 4.2; Theorem 5.1
    for trees). It makes a tie, and the worst case of a tie is rejection.

    Raises:
        ValueError: the rule rejects nothing at this p, or p is not one distribution.

    >>> q, kl = extremal_draft([0.1, 0.6, 0.3], "greedy")
    >>> q.round(6).tolist(), round(kl, 6)
    ([0.1, 0.45, 0.45], 0.05097)
    >>> extremal_draft([0.1, 0.6, 0.3], "tree:2")[0].round(6).tolist()
    [0.333333, 0.333333, 0.333333]
    """
    rule = rule_from(rule)
    given = as_array("p", p)
    if given.ndim != 1:
        raise ValueError(f"p has the shape {given.shape}: give the (V,) probabilities of one step")
    dist = TopK.from_probabilities(given)
    q = given.astype(np.float64)
    cost, _, (size,), (n,) = (column[:, 0] for column in certify(dist, rule))
    if not size:
        raise ValueError(f"rule {rule.label!r} rejects nothing at this p")
    last = rule.m + 1 if isinstance(rule, Tree) else size - 1
    active = [0, *range(last + 1 - size, last)] if isinstance(rule, Tree) else [*range(last), n]
    ids = dist.ids[0][active]
    q[ids] = q[ids].mean()
    return q, float(cost[0])


def _named(found: Certificates, labels: list[str], ceilings: list[float]) -> RuleCertificates:
    named = RuleCertificates(*found)
    named.labels = labels
    named.ceilings = ceilings
    return named


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
    # where all stored ones are accepted: as many, if none of the others is
    beyond = np.where(accepted.sum(axis=1) == dist.k, dist.k, UNKNOWN)
    beyond = np.where(accepted.all(axis=1), size, beyond)
    first = np.where(stored.all(axis=1), beyond, np.argmin(stored, axis=1)).astype(np.int32)
    own = first == 0
    result = certify_tests(dist, [np.where(own, 1, first)])
    result.lower[own] = 0.0
    result.upper[own] = 0.0
    result.active_size[own] = 1
    result.accepted_count[own] = 0
    return result
