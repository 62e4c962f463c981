"""Metrics of decoding with a drafter that depend on the clock: costs, latency, speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from ..statistics.bootstrap import PromptBootstrap, simultaneous
from ..statistics.estimate import Estimate
from ..topk import Floats
from .metrics import CONFIGURED, Decoded, formula_length, formula_speedup

SLOWEST_GAP = 10  # 99th percentile over median of a baseline's gaps; less on an idle machine
MIN_PROCESSOR_SHARE = 0.9  # of wall time; idle machine 0.96 to 1, load of 7 on 2 cores 0.2 to 0.5
ALL = "all"  # sources together
MIN_VERIFY_RATIO = 0.9  # verifying a draft reads at least the weights read for a single token
# At least so many for speeds, whose ratios of sums are cheap. With 1,000 an end is off by 0.003,
# and no verdict may hang on that
SPEED_RESAMPLES = 10_000
PARTS = ["draft_seconds", "verify_seconds", "other_seconds"]  # of a call
# columns of the intervals of `speedup` and of `tpot_speedup`
SPEEDUP_ENDS = ("ci_low", "ci_high")
TPOT_ENDS = ("tpot_ci_low", "tpot_ci_high")


def speed(
    decoded: Decoded, accepted: pd.DataFrame, resamples: int, confidence: float, seed: int
) -> pd.DataFrame:
    """Return the costs, latency and speed of every run.

    Returns:
        The rows of `accepted`, the table of `metrics.acceptance`, with these columns: those of
        `throughput`; `c_draft`, `c_verify` (the target's pass) and `c_other` (verification,
        roll-back), mean seconds per call; `c_p`, the cost of a token with the target alone, which
        is the baseline's c_verify + c_other; `c_q`, the cost of a drafted token, or of a level of
        a tree; both costs hold the pass and the choice of the token; `rho`, c_q / c_p;
        `verify_ratio`, (c_verify + c_other) / c_p; `formula` and `formula_length`, S and gamma* of
        the drafter's chains at `rate` and `rho`; `best_length`, the draft length of the fastest
        run of the same chains; `first_token`, a median; `itl_50` and `itl_99`, percentiles of the
        gaps between tokens; `processor_share`, processor time of the decoding thread over wall
        time, NaN if not measured; `memory`, bytes beyond the target's at the longest answer;
        `prompts`.
    """
    table = accepted.copy()
    seconds = decoded.call_seconds.groupby("run")[[*PARTS, "depth"]].sum()
    for part in PARTS:
        table[f"c_{part.removesuffix('_seconds')}"] = seconds[part] / table["calls"]
    alone = decoded.baselines()
    target_seconds = table["c_verify"] + table["c_other"]
    table["c_p"] = target_seconds.to_numpy()[alone]
    table["c_q"] = seconds["draft_seconds"] / seconds["depth"].where(seconds["depth"] > 0)
    table["rho"] = table["c_q"] / table["c_p"]
    table["verify_ratio"] = target_seconds / table["c_p"]
    chains = (table["drafter"] == CONFIGURED) & ~decoded.drafts_trees & table["rate"].notna()
    symbols = zip(table["rate"], table["draft_length"], table["rho"], chains, strict=True)
    table[["formula", "formula_length"]] = [
        (formula_speedup(a, gamma, rho), formula_length(a, rho)) if chain else (np.nan, np.nan)
        for a, gamma, rho, chain in symbols
    ]
    answers = decoded.answer_seconds.groupby("run")
    table["first_token"] = answers["first_seconds"].median()
    gaps = [token_gaps(decoded, run) for run in range(len(table))]
    for level in (50, 99):
        table[f"itl_{level}"] = [np.percentile(gap, level) if len(gap) else np.nan for gap in gaps]
    spent = answers[["processor_seconds", "seconds"]].sum(min_count=1)
    table["processor_share"] = spent["processor_seconds"] / spent["seconds"]
    table["memory"] = [memory_overhead(decoded, run) for run in range(len(table))]
    table = table.join(throughput(decoded, resamples, confidence, seed))
    fastest = table[chains].groupby(["method", "temperature"])["speedup"].transform("idxmax")
    table["best_length"] = fastest.map(table["draft_length"])
    return table.assign(prompts=decoded.n_prompts)


def token_gaps(decoded: Decoded, run: int) -> Floats:
    """Return the seconds between tokens of a run's answers; those of a call arrive together.

    The first call of an answer includes the drafter's pass over the prompt.
    """
    calls = decoded.call_seconds[decoded.call_seconds["run"] == run]
    answers = decoded.answer_seconds.query("run == @run").set_index("prompt_id")
    seconds = np.array(calls[PARTS].sum(axis=1))
    first = ~calls["prompt_id"].duplicated().to_numpy()
    seconds[first] += answers["begin_seconds"][calls["prompt_id"][first]].to_numpy()
    emitted = calls["emitted"].to_numpy()
    gaps = np.zeros(int(emitted.sum()))
    gaps[np.cumsum(emitted) - emitted] = seconds
    return gaps


def memory_overhead(decoded: Decoded, run: int) -> float:
    """Return the bytes that a run needs beyond the target and its cache.

    They are the drafter's weights, which are loaded during all runs, plus on CUDA the measured
    difference of the peaks, elsewhere the drafter's cache at the longest text.
    """
    drafts = decoded.runs["drafter"].iloc[run] == CONFIGURED
    weights = decoded.size["drafter"]["model"] if drafts else 0
    answers = decoded.answer_seconds[decoded.answer_seconds["run"] == run]
    if answers["peak_bytes"].notna().all():
        alone = decoded.answer_seconds[decoded.answer_seconds["run"] == decoded.baselines()[run]]
        return float(weights + answers["peak_bytes"].max() - alone["peak_bytes"].max())
    if not drafts:
        return 0.0
    longest = int(decoded.answers.loc[decoded.answers["run"] == run, "text_tokens"].max())
    return float(weights + decoded.size["drafter"]["cache_per_token"] * longest)


def throughput(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return seconds per token and the speedup of every run, with intervals over prompts.

    Returns:
        One row for each run: `per_token` (whole answers, including the prompt's pass),
        `tokens_per_second`; `speedup` over the baseline, with `ci_low` and `ci_high`; `tpot` (time
        per output token after the first) and `tpot_speedup` with `tpot_ci_low` and `tpot_ci_high`,
        NaN if no answer has a second token.
    """
    bootstrap = speed_bootstrap(decoded.n_prompts, resamples, confidence, seed)
    alone = decoded.baselines()
    methods = decoded.runs[decoded.runs["drafter"] != "none"]
    families = [family.index.tolist() for _, family in methods.groupby("temperature")]
    after = decoded.answer_seconds["seconds"] - decoded.answer_seconds["first_seconds"]
    spent = decoded.answer_seconds.assign(after=after)
    seconds, seconds_after = decoded.by_prompt(spent, "seconds", "after")
    (tokens,) = decoded.by_prompt(decoded.answers, "n_tokens")
    table = pd.DataFrame({"per_token": seconds.sum(0) / tokens.sum(0)})
    table["tokens_per_second"] = 1 / table["per_token"]
    later_tokens = (tokens - 1).sum(0)
    table["tpot"] = seconds_after.sum(0) / np.where(later_tokens > 0, later_tokens, np.nan)
    overall = speedups(seconds, tokens, alone, families, bootstrap)
    later = speedups(seconds_after, tokens - 1, alone, families, bootstrap)
    table[["speedup", *SPEEDUP_ENDS]] = np.transpose(overall)
    table[["tpot_speedup", *TPOT_ENDS]] = np.transpose(later)
    return table


def speedups(
    seconds: Floats,
    tokens: Floats,
    alone: Sequence[int],
    families: Iterable[Sequence[int]],
    bootstrap: PromptBootstrap,
) -> Estimate:
    """Return the speedup of R runs with its interval over prompts, (R,) each.

    The speedup is the baseline's seconds per token over the run's, over all answers. Intervals hold
    for all runs of a family at once, so they also cover a run picked for being fastest. A run
    without a family is a baseline, and its interval has no width. `seconds` and `tokens` are the
    sums over the answers to each prompt, (P, R); `alone` (R,) is the baseline of each run.
    """
    itself = [(run, run) for run in range(len(alone))]
    times = speed_ratios(seconds, tokens, itself, bootstrap).value
    speeds = np.column_stack([times, times, times])
    for runs in families:
        pairs = [(run, alone[run]) for run in runs]
        speeds[runs] = np.column_stack(speed_ratios(seconds, tokens, pairs, bootstrap))
    return Estimate(*speeds.T)


def speed_ratios(
    seconds: Floats, tokens: Floats, pairs: Sequence[tuple[int, int]], bootstrap: PromptBootstrap
) -> Estimate:
    """Return how many times as fast one run is as another, with its interval, (M,) each.

    The ratio is the other run's seconds per token over the run's, over all answers. A resample
    draws prompts with all their answers, so the comparison stays paired. Intervals are computed for
    logarithms and are `simultaneous` for all M pairs. `seconds` and `tokens` are the sums over the
    answers to each prompt, (P, R). A pair is a run and the one that it is compared with.
    """
    runs, others = np.reshape(pairs, (-1, 2)).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = bootstrap.sums(seconds) / bootstrap.sums(tokens)  # (B, R)
        cost = seconds.sum(0) / tokens.sum(0)
        logs = np.log(cost[others] / cost[runs])
        draws = np.log(drawn[:, others] / drawn[:, runs])
    low, high = simultaneous(logs, draws, bootstrap.confidence, bootstrap.count)
    return Estimate(np.exp(logs), np.exp(low), np.exp(high))


def relaxed_ratios(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return how many times as fast each relaxed run is as each lossless one that drafts.

    Returns:
        One row for each pair at one temperature: `relaxed` and `lossless`, the runs; `ratio`, and
        its interval over prompts, `ci_low` and `ci_high`. Intervals hold for all pairs of a
        temperature at once.
    """
    bootstrap = speed_bootstrap(decoded.n_prompts, resamples, confidence, seed)
    (seconds,) = decoded.by_prompt(decoded.answer_seconds, "seconds")
    (tokens,) = decoded.by_prompt(decoded.answers, "n_tokens")
    columns = ["relaxed", "lossless", "ratio", *SPEEDUP_ENDS]
    frames = [pd.DataFrame(columns=columns, dtype=float)]
    methods = decoded.runs[decoded.runs["drafter"] != "none"]
    for _, family in methods.groupby("temperature"):
        lossless = family["lossless"].astype(bool)
        pairs = list(product(family.index[~lossless], family.index[lossless]))
        if pairs:
            ratios = speed_ratios(seconds, tokens, pairs, bootstrap)
            frames.append(pd.DataFrame(np.column_stack([pairs, *ratios]), columns=columns))
    table = pd.concat(frames, ignore_index=True)
    return table.astype({"relaxed": int, "lossless": int})


def speed_bootstrap(prompts: int, resamples: int, confidence: float, seed: int) -> PromptBootstrap:
    """Return resamples of prompts for ratios of speeds, at least `SPEED_RESAMPLES`."""
    drawn = max(resamples, SPEED_RESAMPLES)
    return PromptBootstrap(np.arange(prompts), drawn, confidence, seed)


def speeds_by_source(
    decoded: Decoded, speeds: pd.DataFrame, sources: Sequence[str]
) -> pd.DataFrame:
    """Return the speed of every run on the prompts of each source, and of `ALL` sources.

    Returns:
        One row for each source and run: target, source, run, method, draft_length, temperature,
        prompts, agreement with the target alone; speedup with `ci_low` and `ci_high`, which only
        all sources together have; tau, the tokens per call. NaN where the target has no prompt of
        a source.
    """
    runs = decoded.runs[["method", "draft_length", "temperature"]]
    runs = runs.assign(prompts=decoded.n_prompts, agreement=speeds["agreement"])
    parts = {source: _of_source(decoded, source) for source in sources}
    parts[ALL] = speeds[["speedup", *SPEEDUP_ENDS]].assign(tau=speeds["tokens_per_call"])
    frames = [
        runs.join(part).reset_index(names="run").assign(target=decoded.target, source=source)
        for source, part in parts.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _of_source(decoded: Decoded, source: str) -> pd.DataFrame:
    prompts = decoded.answers.loc[decoded.answers["source"] == source, "prompt_id"].unique()
    of_source = pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=decoded.runs.index)
    if len(prompts):

        def chosen(table: pd.DataFrame) -> pd.DataFrame:
            return table[table["prompt_id"].isin(prompts)]

        answers = chosen(decoded.answers)
        seconds = chosen(decoded.answer_seconds)
        per_token = _per_token(replace(decoded, answers=answers, answer_seconds=seconds))
        of_source["speedup"] = per_token[decoded.baselines()] / per_token
        of_source["tau"] = chosen(decoded.calls).groupby("run")["emitted"].mean()
    return of_source.assign(**dict.fromkeys(SPEEDUP_ENDS, math.nan))


def _per_token(decoded: Decoded) -> Floats:
    """Return the (R,) seconds per token of whole answers."""
    (seconds,) = decoded.by_prompt(decoded.answer_seconds, "seconds")
    (tokens,) = decoded.by_prompt(decoded.answers, "n_tokens")
    per_token: Floats = seconds.sum(0) / tokens.sum(0)
    return per_token


def signs_of_load(speeds: pd.DataFrame) -> list[str]:
    """Return signs that other work loaded the machine during the measurement, as clauses.

    There are three. The median share of processor time over all runs is below
    `MIN_PROCESSOR_SHARE`. The longest gaps between a baseline's tokens are above `SLOWEST_GAP`
    medians. Verifying a model's drafts took less than `MIN_VERIFY_RATIO` of the time of a token
    of the target alone. A clause names the run where its sign is strongest.
    """
    signs = []
    # methods take turns, so a load slows all of them
    share = float(speeds["processor_share"].median())
    if share < MIN_PROCESSOR_SHARE:
        signs.append(
            f"the run had a processor for {100 * share:.0f} % of the time, "
            f"{100 * MIN_PROCESSOR_SHARE:.0f} % are needed"
        )
    alone = speeds[speeds["drafter"] == "none"]
    spread = (alone["itl_99"] / alone["itl_50"]).fillna(0)
    if len(alone) and spread.max() > SLOWEST_GAP:
        run = alone.iloc[int(spread.argmax())]
        signs.append(
            f"{_named(run)}: 1 % of the gaps between tokens are above "
            f"{1000 * run['itl_99']:.3g} ms, {spread.max():.3g} times their median"
        )
    drafted = speeds[
        (speeds["drafter"] == CONFIGURED) & (speeds["verify_ratio"] < MIN_VERIFY_RATIO)
    ]
    if len(drafted):
        run = drafted.iloc[int(drafted["verify_ratio"].argmin())]
        signs.append(
            f"{_named(run)}, γ = {run['draft_length']}: a verification took "
            f"{run['verify_ratio']:.2f} of the time of a token of the target alone"
        )
    return signs


def _named(run: pd.Series) -> str:
    return f"{run['method']} at T = {run['temperature']:g}"
