"""Speed by draft length, from the tokens that a call gives and the time that it takes.

How many drafted tokens are accepted belongs to the models and the rule, and carries over to any
machine. What a call costs belongs to one machine and one loop. With drafts of g tokens, and a_i the
acceptance rate at position i of a draft, given that the positions before it were accepted,

    L(g) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_g      tokens per call (`expected_tokens`)
    C(g) = seconds of a call with g drafted tokens / seconds of a call without a draft
    speed(g) = (1 + f (L(g) - 1)) / (1 + f (C(g) - 1))      (`over_all_passes`)

where f is the share of the calls that draft, 1 except for look-up. The time before the first token
is left out. Drafting pays while C(g) < L(g). Where decoding is bound by memory, as it nearly is in
engines, a pass takes as long over several tokens as over one: then C(g) = 1 + the seconds of
drafting over those of a call without a draft.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..rules import StrictGreedy
from ..statistics.bootstrap import Flags, Integers, PromptBootstrap, Resampling
from ..statistics.estimate import Estimate, interval_columns
from ..topk import Floats
from .draft_length import expected_tokens, extended_costs, over_all_passes
from .metrics import CONFIGURED, Decoded

LONGEST = 8  # the longest draft for which a speed is predicted
GREEDY = StrictGreedy().label


@dataclass(frozen=True)
class PositionCounts:
    """How often the i-th token of a draft was tested and accepted, in the calls of P prompts."""

    tested: Integers  # (P, G) calls that tested it, i = 1 to G
    accepted: Integers  # (P, G) calls that accepted it
    calls: Integers  # (P,) all calls
    drafting: Integers  # (P,) those that drafted anything

    @classmethod
    def of_calls(
        cls,
        prompts: int,
        prompt: Integers,
        tested: Integers,
        accepted: Integers,
        drafted: Integers | None = None,
    ) -> PositionCounts:
        """Count C calls, given the index of the prompt and the numbers of tokens of each, (C,).

        Where the numbers of `drafted` tokens are not given, all calls draft.
        """
        if drafted is None:
            drafted = np.ones_like(tested)

        def by_prompt(chosen: Flags) -> Integers:
            return np.bincount(prompt[chosen], minlength=prompts)

        positions = range(1, LONGEST + 1)
        return cls(
            np.stack([by_prompt(tested >= at) for at in positions], axis=1),
            np.stack([by_prompt(accepted >= at) for at in positions], axis=1),
            by_prompt(drafted >= 0),
            by_prompt(drafted > 0),
        )


@dataclass(frozen=True)
class CallSeconds:
    """Seconds of calls by draft length, in R rounds of one call of each length."""

    draft: Floats  # (R, G + 1) of drafting 0, 1, ..., G tokens
    target: Floats  # (R, G + 1) of the target's pass over one more, of verification and roll-back

    @classmethod
    def of_rounds(cls, calls: pd.DataFrame) -> CallSeconds:
        """Take the rounds that are whole from the rows of stage decoding's timings/passes.

        A round is of one prompt. One whose answer ended early lacks a length, and is left out.
        """
        calls = calls.assign(target=calls["verify_seconds"] + calls["other_seconds"])
        rounds = calls.pivot(index="prompt_id", columns="drafted")
        whole = rounds.dropna()
        return cls(whole["draft_seconds"].to_numpy(), whole["target"].to_numpy())

    def medians(self) -> tuple[Floats, Floats]:
        """Return the (G + 1,) medians over rounds, of drafting and of the target."""
        return np.median(self.draft, axis=0), np.median(self.target, axis=0)

    def drawn_medians(self, statistics: Resampling) -> tuple[Floats, Floats]:
        """Return the same of B resamples of the rounds, (B, G + 1) each."""
        generator = np.random.default_rng(statistics.seed)
        rounds = len(self.target)
        drawn = generator.integers(rounds, size=(statistics.resamples, rounds))
        return np.median(self.draft[drawn], axis=1), np.median(self.target[drawn], axis=1)


def predicted_speeds(
    counts: PositionCounts,
    seconds: CallSeconds,
    statistics: Resampling,
    draft_seconds: float | None = None,
) -> pd.DataFrame:
    """Return tokens per call, the cost of a call and the speed for drafts of 0 to `LONGEST` tokens.

    `draft_seconds` are those of a draft of any length, for look-up; None: those of `seconds`.
    Intervals are over prompts (tokens), over rounds (cost), and over both (speed).

    Returns:
        A row for each `draft_length`, with `tokens_per_call`, `cost` (in calls without a draft),
        both over all calls, `speed`, and their ends `*_ci_low` and `*_ci_high`; `memory_bound`, the
        speed if the target's pass cost the same for any length.
    """
    drawn = seconds.drawn_medians(statistics)
    return _predicted(counts, seconds.medians(), drawn, statistics, draft_seconds)


def _predicted(
    counts: PositionCounts,
    medians: tuple[Floats, Floats],
    drawn_medians: tuple[Floats, Floats],
    statistics: Resampling,
    draft_seconds: float | None,
) -> pd.DataFrame:
    """Return `predicted_speeds` from the medians of the rounds and those of their resamples."""
    bootstrap = PromptBootstrap(np.arange(len(counts.calls)), *statistics)
    rates = _rates(counts.tested.sum(0), counts.accepted.sum(0))
    drawn_rates = _rates(bootstrap.sums(counts.tested), bootstrap.sums(counts.accepted))
    share = bootstrap.ratio(counts.drafting, counts.calls).value
    with np.errstate(invalid="ignore"):  # resamples of prompts without a call are left out
        drawn_share = (bootstrap.sums(counts.drafting) / bootstrap.sums(counts.calls))[:, None]

    draft, target = _seconds_of(medians, draft_seconds)
    drawn_draft, drawn_target = _seconds_of(drawn_medians, draft_seconds)
    costs = over_all_passes(_costs(draft, target), share)
    drawn_costs = over_all_passes(_costs(drawn_draft, drawn_target), drawn_share)
    flat = np.broadcast_to(target[:1], target.shape)

    tokens = over_all_passes(expected_tokens(rates, LONGEST), share)
    drawn_tokens = over_all_passes(expected_tokens(drawn_rates, LONGEST), drawn_share)
    estimates = {
        "tokens_per_call": Estimate(tokens, *bootstrap.interval(drawn_tokens)),
        "cost": Estimate(costs, *bootstrap.interval(drawn_costs)),
        "speed": Estimate(tokens / costs, *bootstrap.interval(drawn_tokens / drawn_costs)),
    }
    table = pd.DataFrame({"draft_length": np.arange(LONGEST + 1)})
    for name, estimate in estimates.items():
        table = table.assign(**estimate.columns(name))
    table["memory_bound"] = tokens / over_all_passes(_costs(draft, flat), share)
    return table


def _rates(tested: Floats | Integers, accepted: Floats | Integers) -> Floats:
    """Return acceptance rates by position (..., G); one that was never tested is as the one before.

    0 where nothing was tested at all.
    """
    rates = np.zeros(np.shape(tested))
    np.divide(accepted, tested, out=rates, where=tested != 0)
    for at in range(1, rates.shape[-1]):
        rates[..., at] = np.where(tested[..., at] != 0, rates[..., at], rates[..., at - 1])
    return rates


def _seconds_of(medians: tuple[Floats, Floats], fixed: float | None) -> tuple[Floats, Floats]:
    """Return seconds of drafting, which are `fixed` if that is given, and of the target."""
    draft, target = medians
    if fixed is None:
        return draft, target
    drafts = np.arange(draft.shape[-1]) > 0
    return np.broadcast_to(fixed * drafts, draft.shape), target


def _costs(draft: Floats, target: Floats) -> Floats:
    """Return the cost (..., `LONGEST` + 1) of calls, from seconds of the lengths measured."""
    whole = (draft + target) / target[..., :1]
    whole[..., 0] = 1.0  # nothing is drafted; the seconds recorded are those of the clock
    return extended_costs(whole, LONGEST)


def counts_of_run(decoded: Decoded, run: int) -> PositionCounts:
    """Count the calls of a run of chains; at the last position of an answer nothing is drafted."""
    calls = decoded.calls[decoded.calls["run"] == run]
    calls = calls[calls["position"] < decoded.answers["n_tokens"].max() - 1]
    prompts = sorted(decoded.answers["prompt_id"].unique())
    index = pd.Index(prompts).get_indexer(calls["prompt_id"])
    counted = calls[["tested", "accepted", "drafted"]].to_numpy().T
    return PositionCounts.of_calls(len(prompts), index, *counted)


def predictions(
    decoded: Decoded, judged: Mapping[str, PositionCounts], statistics: Resampling
) -> pd.DataFrame:
    """Return `predicted_speeds` of every drafter under strict greedy, and under the rules judged.

    `judged` are the counts that stage acceptance made of the configured drafter, by the label of
    the rule. What another drafter proposes is counted in the calls of its longest chains.

    Returns:
        The rows of `predicted_speeds` with `drafter`, as in `decoded.runs`, and `rule`, a label;
        none where no round of calls was timed.
    """
    seconds = CallSeconds.of_rounds(decoded.passes)
    frames = [pd.DataFrame(columns=["drafter", "rule", "draft_length"])]
    if not len(seconds.target):
        return frames[0]
    medians = seconds.medians()
    drawn = seconds.drawn_medians(statistics)  # once for all rules
    for rule, counts in judged.items():
        if counts.calls.any():
            table = _predicted(counts, medians, drawn, statistics, None)
            frames.append(table.assign(drafter=CONFIGURED, rule=rule))
    for drafter, run in _longest_chains(decoded).items():
        counts = counts_of_run(decoded, run)
        if counts.calls.any() and not (drafter == CONFIGURED and judged):
            drafting = None if drafter == CONFIGURED else _draft_seconds(decoded, run)
            table = _predicted(counts, medians, drawn, statistics, drafting)
            frames.append(table.assign(drafter=drafter, rule=GREEDY))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _longest_chains(decoded: Decoded) -> dict[str, int]:
    """Return the run of each drafter that drafts the longest chains under strict greedy."""
    runs = decoded.runs[~decoded.of_trees]
    runs = runs[(runs["drafter"] != "none") & (runs["rule"] == GREEDY) & (runs["temperature"] == 0)]
    longest = runs.groupby("drafter", sort=False)["draft_length"].idxmax()
    return {str(drafter): int(run) for drafter, run in longest.items()}


def _draft_seconds(decoded: Decoded, run: int) -> float:
    """Return the mean seconds of the drafts of a run; 0 where nothing was drafted."""
    calls = decoded.call_seconds[decoded.call_seconds["run"] == run]
    drafts = calls[calls["drafted"] > 0]
    return float(drafts["draft_seconds"].mean()) if len(drafts) else 0.0


class Outlook:
    """What is predicted of a drafter under a rule, by draft length: rows of `predicted_speeds`."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Keep the rows of one drafter under one rule."""
        self._rows = {int(row["draft_length"]): row for row in rows.to_dict("records")}

    @classmethod
    def of(cls, predicted: pd.DataFrame, drafter: str, rule: str | None) -> Outlook | None:
        """Return that of a method; None where nothing was predicted for it."""
        rows = predicted[(predicted["drafter"] == drafter) & (predicted["rule"] == rule)]
        return cls(rows) if len(rows) else None

    def best(self, column: str = "speed") -> tuple[int, Estimate]:
        """Return the draft length of the largest speed, and that speed; 0 where no draft pays.

        `column` may be `memory_bound`, the speed where a pass costs the same for any length.
        """
        length = max(self._rows, key=lambda at: self._rows[at][column])
        return length, self.estimate(column, length)

    def estimate(self, column: str, draft_length: int) -> Estimate:
        """Return a number of a draft length with its interval; undefined beyond `LONGEST`."""
        row = self._rows.get(draft_length)
        if row is None:
            return Estimate(math.nan)
        low, high = (row.get(end, math.nan) for end in interval_columns(column))
        return Estimate(row[column], low, high)


@dataclass(frozen=True)
class MethodOutlook:
    """What a call of a timed method costs, and the best draft lengths; NaN where it is unknown.

    Attributes:
        cost: of a call, in passes of the target over one token.
        best_length: the draft length of the largest speed that is predicted; 0 if none pays.
        best_speed: that speed, in times the target alone.
        bound_length: likewise if a pass took the same time for any number of tokens.
        bound_speed: that speed.
    """

    cost: Estimate
    best_length: float = math.nan
    best_speed: float = math.nan
    bound_length: float = math.nan
    bound_speed: float = math.nan

    @classmethod
    def of(cls, predicted: pd.DataFrame | None, run: Mapping[Any, Any]) -> MethodOutlook:
        """Return that of a row of `analysis.decoding.speed.speed`, from `predictions`."""
        found = None
        if predicted is not None:
            found = Outlook.of(predicted, run["drafter"], run["rule"])
        if found is None:
            return cls(Estimate(math.nan))
        best_length, best_speed = found.best()
        bound_length, bound_speed = found.best("memory_bound")
        return cls(
            found.estimate("cost", run["draft_length"]),
            best_length,
            best_speed.value,
            bound_length,
            bound_speed.value,
        )

    def columns(self) -> dict[str, Any]:
        """Return the values by their names, the cost with its interval."""
        values = vars(self)
        return self.cost.columns("cost") | {name: values[name] for name in values if name != "cost"}
