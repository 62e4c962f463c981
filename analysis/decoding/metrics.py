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

from ..rules import Multiplicative, Rule, StrictGreedy
from ..statistics.bootstrap import Floats, PromptBootstrap
from .finished import differing_answers, finished_costs
from .predicted import closed_form

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
        data: one row an answer: prompt_id, run, source, n_tokens, nats_given_up, agreement, ...
        calls: one row a target call: prompt_id, run, drafted, depth, reach, tested, accepted,
            emitted.
        answers: seconds of each answer: prompt_id, run, first_seconds, begin_seconds, seconds;
            where methods were repeated a row a repeat, in their order.
        spans: seconds of each call, of `middle`: prompt_id, run, draft_seconds, verify_seconds, ...
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
    def middle(self) -> pd.DataFrame:
        """The rows of `answers` whose seconds are the middle ones of their repeats."""
        by_answer = self.answers.groupby(["prompt_id", "run"])["seconds"]
        rank = by_answer.rank(method="first") - 1
        return self.answers[rank == by_answer.transform("size") // 2]

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


def ratio_intervals(
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


def acceptance(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return acceptance and quality of every run; nothing here depends on the clock.

    Args:
        decoded: calls and answers.
        resamples: of the bootstrap over prompts.
        confidence: of the intervals.
        seed: of the bootstrap.

    Returns:
        One row a run: tested and accepted tokens, of a tree levels; `rate` accepted / tested
        (only what received a decision counts) and `tokens_per_call` emitted / calls, with their
        intervals in _ci_low and _ci_high; `drafted_per_call`, and `depth_per_call` of them in a
        row, below the draft length where answers end or look-up finds less; `closed_form` the
        tokens a call at this rate under independence, mean over the calls with what each could
        emit, NaN of trees; `agreement` share of positions with the baseline's token;
        `nats_given_up` the nats a token by which the log-probability of the emitted tokens lies
        below that of the target's first choices, less the baseline's; `burstiness`
        1 - calls / emitted, the share of tokens behind an answer's first that arrive with the one
        before.
    """
    bootstrap, calls = decoded.bootstrap(resamples, confidence, seed), decoded.calls.assign(calls=1)
    sums = calls.groupby("run")[
        ["drafted", "depth", "tested", "accepted", "emitted", "calls"]
    ].sum()
    table = decoded.runs.drop(columns=["tree", "top_p", "top_k"]).join(
        sums.drop(columns=["drafted", "depth"])
    )
    totals = decoded.data.groupby("run")[["nats_given_up", "n_tokens"]].sum()
    for name, of in (("rate", ("accepted", "tested")), ("tokens_per_call", ("emitted", "calls"))):
        above, below = decoded.by_prompt(calls, *of)
        found = ratio_intervals(above, below, bootstrap)
        for column, values in zip((name, f"{name}_ci_low", f"{name}_ci_high"), found, strict=True):
            table[column] = values
    table["drafted_per_call"] = sums["drafted"] / table["calls"]
    table["depth_per_call"] = sums["depth"] / table["calls"]
    table["closed_form"] = closed_form(decoded.calls, table["rate"]).mask(decoded.of_trees)
    alone = [decoded.baseline(run) for run in range(len(table))]
    tokens, share = decoded.by_prompt(decoded.data, "n_tokens", "agreement")
    positions = np.maximum(tokens, tokens[:, alone])  # of the longer of two answers
    table["agreement"] = (share * positions).sum(0) / positions.sum(0)
    of_token = (totals["nats_given_up"] / totals["n_tokens"]).to_numpy()
    table["nats_given_up"] = of_token - of_token[alone]
    table["burstiness"] = 1 - table["calls"] / table["emitted"]
    return table


def of_thresholds(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return tokens a call over those of multiplicative rules that give up as many nats a token.

    Of single steps no rule is better than a threshold on nats (docs/method.md, section 16), but the
    prefix rule accepts whole prefixes, and relaxed answers lead to other drafts. Both are measured:
    multiplicative rules and strict greedy with the same draft length and temperature are points
    (nats given up a token, tokens a call), joined by straight lines.

    Returns:
        One row a run: over_thresholds with over_thresholds_ci_low and _ci_high, paired by prompt;
        NaN of the rules on the line, of trees, and where no rule on it gives up as much; an
        interval is NaN where that is so in any resample.
    """
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    counted = decoded.by_prompt(decoded.calls.assign(calls=1), "emitted", "calls")
    scored = decoded.by_prompt(decoded.data, "nats_given_up", "n_tokens")
    emitted, calls, nats, tokens = (
        np.vstack([sums.sum(0), bootstrap.sums(sums)]) for sums in (*counted, *scored)
    )
    length, mean = emitted / calls, nats / tokens  # (1 + B, R)
    given_up = mean - mean[:, [decoded.baseline(run) for run in range(len(decoded.runs))]]
    over = np.full_like(length, np.nan)
    chains = decoded.runs[(decoded.runs["drafter"] == "model") & ~decoded.of_trees]
    for _, group in chains[chains["rule"].notna()].groupby(["draft_length", "temperature"]):
        known = {run: decoded.rules[label] for run, label in group["rule"].items()}
        line = [run for run in known if isinstance(known[run], StrictGreedy | Multiplicative)]
        if not any(isinstance(known[run], Multiplicative) for run in line):
            continue
        others = group.index.difference(line)
        for row, (cost, best) in enumerate(zip(given_up[:, line], length[:, line], strict=True)):
            order = np.argsort(cost)
            at = np.interp(given_up[row, others], cost[order], best[order], right=np.nan)
            over[row, others] = length[row, others] / at
    low, high = bootstrap.interval(np.where(np.isnan(over).any(axis=0), np.nan, over[1:]))
    name = "over_thresholds"
    return pd.DataFrame({name: over[0], f"{name}_ci_low": low, f"{name}_ci_high": high})


def finished_runs(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return what a finished answer costs with every run, as `finished_costs`, one row a run."""
    keys = ["prompt_id", "run"]
    counted = decoded.calls.groupby(keys).size().rename("calls").reset_index()
    rows = decoded.data[[*keys, "n_tokens", "ended"]].merge(counted, on=keys, how="left")
    rows = rows.merge(decoded.middle[[*keys, "seconds"]], on=keys).fillna({"calls": 0})
    by_run = [rows[rows["run"] == run].sort_values("prompt_id") for run in range(len(decoded.runs))]
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    return pd.DataFrame(
        [
            finished_costs(mine, by_run[decoded.baseline(run)], bootstrap)
            for run, mine in enumerate(by_run)
        ]
    )


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
