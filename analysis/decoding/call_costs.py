"""Speed by draft length, from the tokens that a call gives and the time that it takes.

How many drafted tokens are accepted belongs to the models and the rule, and carries over to any
machine. What a call costs belongs to one machine and one loop. With drafts of g tokens, and a_i the
acceptance rate at position i of a draft, given that the positions before it were accepted,

    L(g) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_g      tokens per call (`expected_tokens`)
    C(g) = seconds of a call with g drafted tokens / seconds of a call without a draft
    speed(g) = (1 + f (L(g) - 1)) / (1 + f (C(g) - 1))      (`speed_by_length`)

where f is the share of the calls that draft anything, which is 1 but for look-up. The time before
the first token is left out. Drafting pays while C(g) < L(g). Where a pass takes as long over
several tokens as over one (it is bound by memory, as engines nearly are), C(g) = 1 + the seconds of
drafting over those of a call without a draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags, Integers, PromptBootstrap, Resampling
from ..statistics.estimate import Estimate
from ..topk import Floats
from .draft_length import expected_tokens, extended_costs, speed_by_length

LONGEST = 8  # the longest draft for which a speed is predicted
PARTS = ("draft_seconds", "verify_seconds", "other_seconds")  # of a call


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
        A row for each `draft_length`, with `tokens_per_call` (of calls that draft), `cost` (in
        calls without a draft), `speed` and their ends `*_ci_low` and `*_ci_high`; `memory_bound`,
        the speed if the target's pass cost the same for any length; `share`, of calls that draft.
    """
    bootstrap = PromptBootstrap(np.arange(len(counts.calls)), *statistics)
    rates = _rates(counts.tested.sum(0), counts.accepted.sum(0))
    drawn_rates = _rates(bootstrap.sums(counts.tested), bootstrap.sums(counts.accepted))
    share = bootstrap.ratio(counts.drafting, counts.calls).value
    with np.errstate(invalid="ignore"):  # resamples of prompts without a call are left out
        drawn_share = bootstrap.sums(counts.drafting) / bootstrap.sums(counts.calls)

    draft, target = _seconds_of(seconds.medians(), draft_seconds)
    drawn_draft, drawn_target = _seconds_of(seconds.drawn_medians(statistics), draft_seconds)
    costs = _costs(draft, target)
    drawn_costs = _costs(drawn_draft, drawn_target)
    flat = np.broadcast_to(target[:1], target.shape)

    drawn_tokens = expected_tokens(drawn_rates, LONGEST)
    drawn_speeds = speed_by_length(drawn_rates, drawn_costs, drawn_share[:, None])
    estimates = {
        "tokens_per_call": Estimate(
            expected_tokens(rates, LONGEST), *bootstrap.interval(drawn_tokens)
        ),
        "cost": Estimate(costs, *bootstrap.interval(drawn_costs)),
        "speed": Estimate(speed_by_length(rates, costs, share), *bootstrap.interval(drawn_speeds)),
    }
    table = pd.DataFrame({"draft_length": np.arange(LONGEST + 1)})
    for name, estimate in estimates.items():
        table = table.assign(**estimate.columns(name))
    table["memory_bound"] = speed_by_length(rates, _costs(draft, flat), share)
    return table.assign(share=share)


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
    whole[..., 0] = 1.0  # nothing is drafted, but the moment between two marks
    return extended_costs(whole, LONGEST)
