"""Ranks the lists of logged steps, and checks that they belong to whole distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.core.errors import PipelineError
from pipeline.engines.answers.steps import Step

MASKED = -9000.0  # at most this is a token that sampling took out: -9999 (vLLM), float32's least
FLOAT32 = 1e-6  # nats: rounding of log-probabilities of this size in float32
SUM_ROUNDING = 1e-6  # of sums of probabilities
OWN = 1e-3  # nats, between the emitted token's own value and that of the list
CUT_SHARE = 0.5  # of uncertain steps without a tail, from which on their tails were cut off
CUT_STEPS = 10  # that many at least


class OddStepError(PipelineError):
    """A step contradicts itself, as where two tokens of one text share a place in its list."""


class UnreadableStepError(OddStepError):
    """A value of a step is missing or can't be one: null, NaN, a token id below 0."""


def ranked_step(path: Path, step: Step, remedy: str) -> Step:
    """Return a step with its list sorted by falling value, and the mass of the whole list.

    vLLM puts the emitted token first, whatever its rank. If it is the least probable one, it
    is taken out: tokens between it and the others may be missing.

    Args:
        path: of the log, for errors.
        step: as it was logged.
        remedy: how to log the model's own values.

    Raises:
        OddStepError: the step contradicts itself, or a value of it can't be read.
        PipelineError: its values are no log-probabilities, or not the model's own.
    """
    place = f"{path}, line {step.line}"
    if step.wrong:
        raise UnreadableStepError(f"{place} {step.wrong}")
    values = [value for _, value in step.top]
    if min(values) <= MASKED:
        raise PipelineError(
            f"{place}: one of the {len(values)} tokens of a step has a probability of 0, as after "
            f"top-k, top-p or a grammar: {remedy}"
        )
    if max(values) > FLOAT32:
        raise PipelineError(f"{place}: a log-probability is {max(values)}, above 0")
    _check_emitted(place, step)
    step = step._replace(mass=float(np.exp(values).sum()))
    falling = [after <= before for before, after in pairwise(values)]
    if all(falling):
        return step
    if not all(falling[1:]) or step.top[0][0] != step.emitted:
        raise OddStepError(
            f"{place}: the log-probabilities of a step are not sorted: {values[:3]}, ..."
        )
    if values[0] <= values[-1]:
        return step._replace(top=step.top[1:])
    return step._replace(top=sorted(step.top, key=lambda item: -item[1]))


def _check_emitted(place: str, step: Step) -> None:
    """Check that a list has each token once, and the emitted one with its own value."""
    listed = dict(step.top)
    if len(listed) < len(step.top):
        tokens = Counter(token for token, _ in step.top)
        twice = tokens.most_common(1)[0][0]
        raise OddStepError(
            f"{place}: the list of a step has token {twice} twice: give the engine's own answers"
        )
    emitted_log_prob = step.log_prob
    if emitted_log_prob is None or emitted_log_prob <= MASKED:
        return
    emitted = step.emitted
    if isinstance(emitted, tuple) and (emitted[0], 1) in listed:
        return  # two tokens have its text, and nothing tells which was emitted
    if emitted in listed:
        value = listed[emitted]
        agrees = abs(emitted_log_prob - value) <= OWN
        expected = f"{value:.7g}"
    else:
        value = min(listed.values())
        agrees = emitted_log_prob <= value + OWN
        expected = f"at most {value:.7g}"
    if not agrees:
        raise OddStepError(
            f"{place}: the emitted token has a log-probability of {emitted_log_prob:.7g}, but in "
            f"the list of its step {expected}: log raw values of one distribution"
        )


def check_sums(
    path: Path, steps: Sequence[Step], error: float, vocab_size: int | None, remedy: str
) -> None:
    """Check that whole lists belong to distributions over the vocabulary, tails included.

    No token beyond rank K is more probable than that of rank K: 1 - sum p <= (V - K) p_K. And a
    softmax gives every token some mass, so the list of K < V tokens can't have all of it.
    """
    uncertain = 0
    cut = list[int]()
    slack = 1e-5 + error
    for step in steps:
        if step.mass * np.exp(-error) > 1.0 + SUM_ROUNDING:
            raise PipelineError(
                f"{path}, line {step.line}: the {len(step.top)} probabilities of a step sum to "
                f"{step.mass:.7g}, more than their rounding ({error:g}) allows: log natural "
                "logarithms of one distribution, or give distributions.log.error"
            )
        if vocab_size is None:
            continue
        others = max(0, vocab_size - len(step.top))
        least = np.exp(step.top[-1][1])
        rest = 1.0 - sum(np.exp(value + error) for _, value in step.top)
        if rest > others * least * np.exp(error) + SUM_ROUNDING:
            raise PipelineError(
                f"{path}, line {step.line}: the {len(step.top)} probabilities of a step leave "
                f"{rest:.4g} to the {others} other tokens, and each of them has at most the least "
                f"of the list, {least:.4g}: log natural logarithms of probabilities, not logits, "
                "and give the model's own distributions.log.vocab_size"
            )
        if least > max(1e-3, 4 * slack) and vocab_size >= 10 * len(step.top):
            uncertain += 1
            if 1.0 - step.mass < slack:
                cut.append(step.line)
    if len(cut) >= CUT_STEPS and len(cut) > CUT_SHARE * uncertain:
        raise PipelineError(
            f"{path}, line {cut[0]}: the {len(steps[0].top)} log-probabilities have all the mass, "
            f"there and at {len(cut)} of {uncertain} uncertain steps: after top-k or top-p; "
            f"{remedy}"
        )
