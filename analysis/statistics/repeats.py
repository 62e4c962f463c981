"""Which steps of an answer lie inside a passage that the answer had before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers

LENGTH = 16  # tokens of a passage: long enough that only a loop, or a list, repeats it


def inside_repeats(tokens: NDArray[np.integer], prompts: Integers, length: int = LENGTH) -> Flags:
    """Say of each step whether it lies inside a repeated n-gram of its answer so far, n = `length`.

    Step t of an answer does when its last n tokens, t - n + 1 to t, occurred before in the same
    answer: as the tokens s - n + 1 to s for some s < t. The two may overlap, as in a loop shorter
    than n. So the first n steps never do, and where an answer repeats a passage, the steps from the
    n-th token of the repetition on do.

    Args:
        tokens: (N,) token emitted at each step, answer after answer.
        prompts: (N,) index of each step's answer.
        length: n.

    Returns:
        (N,) flags.

    Example:
        >>> inside_repeats(np.array([7, 8, 9, 7, 8, 9, 8]), np.zeros(7, dtype=int), 2).astype(int)
        array([0, 0, 0, 0, 1, 1, 0])
    """
    inside = np.zeros(len(tokens), dtype=bool)
    seen: set[tuple[int, bytes]] = set()
    for end in range(length, len(tokens) + 1):
        begin = end - length
        if prompts[begin] == prompts[end - 1]:
            passage = (int(prompts[begin]), tokens[begin:end].tobytes())
            inside[end - 1] = passage in seen
            seen.add(passage)
    return inside
