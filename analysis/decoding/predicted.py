"""Predicted speed of decoding: tokens a call, optimal draft length, break-even, speedup.

Symbols: gamma is the draft length, a_i the acceptance rate of the i-th token of a draft given that
those before it are accepted. A head reads its own guesses from the second token on, so its a_i
fall, and one pooled rate a for all places mispredicts it. A call emits 1 + a_1 + a_1 a_2 + ...
tokens and takes costs[gamma]; a call of the target alone takes costs[0]. Drafting pays if the
tokens exceed costs[gamma] / costs[0]. In a batch all texts draft the same number of tokens and are
verified in one pass, so the same holds with the costs of the batch.

`predictions` also accounts for the measured lengths of the answers, and for the passes over their
prompts, which drafting does not speed up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Floats
from .formulas import tokens_per_call
from .places import place_rates, pooled_rate, shifted_rates

if TYPE_CHECKING:
    from .metrics import Decoded

LEAST_PRECISION = 1e-4  # of an acceptance rate from measured answers
LENGTH_COLUMNS = ["method", "temperature", "predicted", "predicted_speedup", "tried"]


def closed_form(calls: pd.DataFrame, rates: pd.Series) -> pd.Series:
    """Return the tokens a call of each run under independent tests.

    (1 - a^(n+1)) / (1 - a), averaged over the calls of a run. n is the number of drafted tokens
    that a call could emit (`reach`), as an answer's limit or end, or a short match of look-up, cuts
    drafts.

    Args:
        calls: run and reach of each call.
        rates: acceptance rate a of each run; NaN if nothing was tested, with the result 1.
    """
    counts = calls.groupby(["run", "reach"]).size().rename("calls").reset_index()
    a = counts["run"].map(rates).fillna(0.0)
    pairs = zip(a, counts["reach"], strict=True)
    counts["emitted"] = [tokens_per_call(rate, n) for rate, n in pairs]
    counts["emitted"] *= counts["calls"]
    sums = counts.groupby("run")[["emitted", "calls"]].sum()
    return sums["emitted"] / sums["calls"]


def answer_seconds(tokens: int, rates: Sequence[float], costs: Sequence[float]) -> Floats:
    """Return the expected seconds of calls that emit 0, 1, ..., `tokens` tokens in total.

    S(0) = 0 and S(m) = c(g) + sum over k of P(k) S(m - 1 - k). g = min(gamma, m - 1) tokens are
    drafted, as the answer has no room for more. P(k) = a_1 ... a_k (1 - a_(k+1)), without the last
    factor at k = g, is the probability that k of them are accepted.

    Args:
        tokens: emitted by the calls of the longest answer.
        rates: (gamma,) acceptance rate a_d of the d-th token of a draft, given those before it.
        costs: seconds of a call with 0, 1, ..., gamma drafted tokens.

    Returns:
        (tokens + 1,) seconds S(m).

    Examples:
        >>> answer_seconds(3, [0.5], [1.0, 1.2]).round(2).tolist()  # S(3) = 1.2 + (S(2) + S(1)) / 2
        [0.0, 1.0, 1.7, 2.55]
    """
    reached = np.cumprod([1.0, *rates])  # a_1 ... a_k
    seconds = np.zeros(tokens + 1)
    for left in range(1, tokens + 1):
        drafted = min(len(rates), left - 1)
        share = reached[: drafted + 1] - np.append(reached[1 : drafted + 1], 0.0)
        after = seconds[left - 1 - np.arange(drafted + 1)]
        seconds[left] = costs[drafted] + share @ after
    return seconds


def least_rate(pays: Callable[[float], bool], precision: float) -> float:
    """Return the least level of acceptance in [0, 1] that pays, by bisection.

    Level 1 must pay, and so must every level above one that pays. The result is 0 if 0 pays.
    """
    low, high = 0.0, 1.0
    if pays(low):
        return low
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def draft_lengths(decoded: Decoded, speeds: pd.DataFrame) -> pd.DataFrame:
    """Return the best draft length of each method that drafted chains, as predicted.

    Predicted as in `predictions` among 0 (the target alone) to the longest one tried, from the
    rates by place of the longest drafts.

    Args:
        decoded: calls and their seconds.
        speeds: its table from `speed`.

    Returns:
        method, temperature, predicted, predicted_speedup, tried.
    """
    rows: list[dict[str, Any]] = []
    for (method, temperature), group in _chains(decoded, speeds):
        costs = call_costs(decoded, group)
        if len(costs) < 2 or not group["tested"].sum():
            continue
        tried = group.sort_values("draft_length")
        of_answers = _Answers(decoded, int(tried.index[-1]), costs)
        gains = [1.0, *(of_answers.speedup(of_answers.rates[:g]) for g in of_answers.lengths)]
        best = int(np.argmax(gains))
        rows.append(
            {
                "method": method,
                "temperature": temperature,
                "predicted": best,
                "predicted_speedup": gains[best],
                "tried": ", ".join(map(str, tried["draft_length"])),
            }
        )
    return pd.DataFrame(rows, columns=LENGTH_COLUMNS)


def predictions(decoded: Decoded, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the speedup predicted from acceptance and costs, and the acceptance at which it is 1.

    The prediction is for answers of the run's lengths: the measured passes of target and drafter
    over the prompts, plus `answer_seconds` with the acceptance at each place of a draft and the
    costs of `call_costs`.

    Args:
        decoded: calls and their seconds.
        runs: rows of `speed` or of `acceptance` with `c_p`.

    Returns:
        For each run `predicted`, and `least`, the acceptance rate at which the run is as fast as
        the target alone, with all rates shifted together (`shifted_rates`); NaN if no rate
        suffices. Both are NaN for runs that do not draft chains with the model.
    """
    table = pd.DataFrame({"predicted": np.nan, "least": np.nan}, index=runs.index)
    for _, group in _chains(decoded, runs):
        costs = call_costs(decoded, group)
        for run, gamma in group["draft_length"].items():
            if gamma < len(costs) and group["tested"][run]:
                of_answers = _Answers(decoded, int(run), costs)
                table.loc[run] = of_answers.speedup(of_answers.rates), of_answers.least(gamma)
    return table


def _chains(decoded: Decoded, runs: pd.DataFrame) -> Any:
    """Return the runs that draft chains with the model, grouped by method and temperature."""
    of_trees = decoded.of_trees.reindex(runs.index, fill_value=False)
    chains = runs[(runs["drafter"] == "model").to_numpy() & ~of_trees.to_numpy()]
    return chains.groupby(["method", "temperature"], sort=False)


class _Answers:
    """Lengths, prompt passes and acceptance of a run's answers, for `predictions`."""

    def __init__(self, decoded: Decoded, run: int, costs: Sequence[float]) -> None:
        """Read a run; `costs` are seconds of calls with 0, 1, ... drafted tokens."""

        def of(table: pd.DataFrame, which: int) -> pd.DataFrame:
            return table[table["run"] == which]

        alone, own = (of(decoded.answers, which) for which in (decoded.baseline(run), run))
        self._alone = alone["seconds"].sum() / of(decoded.data, decoded.baseline(run))[
            "n_tokens"].sum()  # fmt: skip
        self._passes = float((own["first_seconds"] + own["begin_seconds"]).sum())
        self._tokens = of(decoded.data, run)["n_tokens"].to_numpy()
        gamma = int(decoded.runs["draft_length"].iloc[run])
        self.rates = place_rates(decoded.calls, run, gamma)
        self.lengths = range(1, min(gamma, len(costs) - 1) + 1)
        self._costs = costs

    def speedup(self, rates: Sequence[float]) -> float:
        """Return the speedup over the target alone for rates by place."""
        seconds = answer_seconds(int(self._tokens.max()) - 1, rates, self._costs)
        total = self._passes + seconds[self._tokens - 1].sum()
        return float(self._alone * self._tokens.sum() / total)

    def least(self, gamma: int) -> float:
        """Return the pooled rate at which this draft length has speedup 1, or NaN."""
        if self.speedup([1.0] * gamma) < 1:
            return np.nan
        rates = self.rates[:gamma]
        level = least_rate(
            lambda level: self.speedup(shifted_rates(rates, level)) >= 1, LEAST_PRECISION
        )
        return pooled_rate(shifted_rates(rates, level))


def call_costs(decoded: Decoded, group: pd.DataFrame) -> list[float]:
    """Return the mean measured seconds of a call with 0, 1, ... drafted tokens.

    At 0 it is the baseline's; at a draft length that was tried, that of calls with a full draft; at
    another one that other chains of the model tried, theirs; on a line between these. It ends at
    the longest draft that a call of the runs had in full.

    Args:
        decoded: calls and their seconds.
        group: rows of `speed` for runs that differ only in their draft length.
    """
    chains = decoded.runs["draft_length"][(decoded.runs["drafter"] == "model") & ~decoded.of_trees]
    spent = decoded.spans[["draft_seconds", "verify_seconds", "other_seconds"]].sum(axis=1)
    full = decoded.spans["drafted"] == decoded.spans["run"].map(chains)
    of_runs = spent[full].groupby(decoded.spans["run"]).mean()
    own = group["draft_length"][group.index.isin(of_runs.index)]
    seconds = {0: float(group["c_p"].iloc[0])}
    for run in [*of_runs.index.difference(own.index), *own.index]:  # its own come last, and stay
        if chains[run] <= own.max():
            seconds[int(chains[run])] = float(of_runs[run])
    measured = sorted(seconds)
    lengths = np.arange(measured[-1] + 1)
    return np.interp(lengths, measured, [seconds[gamma] for gamma in measured]).tolist()
