"""Readings of MARS (arXiv 2601.15498) above temperature 0, where its Algorithm 1 says little.

At temperature 0 all three are Algorithm 1: rank 1 is accepted, and rank 2 where the ratio of the
two largest logits exceeds the threshold. Above it Algorithm 1 draws only the token after a full
draft. The released code accepts on the ratio or by speculative sampling. Ours is speculative
sampling that also accepts rank 2, so a threshold that relaxes nothing is lossless. docs/mars.md
compares them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RANK_2, RELEASED, ALGORITHM_1 = "rank_2", "released", "algorithm_1"
READINGS = {RANK_2: "", RELEASED: "released code", ALGORITHM_1: "Algorithm 1"}  # as printed
Flags = NDArray[np.bool_]
Integers = NDArray[np.integer[Any]]


def relaxed(reading: str, accepted: Flags, rank: Integers, count: Integers) -> Flags:
    """Return the drafted tokens, (n,), that MARS accepts whatever a draw says.

    Where the ratio exceeds the threshold, `RELEASED` keeps ranks 1 and 2, `RANK_2` only rank 2; a
    draw decides on all other tokens. `ALGORITHM_1` rejects them.

    Args:
        reading: one of `READINGS`.
        accepted: (n,) whether the rule accepts the token at temperature 0.
        rank: (n,) target rank of the drafted token, from 1.
        count: (n,) accepted count of the rule: 1 where it relaxes nothing.

    Examples:
        >>> rank, count = np.array([1, 1, 2, 2]), np.array([1, 2, 1, 2])
        >>> {reading: relaxed(reading, rank <= count, rank, count).tolist() for reading in READINGS}
        {'rank_2': [False, False, False, True], 'released': [False, True, False, True], \
'algorithm_1': [True, True, False, True]}
    """
    if reading == ALGORITHM_1:
        return accepted
    return accepted & (rank > 1 if reading == RANK_2 else count != 1)
