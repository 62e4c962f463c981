"""Compile the certificates' kernel as a part of `make install`: the first run is spared seconds.

The compiled code lies beside its source. It is made again when the source changes, or for another
processor.
"""

from __future__ import annotations

import numpy as np

from analysis import TopK, certify
from analysis.rules import StrictGreedy


def main() -> None:
    """Certify a step from logits, as targets are stored, and one from probabilities."""
    certify(TopK.from_logits(np.zeros((1, 2), dtype=np.float32)), StrictGreedy())
    certify(TopK.from_probabilities([0.5, 0.5]), StrictGreedy())


if __name__ == "__main__":
    main()
