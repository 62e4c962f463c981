"""Metrics of decoding with a drafter that depend on the clock: costs, latency, speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ..statistics.bootstrap import PromptBootstrap, simultaneous
from ..topk import Floats
from .metrics import Decoded, acceptance, formula_length, formula_speedup

SLOWEST_GAP = 10  # 99th percentile of a baseline's gaps in medians; an idle machine is below
LEAST_PROCESSOR_SHARE = 0.9  # of wall time; idle machine 0.96 to 1, load of 7 on 2 cores 0.2 to 0.5
LEAST_VERIFY_RATIO = 0.9  # verifying a draft reads at least the weights read for a single token
# At least so many for speeds, whose ratios of sums are cheap. With 1,000 an end is off by 0.003,
# and no verdict may hang on that
SPEED_RESAMPLES = 10_000
PARTS = ["draft_seconds", "verify_seconds", "other_seconds"]  # of a call


def speed(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return the costs, latency and speed of every run.

    Returns:
        The rows of `acceptance` with the columns of `throughput`; `c_draft`, `c_verify` (the
        target's pass) and `c_other` (verification, roll-back), mean seconds of a call; `c_p`, the
        cost of a token with the target alone, which is the baseline's c_verify + c_other, and
        `c_q`, the cost of a drafted token or level of a tree, both with pass and choice of the
        token; `rho`, c_q / c_p; `verify_ratio`, (c_verify + c_other) / c_p; `formula` and
        `formula_length`, S and gamma* of chains by a drafter at `rate` and `rho`; `best_length`,
        the draft length of the fastest run of the same chains; `first_token`, a median; `itl_50`
        and `itl_99`, percentiles of the gaps between tokens; `processor_share`, processor time of
        the decoding thread over wall time, NaN if not measured; `memory`, bytes beyond the
        target's at the longest answer; `prompts`.
    """
    table = acceptance(decoded, resamples, confidence, seed)
    spans = decoded.spans.groupby("run")[[*PARTS, "depth"]].sum()
    for part in PARTS:
        table[f"c_{part.removesuffix('_seconds')}"] = spans[part] / table["calls"]
    alone = decoded.baselines()
    settled = table["c_verify"] + table["c_other"]
    table["c_p"] = settled.to_numpy()[alone]
    table["c_q"] = spans["draft_seconds"] / spans["depth"].where(spans["depth"] > 0)
    table["rho"] = table["c_q"] / table["c_p"]
    table["verify_ratio"] = settled / table["c_p"]
    chains = (table["drafter"] == "model") & ~decoded.of_trees & table["rate"].notna()
    symbols = zip(table["rate"], table["draft_length"], table["rho"], chains, strict=True)
    table[["formula", "formula_length"]] = [
        (formula_speedup(a, gamma, rho), formula_length(a, rho)) if chain else (np.nan, np.nan)
        for a, gamma, rho, chain in symbols
    ]
    table["first_token"] = decoded.answers.groupby("run")["first_seconds"].median()
    gaps = [token_gaps(decoded, run) for run in range(len(table))]
    for level in (50, 99):
        table[f"itl_{level}"] = [np.percentile(gap, level) if len(gap) else np.nan for gap in gaps]
    spent = decoded.answers.groupby("run")[["processor_seconds", "seconds"]].sum(min_count=1)
    table["processor_share"] = spent["processor_seconds"] / spent["seconds"]
    table["memory"] = [memory_overhead(decoded, run) for run in range(len(table))]
    table = table.join(throughput(decoded, resamples, confidence, seed))
    fastest = table[chains].groupby(["method", "temperature"])["speedup"].transform("idxmax")
    table["best_length"] = fastest.map(table["draft_length"])
    return table.assign(prompts=decoded.prompts)


def token_gaps(decoded: Decoded, run: int) -> Floats:
    """Return the seconds between tokens of a run's answers; those of a call arrive together.

    The first call of an answer includes the drafter's pass over the prompt.
    """
    spans = decoded.spans[decoded.spans["run"] == run]
    answers = decoded.answers.query("run == @run").set_index("prompt_id")
    seconds = np.array(spans[PARTS].sum(axis=1))
    first = ~spans["prompt_id"].duplicated().to_numpy()
    seconds[first] += answers["begin_seconds"][spans["prompt_id"][first]].to_numpy()
    emitted = spans["emitted"].to_numpy()
    gaps = np.zeros(int(emitted.sum()))
    gaps[np.cumsum(emitted) - emitted] = seconds
    return gaps


def memory_overhead(decoded: Decoded, run: int) -> float:
    """Return the bytes that a run needs beyond the target and its cache.

    They are the drafter's weights, which are loaded during all runs, plus on CUDA the measured
    difference of the peaks, elsewhere the drafter's cache at the longest text.
    """
    drafts = decoded.runs["drafter"].iloc[run] == "model"
    weights = decoded.size["drafter"]["model"] if drafts else 0
    answers = decoded.answers[decoded.answers["run"] == run]
    if answers["peak_bytes"].notna().all():
        alone = decoded.answers[decoded.answers["run"] == decoded.baselines()[run]]
        return float(weights + answers["peak_bytes"].max() - alone["peak_bytes"].max())
    if not drafts:
        return 0.0
    longest = int(decoded.data.loc[decoded.data["run"] == run, "text_tokens"].max())
    return float(weights + decoded.size["drafter"]["cache_per_token"] * longest)


def throughput(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return seconds a token and the speedup of every run, with intervals over prompts.

    Returns:
        One row for each run: `per_token` (whole answers, including the prompt's pass),
        `tokens_per_second`; `speedup` over the baseline, with `ci_low` and `ci_high`; `tpot` (time
        per output token after the first) and `tpot_speedup` with `tpot_ci_low` and `tpot_ci_high`,
        NaN if no answer has a second token.
    """
    bootstrap = speed_bootstrap(decoded.prompts, resamples, confidence, seed)
    alone = decoded.baselines()
    methods = decoded.runs[decoded.runs["drafter"] != "none"]
    families = [family.index.tolist() for _, family in methods.groupby("temperature")]
    after = decoded.answers["seconds"] - decoded.answers["first_seconds"]
    spent = decoded.answers.assign(after=after)
    seconds, seconds_after = decoded.by_prompt(spent, "seconds", "after")
    (tokens,) = decoded.by_prompt(decoded.data, "n_tokens")
    table = pd.DataFrame({"per_token": seconds.sum(0) / tokens.sum(0)})
    table["tokens_per_second"] = 1 / table["per_token"]
    later_tokens = (tokens - 1).sum(0)
    table["tpot"] = seconds_after.sum(0) / np.where(later_tokens > 0, later_tokens, np.nan)
    whole = speedups(seconds, tokens, alone, families, bootstrap)
    later = speedups(seconds_after, tokens - 1, alone, families, bootstrap)
    names = ["speedup", "ci_low", "ci_high", "tpot_speedup", "tpot_ci_low", "tpot_ci_high"]
    return table.join(pd.DataFrame(np.hstack([whole, later]), columns=names))


def speedups(
    seconds: Floats,
    tokens: Floats,
    alone: Sequence[int],
    families: Iterable[Sequence[int]],
    bootstrap: PromptBootstrap,
) -> Floats:
    """Return the speedup of R runs with its interval over prompts, (R, 3).

    The speedup is the baseline's seconds a token over the run's, over all answers. Intervals hold
    for all runs of a family at once, so they also cover a run picked for being fastest. A run
    without a family is a baseline: its ends are its speedup. `seconds` and `tokens` are (P, R), of
    the answers to each prompt; `alone` (R,) the baseline of each run.
    """
    baselines = [(run, run) for run in range(len(alone))]
    speeds = speed_ratios(seconds, tokens, baselines, bootstrap)
    speeds[:, 1:] = speeds[:, :1]
    for runs in families:
        pairs = [(run, alone[run]) for run in runs]
        speeds[runs] = speed_ratios(seconds, tokens, pairs, bootstrap)
    return speeds


def speed_ratios(
    seconds: Floats, tokens: Floats, pairs: Sequence[tuple[int, int]], bootstrap: PromptBootstrap
) -> Floats:
    """Return how many times as fast a run is as another, with its interval, (M, 3) for M pairs.

    The ratio is the other run's seconds a token over the run's, over all answers. A resample draws
    prompts with all their answers, so the comparison stays paired. Intervals are computed for
    logarithms and are `simultaneous` for all M pairs. `seconds` and `tokens` are (P, R), of the
    answers to each prompt; a pair is a run and the other one.
    """
    runs, others = np.reshape(pairs, (-1, 2)).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = bootstrap.sums(seconds) / bootstrap.sums(tokens)  # (B, R)
        cost = seconds.sum(0) / tokens.sum(0)
        logs = np.log(cost[others] / cost[runs])
        draws = np.log(drawn[:, others] / drawn[:, runs])
    low, high = simultaneous(logs, draws, bootstrap.confidence, bootstrap.count)
    ratios: Floats = np.exp(np.column_stack([logs, low, high]))
    return ratios


def relaxed_ratios(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return how many times as fast each relaxed run is as each lossless one that drafts.

    Returns:
        One row for each pair at one temperature: `relaxed` and `lossless`, the runs; `ratio`, and
        its interval over prompts, `ci_low` and `ci_high`. Intervals hold for all pairs of a
        temperature at once.
    """
    bootstrap = speed_bootstrap(decoded.prompts, resamples, confidence, seed)
    (seconds,) = decoded.by_prompt(decoded.answers, "seconds")
    (tokens,) = decoded.by_prompt(decoded.data, "n_tokens")
    columns = ["relaxed", "lossless", "ratio", "ci_low", "ci_high"]
    frames = [pd.DataFrame(columns=columns, dtype=float)]
    methods = decoded.runs[decoded.runs["drafter"] != "none"]
    for _, family in methods.groupby("temperature"):
        lossless = family["lossless"].astype(bool)
        pairs = list(product(family.index[~lossless], family.index[lossless]))
        if pairs:
            ratios = speed_ratios(seconds, tokens, pairs, bootstrap)
            frames.append(pd.DataFrame(np.hstack([pairs, ratios]), columns=columns))
    table = pd.concat(frames, ignore_index=True)
    return table.astype({"relaxed": int, "lossless": int})


def speed_bootstrap(prompts: int, resamples: int, confidence: float, seed: int) -> PromptBootstrap:
    """Return resamples of prompts for ratios of speeds, at least `SPEED_RESAMPLES`."""
    drawn = max(resamples, SPEED_RESAMPLES)
    return PromptBootstrap(np.arange(prompts), drawn, confidence, seed)


def signs_of_load(speeds: pd.DataFrame) -> list[str]:
    """Return evidence of background load on the machine during the measurement, a clause a sign.

    Each is about the run where it is strongest: a median share of processor time below
    `LEAST_PROCESSOR_SHARE` over all runs, gaps between a baseline's tokens above `SLOWEST_GAP`
    medians, and verifications of a model's drafts that took less than `LEAST_VERIFY_RATIO` of a
    token of the target alone.
    """
    signs = []
    share = float(speeds["processor_share"].median())  # methods take turns: a load meets them all
    if share < LEAST_PROCESSOR_SHARE:
        signs.append(
            f"the run had a processor for {100 * share:.0f} % of the time, "
            f"{100 * LEAST_PROCESSOR_SHARE:.0f} % are needed"
        )
    alone = speeds[speeds["drafter"] == "none"]
    spread = (alone["itl_99"] / alone["itl_50"]).fillna(0)
    if len(alone) and spread.max() > SLOWEST_GAP:
        run = alone.iloc[int(spread.argmax())]
        signs.append(
            f"{_named(run)}: 1 % of the gaps between tokens are above "
            f"{1000 * run['itl_99']:.3g} ms, {spread.max():.3g} times their median"
        )
    drafted = speeds[(speeds["drafter"] == "model") & (speeds["verify_ratio"] < LEAST_VERIFY_RATIO)]
    if len(drafted):
        run = drafted.iloc[int(drafted["verify_ratio"].argmin())]
        signs.append(
            f"{_named(run)}, γ = {run['draft_length']}: a verification took "
            f"{run['verify_ratio']:.2f} of the time of a token of the target alone"
        )
    return signs


def _named(run: pd.Series) -> str:
    return f"{run['method']} at T = {run['temperature']:g}"
