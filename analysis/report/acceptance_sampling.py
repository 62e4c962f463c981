"""Table and figure of certified probabilities of acceptance beside measured ones."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Drawing

from ..acceptance.sampling import ARGMAX, SAMPLED, SPECULATIVE
from .figure import Figure
from .notes import few_notes
from .pairs import Pairs
from .style import LINES, RULED, TEXT, legend, logarithmic, percent, styled
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text, share_text

KINDS = {"step": "each KL", "uniform": "bound", "budget": "mean", "measured": "measured"}
NAMES = {SPECULATIVE: "Speculative sampling", ARGMAX: "Argmax drafted, speculative sampling"}


def sampling_table(pairs: Pairs) -> Table | None:
    """Certified and measured acceptance of each law; None where no answers were sampled."""
    if pairs.sampled is None or pairs.sampling.empty:
        return None
    frame = pairs.sampling[pairs.sampling["at"] == "drafter"]
    found = frame.set_index(["target", "law", "kind"])["value"].to_dict()

    def cells(law: str) -> list[Cell]:
        values = [found.get((target, law, kind)) for target in pairs.targets for kind in KINDS]
        return [Cell(UNDEFINED if value is None else share_text(value)) for value in values]

    drawn = {f"{SAMPLED}{rule}": pairs.names[rule] for rule in pairs.labels("baseline", "criteria")}
    rows = [(name, cells(law)) for law, name in NAMES.items()]
    known = set(frame["law"])
    more = [(name, cells(law)) for law, name in drawn.items() if law in known]
    means = [float(frame.loc[frame["target"] == name, "eps"].iloc[0]) for name in pairs.targets]
    return Table.side_by_side(
        "sampling",
        "Certified probabilities of acceptance",
        f"Of {pairs.drafter} at temperature {pairs.sampled:g}, at which the answers were sampled: "
        "the mean probability with which a draft is accepted, at least. Each KL: from the KL of "
        "every step; bound: if it is nowhere above the mean of "
        f"{' / '.join(number_text(mean, 3) for mean in means)} nats; mean: from this mean alone. "
        "Measured: what this drafter does.",
        "Law",
        pairs.targets,
        list(KINDS.values()),
        [
            Section("", rows),
            *([Section("A sampled draft, kept if the rule accepts it", more)] if more else []),
        ],
        frame,
        [
            f"{UNDEFINED}: what a sampled draft is in fact accepted with under a rule is not "
            "measured.",
            *few_notes(frame["prompts"]),
        ],
    )


@styled
def sampling_figure(pairs: Pairs) -> Figure | None:
    """Draw certified probabilities along the KL, and the drafter where it is."""
    if pairs.sampled is None or pairs.sampling.empty:
        return None
    frame = pairs.sampling[pairs.sampling["law"].isin(NAMES)]
    drawing = Drawing(figsize=(TEXT, 2.6), layout="constrained")
    axes = drawing.subplots(1, len(pairs.targets), sharey=True, squeeze=False)[0]
    for axis, target in zip(axes, pairs.targets, strict=True):
        part = frame[frame["target"] == target]
        for (color, _), (law, name) in zip(LINES, NAMES.items(), strict=False):
            own = part[part["law"] == law]
            for kind, style, said in (
                ("uniform", ":", "KL at every step"),
                ("budget", "-", "mean KL"),
            ):
                curve = own[(own["at"] == "curve") & (own["kind"] == kind)]
                label = f"{name}: certified, {said}"
                axis.plot(curve["eps"], curve["value"], f".{style}", color=color, label=label)
            point = own[(own["at"] == "drafter") & (own["kind"] == "measured")]
            if np.isfinite(point["eps"]).all():
                label = f"{name}: measured"
                ends = [point["value"] - point["ci_low"], point["ci_high"] - point["value"]]
                axis.errorbar(
                    point["eps"],
                    point["value"],
                    np.nan_to_num(np.stack(ends).clip(min=0)),
                    fmt="o",
                    color=color,
                    markersize=4,
                    elinewidth=0.7,
                    label=label,
                )
        axis.set_title(target)
        logarithmic(axis, "x")
        axis.set_xlabel("KL(p‖q), nats (log scale)")
        axis.set_ylim(-0.02, 1.02)
        percent(axis, "y")
        axis.grid(**RULED)
    axes[0].set_ylabel("accepted with probability")
    legend(drawing, axes[:1])
    return Figure(
        "sampling",
        "Certified probabilities of acceptance, drawn",
        "The mean probability with which every drafter is accepted whose KL is at most the given "
        "value at every step (dotted), or in the mean (solid), and what "
        f"{pairs.drafter} is accepted with (points, at its mean KL, with intervals over prompts), "
        f"at temperature {pairs.sampled:g}.",
        drawing,
        frame,
    )
