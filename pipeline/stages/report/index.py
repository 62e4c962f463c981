"""The report's first part, the certificates in the paper's order, and how to read any table.

A new table or figure of certificates takes its place in the list of `certificates_part`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report.measured import Measured
from analysis.report.published import CERTIFICATES
from analysis.report.records import Part
from analysis.report.sections.certificates import (
    estimator_table,
    run_length_table,
    table1,
    table2,
    table3,
    table4,
    table7,
)
from analysis.report.sections.certificates_extremal import extremal_figure
from analysis.report.sections.certificates_margin import margins_table
from analysis.report.sections.certificates_tables import bounds_table, determined_table
from analysis.report.sections.paper_figures import (
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    own_figure,
)
from analysis.report.table import PUBLISHED
from pipeline.stages.report.certificates import comparisons
from pipeline.stages.report.inputs import Target

INTRODUCTION = (
    "The certificate R of a decoding step is the least KL(p‖q) at which the acceptance criterion "
    "can reject the drafter's most probable token: a drafter with KL(p‖q) < R is accepted. A step "
    'is certified at ε when R > ε, strictly. Natural logarithms; "exact" means exact for the '
    "stored logits.",
    "Every statistic is over decoding steps. Intervals (ci_low and ci_high in the CSV files) are "
    "{confidence:g} % bootstrap intervals over prompts, {resamples} resamples: the steps of one "
    "prompt are correlated. Quantiles are observed values. In the CSV files, inf is an empty "
    "rejection region. A certificate may be known only as an interval. A statistic is then "
    "computed twice: value from the lower ends, which is sure, and optimistic from the upper ends. "
    "Elsewhere the two are equal.",
)
PAPER = (
    f'Rows "{PUBLISHED}" repeat the paper\'s printed values (arXiv 2606.30265v1) where the printed '
    "name of a target is that of a target of the paper. They describe the paper's prompts and "
    "set-up, parts of which the paper does not state, and no number here is tuned to them."
)


def certificates_part(targets: Sequence[Target], measured: Measured) -> Part:
    """Return the part on the certificates, with everything that it shows in the paper's order."""
    panels = {target.label: target.certificates for target in targets}
    bootstraps = {target.label: target.bootstrap for target in targets}
    compared = {target.label: comparisons(target) for target in targets}
    runs = [run_length_table(measured, at) for at in range(len(targets))]
    return Part(
        "Certificates",
        [
            table1(measured),
            figure1({target.label: target.top[:, 0] for target in targets}),
            table2(measured),
            figure2(panels, bootstraps),
            table3(measured),
            figure3(panels, bootstraps),
            figure4(panels, bootstraps),
            table4(measured),
            figure5(panels, bootstraps),
            *runs[:2],
            estimator_table(measured),
            table7(measured),
            own_figure(panels, bootstraps),
            determined_table(panels),
            bounds_table(compared),
            margins_table(compared, targets[0].runs["eps"].unique().tolist()),
            extremal_figure(),
            *runs[2:],
        ],
    )


def introduction(targets: Sequence[str], statistics: Mapping[str, Any]) -> list[str]:
    """Return what a reader of any table must know, as paragraphs.

    Args:
        targets: printed names.
        statistics: resamples and confidence of the bootstrap.
    """
    facts = {"confidence": 100 * statistics["confidence"], "resamples": statistics["resamples"]}
    paper = [PAPER] if set(targets) & set(CERTIFICATES) else []
    return [*(text.format(**facts) for text in INTRODUCTION), *paper]
