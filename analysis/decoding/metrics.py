"""Metrics of decoding with a drafter: acceptance, tokens per call, log-probability given up.

`speed` has the metrics that depend on the clock. A run is a method with its draft length and
temperature. Its answers and calls are compared, prompt by prompt, with those of the target alone,
the baseline, at the same temperature and with the same noise.

In closed forms a is the acceptance rate of a drafted token, gamma the draft length, rho the cost of
a drafted token over that of a token of the target alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ..rules import Rule
from ..statistics.bootstrap import PromptBootstrap
from ..statistics.trajectories import acceptance_by_position
from ..topk import Floats
from .paired_accuracy import differing_answers

CONFIGURED = "model"  # the drafter that the configuration names, in `Decoded.runs`
CONTEXTS = ["prompt_id", "run", "position", "kl", "greedy_entropy", "races_entropy"]
PASSES = [
    "prompt_id",
    "drafted",
    "draft_seconds",
    "verify_seconds",
    "other_seconds",
    "begin_seconds",
]
LENGTHS = ["prompt_id", "drafter", "draft_length", "calls", "drafting", "tokens"]
LEVELS = ["prompt_id", "run", "position", "level", "children", "accepted"]


@dataclass(frozen=True)
class Decoded:
    """The runs of one target with one drafter: answers, calls and seconds.

    The columns of a frame that stage decoding writes stand in pipeline/stages/decoding/tables.py,
    under the name of its file, which is given at the frame.
    """

    target: str  # printed name
    drafter: str  # printed name
    # one row for each run, indexed by run: method, drafter, sampling, rule, draft_length,
    # temperature; tree, None for a chain, else its name, nodes, depth and, if it has a fixed shape,
    # parents
    runs: pd.DataFrame
    answers: pd.DataFrame  # data: one row for each answer
    calls: pd.DataFrame  # calls: one row for each call of the target
    answer_seconds: pd.DataFrame  # timings/runs: one row for each answer
    call_seconds: pd.DataFrame  # timings/calls: one row for each call of the target
    # trajectory: the steps of the greedy baseline, scored by both models; empty without one
    trajectory: pd.DataFrame
    # bytes by model: {"target": {"model", "cache_per_token"}, "drafter": ...}
    size: Mapping[str, Mapping[str, int]]
    rules: Mapping[str, Rule]  # the rules of the runs, by label
    # levels: one row for each tree node whose children were tested
    levels: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=LEVELS))
    # contexts: one row for each token of an answer of the target alone, at temperatures at which
    # trees are drawn
    contexts: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CONTEXTS))
    vocabulary: int = 0  # number of tokens that both models have
    # timings/passes: a row for each draft length at each of some prompts: seconds of a call, which
    # belongs to no run
    passes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=PASSES))
    # lengths: a row for each prompt, drafter that reads the text only, and draft length: the calls
    # that the greedy answer of the target alone takes with it
    lengths: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=LENGTHS))

    @property
    def drafts_trees(self) -> pd.Series:
        """Whether each run drafts trees."""
        return self.runs["tree"].notna()

    def baselines(self) -> list[int]:
        """Return for each run the run of the target alone at the same temperature.

        Runs by exponential races are compared with the target-alone run that also uses races.
        """
        keys = zip(self.runs["temperature"], self.runs["sampling"] == "races", strict=True)
        alone: dict[tuple[float, bool], int] = {}  # baselines come first
        return [alone.setdefault(key, run) for run, key in enumerate(keys)]

    @property
    def n_prompts(self) -> int:
        """The number of prompts of every run."""
        return int(self.answers["prompt_id"].nunique())

    def bootstrap(self, resamples: int, confidence: float, seed: int) -> PromptBootstrap:
        """Return resamples of the prompts."""
        return PromptBootstrap(np.arange(self.n_prompts), resamples, confidence, seed)

    def by_prompt(self, table: pd.DataFrame, *columns: str) -> Iterator[Floats]:
        """Yield the sums of each column by prompt and run, (P, R); 0 without a row."""
        sums = table.groupby(["prompt_id", "run"])[list(columns)].sum()
        prompts = sorted(self.answers["prompt_id"].unique())
        keys = pd.MultiIndex.from_product([prompts, range(len(self.runs))])
        complete = sums.reindex(keys, fill_value=0)
        for name in columns:
            yield complete[name].to_numpy(np.float64).reshape(-1, len(self.runs))


def acceptance(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return acceptance and quality of every run, independent of the clock.

    Returns:
        One row for each run: tested and accepted tokens (of a tree, levels); `rate`, accepted /
        tested, and `tokens_per_call`, emitted / calls, with their intervals over prompts in
        `*_ci_low` and `*_ci_high`; `rate_over_gamma`, accepted / (calls gamma), which is below
        `rate` because tokens behind a rejection are never tested; `drafted_per_call` and
        `depth_per_call`, the drafted tokens and their depth, below the draft length where answers
        end or look-up finds fewer; `closed_form`, the tokens per call at this rate under
        independence, NaN for trees; `agreement`, the share of positions with the baseline's token;
        `nats_given_up`, the log-probability given up: how many nats per token the emitted tokens
        are below the target's first choices, minus the baseline's; `burstiness`,
        1 - calls / emitted, the share of tokens that arrive in the same call as their predecessor.
    """
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    calls = decoded.calls.assign(calls=1)
    printed = ["tested", "accepted", "emitted", "calls"]
    sums = calls.groupby("run")[["drafted", "depth", *printed]].sum()
    table = decoded.runs.drop(columns=["tree"]).join(sums[printed])
    ratios = {"rate": ("accepted", "tested"), "tokens_per_call": ("emitted", "calls")}
    for name, columns in ratios.items():
        above, below = decoded.by_prompt(calls, *columns)
        table = table.assign(**bootstrap.ratio(above, below).columns(name))
    gamma = table["draft_length"].where(table["draft_length"] > 0)
    table["rate_over_gamma"] = table["accepted"] / (table["calls"] * gamma)
    table["drafted_per_call"] = sums["drafted"] / table["calls"]
    table["depth_per_call"] = sums["depth"] / table["calls"]
    table["closed_form"] = closed_form(decoded.calls, table["rate"]).mask(decoded.drafts_trees)
    alone = decoded.baselines()
    summed = ("n_tokens", "agreement", "nats_given_up")
    tokens, share, nats = decoded.by_prompt(decoded.answers, *summed)
    positions = np.maximum(tokens, tokens[:, alone])  # of the longer of two answers
    table["agreement"] = (share * positions).sum(0) / positions.sum(0)
    per_token = nats.sum(0) / tokens.sum(0)
    table["nats_given_up"] = per_token - per_token[alone]
    table["burstiness"] = 1 - table["calls"] / table["emitted"]
    return table


def with_differences(decoded: Decoded, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `acceptance` with rates by position, and with differences of answers.

    Returns:
        `accepted` with `by_position`, the rates in percent as text; `prompts`; target; and for
        strict greedy `differing`, the number of answers that differ from those of the target alone,
        and `largest_gap`, the largest gap between the two largest logits where they first differ
        (`first_differences`).
    """
    rates = position_rates(decoded.calls).groupby("run")["rate"]
    texts = rates.agg(lambda of_run: " ".join(f"{100 * rate:.0f}" for rate in of_run))
    differences = first_differences(decoded).groupby("run")["gap"]
    counts = differences.size().reindex(greedy_runs(decoded), fill_value=0)
    return accepted.assign(
        prompts=decoded.n_prompts,
        target=decoded.target,
        by_position=texts.reindex(accepted.index),
        differing=counts.reindex(accepted.index),
        largest_gap=differences.max().reindex(accepted.index),
    )


def closed_form(calls: pd.DataFrame, rates: pd.Series) -> pd.Series:
    """Return the tokens per call of each run under independent tests.

    They are (1 - a^(n+1)) / (1 - a), averaged over the calls of a run. Here a is the run's
    acceptance rate, from `rates`; NaN means that nothing was drafted, so a call emits one token. n
    is the number of drafted tokens that a call could emit (`reach`). It is below the draft length
    where the answer ends, or where look-up finds a short match.
    """
    counts = calls.groupby(["run", "reach"]).size().rename("calls").reset_index()
    pairs = zip(counts["run"].map(rates), counts["reach"], strict=True)
    counts["emitted"] = counts["calls"] * [tokens_per_call(a, n) for a, n in pairs]
    sums = counts.groupby("run")[["emitted", "calls"]].sum()
    return sums["emitted"] / sums["calls"]


def position_rates(calls: pd.DataFrame) -> pd.DataFrame:
    """Return run, place (draft position, from 1), tested, accepted and rate (accepted / tested)."""
    frames = [pd.DataFrame(columns=["run", "place", "tested", "accepted"], dtype=int)]
    for run, part in calls.groupby("run"):
        counts = acceptance_by_position(part["tested"].to_numpy(), part["accepted"].to_numpy())
        frame = pd.DataFrame(dict(zip(("tested", "accepted"), counts, strict=True)))
        frames.append(frame.assign(run=run, place=frame.index + 1))
    table = pd.concat(frames, ignore_index=True)
    return table.assign(rate=table["accepted"] / table["tested"])


def first_differences(decoded: Decoded) -> pd.DataFrame:
    """Return where answers of strict greedy first differ from those of the target alone.

    Passes over different numbers of tokens round differently. Where the two largest logits are
    equal up to rounding, either token may be chosen, and both continuations are the target's own.

    Returns:
        One row for each answer that differs: run, prompt_id, position (of the token in the answer)
        and gap, the difference of the target's two largest logits there.
    """
    differing = differing_answers(decoded.answers, decoded.baselines(), ["prompt_id"])
    differing = differing[differing["run"].isin(greedy_runs(decoded))]
    differing = differing.rename(columns={"common_prefix": "position"})
    steps = decoded.trajectory[["prompt_id", "position", "z1", "z2"]]
    merged = differing.merge(steps, on=["prompt_id", "position"], how="left")
    return merged.assign(gap=merged["z1"] - merged["z2"])[["run", "prompt_id", "position", "gap"]]


def greedy_runs(decoded: Decoded) -> list[int]:
    """Return the runs that draft and verify by strict greedy."""
    runs = decoded.runs
    strict = (runs["rule"] == "greedy") & (runs["temperature"] == 0) & (runs["drafter"] != "none")
    return np.flatnonzero(strict).tolist()


def tokens_per_call(a: float, gamma: int) -> float:
    """Return the expected tokens per target call, (1 - a^(gamma+1)) / (1 - a).

    They are the accepted tokens and the corrected or bonus token (Leviathan et al. 2023, eq. 1). At
    a = 1 it is the limit, gamma + 1.

    >>> round(tokens_per_call(0.8, 5), 2)
    3.69
    """
    return math.fsum(a**power for power in range(gamma + 1))


def formula_speedup(a: float, gamma: int, rho: float) -> float:
    """Return S = `tokens_per_call`(a, gamma) / (1 + gamma rho).

    It assumes independent tests, with the same acceptance rate a at every draft position; that
    verifying a draft costs as much as one token of the target alone; and no prefill.

    >>> round(formula_speedup(0.9, 5, 0.5), 2), round(formula_speedup(0.75, 5, 0.02), 2)
    (1.34, 2.99)
    """
    return tokens_per_call(a, gamma) / (1 + gamma * rho)


def formula_length(a: float, rho: float) -> float:
    """Return gamma*, the draft length of the largest `formula_speedup`; it need not be an integer.

    The root of -a^(g+1) log(a) (1 + g rho) = rho (1 - a^(g+1)), whose sides differ by a falling
    function of g; 0 where already g = 0 is beyond it, inf where S grows forever. At a = 1,
    S = (1 + g) / (1 + g rho) grows forever if rho < 1, and no draft is faster if rho >= 1.

    >>> round(formula_length(0.8, 0.05), 2), formula_length(0.1, 0.5)
    (7.86, 0.0)
    >>> formula_length(1.0, 0.1), formula_length(1.0, 2.0)
    (inf, 0.0)
    """

    def slope(g: float) -> float:
        power: float = a ** (g + 1)
        return -power * math.log(a) * (1 + g * rho) - rho * (1 - power)

    if rho <= 0:
        return math.inf if a > 0 else 0.0
    if a >= 1:
        return math.inf if rho < 1 else 0.0
    if a <= 0 or slope(0.0) <= 0:
        return 0.0
    end = 1.0
    while slope(end) > 0:
        end *= 2
    return float(brentq(slope, 0.0, end, xtol=1e-12, rtol=1e-14))
