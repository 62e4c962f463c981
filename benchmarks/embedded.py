"""Is the embedded study a fair stand-in? ``python -m benchmarks.embedded [OVERRIDES]``.

Reads the artifacts of `make reproduce` and prints, for every target: quantiles of p(x0) over the
steps, the share of steps inside a 16-gram of emitted tokens that occurred before in the same
trajectory, the share of trajectories that end by themselves, and how often the drafter's argmax
is the target's (when the study has a drafter).
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from pipeline.errors import PipelineError
from pipeline.loader import Study

GRAM = 16


def repeated_share(steps: pd.DataFrame) -> float:
    """Return the share of steps that lie inside a 16-gram seen before in their trajectory."""
    inside = 0
    for _, tokens in steps.groupby("prompt_id", sort=False)["token_id"]:
        ids = tokens.to_list()
        seen: set[tuple[int, ...]] = set()
        flagged = np.zeros(len(ids), dtype=bool)
        for start in range(len(ids) - GRAM + 1):
            gram = tuple(ids[start : start + GRAM])
            if gram in seen:
                flagged[start : start + GRAM] = True
            seen.add(gram)
        inside += int(flagged.sum())
    return inside / len(steps)


def main(overrides: list[str]) -> None:
    """Print the facts of every target of the study."""
    study = Study(*overrides)
    for target in study.targets:
        steps = study.frame("distributions", target)
        p0 = study.distributions(target).probs[:, 0]
        lengths = steps.groupby("prompt_id").size()
        ended = np.mean(lengths < study.config.distributions.steps)
        print(
            f"{target}: {len(steps)} steps of {len(lengths)} prompts, temperature "
            f"{study.config.distributions.temperature}"
        )
        print(
            "  p0 p5 {:.3f}  p25 {:.3f}  median {:.3f}  mean {:.3f}".format(
                *np.quantile(p0, [0.05, 0.25, 0.5]), p0.mean()
            )
        )
        print(
            f"  steps inside a repeated {GRAM}-gram {repeated_share(steps):.1%}; "
            f"trajectories that end early {ended:.1%}"
        )
        try:
            drafts = study.frame("drafts", target)
        except PipelineError:
            continue
        print(
            f"  drafter's argmax is the target's on "
            f"{np.mean(drafts['draft_rank'] == 1):.1%} of steps"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
