"""Table and figure of certified probabilities of acceptance beside measured ones."""

from __future__ import annotations

from ..acceptance.sampling import ARGMAX, SAMPLED, SPECULATIVE
from .notes import few_notes
from .pairs import Pairs
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
