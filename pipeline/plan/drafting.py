"""When a drafter stops: `drafting` of an entry of `decoding.methods`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.fields import check, check_keys, from_mapping, ranged, refused

MEASURES = ("max_q", "entropy")
KEYS = ("drafting", "threshold")


@dataclass(frozen=True)
class Drafting:
    """A drafter stops where its measure of the next token is not sure enough.

    Attributes:
        measure: max_q, the largest probability, or entropy.
        threshold: max_q has to exceed it; the entropy, in nats, has to be below it.
    """

    measure: str
    threshold: float = ranged("a number of at least 0", lambda value: value >= 0)

    @property
    def shown(self) -> str:
        """The rule as printed."""
        return f"{self.measure} threshold={self.threshold:g}"

    def to_mapping(self) -> dict[str, Any]:
        """Return what was configured, as plain values: what identifies it."""
        return {"drafting": self.measure, "threshold": self.threshold}


def build_drafting(mapping: Mapping[str, Any], where: str) -> Drafting:
    """Return the rule for stopping from those keys of an entry that are about it.

    Raises:
        FieldError: the measure or a key is not known or missing, or a value out of range.
    """
    measure = mapping["drafting"]
    if measure not in MEASURES:
        raise refused(f"{where}.drafting", measure, f"one of {', '.join(MEASURES)}")
    given = {key: value for key, value in mapping.items() if key != "drafting"}
    check_keys(given, ["threshold"], f"{where}.", f"drafting: {measure}")
    if given.get("threshold") is None:
        raise refused(f"{where}.threshold", None, f"a number: drafting: {measure} takes it")
    drafting = from_mapping(Drafting, {"measure": measure, **given}, f"{where}.", "drafting")
    check(drafting, f"{where}.")
    return drafting
