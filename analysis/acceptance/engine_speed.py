"""Expected speed in an engine, from a drafter's tokens a pass and the engine's cost of a step.

Acceptance carries over from one implementation to another, cost does not: a step with g drafted
tokens costs C(g) passes of the target alone, drafting included, and C depends on engine, machine
and load. Calls that emit e_i tokens with g_i drafted ones are sum e_i / sum C(g_i) times as fast as
the target alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..statistics.bootstrap import FEW_PROMPTS, Floats, Numbers, PromptBootstrap, simultaneous
from .verdict import DO_NOT, DRAFT, NO, OPEN, YES, Advice, speed_text


@dataclass(frozen=True)
class StepCosts:
    """The measured cost curve of an engine: the cost of a step by its number of drafted tokens.

    Attributes:
        engine: name, version and load, as named in the verdict.
        drafter: `model` or `prompt_lookup`.
        drafted: the points of the curve, mean drafted tokens a step, increasing; the first is 0.
        costs: the cost at each point, in passes of the target alone; the first is 1.
    """

    engine: str
    drafter: str
    drafted: tuple[float, ...]
    costs: tuple[float, ...]

    def at(self, drafted: Numbers) -> Floats:
        """Return the cost of steps with these numbers of drafted tokens.

        Linear interpolation between the measured points, and linear extrapolation beyond them,
        which never falls: a step does not cost less because it drafts more.

        Examples:
            >>> costs = StepCosts("an engine", "model", (0.0, 2.0, 4.0), (1.0, 1.5, 1.8))
            >>> costs.at(np.array([0, 1, 3, 6])).round(2).tolist()
            [1.0, 1.25, 1.65, 2.1]
            >>> costs = StepCosts("an engine", "model", (0.0, 3.0, 4.0), (1.0, 2.0, 1.4))
            >>> costs.at(np.array([4, 8])).tolist()
            [1.4, 1.4]
        """
        inside: Floats = np.interp(drafted, self.drafted, self.costs)
        (x0, x1), (c0, c1) = self.drafted[-2:], self.costs[-2:]
        beyond = np.maximum(np.asarray(drafted) - x1, 0.0)
        cost: Floats = inside + beyond * max(0.0, (c1 - c0) / (x1 - x0))
        return cost

    @property
    def longest(self) -> int:
        """The longest measured draft length."""
        return max(1, round(self.drafted[-1]))


@dataclass(frozen=True)
class PassSums:
    """Sums over the passes of a run in an engine.

    Attributes:
        passes: number of passes after the prompts', of all requests.
        drafts: number of passes with a draft; 0 for the target alone.
        drafted: number of drafted tokens.
        seconds: of all passes.
    """

    passes: float
    drafts: float
    drafted: float
    seconds: float

    def step_cost(self, alone: PassSums) -> tuple[float, float]:
        """Return the mean drafted tokens of a draft, and the cost of a step with one.

        Passes without a draft cost as much as those of the target alone. With s0 seconds per pass
        of `alone` the cost is (seconds - (passes - drafts) s0) / (drafts s0).

        Examples:
            >>> PassSums(10, 5, 20, 15.0).step_cost(PassSums(10, 0, 0, 10.0))
            (4.0, 2.0)
        """
        pass_seconds = alone.seconds / alone.passes
        spent = self.seconds - (self.passes - self.drafts) * pass_seconds
        return self.drafted / self.drafts, spent / (self.drafts * pass_seconds)


def expected_speeds(
    emitted: Numbers, passes: Numbers, costs: Floats, bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the expected speed at each draft length.

    Args:
        emitted: (P,) tokens emitted by each answer's passes.
        passes: (P, G) passes of each answer at draft lengths 1 to G.
        costs: (P, G) cost of these passes, in passes of the target alone.
        bootstrap: of the prompts.

    Returns:
        draft_length, tokens_per_pass, step_cost (mean of all passes), speedup over the target
        alone, with ci_low and ci_high, which hold for all draft lengths together. The intervals
        cover the variation of answers, not that of the costs.
    """
    tokens = emitted[:, None].astype(float)
    total = costs.sum(axis=0)
    logs = np.log(tokens.sum() / total)
    drawn = np.log(bootstrap.sums(tokens) / bootstrap.sums(costs))
    low, high = simultaneous(logs, drawn, bootstrap.confidence)
    return pd.DataFrame(
        {
            "draft_length": np.arange(1, costs.shape[1] + 1),
            "tokens_per_pass": tokens.sum() / passes.sum(axis=0),
            "step_cost": total / passes.sum(axis=0),
            "speedup": np.exp(logs),
            "ci_low": np.exp(low),
            "ci_high": np.exp(high),
            "prompts": bootstrap.count,
        }
    )


def engine_advice(
    target: str, drafter: str | None, speeds: pd.DataFrame, costs: StepCosts
) -> Advice:
    """Return the verdict on drafting in the engine whose costs were measured.

    Args:
        target: printed name.
        drafter: printed name; None for prompt look-up.
        speeds: from `expected_speeds`; draft lengths beyond the measurements are not recommended.
        costs: of the engine.
    """
    drafter, prompts = drafter or "prompt look-up", int(speeds["prompts"].iloc[0])
    covered = speeds[speeds["draft_length"] <= costs.longest]
    row = covered.iloc[int(covered["speedup"].argmax())]
    best = {str(name): value for name, value in row.items()}
    length = int(best["draft_length"])
    outcome = OPEN
    if prompts >= FEW_PROMPTS and best["ci_low"] > 1:
        outcome = DRAFT
    elif prompts >= FEW_PROMPTS and (covered["ci_high"] < 1).all():
        outcome = DO_NOT
    speed = f"{speed_text(best)} as {target} alone"
    how = (
        f"{best['tokens_per_pass']:.2f} tokens a pass, and a step costs "
        f"{best['step_cost']:.2f} passes"
    )
    doubt = f" ({prompts} prompts are fewer than {FEW_PROMPTS})" if prompts < FEW_PROMPTS else ""
    head = {
        DRAFT: f"In {costs.engine}: draft for {target} with {drafter}, {length} "
        f"token{'s' if length > 1 else ''}",
        DO_NOT: f"In {costs.engine}: do not draft for {target} with {drafter}. The best draft "
        f"length is {length}",
        OPEN: f"In {costs.engine}: not decided for {target}{doubt}. With {drafter} the best draft "
        f"length is {length}",
    }[outcome]
    text = f"{head}: expected {speed} ({how})."
    beyond = speeds[speeds["draft_length"] > costs.longest]
    beside = [
        f"Drafts of {int(row['draft_length'])} would be {row['speedup']:.2f} times as fast if a "
        f"step's cost goes on as up to {costs.longest}: measure it."
        for row in beyond.nlargest(1, "speedup").to_dict("records")
        if row["speedup"] > max(1.0, best["speedup"])
    ]
    answer = {DRAFT: YES, DO_NOT: NO, OPEN: OPEN}[outcome]
    headline = (
        f"{drafter} in {costs.engine}: {answer}, {best['speedup']:.2f} times as fast expected with "
        f"drafts of {length}"
    )
    run = {**best, "draft_length": length}
    return Advice(target, outcome, text, beside, run=run, headline=headline)


def model_costs(calls: Numbers, costs: StepCosts) -> Floats:
    """Return the (P, G) costs of passes that all have full drafts, of lengths 1 to G."""
    lengths: Sequence[int] = range(1, calls.shape[1] + 1)
    return calls * costs.at(np.array(lengths))
