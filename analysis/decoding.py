"""Metrics of decoding with a drafter: acceptance, tokens a call, costs, speed, what is given up.

A run is a method with its draft length and temperature; run by run, its answers and calls are
compared with the autoregressive baseline of the same temperature, prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import speed_laws
from analysis.statistics import PromptBootstrap

Floats = NDArray[np.float64]
GREEDY = "greedy"


@dataclass(frozen=True)
class Decoded:
    """What one target decoded with one drafter.

    Attributes:
        target: printed name.
        drafter: printed name.
        runs: of each run its method, drafter, rule, draft_length, temperature; index is the run.
        data: one row an answer: prompt_id, run, source, n_tokens, log_likelihood, agreement, ...
        calls: one row a target call: prompt_id, run, drafted, tested, accepted, emitted.
        answers: seconds of each answer: prompt_id, run, first_seconds, begin_seconds, seconds.
        spans: seconds of each call: prompt_id, run, draft_seconds, verify_seconds, ...
        trajectory: the greedy baseline read again by both models; empty without one.
        indicators: whether each rule accepts there.
        size: bytes by model: {"target": {"model", "cache_per_token"}, "drafter": ...}.
    """

    target: str
    drafter: str
    runs: pd.DataFrame
    data: pd.DataFrame
    calls: pd.DataFrame
    answers: pd.DataFrame
    spans: pd.DataFrame
    trajectory: pd.DataFrame
    indicators: pd.DataFrame
    size: Mapping[str, Mapping[str, int]]

    def baseline(self, run: int) -> int:
        """Return the run of the baseline that `run` is compared with."""
        alone = self.runs["drafter"] == "none"
        same = self.runs["temperature"] == self.runs["temperature"].iloc[run]
        return int(np.flatnonzero(alone & same)[0])


def acceptance(decoded: Decoded) -> pd.DataFrame:
    """Return acceptance and quality of every run; nothing here depends on the clock.

    Returns:
        One row a run: tested and accepted tokens; `rate` accepted / tested (only tokens that
        received a decision count); `tokens_per_call` emitted / calls; `closed_form` the same at
        this rate under independence; `agreement` share of positions with the baseline's token;
        `log_likelihood` of an answer's token under the target, mean; `given_up` the baseline's
        less this, nats a token.
    """
    sums = decoded.calls.groupby("run")[["tested", "accepted", "emitted"]].sum()
    sums["calls"] = decoded.calls.groupby("run").size()
    table = decoded.runs.join(sums)
    totals = decoded.data.groupby("run")[["log_likelihood", "n_tokens"]].sum()
    table["rate"] = table["accepted"] / table["tested"].where(table["tested"] > 0)
    table["tokens_per_call"] = table["emitted"] / table["calls"]
    table["closed_form"] = [
        speed_laws.tokens_per_call(rate, gamma) if rate == rate else 1.0
        for rate, gamma in zip(table["rate"], table["draft_length"], strict=True)
    ]
    table["log_likelihood"] = totals["log_likelihood"] / totals["n_tokens"]
    alone = [decoded.baseline(run) for run in range(len(table))]
    table["agreement"] = agreement(decoded.data, alone)
    table["given_up"] = table["log_likelihood"].to_numpy()[alone] - table["log_likelihood"]
    return table


def agreement(data: pd.DataFrame, alone: Sequence[int]) -> pd.Series[float]:
    """Return the share of positions, of all answers of a run, with the token of its baseline.

    Args:
        data: one row an answer; its agreement is over the longer of the two answers.
        alone: the baseline of each run.
    """
    lengths = data.set_index(["prompt_id", "run"])["n_tokens"]
    keys = zip(data["prompt_id"], data["run"], strict=True)
    baseline = [lengths[prompt, alone[run]] for prompt, run in keys]
    positions = data["n_tokens"].clip(lower=np.array(baseline))
    same = (data["agreement"] * positions).groupby(data["run"]).sum()
    return same / positions.groupby(data["run"]).sum()


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


def length_histogram(calls: pd.DataFrame) -> pd.DataFrame:
    """Return how many calls accept each number of drafted tokens: run, accepted, calls, share.

    Numbers up to the longest draft of the run that no call accepts are there, with 0 calls.
    """
    longest = calls.groupby("run")["drafted"].max()
    every = pd.MultiIndex.from_tuples(
        [(run, accepted) for run, top in longest.items() for accepted in range(top + 1)],
        names=["run", "accepted"],
    )
    found = calls.groupby(["run", "accepted"]).size().reindex(every, fill_value=0)
    counts = found.rename("calls").reset_index()
    counts["share"] = counts["calls"] / counts.groupby("run")["calls"].transform("sum")
    return counts


def forced(decoded: Decoded) -> pd.DataFrame:
    """Return teacher-forced beside realised acceptance, for rules with the model drafter at 0.

    Teacher-forced is the share of all steps of the greedy baseline at which the rule accepts the
    drafter's token. Realised acceptance differs because bonus positions are never tested, so
    that steps after failures weigh more, and, for a relaxed rule, because its own answer leaves
    the baseline's. `on_baseline` is realised acceptance before the answers part: over tests
    behind which text and draft are the baseline's.

    Returns:
        run, method, draft_length, teacher_forced, on_baseline, realised.
    """
    rates = decoded.indicators.groupby("rule")["accepted"].mean()
    runs = decoded.runs
    parted = decoded.data.set_index(["prompt_id", "run"])["common_prefix"]
    calls = decoded.calls.join(parted, on=["prompt_id", "run"])
    same = (calls["common_prefix"] - calls["position"] + 1).clip(lower=0)
    calls["tested"] = np.minimum(calls["tested"], same)
    calls["accepted"] = np.minimum(calls["accepted"], same)
    sums = calls.groupby("run")[["accepted", "tested"]].sum()
    found = acceptance(decoded)
    rows = []
    for run in np.flatnonzero((runs["drafter"] == "model") & (runs["temperature"] == 0)):
        row = runs.iloc[run]
        before = sums.loc[run] if run in sums.index else None
        rows.append(
            {
                "run": int(run),
                "method": row["method"],
                "draft_length": int(row["draft_length"]),
                "teacher_forced": float(rates[row["rule"]]),
                "on_baseline": np.nan
                if before is None or not before["tested"]
                else float(before["accepted"] / before["tested"]),
                "realised": float(found["rate"].iloc[run]),
            }
        )
    return pd.DataFrame(
        rows, columns=["run", "method", "draft_length", "teacher_forced", "on_baseline", "realised"]
    )


def speed(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return cost, latency and speed of every run.

    Returns:
        The rows of `acceptance` with seconds: `per_token` (whole answers, the prompt's pass
        included), `tokens_per_second`; `speedup` over the baseline with its interval over
        prompts, `low` and `high`; `c_p` a target pass over one token (the baseline's), `c_q` a
        draft pass, `c_draft`, `c_verify` and `c_other` of a call, means; `rho` c_q / c_p;
        `verify_ratio` c_verify / c_p; `predicted` k / (1 + gamma rho) and `predicted_costs`
        k c_p / (c_draft + c_verify), k the measured tokens a call; `first_token` median; gaps
        between tokens `itl_50`, `itl_95`, `itl_99`, and `itl_zero`, the share that arrive with
        the token before them; `memory` bytes beside the target's at the longest answer.
    """
    table = acceptance(decoded)
    spans = decoded.spans.groupby("run")[
        ["draft_seconds", "verify_seconds", "other_seconds", "drafted"]
    ].sum()
    for name in ("draft", "verify", "other"):
        table[f"c_{name}"] = spans[f"{name}_seconds"] / table["calls"]
    alone = [decoded.baseline(run) for run in range(len(table))]
    table["c_p"] = table["c_verify"].to_numpy()[alone]
    table["c_q"] = spans["draft_seconds"] / spans["drafted"].where(spans["drafted"] > 0)
    table["rho"] = table["c_q"] / table["c_p"]
    table["verify_ratio"] = table["c_verify"] / table["c_p"]
    rows = table[["tokens_per_call", "draft_length", "rho", "c_p", "c_draft", "c_verify"]]
    table["predicted"] = [
        speed_laws.speedup(k, gamma, rho) if gamma and rho == rho else np.nan
        for k, gamma, rho, *_ in rows.itertuples(index=False)
    ]
    table["predicted_costs"] = [
        speed_laws.measured_cost_speedup(k, c_p, c_draft, c_verify) if gamma else np.nan
        for k, gamma, _, c_p, c_draft, c_verify in rows.itertuples(index=False)
    ]
    table["first_token"] = decoded.answers.groupby("run")["first_seconds"].median()
    gaps = [token_gaps(decoded, run) for run in range(len(table))]
    for level in (50, 95, 99):
        table[f"itl_{level}"] = [np.percentile(gap, level) if len(gap) else np.nan for gap in gaps]
    table["itl_zero"] = [np.mean(gap == 0) if len(gap) else np.nan for gap in gaps]
    table["memory"] = [memory_overhead(decoded, run) for run in range(len(table))]
    return table.join(speedups(decoded, resamples, confidence, seed))


def token_gaps(decoded: Decoded, run: int) -> Floats:
    """Return the seconds between consecutive tokens of a run's answers.

    The tokens of one call arrive together. The first call of an answer waits for the drafter's
    pass over the prompt.
    """
    spans = decoded.spans[decoded.spans["run"] == run]
    answers = decoded.answers[decoded.answers["run"] == run].set_index("prompt_id")
    seconds = np.array(spans[["draft_seconds", "verify_seconds", "other_seconds"]].sum(axis=1))
    first = ~spans["prompt_id"].duplicated().to_numpy()
    seconds[first] += answers["begin_seconds"][spans["prompt_id"][first]].to_numpy()
    emitted = spans["emitted"].to_numpy()
    gaps = np.zeros(int(emitted.sum()))
    gaps[np.cumsum(emitted) - emitted] = seconds
    return gaps


def memory_overhead(decoded: Decoded, run: int) -> float:
    """Return the bytes a run needs beside the target and its cache.

    The drafter's weights, which lie beside the target's during all runs, and: on CUDA the
    measured difference of the peaks, elsewhere the drafter's cache at the longest text.
    """
    drafts = decoded.runs["drafter"].iloc[run] == "model"
    weights = decoded.size["drafter"]["model"] if drafts else 0
    mine = decoded.answers[decoded.answers["run"] == run]
    if mine["peak_bytes"].notna().all():
        alone = decoded.answers[decoded.answers["run"] == decoded.baseline(run)]
        return float(weights + mine["peak_bytes"].max() - alone["peak_bytes"].max())
    if not drafts:
        return 0.0
    longest = int(decoded.data.loc[decoded.data["run"] == run, "text_tokens"].max())
    return float(weights + decoded.size["drafter"]["cache_per_token"] * longest)


def speedups(
    decoded: Decoded,
    resamples: int,
    confidence: float,
    seed: int,
    prompts: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return seconds a token and the speedup of every run, with its interval over prompts.

    The speedup is the baseline's seconds a token over the method's, all answers together; a
    resample draws whole prompts with all their answers, so that the comparison stays paired.

    Args:
        decoded: answers and their seconds.
        resamples: of the bootstrap.
        confidence: of the interval.
        seed: of the bootstrap.
        prompts: which prompts count; None is all.
    """
    keep = sorted(decoded.data["prompt_id"].unique()) if prompts is None else list(prompts)
    count = len(decoded.runs)
    seconds = _matrix(decoded.answers, "seconds", keep, count)
    tokens = _matrix(decoded.data, "n_tokens", keep, count)
    bootstrap = PromptBootstrap(np.arange(len(keep)), resamples, confidence, seed)
    drawn = bootstrap.sums(seconds) / bootstrap.sums(tokens)  # (B, runs)
    cost = seconds.sum(0) / tokens.sum(0)
    alone = [decoded.baseline(run) for run in range(count)]
    low, high = bootstrap.interval(drawn[:, alone] / drawn)
    return pd.DataFrame(
        {
            "per_token": cost,
            "tokens_per_second": 1 / cost,
            "speedup": cost[alone] / cost,
            "low": low,
            "high": high,
        }
    )


def _matrix(table: pd.DataFrame, column: str, prompts: Sequence[str], runs: int) -> Floats:
    """Return a column as (prompts, runs)."""
    wide = table.pivot(index="prompt_id", columns="run", values=column)
    return np.asarray(wide.reindex(index=list(prompts), columns=range(runs)), dtype=np.float64)


def draft_lengths(speeds: pd.DataFrame) -> pd.DataFrame:
    """Return, for methods decoded with several draft lengths, the best one predicted and found.

    The prediction takes the pooled acceptance rate and the mean rho of all its draft lengths.

    Returns:
        method, temperature, rate, rho, predicted, found, tried.
    """
    rows: list[dict[str, Any]] = []
    mine = speeds[speeds["drafter"] == "model"]
    for (method, temperature), group in mine.groupby(["method", "temperature"], sort=False):
        if len(group) < 2 or not group["tested"].sum():
            continue
        rate = group["accepted"].sum() / group["tested"].sum()
        rho = group["rho"].mean()
        rows.append(
            {
                "method": method,
                "temperature": temperature,
                "rate": rate,
                "rho": rho,
                "predicted": speed_laws.optimal_draft_length(rate, rho),
                "found": int(group["draft_length"].iloc[int(np.argmax(group["speedup"]))]),
                "tried": ", ".join(map(str, group["draft_length"])),
            }
        )
    return pd.DataFrame(
        rows, columns=["method", "temperature", "rate", "rho", "predicted", "found", "tried"]
    )
