"""Draft trees of `decoding.methods`: which shape, how wide, from which measured acceptance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from analysis.fields import check_keys, key_missing, ranged, refused
from analysis.trees import topology
from analysis.trees.optimal import optimal
from analysis.trees.topology import Growth, Topology

Numbers = tuple[float, ...]
VECTOR = "acceptance"  # the key whose value is a list of numbers
WIDE = ("width", "nodes")  # keys that a shape takes or not
MOST_NODES = 4096  # of a tree: a verification reads them all
MOST_GROWN = 256  # of a tree that each call grows: nothing of it is made once for all calls
FEW = f"an integer from 1 to {MOST_NODES}"


def fits(value: int | None) -> bool:
    """Whether a tree may have so many nodes, levels or siblings; None is open."""
    return value is None or 1 <= value <= MOST_NODES


def are_rates(values: Any) -> bool:
    """Whether values are numbers, at least one; None is open."""
    return values is None or (
        isinstance(values, tuple)
        and len(values) > 0
        and all(type(value) in (int, float) for value in values)
    )


def _batch(tree: DraftTree, draft_length: int) -> Topology:
    if draft_length != 1:
        raise refused("draft_length", draft_length, "1: a batch drafts one token's alternatives")
    return topology.batch(tree.width or 0)


def _symmetric(tree: DraftTree, draft_length: int) -> Topology:
    width = tree.width or 0
    if width ** min(draft_length, MOST_NODES.bit_length()) > MOST_NODES:
        raise refused("draft_length", draft_length, f"fewer levels for a width of {width}")
    return topology.symmetric(width, draft_length)


def _dynamic(tree: DraftTree, draft_length: int) -> Growth:
    if (tree.nodes or 0) > MOST_GROWN:
        raise refused("nodes", tree.nodes, f"an integer from 1 to {MOST_GROWN}")
    growth = Growth(tree.width or 0, tree.nodes or 0, draft_length)
    if growth.read > MOST_NODES:
        raise refused("width", tree.width, f"at most {MOST_NODES} nodes with children in all")
    return growth


DYNAMIC = "dynamic"  # the tree whose nodes each call chooses
# of each kind of tree: the keys it takes, how it is printed and made
SHAPES: Mapping[str, tuple[tuple[str, ...], str, Callable[[DraftTree, int], Topology | Growth]]] = {
    "sequence": ((), "sequence", lambda _, length: topology.sequence(length)),
    "batch": (("width",), "batch of {width}", _batch),
    "symmetric": (("width",), "symmetric, {width} wide", _symmetric),
    "spec_infer": ((), "SpecInfer's tree", lambda _, length: topology.spec_infer(length)),
    "optimal": (
        ("nodes", "acceptance"),
        "tau* of {nodes}",
        lambda tree, length: optimal(tree.acceptance or (), tree.nodes or 0, length),
    ),
    DYNAMIC: (("width", "nodes"), "dynamic, {width} wide, {nodes} nodes", _dynamic),
}


@dataclass(frozen=True)
class DraftTree:
    """The shape of a method's drafts as configured, without its draft length.

    Attributes:
        shape: one of SHAPES.
        width: children of a token (batch, symmetric); of a dynamic tree also tokens with children.
        nodes: drafted tokens (optimal, dynamic).
        acceptance: R over sibling indices (optimal); None is that of stage drafts.
        measured: whether stage drafts measured it.
    """

    shape: str = ranged(f"one of {', '.join(SHAPES)}", lambda name: name in SHAPES)
    width: int | None = ranged(FEW, fits, default=None)
    nodes: int | None = ranged(FEW, fits, default=None)
    acceptance: Numbers | None = ranged("a list of numbers", are_rates, default=None)
    measured: bool = field(default=False, metadata={"configured": False})

    def __post_init__(self) -> None:
        """Take a number for a list of one."""
        if isinstance(self.acceptance, int | float | list):
            rates = self.acceptance if isinstance(self.acceptance, list) else [self.acceptance]
            numbers = (float(rate) if type(rate) is int else rate for rate in rates)
            object.__setattr__(self, "acceptance", tuple(numbers))

    def check_keys(self, where: str) -> None:
        """Check that the keys that are given are those of the shape.

        Raises:
            FieldError: a key is missing, or belongs to another shape.
        """
        keys, name = SHAPES[self.shape][0], f"tree: {self.shape}"
        given = [key for key in (*WIDE, VECTOR) if getattr(self, key) is not None]
        check_keys(given, keys, f"{where}.", name)
        for key in WIDE:
            if key in keys and key not in given:
                raise key_missing(key, f"{where}.", f"{name} takes it")

    @property
    def needs_drafts(self) -> bool:
        """Whether its shape depends on the measurements of stage drafts."""
        return "acceptance" in SHAPES[self.shape][0] and self.acceptance is None

    def with_rates(self, acceptance: Sequence[float]) -> DraftTree:
        """Return it with the acceptance that stage drafts measured."""
        return replace(self, acceptance=tuple(map(float, acceptance)), measured=True)

    @property
    def shown(self) -> str:
        """The shape as printed, without its depth."""
        rates = " ".join(f"{rate:g}" for rate in self.acceptance or ())
        given = f", R = {rates}" if rates and not self.measured else ""
        return SHAPES[self.shape][1].format(width=self.width, nodes=self.nodes) + given

    @lru_cache  # noqa: B019  frozen; what is optimal takes k^3 steps
    def topology(self, draft_length: int) -> Topology | Growth:
        """Return the tree in level order, or how it grows, of at most `draft_length` levels.

        Raises:
            ValueError: there is none.
        """
        if not fits(draft_length):
            raise refused("draft_length", draft_length, FEW)
        tree = SHAPES[self.shape][2](self, draft_length)
        if not fits(len(tree)):
            raise ValueError(
                f"the tree ({self.shown}) of draft_length={draft_length} has {len(tree)} tokens: "
                f"give one with 1 to {MOST_NODES}"
            )
        return tree.by_level() if isinstance(tree, Topology) else tree

    def to_mapping(self) -> dict[str, Any]:
        """Return the configured keys as plain values; they identify the tree."""
        given = {key: getattr(self, key) for key in SHAPES[self.shape][0]}
        if self.measured or self.needs_drafts:
            del given["acceptance"]
        lists = {key: list(value) for key, value in given.items() if isinstance(value, tuple)}
        return {"tree": self.shape, **given, **lists}
