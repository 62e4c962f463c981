"""What certificates in several divergences cover of the steps that a rule accepts.

No divergence is stronger than the others: which of them certifies a step depends on how target and
drafter differ there. So the steps that at least one of them certifies, their union, are more than
those of any one. All of it is sound: each certifies accepted steps only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Floats, PromptBootstrap
from .realised import Verdict
from .summary import Row, between_row, share_row

UNION = "union"


def coverage(found: Mapping[str, Verdict], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return what one rule's certificates cover, by divergence and by their union.

    Args:
        found: the rule's verdict by the name of the divergence; at least one.
        bootstrap: over prompts.

    Returns:
        Rows with rule, divergence (the name, or union), statistic, value, optimistic, ci_low and
        ci_high. certified: share of all steps; coverage: certified among accepted. value takes the
        lower ends of certificates, optimistic the upper ones.
    """
    verdicts = list(found.values())
    accepted, everywhere = verdicts[0].accepted, np.ones(len(verdicts[0].accepted), dtype=bool)
    ends = {name: (one.certified, one.certifiable) for name, one in found.items()}
    ends[UNION] = (
        np.any([one.certified for one in verdicts], axis=0),
        np.any([one.certifiable for one in verdicts], axis=0),
    )
    rows: list[Row] = [
        {"rule": verdicts[0].rule.label, "divergence": name, **row}
        for name, (sure, maybe) in ends.items()
        for row in (
            between_row("certified", sure, maybe, everywhere, bootstrap),
            between_row("coverage", sure, maybe & accepted, accepted, bootstrap),
        )
    ]
    return pd.DataFrame(rows)


def finite_shares(distances: Mapping[str, Floats], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the share of steps at which each divergence is finite, in rows of no rule.

    A drafter with a reduced vocabulary has an infinite KL(p || q) wherever p has other tokens.
    """
    rows: list[Row] = []
    for name, values in distances.items():
        everywhere = np.ones(len(values), dtype=bool)
        row = share_row("finite", np.isfinite(values), everywhere, bootstrap)
        rows.append({"rule": "", "divergence": name, **row})
    return pd.DataFrame(rows)
