"""The report's page: set-up, tables and figures with their captions, in the paper's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.report.published import CERTIFICATES
from analysis.report.table import PUBLISHED, Table
from pipeline.stages.report import shown
from pipeline.stages.report.shown import sections, setup_table

INTRODUCTION = """\
The certificate R of a decoding step is the least KL(p‖q) at which the acceptance criterion can \
reject the drafter's most probable token: a drafter with KL(p‖q) < R is accepted. A step is \
certified at ε when R > ε, strictly. Natural logarithms; "exact" means exact for the stored logits.

Every statistic is over decoding steps. Intervals (in the CSV files, columns low and high) are \
{confidence:g} % bootstrap intervals over prompts, {resamples} resamples: the steps of one prompt \
are correlated. Quantiles are observed values. In the CSV files, inf is an empty rejection region, \
value is computed from certain lower ends of the certificates and optimistic from their upper \
ends; they differ only where a certificate is known as an interval."""
PAPER = """\
Rows "{row}" repeat the paper's printed values (arXiv 2606.30265v1) where the printed name of a \
target is that of a target of the paper. They describe the paper's prompts and set-up, parts of \
which the paper does not state, and no number here is tuned to them."""
CAPTIONS = {
    "figure1": "Distribution of the probability of the most probable target token over decoding "
    "steps.",
    "figure2": "Fraction of steps whose strict greedy certificate exceeds ε. It ends at log 2, the "
    "ceiling of single-token criteria (Theorem 4.6), which very certain steps approach. "
    "Shaded: pointwise interval over prompts.",
    "figure3": "Additive relaxed certificates across t. A curve that stays above zero beyond "
    "log 2 counts the steps whose rejection region is empty, which accept every "
    "drafter. A shaded area lies between the ends of certificates known as intervals.",
    "figure4": "Multiplicative relaxed certificates across α.",
    "figure5": "Tree certificates across m. Dashed: the ceilings log(m+1) (Theorem 5.3), reached "
    "only in the limit.",
    "own": "Certificates of the rules that this study defines itself, with strict greedy where it "
    "is among the rules. Dashed: their ceilings.",
    "extremal": "A made-up target p over eight tokens and, for three criteria, the draft q* of "
    "least KL(p‖q) that can be rejected (Lemma 4.2, Theorem 5.1). Level (dashed) on the active "
    "tokens, equal to p elsewhere. Strict greedy: the second token ties with the first. Additive: "
    "the third is the first one that may be rejected, and the second, above the level, comes down "
    "with the first. Tree: the first token falls out of the three best when the third and fourth "
    "reach it; the second is above it already.",
}
WITH_GREEDY = {
    "figure5": "Tree certificates across m, with strict greedy. Dashed: the ceilings log(m+1) "
    "(Theorem 5.3), reached only in the limit, and log 2."
}
# tables of further targets come last
ORDER = (
    "table1",
    "figure1",
    "table2",
    "figure2",
    "table3",
    "figure3",
    "figure4",
    "table4",
    "figure5",
    "table5",
    "table6",
    "estimators",
    "table7",
    "own",
    "determined",
    "bounds",
    "margins",
    "extremal",
)
TITLES = {
    "determined": "What the stored tokens determine",
    "bounds": "Certificates and their bounds",
    "margins": "What the margin alone says",
    "extremal": "The closest draft that can be rejected",
    "own": "Rules of the study's own",
}


def page(
    study: str,
    setups: Mapping[str, Mapping[str, Any]],
    tables: Sequence[Table],
    figures: Collection[str],
    statistics: Mapping[str, Any],
    drafter: str,
) -> str:
    """Return the page in Markdown.

    Args:
        study: name of the study.
        setups: facts of each target, by printed name.
        tables: all tables.
        figures: file names of all figures, without suffix.
        statistics: resamples and confidence of the bootstrap.
        drafter: the part on a drafter in Markdown, empty in a study without one.
    """
    introduction = INTRODUCTION.format(
        confidence=100 * statistics["confidence"], resamples=statistics["resamples"]
    )
    parts = [shown.heading(f"Study {study}"), introduction]
    if set(setups) & set(CERTIFICATES):
        parts.append(PAPER.format(row=PUBLISHED))
    parts += ["## Set-up", setup_table(setups)]
    order = [*ORDER, *(table.name for table in tables if table.name not in ORDER)]
    # Figure 2 is there where strict greedy is among the rules
    captions = CAPTIONS | WITH_GREEDY if "figure2" in figures else CAPTIONS
    parts += sections(order, tables, figures, heading, captions)
    if drafter:
        parts.append(drafter)
    parts += [
        "## Numbers",
        "[numbers.tex](numbers.tex) holds the numbers of Tables 1 to 7 as LaTeX macros.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def heading(name: str) -> str:
    """Return "Table 2" for table2.

    >>> heading("table2"), heading("estimators")
    ('Table 2', 'Estimators')
    """
    if name in TITLES:
        return TITLES[name]
    words = name.rstrip("0123456789")
    return f"{words.capitalize()} {name[len(words) :]}".strip()
