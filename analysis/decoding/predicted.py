"""The speed that acceptance and costs predict, over the answers that were measured.

Answers are as long as those measured, with the passes over their prompts, which drafting does not
make faster, the measured costs of calls, and the acceptance at each place of a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from .metrics import Decoded, position_rates
from .speed_laws import answer_seconds, least_rate

LEAST_PRECISION = 1e-4  # of an acceptance rate
LENGTH_COLUMNS = ["method", "temperature", "predicted", "predicted_speedup", "tried"]


def draft_lengths(decoded: Decoded, speeds: pd.DataFrame) -> pd.DataFrame:
    """Return, for methods that drafted chains of several lengths, the best predicted.

    Predicted as in `predictions` among 0 (the target alone) to the longest one tried, from what the
    longest drafts showed.

    Args:
        decoded: calls and their seconds.
        speeds: its table of `speed`.

    Returns:
        method, temperature, predicted, predicted_speedup, tried.
    """
    rows: list[dict[str, Any]] = []
    for (method, temperature), group in _chains(decoded, speeds):
        if len(group) < 2 or not group["tested"].sum():
            continue
        tried = group.sort_values("draft_length")
        of_answers = _Answers(decoded, int(tried.index[-1]), call_costs(decoded, group))
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
    """Return the speedup that acceptance and costs predict, and the acceptance at which it is 1.

    Over the tokens of the measurement: answers as long as the run's, with the measured passes over
    their prompts, of target and drafter, and behind them `answer_seconds` with the acceptance of
    each place of a draft and the costs of `call_costs`.

    Args:
        decoded: calls and their seconds.
        runs: rows of `speed` or of `acceptance` with `c_p`.

    Returns:
        By run `predicted`, and `least`, the acceptance rate, the same at every place, at which
        the run is as fast as the target alone; it is NaN where none is enough. Both are NaN of
        runs that do not draft chains with the model.
    """
    found = pd.DataFrame({"predicted": np.nan, "least": np.nan}, index=runs.index)
    for _, group in _chains(decoded, runs):
        costs = call_costs(decoded, group)
        for run, gamma in group["draft_length"].items():
            if gamma < len(costs) and group["tested"][run]:
                of_answers = _Answers(decoded, int(run), costs)
                found.loc[run] = of_answers.speedup(of_answers.rates), of_answers.least(gamma)
    return found


def _chains(decoded: Decoded, runs: pd.DataFrame) -> Any:
    """Return the runs that draft chains with the model, by method and temperature."""
    of_trees = decoded.of_trees.reindex(runs.index, fill_value=False)
    mine = runs[(runs["drafter"] == "model").to_numpy() & ~of_trees.to_numpy()]
    return mine.groupby(["method", "temperature"], sort=False)


class _Answers:
    """The answers of a run, as `predictions` reckons with them."""

    def __init__(self, decoded: Decoded, run: int, costs: Sequence[float]) -> None:
        """Read a run; `costs` are those of calls with 0, 1, ... drafted tokens."""

        def of(table: pd.DataFrame, which: int) -> pd.DataFrame:
            return table[table["run"] == which]

        alone, mine = (of(decoded.answers, which) for which in (decoded.baseline(run), run))
        self._alone = alone["seconds"].sum() / of(decoded.data, decoded.baseline(run))[
            "n_tokens"].sum()  # fmt: skip
        self._passes = float((mine["first_seconds"] + mine["begin_seconds"]).sum())
        self._tokens = of(decoded.data, run)["n_tokens"].to_numpy()
        gamma = int(decoded.runs["draft_length"].iloc[run])
        places = position_rates(of(decoded.calls, run))["rate"].tolist()
        self.rates = [*places, *[places[-1]] * gamma][:gamma]  # of places that no call reached
        self.lengths = range(1, min(gamma, len(costs) - 1) + 1)
        self._costs = costs

    def speedup(self, rates: Sequence[float]) -> float:
        """Return the speedup over the target alone at the acceptance of each place."""
        seconds = answer_seconds(int(self._tokens.max()) - 1, rates, self._costs)
        mine = self._passes + seconds[self._tokens - 1].sum()
        return float(self._alone * self._tokens.sum() / mine)

    def least(self, gamma: int) -> float:
        """Return the acceptance at which drafts of this length are as fast as none, or NaN."""
        if self.speedup([1.0] * gamma) < 1:
            return np.nan
        return least_rate(lambda a: self.speedup([a] * gamma) >= 1, LEAST_PRECISION)


def call_costs(decoded: Decoded, group: pd.DataFrame) -> list[float]:
    """Return the seconds of a call with 0, 1, ... drafted tokens, means of calls as measured.

    At 0 it is the baseline's; at a draft length that was tried, that of calls with a full draft;
    on a line between these. It ends at the longest draft that a call had in full.

    Args:
        decoded: calls and their seconds.
        group: rows of `speed`, runs that differ in their draft length only.
    """
    spent = decoded.spans[["draft_seconds", "verify_seconds", "other_seconds"]].sum(axis=1)
    seconds = {0: float(group["c_p"].iloc[0])}
    for run, gamma in group["draft_length"].items():
        full = (decoded.spans["run"] == run) & (decoded.spans["drafted"] == gamma)
        if full.any():
            seconds[int(gamma)] = float(spent[full].mean())
    measured = sorted(seconds)
    lengths = np.arange(measured[-1] + 1)
    return np.interp(lengths, measured, [seconds[gamma] for gamma in measured]).tolist()
