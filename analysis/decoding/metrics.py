"""Metrics of decoding with a drafter: acceptance, tokens a call, what is given up.

Those that depend on the clock are in `speed`. A run is a method with its draft length
and temperature; run by run, its answers and calls are compared with the autoregressive baseline
of the same temperature and noise, prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..rules.rule import Rule
from ..statistics.bootstrap import PromptBootstrap
from . import speed_laws
from .finished import differing_answers, finished

Floats = NDArray[np.float64]
PASSES = ["model", "batch", "tokens", "seconds"]
LEVELS = ["prompt_id", "run", "position", "level", "children", "accepted"]


@dataclass(frozen=True)
class Decoded:
    """What one target decoded with one drafter.

    Attributes:
        target: printed name.
        drafter: printed name.
        runs: of each run its method, drafter, sampling, rule, draft_length, temperature, top_p,
            top_k, and tree, None of a chain: name, shown, nodes, depth and, where all have one
            shape, parents; and drafting, when its drafter stops, None where it does not; index is
            the run.
        data: one row an answer: prompt_id, run, source, n_tokens, log_likelihood, agreement, ...
        calls: one row a target call: prompt_id, run, drafted, depth, reach, tested, accepted,
            emitted.
        answers: seconds of each answer: prompt_id, run, first_seconds, begin_seconds, seconds.
        spans: seconds of each call: prompt_id, run, draft_seconds, verify_seconds, ...
        trajectory: the greedy baseline read again by both models; empty without one.
        size: bytes by model: {"target": {"model", "cache_per_token"}, "drafter": ...}.
        rules: the rules of the runs, by label.
        levels: one row a node of a tree whose children were tested: prompt_id, run, position,
            level, children, accepted (the sibling index, 0 is none).
        passes: one row a pass over a batch of texts: model (target or drafter), batch, tokens of
            each text, seconds.
    """

    target: str
    drafter: str
    runs: pd.DataFrame
    data: pd.DataFrame
    calls: pd.DataFrame
    answers: pd.DataFrame
    spans: pd.DataFrame
    trajectory: pd.DataFrame
    size: Mapping[str, Mapping[str, int]]
    rules: Mapping[str, Rule]
    levels: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=LEVELS))
    passes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=PASSES))

    @property
    def of_trees(self) -> pd.Series:
        """Whether each run drafts trees."""
        return self.runs["tree"].notna()

    def baseline(self, run: int) -> int:
        """Return the run of the baseline that `run` is compared with.

        Races are compared with the target alone that chooses by the same race.
        """
        chosen = self.runs[["temperature", "top_p", "top_k"]].assign(
            races=self.runs["sampling"] == "races"
        )
        same = (chosen == chosen.iloc[run]).all(axis=1)
        return int(np.flatnonzero((self.runs["drafter"] == "none") & same)[0])

    @property
    def prompts(self) -> int:
        """How many prompts every run decoded."""
        return int(self.data["prompt_id"].nunique())

    def bootstrap(self, resamples: int, confidence: float, seed: int) -> PromptBootstrap:
        """Return resamples of the prompts."""
        return PromptBootstrap(np.arange(self.prompts), resamples, confidence, seed)

    def by_prompt(self, table: pd.DataFrame, *columns: str) -> Iterator[Floats]:
        """Yield each column of a table, summed up by prompt and run: (P, R), 0 without a row."""
        sums = table.groupby(["prompt_id", "run"])[list(columns)].sum()
        keys = sorted(self.data["prompt_id"].unique()), range(len(self.runs))
        every = sums.reindex(pd.MultiIndex.from_product(keys), fill_value=0)
        for name in columns:
            yield every[name].to_numpy(np.float64).reshape(-1, len(self.runs))


def ratios(
    above: Floats, below: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats, Floats]:
    """Return the ratios of sums over prompts, and their intervals' ends, (R,) each.

    Args:
        above: (P, R).
        below: (P, R); where its sum is 0 the ratio is NaN.
        bootstrap: over prompts.
    """
    with np.errstate(invalid="ignore"):
        low, high = bootstrap.interval(bootstrap.sums(above) / bootstrap.sums(below))
        return above.sum(0) / below.sum(0), low, high


def acceptance(decoded: Decoded) -> pd.DataFrame:
    """Return acceptance and quality of every run; nothing here depends on the clock.

    Returns:
        One row a run: tested and accepted tokens, of a tree levels; `rate` accepted / tested
        (only what received a decision counts); `tokens_per_call` emitted / calls;
        `drafted_per_call`, and `depth_per_call` of them in a row, below the draft length where
        answers end or look-up finds less; `closed_form` the tokens a call at this rate under
        independence, mean over the calls with what each could emit, NaN of trees;
        `agreement` share of positions with the baseline's token;
        `log_likelihood` of an answer's token under the target, mean; `given_up` the baseline's
        less this, nats a token.
    """
    counted = ["drafted", "depth", "tested", "accepted", "emitted"]
    sums = decoded.calls.groupby("run")[counted].sum()
    sums["calls"] = decoded.calls.groupby("run").size()
    table = decoded.runs.drop(columns=["tree", "top_p", "top_k"]).join(
        sums.drop(columns=["drafted", "depth"])
    )
    totals = decoded.data.groupby("run")[["log_likelihood", "n_tokens"]].sum()
    table["rate"] = table["accepted"] / table["tested"].where(table["tested"] > 0)
    table["tokens_per_call"] = table["emitted"] / table["calls"]
    table["drafted_per_call"] = sums["drafted"] / table["calls"]
    table["depth_per_call"] = sums["depth"] / table["calls"]
    table["closed_form"] = closed_form(decoded.calls, table["rate"]).mask(decoded.of_trees)
    table["log_likelihood"] = totals["log_likelihood"] / totals["n_tokens"]
    alone = [decoded.baseline(run) for run in range(len(table))]
    tokens, share = decoded.by_prompt(decoded.data, "n_tokens", "agreement")
    positions = np.maximum(tokens, tokens[:, alone])  # of the longer of two answers
    table["agreement"] = (share * positions).sum(0) / positions.sum(0)
    table["given_up"] = table["log_likelihood"].to_numpy()[alone] - table["log_likelihood"]
    return table


def closed_form(calls: pd.DataFrame, rates: pd.Series) -> pd.Series:
    """Return the tokens a call of each run that independent tests would give.

    (1 - a^(n+1)) / (1 - a), averaged over the calls of a run, n the drafted tokens a call could
    emit (`reach`): an answer's limit or end, or a look-up that finds less, cuts drafts short.

    Args:
        calls: run and reach of each call.
        rates: acceptance rate a of each run; NaN where nothing was tested, and 1 is returned.
    """
    counts = calls.groupby(["run", "reach"]).size().rename("calls").reset_index()
    a = counts["run"].map(rates).fillna(0.0)
    pairs = zip(a, counts["reach"], strict=True)
    counts["emitted"] = [speed_laws.tokens_per_call(rate, n) for rate, n in pairs]
    counts["emitted"] *= counts["calls"]
    sums = counts.groupby("run")[["emitted", "calls"]].sum()
    return sums["emitted"] / sums["calls"]


def acceptance_intervals(
    decoded: Decoded, resamples: int, confidence: float, seed: int
) -> pd.DataFrame:
    """Return intervals over prompts of the acceptance rate and of tokens a call, of every run.

    Args:
        decoded: calls and answers.
        resamples: of the bootstrap.
        confidence: of the interval.
        seed: of the bootstrap.

    Returns:
        One row a run: rate_ci_low, rate_ci_high, tokens_per_call_ci_low,
        tokens_per_call_ci_high; NaN where nothing was tested.
    """
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    calls = decoded.calls.assign(calls=1)
    columns: dict[str, Floats] = {}
    for name, of in (("rate", ("accepted", "tested")), ("tokens_per_call", ("emitted", "calls"))):
        above, below = decoded.by_prompt(calls, *of)
        _, low, high = ratios(above, below, bootstrap)
        columns |= {f"{name}_ci_low": low, f"{name}_ci_high": high}
    return pd.DataFrame(columns)


def finished_runs(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return what a finished answer costs with every run, as `finished`, one row a run."""
    keys = ["prompt_id", "run"]
    counted = decoded.calls.groupby(keys).size().rename("calls").reset_index()
    rows = decoded.data[[*keys, "n_tokens", "ended"]].merge(counted, on=keys, how="left")
    rows = rows.merge(decoded.answers[[*keys, "seconds"]], on=keys).fillna({"calls": 0})
    by_run = [rows[rows["run"] == run].sort_values("prompt_id") for run in range(len(decoded.runs))]
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    return pd.DataFrame(
        [
            finished(mine, by_run[decoded.baseline(run)], bootstrap)
            for run, mine in enumerate(by_run)
        ]
    )


def position_rates(calls: pd.DataFrame) -> pd.DataFrame:
    """Return how often the token at each place of a draft is tested and accepted, by run.

    Returns:
        run, place (from 1), tested, accepted, rate: the accepted share of the tested.
    """
    rows = []
    for run, mine in calls.groupby("run"):
        tested, accepted = mine["tested"].to_numpy(), mine["accepted"].to_numpy()
        for place in range(1, int(tested.max(initial=0)) + 1):
            n = int(np.sum(tested >= place))
            right = int(np.sum(accepted >= place))
            rows.append((run, place, n, right, right / n))
    return pd.DataFrame(rows, columns=["run", "place", "tested", "accepted", "rate"])


def partings(decoded: Decoded) -> pd.DataFrame:
    """Return the first token at which each greedy answer differs from that of the target alone.

    Two passes over different numbers of tokens round differently. Where the two largest logits are
    equal up to that, either may come first; from there on both answers are the target's own.

    Returns:
        run, method, draft_length, prompt_id, position (of the token in the answer) and gap, the
        difference of the target's two largest logits there; a row an answer that differs.
    """
    baselines = [decoded.baseline(run) for run in range(len(decoded.runs))]
    found = differing_answers(decoded.data, baselines, ["prompt_id"])
    found = found[found["run"].isin(greedy_runs(decoded))].sort_values("run", kind="stable")
    gaps = decoded.trajectory[["prompt_id", "position"]].assign(
        gap=decoded.trajectory["z1"] - decoded.trajectory["z2"]
    )
    found = found.rename(columns={"common_prefix": "position"})
    found = found.merge(gaps, on=["prompt_id", "position"], how="left")
    found = found.join(decoded.runs[["method", "draft_length"]], on="run")
    return found[["run", "method", "draft_length", "prompt_id", "position", "gap"]]


def greedy_runs(decoded: Decoded) -> list[int]:
    """Return the runs that draft and verify by strict greedy."""
    runs = decoded.runs
    strict = (runs["rule"] == "greedy") & (runs["temperature"] == 0) & (runs["drafter"] != "none")
    return np.flatnonzero(strict).tolist()
