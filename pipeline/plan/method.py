"""A decoding method: drafter, acceptance, draft length, temperature; its mapping and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import rules
from analysis.beyond.clip import FAMILIES
from analysis.fields import from_mapping, keys_of, part, ranged
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.trees.topology import Growth, Topology
from pipeline.plan.draft_trees import DraftTree

DRAFTERS = {"model": "", "prompt_lookup": "prompt lookup"}
BASELINE = "autoregressive"
SPECULATIVE = "speculative"
RACES = "races"  # the sampling whose baseline needs noise of its own
BLOCK = "block"  # the sampling that tests a draft as a whole
BUDGET = "budget"  # the sampling that accepts most for what it departs from the target
ARGMAX = "argmax"  # the sampling of drafts that are not drawn, as engines do it
SAMPLINGS = {
    SPECULATIVE: "speculative sampling",
    ARGMAX: "speculative sampling, argmax drafts",
    RACES: "exponential races",
    BLOCK: "block verification",
    BUDGET: "budget sampling",
}
MEASURES = ("max_q", "entropy")
LEAST = {"c1": 1.0, "ratio": 1.0} | dict.fromkeys(FAMILIES, 0.0)  # limit of a budget


@dataclass(frozen=True)
class Stopping:
    """When a drafter stops before the draft length.

    Attributes:
        measure: of its next token: max_q, its largest probability, or entropy, in nats.
        threshold: which max_q must exceed, and entropy stay below; else the draft ends.
    """

    measure: str = ranged(f"one of {', '.join(MEASURES)}", lambda value: value in MEASURES)
    threshold: float = ranged("a number of at least 0", lambda value: value >= 0)

    @property
    def shown(self) -> str:
        """The condition as printed."""
        return f"{self.measure} threshold={self.threshold:g}"


@dataclass(frozen=True)
class Budget:
    """How far `sampling: budget` may depart from the target at a step.

    Attributes:
        measure: c1, how much more than under the target a token may be emitted; ratio, c1 / c2,
            where c2 is how much less; or a divergence D(r || p) of what is emitted.
        limit: of it: at least 1 for c1 and ratio, at least 0 for a divergence.
    """

    measure: str = ranged(f"one of {', '.join(LEAST)}", lambda value: value in LEAST)
    limit: float = ranged("a number of at least 0", lambda value: value >= 0)

    @property
    def shown(self) -> str:
        """The limit as printed."""
        return f"{self.measure}={self.limit:g}"


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
        drafting: when the drafter stops before the draft length; None is never.
        top_p: which of the most probable tokens target and drafter may choose; 1 is all.
        top_k: likewise, before top_p; 0 is all.
        budget: of `sampling: budget`.
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
    drafting: Stopping | None = part(Stopping)
    top_p: float = ranged("a number in (0, 1]", lambda value: 0 < value <= 1, default=1.0)
    top_k: int = ranged("an integer of at least 0", lambda value: value >= 0, default=0)
    budget: Budget | None = part(Budget)

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
    def truncation(self) -> dict[str, float]:
        """The truncation of the distribution: top_p and top_k where they leave tokens out."""
        given = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0)}
        return {name: value for name, (value, all_in) in given.items() if value != all_in}

    @property
    def name(self) -> str:
        """The method as printed in lines, without draft length and temperature."""
        if self.drafter == "none":
            scheme = BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "")
        else:
            scheme = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        return scheme + "".join(f" ({text})" for text in self._parts) + self._cut

    @property
    def title(self) -> str:
        """The method as printed in tables: its rule is written as in the papers."""
        if self.rule is None:
            return self.name[:1].upper() + self.name[1:]
        return ", ".join([self.rule.title, *self._parts]) + self._cut

    @property
    def scheme(self) -> str:
        """How drafts are verified, as in a sentence: drafter and draft lengths are left out."""
        if self.rule is None:
            name = SAMPLINGS.get(str(self.sampling), BASELINE)
            return name + "".join(f" ({text})" for text in self._details) + self._cut
        title = self.rule.title
        is_name = title[:2].isupper() or title.startswith("Medusa")
        name = title if is_name else title[:1].lower() + title[1:]
        return ", ".join([name, *self._details]) + self._cut

    @property
    def _parts(self) -> list[str]:
        """The drafter and how it drafts, printed behind the rule or the sampling scheme."""
        drafter = DRAFTERS.get(self.drafter, "")
        return [drafter, *self._details] if drafter else self._details

    @property
    def _details(self) -> list[str]:
        """Budget, tree, stopping: beside the scheme, the drafter and the draft lengths."""
        details = [] if self.budget is None else [self.budget.shown]
        if self.tree is not None and not isinstance(self.rule, Tree):
            details.append(self.tree.shown)
        if self.drafting is not None:
            details.append(f"drafting {self.drafting.shown}")
        return details

    @property
    def _cut(self) -> str:
        parts = [f"{name.replace('_', '-')} {value:g}" for name, value in self.truncation.items()]
        return f" ({', '.join(parts)})" if parts else ""

    @property
    def uses_model(self) -> bool:
        """Whether the drafter of the study drafts."""
        return self.drafter == "model"

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the target, or distributed like it."""
        exact = self.rule is None or isinstance(self.rule, StrictGreedy | Tree)
        return exact and self.budget is None

    def to_mapping(self) -> dict[str, Any]:
        """Return the method as plain values, from which `read_method` makes it again.

        The rates that stage drafts measured for its tree are left out: artifacts determine them.
        """
        mapping: dict[str, Any] = {
            "drafter": self.drafter,
            "sampling": self.sampling,
            "draft_length": self.draft_length,
            "temperature": self.temperature,
            **self.truncation,
        }
        if self.rule is not None:
            mapping["rule"] = rules.to_mapping(self.rule)
        if self.tree is not None:
            mapping |= self.tree.to_mapping()
        if self.drafting is not None:
            mapping |= {"drafting": self.drafting.measure, "threshold": self.drafting.threshold}
        if self.budget is not None:
            mapping |= {"budget": self.budget.measure, "limit": self.budget.limit}
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
    a baseline of their own; all other methods of a temperature share one, and of a truncation.
    """
    races = RACES if method.sampling == RACES else None
    t, top_p, top_k = method.temperature, method.top_p, method.top_k
    return Method("none", 0, None, races, t, top_p=top_p, top_k=top_k)


def with_baselines(methods: Sequence[Method]) -> list[Method]:
    """Return the baselines of `methods`, coldest first and each once, and then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda run: (run.temperature, run.name))
    return [*alone, *methods]
