"""Draft trees of `decoding.methods`: which shape, how wide, from which measured acceptance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from analysis.fields import check_fields, check_keys, from_mapping, key_missing, ranged, refused
from analysis.trees import topology
from analysis.trees.optimal import optimal
from analysis.trees.topology import Growth, Topology

Numbers = tuple[float, ...]
VECTOR = "acceptance"  # the key whose value is a list of numbers
MOST_NODES = 4096  # of a tree: a verification reads them all
MOST_GROWN = 256  # of a tree that each call grows: nothing of it is made once for all calls
FEW = f"an integer from 1 to {MOST_NODES}"


def fits(value: int | None) -> bool:
    """Say whether a tree may have so many nodes, levels or siblings; None is open."""
    return value is None or 1 <= value <= MOST_NODES


@dataclass(frozen=True)
class DraftTree:
    """The shape of a method's drafts as configured, without its draft length.

    Attributes:
        name: one of SHAPES.
        width: children of a token (batch, symmetric); of a dynamic tree also tokens with children.
        nodes: drafted tokens (optimal, dynamic).
        acceptance: R over sibling indices (optimal); None is that of stage drafts.
        measured: whether stage drafts measured it.
    """

    name: str
    width: int | None = ranged(FEW, fits, default=None)
    nodes: int | None = ranged(FEW, fits, default=None)
    acceptance: Numbers | None = None
    measured: bool = False

    @property
    def needs_drafts(self) -> bool:
        """Whether its shape is not known yet: it depends on what stage drafts measured."""
        return "acceptance" in SHAPES[self.name][0] and self.acceptance is None

    def with_rates(self, acceptance: Sequence[float]) -> DraftTree:
        """Return it with the acceptance that stage drafts measured."""
        return replace(self, acceptance=tuple(map(float, acceptance)), measured=True)

    @property
    def shown(self) -> str:
        """The shape as printed, without its depth."""
        rates = " ".join(f"{rate:g}" for rate in self.acceptance or ())
        given = f", R = {rates}" if rates and not self.measured else ""
        return SHAPES[self.name][1].format(width=self.width, nodes=self.nodes) + given

    @lru_cache  # noqa: B019  frozen; what is optimal takes k^3 steps
    def topology(self, draft_length: int) -> Topology | Growth:
        """Return the tree in level order, or how it grows, of at most `draft_length` levels.

        Raises:
            ValueError: there is none.
        """
        if not fits(draft_length):
            raise refused("draft_length", draft_length, FEW)
        found = SHAPES[self.name][2](self, draft_length)
        if not fits(len(found)):
            raise ValueError(
                f"the tree ({self.shown}) of draft_length={draft_length} has {len(found)} tokens: "
                f"give one with 1 to {MOST_NODES}"
            )
        return found.by_level() if isinstance(found, Topology) else found

    def to_mapping(self) -> dict[str, Any]:
        """Return what was configured, as plain values: what identifies it."""
        given = {key: getattr(self, key) for key in SHAPES[self.name][0]}
        if self.measured or self.needs_drafts:
            del given["acceptance"]
        lists = {key: list(value) for key, value in given.items() if isinstance(value, tuple)}
        return {"tree": self.name, **given, **lists}


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
    found = Growth(tree.width or 0, tree.nodes or 0, draft_length)
    if found.read > MOST_NODES:
        raise refused("width", tree.width, f"at most {MOST_NODES} nodes with children in all")
    return found


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
KEYS = ("tree", *dict.fromkeys(key for keys, *_ in SHAPES.values() for key in keys))


def build_tree(mapping: Mapping[str, Any], where: str) -> DraftTree:
    """Return the tree of an entry of `decoding.methods` from those of its keys that are about it.

    Raises:
        FieldError: the shape or a key is not known, or a value has the wrong type or range.
    """
    name = mapping["tree"]
    if not isinstance(name, str) or name not in SHAPES:
        raise refused(f"{where}.tree", name, f"one of {', '.join(SHAPES)}")
    keys = SHAPES[name][0]
    given = {key: value for key, value in mapping.items() if key != "tree"}
    check_keys(given, keys, f"{where}.", f"tree: {name}")
    for key in keys:
        if key not in given and key != "acceptance":
            raise key_missing(key, f"{where}.", f"tree: {name} takes it")
    if VECTOR in given:
        given[VECTOR] = _numbers(given[VECTOR], f"{where}.{VECTOR}")
    tree = from_mapping(DraftTree, {"name": name, **given}, f"{where}.", "tree")
    check_fields(tree, f"{where}.")
    return tree


def _numbers(value: Any, key: str) -> Numbers:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(one) in (int, float) for one in numbers):
        raise refused(key, value, "a list of numbers")
    return tuple(float(one) for one in numbers)
