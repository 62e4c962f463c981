"""A decoding method: drafter, acceptance, draft length, temperature; its mapping and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import rules
from analysis.fields import from_mapping, keys_of, part, ranged
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.trees.topology import Growth, Topology
from pipeline.plan.draft_trees import DraftTree

DRAFTERS = {"model": "", "prompt_lookup": "prompt lookup"}
BASELINE = "autoregressive"
SPECULATIVE = "speculative"
RACES = "races"  # the sampling whose baseline needs noise of its own
ARGMAX = "argmax"  # the sampling of drafts that are not drawn, as engines do it
SAMPLINGS = {
    SPECULATIVE: "speculative sampling",
    ARGMAX: "speculative sampling, argmax drafts",
    RACES: "exponential races",
}


@dataclass(frozen=True)
class Method:
    """One way to decode; the ranges are those of a configured one, baselines have others.

    Attributes:
        drafter: model, prompt_lookup, or none for the baseline.
        draft_length: drafted tokens a call, of a tree in a row; 0 for the baseline.
        rule: the acceptance rule, None for the baseline and for sampling alone.
        sampling: the sampling scheme, None for a rule alone. A baseline has races if its methods
            race, so that its tokens come from the same race.
        temperature: 0 is greedy.
        tree: the shape of its drafts; None is a chain.
    """

    drafter: str = ranged(f"one of {', '.join(DRAFTERS)}", lambda value: value in DRAFTERS)
    draft_length: int = ranged(
        "an integer of at least 1; the autoregressive baseline is always decoded",
        lambda value: value >= 1,
    )
    rule: Rule | None = None
    sampling: str | None = ranged(
        f"one of {', '.join(SAMPLINGS)}", lambda value: value in (None, *SAMPLINGS), default=None
    )
    temperature: float = ranged("a number of at least 0", lambda value: value >= 0, default=0.0)
    tree: DraftTree | None = part(DraftTree)

    @property
    def drafts_most_probable(self) -> bool:
        """Whether it drafts the most probable tokens although it samples, as EAGLE-3 does.

        MARS draws the drafts of chains.
        """
        mars = self.rule is not None and self.tree is not None
        return self.temperature > 0 and (self.sampling == ARGMAX or mars)

    @property
    def topology(self) -> Topology | Growth | None:
        """The shape of its drafts in level order, or how it grows; None is a chain."""
        return None if self.tree is None else self.tree.topology(self.draft_length)

    @property
    def needs_drafts(self) -> bool:
        """Whether the shape of its tree depends on the measurements of stage drafts."""
        return self.tree is not None and self.tree.needs_drafts

    @property
    def name(self) -> str:
        """The method as printed in lines, without draft length and temperature."""
        if self.drafter == "none":
            scheme = BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "")
        else:
            scheme = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        return scheme + "".join(f" ({text})" for text in self._parts)

    @property
    def title(self) -> str:
        """The method as printed in tables: its rule is written as in the papers."""
        if self.rule is None:
            return self.name[:1].upper() + self.name[1:]
        return ", ".join([self.rule.title, *self._parts])

    @property
    def scheme(self) -> str:
        """How drafts are verified, as in a sentence: drafter and draft lengths are left out."""
        if self.rule is None:
            name = SAMPLINGS.get(str(self.sampling), BASELINE)
            return name + "".join(f" ({text})" for text in self._details)
        title = self.rule.title
        is_name = title[:2].isupper() or title.startswith("Medusa")
        name = title if is_name else title[:1].lower() + title[1:]
        return ", ".join([name, *self._details])

    @property
    def _parts(self) -> list[str]:
        """The drafter and how it drafts, printed behind the rule or the sampling scheme."""
        drafter = DRAFTERS.get(self.drafter, "")
        return [drafter, *self._details] if drafter else self._details

    @property
    def _details(self) -> list[str]:
        """The tree: beside the scheme, the drafter and the draft lengths."""
        details = list[str]()
        if self.tree is not None and not isinstance(self.rule, Tree):
            details.append(self.tree.shown)
        return details

    @property
    def uses_model(self) -> bool:
        """Whether the drafter of the study drafts."""
        return self.drafter == "model"

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the target, or distributed like it."""
        return self.rule is None or isinstance(self.rule, StrictGreedy | Tree)

    def to_mapping(self) -> dict[str, Any]:
        """Return the method as plain values, from which `read_method` makes it again.

        The rates that stage drafts measured for its tree are left out: artifacts determine them.
        """
        mapping: dict[str, Any] = {
            "drafter": self.drafter,
            "sampling": self.sampling,
            "draft_length": self.draft_length,
            "temperature": self.temperature,
        }
        if self.rule is not None:
            mapping["rule"] = rules.to_mapping(self.rule)
        if self.tree is not None:
            mapping |= self.tree.to_mapping()
        return mapping


def read_method(mapping: Mapping[str, Any]) -> Method:
    """Return the method of a mapping; keys of something else are ignored."""
    keys = keys_of(Method)
    given = {key: value for key, value in mapping.items() if key in keys}
    if given.get("rule") is not None:
        given["rule"] = rules.build(given["rule"])
    return from_mapping(Method, given, "", "method")


def baseline(method: Method) -> Method:
    """Return the target alone as `method` is compared with it: with the same noise.

    Races decode token for token what the target alone decodes with the same race, so they have
    a baseline of their own; all other methods of a temperature share one.
    """
    races = RACES if method.sampling == RACES else None
    return Method("none", 0, None, races, method.temperature)


def with_baselines(methods: Sequence[Method]) -> list[Method]:
    """Return the baselines of `methods`, coldest first and each once, and then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda run: (run.temperature, run.name))
    return [*alone, *methods]
