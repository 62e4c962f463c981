"""The prompts of steps, given as labels of any kind, one a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rule_text import described
from .statistics.bootstrap import Integers, PromptBootstrap


def prompt_bootstrap(
    prompts: Any, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> PromptBootstrap:
    """Return resamples of the prompts that (N,) labels name, one label a step.

    Labels are numbers, texts or any other hashable objects; equal ones are one prompt.

    Raises:
        ValueError: `prompts` is not a row of labels, or a setting is out of range.

    >>> prompt_bootstrap(["b", "b", "a"], resamples=20).count
    2
    """
    labels = numbered("prompts", prompts)
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r} is not allowed: give an integer of at least 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} is not allowed: give a number in (0, 1)")
    return PromptBootstrap(labels, resamples, confidence, seed)


def positions(name: str, prompts: Any, steps: int) -> NDArray[np.int32]:
    """Return the (N,) place of each step within its prompt, from 0; steps of one stand together.

    Raises:
        ValueError: there is not one label a step, or a prompt's steps do not stand together.
    """
    labels = numbered(name, prompts)
    if len(labels) != steps:
        raise ValueError(f"{name} has {len(labels)} labels: give one a step, {steps}")
    first = np.append(True, labels[1:] != labels[:-1])[:steps]
    begins = np.flatnonzero(first)
    again = np.flatnonzero(np.bincount(labels[begins], minlength=1) > 1)
    if len(again):
        at = begins[labels[begins] == again[0]][1]
        raise ValueError(
            f"{name}: the prompt of step {at} has earlier steps elsewhere: put the steps of a "
            "prompt together, in order"
        )
    return (np.arange(steps) - np.repeat(begins, np.diff([*begins, steps]))).astype(np.int32)


def numbered(name: str, labels: Any) -> Integers:
    """Return the (N,) number of each label, 0 .. P-1: in order in an array of numbers.

    Others are numbered as they appear.

    Raises:
        ValueError: they are not one row, or one is missing.
    """
    import pandas as pd

    if hasattr(labels, "detach"):  # a tensor of PyTorch, which is not imported here
        labels = labels.detach().cpu().numpy()
    is_row = getattr(labels, "ndim", 1) == 1 and isinstance(labels, Iterable)
    values = pd.Series(list(labels) if is_row and not isinstance(labels, str) else [], dtype=object)
    if values.empty:
        raise ValueError(f"{name} is {described(labels)}: give one label a step, (N,)")
    if values.isna().any():
        raise ValueError(f"{name}: step {int(values.isna().argmax())} has no label")
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf":
        return np.unique(labels, return_inverse=True)[1].astype(np.intp)
    return pd.factorize(values)[0].astype(np.intp)
