"""How long prompt look-up is right, by the length of its match: ``python -m benchmarks.lookup``.

Reads the greedy answers of study=smollm2 (stage=distributions; OVERRIDES name another study), the
first STEPS tokens of each, and at every step drafts what followed the latest earlier occurrence of
the last n tokens, where no longer match exists. Prints by n: steps, how often the first drafted
token is the target's, and how many of DRAFT are in a row.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from analysis.decoding.laws import leading
from pipeline.decoding.lookup import continuation
from pipeline.loader import Study

STEPS, DRAFT, MATCHES = 40, 4, (1, 2, 3, 4)


def main(overrides: list[str]) -> None:
    """Draft along the answers of every target of a study."""
    study = Study("study=smollm2", *overrides)
    prompts = study.frame("prompts").set_index("prompt_id")["token_ids"]
    for target in study.targets:
        right = defaultdict(list)
        for prompt_id, rows in study.frame("distributions", target).groupby("prompt_id"):
            known = len(prompts[prompt_id])
            text = [*prompts[prompt_id].tolist(), *rows.sort_values("position")["token_id"]]
            for at in range(known, min(known + STEPS, len(text) - DRAFT)):
                matched = [n for n in MATCHES if continuation(text[:at], n, 1, n)]
                if matched:
                    drafted = continuation(text[:at], matched[-1], DRAFT, matched[-1])
                    follows = np.array(text[at : at + DRAFT])
                    right[matched[-1]].append(leading(follows == drafted))
        print(f"{target}: match, steps, first token right, right in a row of {DRAFT}")
        for n in sorted(right):
            counts = np.array(right[n])
            print(f"{n} {len(counts):6} {np.mean(counts > 0):8.3f} {counts.mean():8.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
