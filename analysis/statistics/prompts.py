"""The prompts that steps belong to, from one hashable label per step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..validation import checked_integer, checked_number
from .bootstrap import PromptBootstrap, numbered


def prompt_bootstrap(
    prompts: Any, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> PromptBootstrap:
    """Return resamples of the prompts that steps belong to.

    Args:
        prompts: (N,), a label of each step's prompt, of any hashable type.
        resamples: their number, at least 1.
        confidence: of the intervals, in (0, 1).
        seed: of the draws, at least 0.

    Raises:
        ValueError: there is not one label per step, or a setting is out of range.

    >>> prompt_bootstrap(["b", "b", "a"], resamples=20).count
    2
    """
    resamples = checked_integer("resamples", resamples)
    confidence = checked_number("confidence", confidence, 0.0, 1.0)
    return PromptBootstrap(prompts, resamples, confidence, checked_integer("seed", seed, 0))


def positions(name: str, prompts: Any, steps: int) -> NDArray[np.int32]:
    """Return (N,) the position of each step within its prompt, from 0.

    Raises:
        ValueError: there is not one label per step, or a prompt's steps do not stand together.
    """
    labels = numbered(name, prompts)
    if len(labels) != steps:
        raise ValueError(f"{name} has {len(labels)} labels: give one per step, {steps}")
    first = np.append(True, labels[1:] != labels[:-1])[:steps]
    begins = np.flatnonzero(first)
    again = np.flatnonzero(np.bincount(labels[begins], minlength=1) > 1)
    if len(again):
        step = begins[labels[begins] == again[0]][1]
        raise ValueError(
            f"{name}: the prompt of step {step} has earlier steps elsewhere: put the steps of a "
            "prompt together, in order"
        )
    return (np.arange(steps) - np.repeat(begins, np.diff([*begins, steps]))).astype(np.int32)
