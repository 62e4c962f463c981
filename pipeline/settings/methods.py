"""Decoding methods: drafter, acceptance, draft length, temperature, tree, and their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from analysis.rule_base import FIELDS_CHECKED
from analysis.rule_config import build, to_mapping
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.trees import topology
from analysis.trees.topology import DynamicTree, Topology, optimal
from analysis.validation import check_keys, checked
from pipeline.drafters import NAMES, kind_of
from pipeline.settings.criteria import rule_entries

if TYPE_CHECKING:
    from pipeline.core.stage import Task

ALONE = "none"  # the drafter of a baseline, which is the target alone
BASELINE = "autoregressive"
SPECULATIVE = "speculative"
RACES = "races"  # exponential races, whose baseline samples with the same noise
ARGMAX = "argmax"  # speculative sampling with the drafter's argmax as draft, as in engines
SAMPLINGS = {
    SPECULATIVE: "speculative sampling",
    ARGMAX: "speculative sampling, argmax drafts",
    RACES: "exponential races",
}
DYNAMIC = "dynamic"  # a tree whose nodes are chosen anew in each call
SHAPES: Mapping[str, tuple[tuple[str, ...], str]] = {  # a tree's keys, and how it is printed
    "sequence": ((), "sequence"),
    "batch": (("width",), "batch of {width}"),
    "symmetric": (("width",), "symmetric, {width} wide"),
    "spec_infer": ((), "SpecInfer's tree"),
    "optimal": (("nodes",), "tau* of {nodes}"),
    DYNAMIC: (("width", "nodes"), "dynamic, {width} wide, {nodes} nodes"),
}
MAX_NODES = 4096  # of a draft tree, which one pass of the target reads
OF_METHOD = ("drafter", "draft_length", "sampling", "temperature")
OF_TREE = ("width", "nodes")
Few = Annotated[int, Field(ge=1, le=MAX_NODES)]


@dataclass(frozen=True, config=FIELDS_CHECKED)
class DraftTree:
    """The shape of a method's drafts, without its draft length."""

    # one of SHAPES
    shape: Literal["sequence", "batch", "symmetric", "spec_infer", "optimal", "dynamic"]
    # children of a token (batch, symmetric); of a dynamic tree also tokens with children
    width: Few | None = None
    nodes: Few | None = None  # drafted tokens (optimal, dynamic)
    # acceptance rates R(1), R(2), ... of siblings (optimal), once stage drafts has measured them
    acceptance: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        present = [key for key in OF_TREE if getattr(self, key) is not None]
        keys = SHAPES[self.shape][0]
        check_keys(present, keys, f"tree: {self.shape}")
        for key in keys:
            if key not in present:
                raise ValueError(f"tree: {self.shape}: the key {key!r} is missing")

    @property
    def needs_drafts(self) -> bool:
        """Whether its shape depends on the measurements of stage drafts."""
        return self.shape == "optimal" and self.acceptance is None

    @property
    def shown(self) -> str:
        """The shape as printed, without its depth."""
        return SHAPES[self.shape][1].format(width=self.width, nodes=self.nodes)

    @lru_cache  # noqa: B019  frozen
    def topology(self, draft_length: int) -> Topology | DynamicTree:
        """Return the tree of at most `draft_length` levels, in level order, or how it grows.

        Raises:
            ValueError: there is no such tree, or it is too large.
        """
        width = self.width or 0
        nodes = self.nodes or 0
        growth = DynamicTree(width, nodes, draft_length)
        if self.shape == "batch" and draft_length > 1:
            raise ValueError(f"draft_length={draft_length} is not allowed: give 1 for tree: batch")
        size = {
            "symmetric": sum(width**level for level in range(1, draft_length + 1)),
            "spec_infer": 3 * draft_length,
            DYNAMIC: growth.nodes_read,
        }.get(self.shape, draft_length)
        if size > MAX_NODES:
            raise ValueError(
                f"{self.shown}, draft_length={draft_length} is not allowed: the drafter would read "
                f"{size:.4g} tokens a call; give a tree of at most {MAX_NODES}"
            )
        make: Mapping[str, Callable[[], Topology]] = {
            "sequence": lambda: topology.sequence(draft_length),
            "batch": lambda: topology.batch(width),
            "symmetric": lambda: topology.symmetric(width, draft_length),
            "spec_infer": lambda: topology.spec_infer(draft_length),
            "optimal": lambda: optimal(self.acceptance or (), nodes, draft_length),
        }
        return growth if self.shape == DYNAMIC else make[self.shape]().by_level()

    def to_mapping(self) -> dict[str, Any]:
        """Return the configured keys, which identify the tree, as plain values."""
        return {"tree": self.shape} | {key: getattr(self, key) for key in SHAPES[self.shape][0]}


def _drafter_name(name: str) -> str:
    allowed = (*NAMES, ALONE)
    if name not in allowed:
        raise ValueError(f"should be one of {', '.join(allowed)}")
    return name


@dataclass(frozen=True, config=FIELDS_CHECKED)
class Method:
    """A decoding method: drafter, acceptance rule or sampling scheme, draft length, tree.

    A baseline is the target alone.
    """

    # the name of a kind of `pipeline.drafters`, or none for a baseline
    drafter: Annotated[str, AfterValidator(_drafter_name)]
    # drafted tokens in a row per call, at most; 0 for a baseline
    draft_length: Annotated[int, Field(ge=0, le=MAX_NODES)]
    rule: Rule | None = None  # the acceptance rule; None for a baseline, or sampling without one
    # the sampling scheme; None for a rule. The baseline of methods with races has races, too, so
    # that both sample with the same noise
    sampling: Literal["speculative", "argmax", "races"] | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.0  # 0 is greedy
    tree: DraftTree | None = None  # the shape of its drafts; None: chains

    @property
    def drafts_most_probable(self) -> bool:
        """Whether drafts are the drafter's most probable tokens although the target samples.

        They are with `sampling: argmax`, and for a rule with a tree, as in EAGLE-3; for a rule with
        chains they are sampled.
        """
        is_rule_with_tree = self.rule is not None and self.tree is not None
        return self.temperature > 0 and (self.sampling == ARGMAX or is_rule_with_tree)

    @property
    def topology(self) -> Topology | DynamicTree | None:
        """The shape of its drafts in level order, or how a dynamic tree grows; None: chains."""
        return None if self.tree is None else self.tree.topology(self.draft_length)

    @property
    def needs_drafts(self) -> bool:
        """Whether the shape of its tree depends on the measurements of stage drafts."""
        return self.tree is not None and self.tree.needs_drafts

    @property
    def name(self) -> str:
        """The printed name, without draft length and temperature."""
        if self.drafter == ALONE:
            scheme = BASELINE + (f" ({SAMPLINGS[RACES]})" if self.sampling == RACES else "")
        else:
            scheme = self.rule.label if self.rule is not None else SAMPLINGS[str(self.sampling)]
        return scheme + "".join(f" ({text})" for text in self._drafting)

    @property
    def title(self) -> str:
        """The name in tables, with the rule as the papers write it."""
        if self.rule is None:
            return self.name[:1].upper() + self.name[1:]
        return ", ".join([self.rule.title, *self._drafting])

    @property
    def scheme(self) -> str:
        """How drafts are verified, for use in a sentence; without drafter and draft length."""
        if self.rule is None:
            name = SAMPLINGS.get(str(self.sampling), BASELINE)
            return name + "".join(f" ({text})" for text in self._shape)
        title = self.rule.title
        is_name = title[:2].isupper() or title.startswith("Medusa")
        name = title if is_name else title[:1].lower() + title[1:]
        return ", ".join([name, *self._shape])

    @property
    def _drafting(self) -> list[str]:
        drafter = "" if self.drafter == ALONE else kind_of(self.drafter).in_method_names
        return [drafter, *self._shape] if drafter else self._shape

    @property
    def _shape(self) -> list[str]:
        return [] if self.tree is None or isinstance(self.rule, Tree) else [self.tree.shown]

    @property
    def lossless(self) -> bool:
        """Whether the output equals the target's, or has its distribution."""
        return self.rule is None or isinstance(self.rule, StrictGreedy | Tree)

    def to_mapping(self) -> dict[str, Any]:
        """Return the method as plain values, for `read_method`; without measured rates."""
        mapping = {key: getattr(self, key) for key in OF_METHOD}
        if self.rule is not None:
            mapping["rule"] = to_mapping(self.rule)
        return mapping if self.tree is None else mapping | self.tree.to_mapping()


def method_entries(method: Method) -> dict[str, Any]:
    """Return a method as settings of a task; a user's rule has the digest of its file, too."""
    return method.to_mapping() | ({} if method.rule is None else rule_entries(method.rule))


def read_method(mapping: Mapping[str, Any]) -> Method:
    """Return the method that `Method.to_mapping` described; other keys are ignored."""
    rule = None if mapping.get("rule") is None else build(mapping["rule"])
    values = {key: mapping[key] for key in OF_METHOD}
    return Method(**values, rule=rule, tree=read_tree(mapping, "method"))


def methods_of(task: Task) -> list[Method]:
    """Return the methods from the entries of `method_entries` in a task's settings."""
    return [read_method(entry) for entry in task.settings["methods"]]


def baseline(method: Method) -> Method:
    """Return the target alone, with the noise that makes it comparable with `method`.

    Races yield token for token what the target alone samples with the same race, so they have a
    baseline of their own. All other methods of a temperature share one.
    """
    races: Any = RACES if method.sampling == RACES else None
    return Method(ALONE, 0, None, races, method.temperature)


def with_baselines(methods: Sequence[Method]) -> list[Method]:
    """Return the baselines of `methods`, each once and coldest first, then the methods."""
    alone = sorted({*map(baseline, methods)}, key=lambda run: (run.temperature, run.name))
    return [*alone, *methods]


def read_tree(mapping: Mapping[str, Any], where: str) -> DraftTree | None:
    """Return the draft tree in a method's mapping; a ValueError names the key, below `where`."""
    values = {key: mapping[key] for key in OF_TREE if mapping.get(key) is not None}
    if mapping.get("tree") is None:
        for key, value in values.items():
            raise ValueError(f"{where}.{key}={value} is not allowed without tree")
        return None
    return checked(DraftTree, {"shape": mapping["tree"], **values}, where)
