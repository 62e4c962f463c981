"""Speed by draft length, from the tokens that a call gives and the time that it takes.

How many drafted tokens are accepted belongs to the models and the rule, and carries over to any
machine. What a call costs belongs to one machine and one loop. With drafts of g tokens,

    L(g) = tokens / calls, counted along the answers with drafts of g tokens
    C(g) = seconds of a call with g drafted tokens / seconds of a call without a draft,
           the median over rounds that have a call of each length
    B(g) = answers / calls * seconds of the drafter's pass over a prompt / those of such a call
    speed(g) = L(g) / (1 + f (C(g) - 1) + B(g))      (`over_all_passes`)

where f is the share of the calls that draft, 1 except for drafters such as look-up. The calls are
counted for each g anew: where calls begin depends on the length of the drafts, so the rates by
position of one length do not give the tokens per call of another. The time before the first token
is left out. The drafter reads the prompt after that token, and B(g) is this time by call, which
weighs the more the shorter the answers are; it is 0 for drafters that read the text only.
Drafting pays while C(g) + B(g) < L(g), where every call drafts. Where decoding is bound by memory,
as it nearly is in engines, a pass takes as long over several tokens as over one: then C(g) = 1 +
the seconds of drafting over those of a call without a draft.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..rules import StrictGreedy
from ..statistics.bootstrap import (
    Integers,
    PromptBootstrap,
    Resampling,
    expanded_interval,
    tail_level,
)
from ..statistics.estimate import Estimate, interval_columns
from ..topk import Floats
from .draft_length import extended_costs, over_all_passes
from .metrics import CONFIGURED, Decoded

MAX_DRAFT_LENGTH = 8  # the longest draft for which a speed is predicted
GREEDY = StrictGreedy().label
COUNTS = ["calls", "drafting", "tokens"]


@dataclass(frozen=True)
class CallsByLength:
    """The calls that the answers of P prompts take, with drafts of 1 to G tokens; (P, G) each."""

    calls: Integers
    drafting: Integers  # calls that draft anything
    tokens: Integers  # that the calls give: all but the first of each answer

    @classmethod
    def read(cls, rows: pd.DataFrame) -> CallsByLength:
        """Read rows in the order of prompts and lengths, with columns named as here.

        Without `drafting`, all calls draft.
        """
        if "drafting" not in rows:
            rows = rows.assign(drafting=rows["calls"])
        return cls(*(rows[name].to_numpy().reshape(-1, MAX_DRAFT_LENGTH) for name in COUNTS))

    def by_prompt(self) -> tuple[Integers, Integers, Integers]:
        """Return the three, with draft length 0 before the others, (P, G + 1) each.

        Without drafts every token takes a call.
        """
        tokens = np.column_stack([self.tokens[:, 0], self.tokens])
        calls = np.column_stack([tokens[:, 0], self.calls])
        drafting = np.column_stack([np.zeros_like(tokens[:, 0]), self.drafting])
        return calls, drafting, tokens


class CallCosts(NamedTuple):
    """What calls cost, of all rounds or of B resamples of them, in calls without a draft."""

    draft: Floats  # (..., G + 1), 0 without a draft
    target: Floats  # (..., G + 1), 1 without a draft
    begin: Floats  # (...) of the drafter's pass over a prompt
    seconds: Floats  # (...) of a call without a draft

    def with_draft(self, seconds: float) -> CallCosts:
        """Return them with drafts that take so long at any length, of a drafter without a pass."""
        drafts = np.arange(self.draft.shape[-1]) > 0
        draft = drafts * (seconds / self.seconds[..., None])
        return self._replace(draft=draft, begin=np.zeros_like(self.begin))

    def totals(self) -> Floats:
        """Return the costs (..., `MAX_DRAFT_LENGTH` + 1) of calls, draft and target together."""
        return extended_costs(self.draft + self.target, MAX_DRAFT_LENGTH)

    def begin_costs(self) -> Floats:
        """Return the costs (..., `MAX_DRAFT_LENGTH` + 1) of the drafter's pass over a prompt."""
        drafts = np.arange(MAX_DRAFT_LENGTH + 1) > 0
        return drafts * self.begin[..., None]


@dataclass(frozen=True)
class CallSeconds:
    """Seconds of calls by draft length, in R rounds of one call of each length."""

    draft: Floats  # (R, G + 1) of drafting 0, 1, ..., G tokens
    target: Floats  # (R, G + 1) of the target's pass over one more, of verification and roll-back
    begin: Floats  # (R,) of the drafter's pass over the prompt, once for an answer

    @classmethod
    def of_rounds(cls, calls: pd.DataFrame) -> CallSeconds:
        """Read the complete rounds from stage decoding's timings/passes.

        A round has the calls at one prompt. It lacks a length if the answer ended early, and is
        left out then.
        """
        calls = calls.assign(target=calls["verify_seconds"] + calls["other_seconds"])
        rounds = calls.pivot(index="prompt_id", columns="drafted")
        complete = rounds.dropna()
        begin = complete["begin_seconds"].to_numpy()[:, -1:]  # of calls that draft, if any do
        return cls(
            complete["draft_seconds"].to_numpy(), complete["target"].to_numpy(), begin.ravel()
        )

    def costs(self) -> CallCosts:
        """Return the costs that stand for all rounds."""
        return self._costs_of(np.arange(len(self.target)))

    def drawn_costs(self, statistics: Resampling) -> CallCosts:
        """Return the `costs` of B resamples of the rounds."""
        generator = np.random.default_rng(statistics.seed)
        rounds = len(self.target)
        return self._costs_of(generator.integers(rounds, size=(statistics.resamples, rounds)))

    def _costs_of(self, rounds: Integers) -> CallCosts:
        """Return the costs of some rounds (..., R).

        A call is compared with the one without a draft of the same round, and the median is taken
        over rounds: machines change their speed from one second to the next, and a call may stall.
        """
        without_draft = self.target[:, :1]
        draft = self.draft / without_draft
        draft[:, 0] = 0.0  # the recorded seconds are the clock's overhead
        seconds = np.median(without_draft[rounds, 0], axis=-1)
        return CallCosts(
            draft=np.median(draft[rounds], axis=-2),
            target=np.median((self.target / without_draft)[rounds], axis=-2),
            begin=np.mean(self.begin[rounds], axis=-1) / seconds,  # of all prompts, of any length
            seconds=seconds,
        )


def predicted_speeds(
    counts: CallsByLength,
    seconds: CallSeconds,
    statistics: Resampling,
    draft_seconds: float | None = None,
) -> pd.DataFrame:
    """Return tokens per call, the cost of a call and the speed at each draft length from 0.

    `draft_seconds` are the seconds of one draft, the same at every length, for drafters that read
    the text only, such as look-up; their pass over the prompt counts as 0. None: both times are
    those in `seconds`.
    Intervals are over prompts (tokens), over rounds (cost), and over both (speed).

    Returns:
        A row for each `draft_length`, with `tokens_per_call`, `cost` (in calls without a draft),
        both over all calls, `speed`, which also pays for the drafter's passes over the prompts, and
        their ends `*_ci_low` and `*_ci_high`; `memory_bound`, the speed if the target's pass cost
        the same for any length. Ends are NaN for a single prompt, and those of cost and speed for a
        single round.
    """
    drawn = seconds.drawn_costs(statistics)
    return _predicted(counts, seconds, drawn, statistics, draft_seconds)


def _predicted(
    counts: CallsByLength,
    seconds: CallSeconds,
    drawn: CallCosts,
    statistics: Resampling,
    draft_seconds: float | None,
) -> pd.DataFrame:
    """Return `predicted_speeds`, given the costs of the resampled rounds."""
    prompts = len(counts.calls)
    rounds = len(seconds.target)
    bootstrap = PromptBootstrap(np.arange(prompts), *statistics)
    of_rounds = tail_level(statistics.confidence, rounds)
    of_fewer = tail_level(statistics.confidence, min(prompts, rounds))
    observed = seconds.costs()
    if draft_seconds is not None:
        observed = observed.with_draft(draft_seconds)
        drawn = drawn.with_draft(draft_seconds)

    def measures(sums: Sequence[Floats | Integers], costs: CallCosts) -> tuple[Floats, ...]:
        """Return tokens per call, cost and speed from sums over the prompts, as `by_prompt`."""
        calls, drafting, emitted = sums
        tokens = emitted / calls
        cost = over_all_passes(costs.totals(), drafting / calls)
        return tokens, cost, tokens / (cost + prompts / calls * costs.begin_costs())

    by_prompt = counts.by_prompt()
    sums = [numbers.sum(0) for numbers in by_prompt]
    tokens, costs, speeds = measures(sums, observed)
    flat = observed._replace(target=np.ones_like(observed.target))
    *_, memory_bound = measures(sums, flat)
    # resamples of prompts without a call are left out
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn_sums = [bootstrap.sums(numbers) for numbers in by_prompt]
        drawn_tokens, drawn_costs, drawn_speeds = measures(drawn_sums, drawn)
    estimates = {
        "tokens_per_call": Estimate(tokens, *bootstrap.interval(drawn_tokens)),
        "cost": Estimate(costs, *expanded_interval(drawn_costs, of_rounds)),
        "speed": Estimate(speeds, *expanded_interval(drawn_speeds, of_fewer)),
    }
    table = pd.DataFrame({"draft_length": np.arange(MAX_DRAFT_LENGTH + 1)})
    for name, estimate in estimates.items():
        table = table.assign(**estimate.columns(name))
    table["memory_bound"] = memory_bound
    return table


def speeds_of_timed_calls(decoded: Decoded) -> pd.Series:
    """Return the speed after the first token that is predicted for the calls that a run made.

    It is `predicted_speeds` with the calls, tokens and answers of the run itself in the place of
    those counted along other answers. So what is left between it and the clock is an error of the
    costs.

    Returns:
        A value for each run; NaN but for chains of the configured drafter under strict greedy, and
        for those with longer drafts than were timed.
    """
    speeds = pd.Series(math.nan, index=decoded.runs.index)
    seconds = CallSeconds.of_rounds(decoded.passes)
    if not len(seconds.target):
        return speeds
    observed = seconds.costs()
    costs = observed.totals()
    runs = _greedy_chains(decoded)
    runs = runs[(runs["drafter"] == CONFIGURED) & (runs["draft_length"] < seconds.target.shape[1])]
    for run in runs.index:
        calls = decoded.call_seconds[decoded.call_seconds["run"] == run]
        answers = (decoded.answers["run"] == run).sum()
        begin = answers * observed.begin_costs()[-1]
        spent = costs[calls["drafted"].to_numpy()].sum() + begin
        speeds[run] = calls["emitted"].sum() / spent if len(calls) else math.nan
    return speeds


def predictions(
    decoded: Decoded, judged: Mapping[str, CallsByLength], statistics: Resampling
) -> pd.DataFrame:
    """Return `predicted_speeds` of every drafter under strict greedy, and of the rules in `judged`.

    `judged` has the calls that stage acceptance counted with the configured drafter, by rule label.
    Stage decoding counted those of other drafters (`Decoded.lengths`).

    Returns:
        The rows of `predicted_speeds` with `drafter`, as in `decoded.runs`, and `rule`, a label. It
        is empty if no round of calls was timed, or if none has a draft.
    """
    seconds = CallSeconds.of_rounds(decoded.passes)
    frames = [pd.DataFrame(columns=["drafter", "rule", "draft_length"])]
    if not len(seconds.target) or seconds.target.shape[1] < 2:
        return frames[0]
    drawn = seconds.drawn_costs(statistics)  # once for all rules
    for rule, counts in judged.items():
        if counts.calls.any():
            table = _predicted(counts, seconds, drawn, statistics, None)
            frames.append(table.assign(drafter=CONFIGURED, rule=rule))
    longest = _longest_chains(decoded)
    for name, rows in decoded.lengths.groupby("drafter", sort=False):
        counts = CallsByLength.read(rows)
        if counts.calls.any() and name in longest:
            drafting = _draft_seconds(decoded, longest[str(name)])
            table = _predicted(counts, seconds, drawn, statistics, drafting)
            frames.append(table.assign(drafter=name, rule=GREEDY))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _longest_chains(decoded: Decoded) -> dict[str, int]:
    """Return the run of each drafter that drafts the longest chains under strict greedy."""
    runs = _greedy_chains(decoded)
    longest = runs.groupby("drafter", sort=False)["draft_length"].idxmax()
    return {str(drafter): int(run) for drafter, run in longest.items()}


def _greedy_chains(decoded: Decoded) -> pd.DataFrame:
    """Return the runs that draft chains under strict greedy."""
    runs = decoded.runs[~decoded.drafts_trees]
    return runs[(runs["drafter"] != "none") & (runs["rule"] == GREEDY) & (runs["temperature"] == 0)]


def _draft_seconds(decoded: Decoded, run: int) -> float:
    """Return the mean seconds of the drafts of a run; 0 where nothing was drafted."""
    calls = decoded.call_seconds[decoded.call_seconds["run"] == run]
    drafts = calls[calls["drafted"] > 0]
    return float(drafts["draft_seconds"].mean()) if len(drafts) else 0.0


class Outlook:
    """The predictions for a drafter under a rule, by draft length: rows of `predicted_speeds`."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Keep the rows of one drafter under one rule."""
        self._rows = {int(row["draft_length"]): row for row in rows.to_dict("records")}

    @classmethod
    def of(cls, predicted: pd.DataFrame, drafter: str, rule: str | None) -> Outlook | None:
        """Return the outlook of a method; None if nothing was predicted for it."""
        rows = predicted[(predicted["drafter"] == drafter) & (predicted["rule"] == rule)]
        return cls(rows) if len(rows) else None

    def best(self, column: str = "speed") -> tuple[int, Estimate]:
        """Return the draft length of the largest speed, and that speed; 0 where no draft pays.

        `column` may be `memory_bound`, the speed where a pass costs the same for any length.
        """
        length = max(self._rows, key=lambda draft_length: self._rows[draft_length][column])
        return length, self.estimate(column, length)

    def estimate(self, column: str, draft_length: int) -> Estimate:
        """Return a prediction at a draft length; NaN beyond `MAX_DRAFT_LENGTH`."""
        row = self._rows.get(draft_length)
        if row is None:
            return Estimate(math.nan)
        low, high = (row.get(end, math.nan) for end in interval_columns(column))
        return Estimate(row[column], low, high)


@dataclass(frozen=True)
class MethodOutlook:
    """The cost of a call of a timed method, and the best draft lengths; NaN where unknown.

    Attributes:
        cost: of a call, in passes of the target over one token.
        best_length: the draft length of the largest speed that is predicted; 0 if none pays.
        best_speed: that speed, relative to the target alone.
        bound_length: the same, if a pass took the same time for any number of tokens.
        bound_speed: the speed at `bound_length`.
    """

    cost: Estimate
    best_length: float = math.nan
    best_speed: float = math.nan
    bound_length: float = math.nan
    bound_speed: float = math.nan

    @classmethod
    def of(cls, predicted: pd.DataFrame | None, run: Mapping[Any, Any]) -> MethodOutlook:
        """Return the outlook of a row of `analysis.decoding.speed.speed`, from `predictions`."""
        outlook = None
        if predicted is not None:
            outlook = Outlook.of(predicted, run["drafter"], run["rule"])
        if outlook is None:
            return cls(Estimate(math.nan))
        best_length, best_speed = outlook.best()
        bound_length, bound_speed = outlook.best("memory_bound")
        return cls(
            outlook.estimate("cost", run["draft_length"]),
            best_length,
            best_speed.value,
            bound_length,
            bound_speed.value,
        )

    def columns(self) -> dict[str, Any]:
        """Return the values by their names, the cost with its interval."""
        values = vars(self)
        return self.cost.columns("cost") | {name: values[name] for name in values if name != "cost"}
