"""When a drafter stops: `drafting` of an entry of `decoding.methods`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analysis.fields import check, check_keys, from_mapping, ranged, refused


@dataclass(frozen=True)
class Drafting:
    """A drafter stops where its measure (`analysis.acceptance.confidence`) is no larger.

    Attributes:
        measure: certified, certified_tv, max_q, entropy or calibrated.
        threshold: of max_q, of the entropy in nats (it stops where that is as large), or of the
            calibrated probability; None of a certificate.
        share: of a prompt's steps that stay within the level of a certificate.
        confidence: over prompts, of that level.
    """

    measure: str
    threshold: float | None = ranged(
        "a number of at least 0", lambda value: value is None or value >= 0, default=None
    )
    share: float | None = ranged(
        "a number in (0, 1]", lambda value: value is None or 0 < value <= 1, default=None
    )
    confidence: float | None = ranged(
        "a number in (0, 1)", lambda value: value is None or 0 < value < 1, default=None
    )

    @property
    def calibrated(self) -> bool:
        """Whether it needs prompts to be calibrated on."""
        return self.measure in ("certified", "certified_tv", "calibrated")

    @property
    def shown(self) -> str:
        """The rule as printed."""
        values = {key: value for key, value in self.to_mapping().items() if key != "drafting"}
        return " ".join([self.measure, *(f"{key}={value:g}" for key, value in values.items())])

    def to_mapping(self) -> dict[str, Any]:
        """Return what was configured, as plain values: what identifies it."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return {"drafting": given.pop("measure"), **given}


WIDENS = ("certified", "certified_tv")  # measures that say how wide a tree has to be
TAKES = {  # the keys of each measure
    "certified": ("share", "confidence"),
    "certified_tv": ("share", "confidence"),
    "max_q": ("threshold",),
    "entropy": ("threshold",),
    "calibrated": ("threshold",),
}
KEYS = ("drafting", *dict.fromkeys(key for keys in TAKES.values() for key in keys))


def build_drafting(mapping: Mapping[str, Any], where: str) -> Drafting:
    """Return the rule for stopping from those keys of an entry that are about it.

    Raises:
        FieldError: the measure or a key is not known or missing, or a value out of range.
    """
    measure = mapping["drafting"]
    if measure not in TAKES:
        raise refused(f"{where}.drafting", measure, f"one of {', '.join(TAKES)}")
    given = {key: value for key, value in mapping.items() if key != "drafting"}
    check_keys(given, TAKES[measure], f"{where}.", f"drafting: {measure}")
    drafting = from_mapping(Drafting, {"measure": measure, **given}, f"{where}.", "drafting")
    check(drafting, f"{where}.")
    for key in TAKES[measure]:
        if getattr(drafting, key) is None:
            raise refused(f"{where}.{key}", None, f"a number: drafting: {measure} takes it")
    return drafting
