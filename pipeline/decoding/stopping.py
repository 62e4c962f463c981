"""When a drafter stops: its measure of each token to come, held against a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from analysis.acceptance.confidence import Calibrated, DraftedSteps, measures
from analysis.acceptance.width import least_width
from analysis.rules import Rule
from analysis.statistics.trajectories import Trajectories
from analysis.topk import TopK
from pipeline.errors import PipelineError
from pipeline.models.devices import read, send
from pipeline.models.logit_statistics import chosen_statistics, top_k_unread
from pipeline.plan.drafting import Drafting
from pipeline.plan.methods import Method
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_drafter

NONE_LEFT = (
    "decoding.methods: drafting is calibrated on prompts that are not decoded, and none is left: "
    "lower decoding.prompts, or raise prompts.count"
)
STORED = 2  # of q's tokens: its certificates need no more


class Threshold:
    """Says that a drafter stops, from its own logits alone.

    What it says of a token depends on the text and the tokens drafted before it, not on the token
    that would be drafted: what is emitted stays what it was.
    """

    def __init__(self, measure: str, threshold: float) -> None:
        """Stop where `measure` is not above `threshold`."""
        self.measure, self.threshold = measure, threshold

    def __call__(self, logits: Tensor) -> bool:
        """Return whether a drafter with these logits (1, V) of the next token stops."""
        q = largest(logits, STORED)
        return not measures(q, (self.measure,))[self.measure][0] > self.threshold

    def widths(self, logits: Tensor, widest: int) -> Tensor:
        """Return how many children (r,) make it sure that one is accepted, `widest` at most.

        Of a measure that is a certificate; `logits` (r, V) are of the drafter after r nodes.
        """
        q = largest(logits, widest)
        found = least_width(q, self.measure, self.threshold, min(widest, logits.shape[1]))
        return send(found, logits.device)


def largest(logits: Tensor, k: int) -> TopK:
    """Return the k most probable tokens of logits (r, V)."""
    size = logits.shape[1]
    values, ids = top_k_unread(logits.float(), min(k, size))
    statistics = chosen_statistics(logits, ids, Rule.decided_by)
    first, top, surprisal, log_tail, entropy = read(ids, values, *statistics)
    return TopK(first.astype(np.int32), top, surprisal, log_tail, entropy, vocab_size=size)


def stop_of(drafting: Drafting, learned: Calibrated | None) -> Threshold:
    """Return what stops a drafter, calibrated where it has to be."""
    if drafting.measure == "entropy":
        return Threshold("entropy", -float(drafting.threshold or 0.0))
    if drafting.measure == "max_q":
        return Threshold("max_q", float(drafting.threshold or 0.0))
    assert learned is not None
    if drafting.measure == "calibrated":
        return Threshold("max_q", learned.largest_refused(float(drafting.threshold or 0.0)))
    return Threshold(
        drafting.measure, learned.levels[drafting.measure][float(drafting.share or 0.0)]
    )


def stops_of(
    methods: Sequence[Method], drafts: Sequence[Artifact], decoded: Sequence[str]
) -> dict[Drafting, Threshold]:
    """Return what stops the drafters of methods, calibrated on prompts that are not decoded.

    Args:
        methods: with a rule for stopping, or without.
        drafts: the drafter beside the target on the prompts of the study; empty where nothing is
            calibrated.
        decoded: ids of the prompts that are decoded.

    Raises:
        PipelineError: no prompt is left to calibrate on.
    """
    asked = dict.fromkeys(one.drafting for one in methods if one.drafting is not None)
    others = read_others(drafts[0], decoded) if any(one.calibrated for one in asked) else None
    return {
        one: stop_of(
            one,
            None
            if others is None
            else Calibrated.on(others, [one.share] if one.share else [], one.confidence or 0.5),
        )
        for one in asked
    }


def read_others(drafts: Artifact, decoded: Sequence[str]) -> DraftedSteps:
    """Read the steps of the prompts that are not decoded.

    Raises:
        PipelineError: there is none.
    """
    table = drafts.read(columns=["prompt_id", "position", "kl", "tv", "draft_rank"]).to_pandas()
    steps = DraftedSteps(
        read_drafter(drafts),
        table["kl"].to_numpy(),
        table["tv"].to_numpy(),
        (table["draft_rank"] == 1).to_numpy(),
        Trajectories.from_positions(table["position"].to_numpy()),
    )
    others = ~np.isin(table["prompt_id"].to_numpy()[steps.trajectories.starts], list(decoded))
    if not others.any():
        raise PipelineError(NONE_LEFT)
    return steps.part(others)


def stopping_facts(stops: Mapping[Drafting, Threshold]) -> dict[str, Any]:
    """Return what the record says of the thresholds; nothing where no drafter stops."""
    found = [
        {**one.to_mapping(), "measured": stop.measure, "above": finite(stop.threshold)}
        for one, stop in stops.items()
    ]
    return {"drafting": found} if found else {}


def finite(threshold: float) -> float | str:
    """Return a threshold as JSON has it."""
    return threshold if np.isfinite(threshold) else str(threshold)
