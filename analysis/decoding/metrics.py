"""Metrics of decoding with a drafter: acceptance, tokens a call, nats given up.

Metrics that depend on the clock are in `speed`. A run is a method with its draft length and
temperature. Its answers and calls are compared, prompt by prompt, with the autoregressive baseline
of the same temperature and noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..rules import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap
from .answers import differing_answers
from .predicted import closed_form

CONTEXTS = ["prompt_id", "run", "position", "kl", "greedy_entropy", "races_entropy"]
LEVELS = ["prompt_id", "run", "position", "level", "children", "accepted"]


@dataclass(frozen=True)
class Decoded:
    """The runs of one target with one drafter: answers, calls and seconds.

    Attributes:
        target: printed name.
        drafter: printed name.
        runs: one row for each run, indexed by run: method, drafter, sampling, rule, draft_length,
            temperature; tree, None for a chain, else its name, shown, nodes, depth and, if it has
            a fixed shape, parents.
        data: one row for each answer: prompt_id, run, source, n_tokens, nats_given_up,
            agreement, ...
        calls: one row for each target call: prompt_id, run, drafted, depth, reach, tested,
            accepted, emitted.
        answers: seconds of each answer: prompt_id, run, first_seconds, begin_seconds, seconds.
        spans: seconds of each call: prompt_id, run, draft_seconds, verify_seconds, ...
        trajectory: the steps of the greedy baseline, scored by both models; empty without one.
        size: bytes by model: {"target": {"model", "cache_per_token"}, "drafter": ...}.
        rules: the rules of the runs, by label.
        levels: one row for each tree node whose children were tested: prompt_id, run, position,
            level, children, accepted (the sibling index, 0 if none).
        contexts: one row for each token of an answer of the target alone, at temperatures at which
            trees are drawn: prompt_id, run, position, kl, greedy_entropy, races_entropy.
        vocabulary: number of tokens that both models have.
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
    contexts: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CONTEXTS))
    vocabulary: int = 0

    @property
    def of_trees(self) -> pd.Series:
        """Whether each run drafts trees."""
        return self.runs["tree"].notna()

    def baseline(self, run: int) -> int:
        """Return the baseline of a run.

        The baseline of exponential races is the target alone with the same race.
        """
        chosen = self.runs[["temperature"]].assign(races=self.runs["sampling"] == "races")
        same = (chosen == chosen.iloc[run]).all(axis=1)
        return int(np.flatnonzero((self.runs["drafter"] == "none") & same)[0])

    @property
    def prompts(self) -> int:
        """The number of prompts of every run."""
        return int(self.data["prompt_id"].nunique())

    def bootstrap(self, resamples: int, confidence: float, seed: int) -> PromptBootstrap:
        """Return resamples of the prompts."""
        return PromptBootstrap(np.arange(self.prompts), resamples, confidence, seed)

    def by_prompt(self, table: pd.DataFrame, *columns: str) -> Iterator[Floats]:
        """Yield the sums of each column by prompt and run, (P, R); 0 without a row."""
        sums = table.groupby(["prompt_id", "run"])[list(columns)].sum()
        keys = sorted(self.data["prompt_id"].unique()), range(len(self.runs))
        complete = sums.reindex(pd.MultiIndex.from_product(keys), fill_value=0)
        for name in columns:
            yield complete[name].to_numpy(np.float64).reshape(-1, len(self.runs))


def ratio_intervals(
    above: Floats, below: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats, Floats]:
    """Return the ratios of sums over prompts, and the ends of their intervals, (R,) each.

    Args:
        above: (P, R).
        below: (P, R); where its sum is 0 the ratio is NaN.
        bootstrap: over prompts.
    """
    with np.errstate(invalid="ignore"):
        low, high = bootstrap.interval(bootstrap.sums(above) / bootstrap.sums(below))
        return above.sum(0) / below.sum(0), low, high


def acceptance(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return acceptance and quality of every run, independent of the clock.

    Args:
        decoded: calls and answers.
        resamples: of the bootstrap over prompts.
        confidence: of the intervals.
        seed: of the bootstrap.

    Returns:
        One row for each run: tested and accepted tokens (of a tree, levels); `rate`, accepted /
        tested, and `tokens_per_call`, emitted / calls, with their intervals in `*_ci_low` and
        `*_ci_high`; `drafted_per_call` and `depth_per_call`, the drafted tokens and their depth,
        below the draft length where answers end or look-up finds fewer; `closed_form`, the tokens
        a call at this rate under independence, averaged over the draft lengths of the calls, NaN
        for trees; `agreement`, the share of positions with the baseline's token; `nats_given_up`,
        the nats a token by which emitted tokens are less probable than the target's first choices,
        minus the baseline's; `burstiness`, 1 - calls / emitted, the share of tokens after an
        answer's first that arrive together with the one before.
    """
    bootstrap, calls = decoded.bootstrap(resamples, confidence, seed), decoded.calls.assign(calls=1)
    sums = calls.groupby("run")[
        ["drafted", "depth", "tested", "accepted", "emitted", "calls"]
    ].sum()
    table = decoded.runs.drop(columns=["tree"]).join(sums.drop(columns=["drafted", "depth"]))
    totals = decoded.data.groupby("run")[["nats_given_up", "n_tokens"]].sum()
    for name, columns in (
        ("rate", ("accepted", "tested")),
        ("tokens_per_call", ("emitted", "calls")),
    ):
        above, below = decoded.by_prompt(calls, *columns)
        intervals = ratio_intervals(above, below, bootstrap)
        for column, values in zip(
            (name, f"{name}_ci_low", f"{name}_ci_high"), intervals, strict=True
        ):
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


def first_differences(decoded: Decoded) -> pd.DataFrame:
    """Return the first difference of each greedy answer from that of the target alone.

    Passes over different numbers of tokens round differently. Where the two largest logits are
    equal up to rounding, either token may be chosen, and both continuations are the target's own.

    Returns:
        One row for each answer that differs: run, method, draft_length, prompt_id, position (of the
        token in the answer) and gap, the difference of the target's two largest logits there.
    """
    baselines = [decoded.baseline(run) for run in range(len(decoded.runs))]
    differing = differing_answers(decoded.data, baselines, ["prompt_id"])
    differing = differing[differing["run"].isin(greedy_runs(decoded))].sort_values(
        "run", kind="stable"
    )
    gaps = decoded.trajectory[["prompt_id", "position"]].assign(
        gap=decoded.trajectory["z1"] - decoded.trajectory["z2"]
    )
    differing = differing.rename(columns={"common_prefix": "position"})
    differing = differing.merge(gaps, on=["prompt_id", "position"], how="left")
    differing = differing.join(decoded.runs[["method", "draft_length"]], on="run")
    return differing[["run", "method", "draft_length", "prompt_id", "position", "gap"]]


def greedy_runs(decoded: Decoded) -> list[int]:
    """Return the runs that draft and verify by strict greedy."""
    runs = decoded.runs
    strict = (runs["rule"] == "greedy") & (runs["temperature"] == 0) & (runs["drafter"] != "none")
    return np.flatnonzero(strict).tolist()
