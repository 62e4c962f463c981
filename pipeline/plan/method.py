"""A decoding method: drafter, acceptance, draft length, temperature; its mapping and names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from analysis import rules
from analysis.beyond.clip import FAMILIES
from analysis.fields import check_keys, key_missing, ranged, refused
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.trees.topology import Growth, Topology
from pipeline.plan.draft_trees import DraftTree, build_tree

DRAFTERS = {
    "model": "",
    "prompt_lookup": "prompt lookup",
    "lookup_first": "look-up first",  # and where it finds nothing, the model
}
BASELINE = "autoregressive"
SPECULATIVE = "speculative"
RACES = "races"  # the sampling whose baseline needs noise of its own
BLOCK = "block"  # the sampling that tests a draft as a whole
BUDGET = "budget"  # the sampling that accepts most for what it departs from the target
SAMPLINGS = {
    SPECULATIVE: "speculative sampling",
    RACES: "exponential races",
    BLOCK: "block verification",
    BUDGET: "budget sampling",
}
MEASURES = ("max_q", "entropy")
BUDGETS = {  # keys of sampling: budget, one of them: the least value, and what the value is
    "c1": (1.0, "how much more than under the target a token may be emitted"),
    "ratio": (1.0, "c1 / c2, where c2 is how much less"),
    **dict.fromkeys(FAMILIES, (0.0, "the most that D(r || p) of a step may be")),
}
DRAFTING = ("drafting", "threshold")  # keys of an entry


def read_drafting(mapping: Mapping[str, Any], where: str) -> tuple[str, float]:
    """Return the rule for stopping from those keys of an entry that are about it.

    Raises:
        FieldError: the measure or a key is not known or missing, or a value out of range.
    """
    check_keys(mapping, DRAFTING, where, "drafting")
    measure, allowed = mapping["drafting"], "a number of at least 0"
    if measure not in MEASURES:
        raise refused(f"{where}drafting", measure, f"one of {', '.join(MEASURES)}")
    if "threshold" not in mapping:
        raise key_missing("threshold", where, f"give {allowed}")
    threshold = mapping["threshold"]
    if type(threshold) not in (int, float) or not 0 <= threshold < math.inf:
        raise refused(f"{where}threshold", threshold, allowed)
    return measure, float(threshold)


@dataclass(frozen=True)
class Method:
    """One way to decode; the ranges are those of a configured one, baselines have others.

    Attributes:
        drafter: model, prompt_lookup, lookup_first, or none for the baseline.
        rule: the acceptance rule, None for the baseline and for sampling alone.
        sampling: speculative, races or block, None for a rule alone; of a baseline, how the
            target chooses: races by the race of the drafting methods, None otherwise.
        draft_length: drafted tokens a call, of a tree in a row; 0 for the baseline.
        budget: a key of BUDGETS and its value, of sampling: budget.
        model_length: those of the model where look-up finds nothing; None is draft_length.
        temperature: 0 is greedy.
        tree: the shape of its drafts; None is a chain.
        drafting: a measure of the drafter's next token, max_q (its largest probability) or entropy
            (nats), and the threshold that it must exceed, or stay below; else the draft ends. None
            is never.
        top_p: which of the most probable tokens target and drafter may choose; 1 is all.
        top_k: likewise, before top_p; 0 is all.
    """

    drafter: str = ranged(f"one of {', '.join(DRAFTERS)}", lambda value: value in DRAFTERS)
    rule: Rule | None = ranged("a rule, or null", lambda _: True)  # noqa: RUF009
    sampling: str | None = ranged(
        f"one of {', '.join(SAMPLINGS)}", lambda value: value in (None, *SAMPLINGS)
    )
    draft_length: int = ranged(
        "an integer of at least 1; the autoregressive baseline is always decoded",
        lambda value: value >= 1,
    )
    temperature: float = ranged("a number of at least 0", lambda value: value >= 0)
    tree: DraftTree | None = None
    drafting: tuple[str, float] | None = None
    top_p: float = ranged("a number in (0, 1]", lambda value: 0 < value <= 1, default=1.0)
    top_k: int = ranged("an integer of at least 0", lambda value: value >= 0, default=0)
    model_length: int | None = ranged(
        "an integer of at least 1", lambda value: value is None or value >= 1, default=None
    )
    budget: tuple[str, float] | None = None

    @property
    def topology(self) -> Topology | Growth | None:
        """The shape of its drafts in level order, or how it grows; None is a chain."""
        return None if self.tree is None else self.tree.topology(self.draft_length)

    @property
    def needs_drafts(self) -> bool:
        """Whether the shape of its tree depends on what stage drafts measured."""
        return self.tree is not None and self.tree.needs_drafts

    @property
    def truncation(self) -> dict[str, float]:
        """What leaves tokens out: top_p and top_k where they do."""
        given = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0)}
        return {name: value for name, (value, all_in) in given.items() if value != all_in}

    @property
    def name(self) -> str:
        """The method as printed in lines, without draft length and temperature."""
        if self.drafter == "none":
            law = BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "")
        else:
            law = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        return law + "".join(f" ({part})" for part in self._parts) + self._cut

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
            law = SAMPLINGS.get(str(self.sampling), BASELINE)
            return law + "".join(f" ({part})" for part in self._details) + self._cut
        title = self.rule.title
        is_name = title[:2].isupper() or title.startswith("Medusa")
        law = title if is_name else title[:1].lower() + title[1:]
        return ", ".join([law, *self._details]) + self._cut

    @property
    def _parts(self) -> list[str]:
        """What is printed behind the law: the drafter, and how it drafts."""
        own = "" if self.model_length is None else f"model drafts {self.model_length}"
        return [part for part in (DRAFTERS.get(self.drafter, ""), own) if part] + self._details

    @property
    def _details(self) -> list[str]:
        """What sets a method apart beside its law, its drafter and its draft lengths."""
        details = []
        if self.budget is not None:
            details.append("{}={:g}".format(*self.budget))
        if self.tree is not None and not isinstance(self.rule, Tree):
            details.append(self.tree.shown)
        if self.drafting is not None:
            details.append(f"drafting {self.stopping}")
        return details

    @property
    def stopping(self) -> str | None:
        """When its drafter stops before the draft length, as printed."""
        return None if self.drafting is None else "{} threshold={:g}".format(*self.drafting)

    @property
    def _cut(self) -> str:
        parts = [f"{name.replace('_', '-')} {value:g}" for name, value in self.truncation.items()]
        return f" ({', '.join(parts)})" if parts else ""

    @property
    def uses_model(self) -> bool:
        """Whether the drafter of the study drafts, always or at times."""
        return self.drafter in ("model", "lookup_first")

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the target, or distributed like it."""
        exact = self.rule is None or isinstance(self.rule, StrictGreedy | Tree)
        return exact and self.budget is None


def method_mapping(method: Method) -> dict[str, Any]:
    """Return a method as plain values, from which `read_method` makes it again.

    The rates that stage drafts measured for its tree are left out: artifacts determine them.
    """
    stops = dict(zip(DRAFTING, method.drafting or (), strict=False))
    return {
        "drafter": method.drafter,
        "sampling": method.sampling,
        "draft_length": method.draft_length,
        "temperature": method.temperature,
        **({} if method.model_length is None else {"model_length": method.model_length}),
        **method.truncation,
        **dict([method.budget] if method.budget else []),
        **({} if method.rule is None else {"rule": rules.to_mapping(method.rule)}),
        **({} if method.tree is None else {"tree": method.tree.to_mapping()}),
        **({"drafting": stops} if stops else {}),
    }


def read_method(mapping: Mapping[str, Any]) -> Method:
    """Return the method of a mapping; other keys are left alone, null stands for none."""
    plain = [spec.name for spec in fields(Method) if spec.name not in (*MADE, "budget")]
    made: dict[str, Any] = {
        name: None if mapping.get(name) is None else make(mapping[name])
        for name, make in MADE.items()
    }
    budget = next(((key, mapping[key]) for key in BUDGETS if key in mapping), None)
    given = {name: mapping[name] for name in plain if name in mapping}
    return Method(**given, **made, budget=budget)


def baseline(method: Method) -> Method:
    """Return the target alone as `method` is compared with it: with the same noise.

    Races decode token for token what the target alone decodes with the same race, so they have
    a baseline of their own; all other methods of a temperature share one, and of a truncation.
    """
    races = RACES if method.sampling == RACES else None
    return Method(
        "none", None, races, 0, method.temperature, top_p=method.top_p, top_k=method.top_k
    )


def with_baselines(methods: list[Method]) -> list[Method]:
    """Return the baselines of `methods`, coldest first and each once, and then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda one: (one.temperature, one.name))
    return [*alone, *methods]


MADE: Mapping[str, Callable[[Any], Any]] = {  # fields that have mappings of their own
    "rule": rules.build,
    "tree": lambda one: build_tree(one, "tree"),
    "drafting": lambda one: read_drafting(one, "drafting."),
}
