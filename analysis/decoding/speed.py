"""Metrics of decoding with a drafter that depend on the clock: costs, latency, speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Floats, PromptBootstrap, simultaneous
from .finished import CLOCKED_ANSWERS
from .formulas import formula_length, formula_speedup
from .metrics import Decoded, acceptance, finished_runs
from .places import extended_rates, pooled_rate
from .predicted import break_even, optimal_draft_length, predictions

SLOWEST_GAP = 10  # 99th percentile of a baseline's gaps in medians; an idle machine is below
LEAST_PROCESSOR_SHARE = 0.9  # of wall time; idle machine 0.96 to 1, load of 7 on 2 cores 0.2 to 0.5
LEAST_VERIFY_RATIO = 0.9  # verifying a draft reads at least the weights read for a single token


def speed(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return the costs, latency and speed of every run.

    Returns:
        The rows of `acceptance` with the columns of `speedups`; `c_draft`, `c_verify` (the target's
        pass) and `c_other` (verification, roll-back), mean seconds of a call; `c_p`, the cost of a
        token with the target alone, which is the baseline's c_verify + c_other, and `c_q`, the cost
        of a drafted token or level of a tree, both with pass and choice of the token; `rho`,
        c_q / c_p; `verify_ratio`, (c_verify + c_other) / c_p; `predicted` and `least` of
        `predictions`; `formula` and `formula_length`, S and gamma* of chains by a drafter at `rate`
        and `rho`; `first_token`, a median; `itl_50` and `itl_99`, percentiles of the gaps
        between tokens; `processor_share`, processor time of the decoding thread over wall time, NaN
        if not measured; `memory`, bytes beyond the target's at the longest answer;
        `seconds_finished` and `seconds_ratio` of `finished_costs`; `prompts`.
    """
    table = acceptance(decoded, resamples, confidence, seed)
    spans = decoded.spans.groupby("run")[
        ["draft_seconds", "verify_seconds", "other_seconds", "depth"]
    ].sum()
    for name in ("draft", "verify", "other"):
        table[f"c_{name}"] = spans[f"{name}_seconds"] / table["calls"]
    alone = [decoded.baseline(run) for run in range(len(table))]
    settled = table["c_verify"] + table["c_other"]
    table["c_p"] = settled.to_numpy()[alone]
    table["c_q"] = spans["draft_seconds"] / spans["depth"].where(spans["depth"] > 0)
    table["rho"] = table["c_q"] / table["c_p"]
    table["verify_ratio"] = settled / table["c_p"]
    chains = (table["drafter"] == "model") & ~decoded.of_trees & table["rate"].notna()
    table["formula"], table["formula_length"] = np.transpose(
        [
            (formula_speedup(a, gamma, rho), formula_length(a, rho)) if chain else (np.nan, np.nan)
            for chain, a, gamma, rho in zip(
                chains, table["rate"], table["draft_length"], table["rho"], strict=True
            )
        ]
    )
    table["first_token"] = decoded.middle.groupby("run")["first_seconds"].median()
    gaps = [token_gaps(decoded, run) for run in range(len(table))]
    for level in (50, 99):
        table[f"itl_{level}"] = [np.percentile(gap, level) if len(gap) else np.nan for gap in gaps]
    spent = decoded.answers.groupby("run")[["processor_seconds", "seconds"]].sum(min_count=1)
    table["processor_share"] = spent["processor_seconds"] / spent["seconds"]
    table["memory"] = [memory_overhead(decoded, run) for run in range(len(table))]
    table = table.assign(prompts=decoded.prompts)
    ended = finished_runs(decoded, resamples, confidence, seed)[CLOCKED_ANSWERS]
    speeds = speedups(decoded, resamples, confidence, seed)
    return table.join(speeds).join(ended).join(predictions(decoded, table))


def token_gaps(decoded: Decoded, run: int) -> Floats:
    """Return the seconds between consecutive tokens of a run's answers.

    The tokens of one call arrive together. The first call of an answer includes the drafter's pass
    over the prompt.
    """
    spans = decoded.spans[decoded.spans["run"] == run]
    answers = decoded.middle.query("run == @run").set_index("prompt_id")
    seconds = np.array(spans[["draft_seconds", "verify_seconds", "other_seconds"]].sum(axis=1))
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
    drafts = decoded.runs["drafter"].iloc[run] in ("model", "lookup_first")
    weights = decoded.size["drafter"]["model"] if drafts else 0
    answers = decoded.answers[decoded.answers["run"] == run]
    if answers["peak_bytes"].notna().all():
        alone = decoded.answers[decoded.answers["run"] == decoded.baseline(run)]
        return float(weights + answers["peak_bytes"].max() - alone["peak_bytes"].max())
    if not drafts:
        return 0.0
    longest = int(decoded.data.loc[decoded.data["run"] == run, "text_tokens"].max())
    return float(weights + decoded.size["drafter"]["cache_per_token"] * longest)


def speedups(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return seconds a token and the speedup of every run, with intervals over prompts.

    The speedup is the baseline's seconds a token over the method's, over all answers. A resample
    draws prompts with all their answers, and with each prompt one of its repeats, the same for all
    methods, so the comparison stays paired. Intervals include the variation of a single repeat.
    They are computed for logarithms and are `simultaneous` for all methods of a temperature, so
    they also cover a method picked for being fastest.

    Returns:
        One row for each run: `per_token` (whole answers, including the prompt's pass),
        `tokens_per_second`; `spec_bench_speedup`, the ratio of mean tokens per second over prompts,
        as Spec-Bench reports it; `speedup` over the baseline, of totals, with `ci_low` and
        `ci_high`; for relaxed rules `gain` with `gain_ci_low` and `gain_ci_high`, the speed over
        that of the fastest lossless method of the temperature whose `ci_low` is above 1, NaN
        without one; `tpot` (time per output token after the first) and `tpot_speedup` with
        `tpot_ci_low` and `tpot_ci_high`, NaN if no answer has a second token.
    """
    answers = decoded.answers
    repeat = answers.groupby(["prompt_id", "run"]).cumcount()
    repeats = 1 + int(repeat.max())
    numbered = np.arange(decoded.prompts * repeats)
    bootstrap = PromptBootstrap(numbered, resamples, confidence, seed, draws=decoded.prompts)
    alone = [decoded.baseline(run) for run in range(len(decoded.runs))]
    spent = answers.assign(after=answers["seconds"] - answers["first_seconds"])
    of_repeats = [decoded.by_prompt(own, "seconds", "after") for _, own in spent.groupby(repeat)]
    seconds, seconds_after = map(np.vstack, zip(*of_repeats, strict=True))
    (counted,) = decoded.by_prompt(decoded.data, "n_tokens")
    tokens = np.tile(counted, (repeats, 1))

    def log_speeds(seconds: Floats, tokens: Floats) -> tuple[Floats, Floats]:
        """Return the log speedup of every run, over all answers and in each resample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = bootstrap.sums(seconds) / bootstrap.sums(tokens)  # (B, R)
            cost = seconds.sum(0) / tokens.sum(0)
            return np.log(cost[alone] / cost), np.log(drawn[:, alone] / drawn)

    table = pd.DataFrame({"per_token": seconds.sum(0) / tokens.sum(0)})
    table["tokens_per_second"] = 1 / table["per_token"]
    rates = (tokens / seconds).mean(0)
    table["spec_bench_speedup"] = rates / rates[alone]
    whole, after = log_speeds(seconds, tokens), log_speeds(seconds_after, tokens - 1)
    speed, of_later = (_of_methods(decoded.runs, *logs, confidence) for logs in (whole, after))
    table[["speedup", "ci_low", "ci_high"]] = np.exp(speed)
    with np.errstate(invalid="ignore"):
        table["tpot"] = seconds_after.sum(0) / (tokens - 1).sum(0)
    table[["tpot_speedup", "tpot_ci_low", "tpot_ci_high"]] = np.exp(of_later)
    table[["gain", "gain_ci_low", "gain_ci_high"]] = np.exp(
        _over_lossless(decoded.runs, *whole, speed[:, 1], confidence)
    )
    return table


def _of_methods(runs: pd.DataFrame, logs: Floats, draws: Floats, confidence: float) -> Floats:
    """Return log speedups with their intervals, (R, 3); a baseline's is exactly 0."""
    speeds = np.column_stack([logs] * 3)
    for _, family in runs[runs["drafter"] != "none"].groupby("temperature"):
        methods = family.index.to_numpy()
        speeds[methods, 1:] = np.transpose(
            simultaneous(logs[methods], draws[:, methods], confidence)
        )
    return speeds


def _over_lossless(
    runs: pd.DataFrame, logs: Floats, draws: Floats, low: Floats, confidence: float
) -> Floats:
    """Return log gains of relaxed rules over the best lossless method, with intervals, (R, 3).

    Both are picked from several, so the intervals hold for all pairs of a temperature together.
    """
    gains = np.full((len(runs), 3), np.nan)
    for _, family in runs[runs["drafter"] != "none"].groupby("temperature"):
        lossless = family["lossless"].to_numpy(dtype=bool)
        exact, relaxed = family.index[lossless].to_numpy(), family.index[~lossless].to_numpy()
        sure = exact[low[exact] > 0]
        if not len(sure) or not len(relaxed):
            continue
        first, other = np.repeat(relaxed, len(exact)), np.tile(exact, len(relaxed))
        gain = logs[first] - logs[other]
        ends = simultaneous(gain, draws[:, first] - draws[:, other], confidence)
        best = other == sure[np.argmax(logs[sure])]
        gains[relaxed] = np.column_stack([gain, *ends])[best]
    return gains


def signs_of_load(speeds: pd.DataFrame) -> list[str]:
    """Return signs of other work on the machine during the measurement.

    Args:
        speeds: table from `speed` of one target.

    Returns:
        A clause for each sign, about the run where it is strongest: a median share of processor
        time below `LEAST_PROCESSOR_SHARE` over all runs, gaps between a baseline's tokens above
        `SLOWEST_GAP` medians, and verifications of a model's drafts that took less than
        `LEAST_VERIFY_RATIO` of a token of the target alone. Empty if there is none.
    """
    signs = []
    share = float(speeds["processor_share"].median())  # methods take turns: a load meets them all
    if share < LEAST_PROCESSOR_SHARE:
        signs.append(f"the processor worked on it {100 * share:.0f} % of the time")
    alone = speeds[speeds["drafter"] == "none"]
    spread = (alone["itl_99"] / alone["itl_50"]).fillna(0)
    if len(alone) and spread.max() > SLOWEST_GAP:
        run = alone.iloc[int(np.argmax(spread))]
        signs.append(
            f"{_named(run)}: 1 % of the gaps between tokens are above "
            f"{1000 * run['itl_99']:.3g} ms, {spread.max():.3g} times their median"
        )
    drafted = speeds[(speeds["drafter"] == "model") & (speeds["verify_ratio"] < LEAST_VERIFY_RATIO)]
    if len(drafted):
        run = drafted.iloc[int(np.argmin(drafted["verify_ratio"]))]
        signs.append(
            f"{_named(run)}, γ = {run['draft_length']}: a verification took "
            f"{run['verify_ratio']:.2f} of the time of a token of the target alone"
        )
    return signs


def _named(run: pd.Series) -> str:
    return f"{run['method']} at T = {run['temperature']:g}"


def break_even_by_batch(decoded: Decoded, rates: Sequence[float]) -> pd.DataFrame:
    """Return break-even and the optimal draft length by batch size, from passes over batches.

    A call with gamma drafted tokens is predicted to cost one pass of the target over gamma + 1
    tokens of each text and gamma passes of the drafter over one token. Choosing tokens, roll-back
    and the waiting of texts for each other are not included.

    Args:
        decoded: a pair with measured passes.
        rates: the drafter's acceptance by place of a draft; the last is repeated.

    Returns:
        One row for each batch size: batch; `seconds` of the target's pass over one token of each
        text; `rho`, the drafter's pass over it; `verify_ratio`, the longest pass over it, and
        `longest`, the tokens of a text in that pass; `break_even`, the least acceptance rate at
        which any length pays, and `at_length`, that length; `rate`, the drafter's rate, pooled over
        the longest draft as `break_even` is; `draft_length`, the optimal one at its rates (0:
        drafting does not pay), and its predicted `speedup`.
    """
    rows = []
    for batch in sorted(decoded.passes["batch"].unique()):
        passes = decoded.passes[decoded.passes["batch"] == batch]
        seconds = {model: part.sort_values("tokens") for model, part in passes.groupby("model")}
        verify = seconds["target"]["seconds"].to_numpy()
        draft = float(seconds["drafter"]["seconds"].iloc[0])
        costs = [float(part) + gamma * draft for gamma, part in enumerate(verify)]
        length, least = break_even(costs, rates)
        best, speedup = optimal_draft_length(rates, costs)
        rows.append(
            {
                "batch": int(batch),
                "seconds": costs[0],
                "rho": draft / costs[0],
                "verify_ratio": verify[-1] / costs[0],
                "longest": len(verify),
                "break_even": least,
                "at_length": length,
                "rate": pooled_rate(extended_rates(rates, len(costs) - 1)),
                "draft_length": best,
                "speedup": speedup,
            }
        )
    return pd.DataFrame(rows)
