"""Passes of fixed shapes emit what growing ones do, and their graphs are made once.

Graphs are made up: one writes into the results of its capture, as CUDA's do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from analysis.rules import Mars
from analysis.trees.topology import Growth, Topology, batch
from pipeline.decoding import pair
from pipeline.decoding.choices import DRAFT, DrawnRace, Greedy, Inversion, Noise, Race
from pipeline.decoding.drafters import Drafter, HeadDrafter, ModelDrafter, Nothing, stops
from pipeline.decoding.lookup import LookupFirst, PromptLookup
from pipeline.decoding.loop import Answer, decode
from pipeline.decoding.verifiers import Match, Relaxed, SpeculativeSampling, TreeSampling
from pipeline.errors import PipelineError
from pipeline.models import fixed_passes as fixed
from pipeline.models.fixed_passes import COLUMN_BLOCK, FixedPass, Passes
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel, fixed_shapes
from pipeline.models.passes import Text
from pipeline.plan.method import Drafting
from pipeline.plan.methods import build_methods
from pipeline.stages.decoding import compute
from pipeline.store.node import Node
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, V
from tests.pipeline.heads import random_head

GAMMA = 4
STOP = partial(stops, Drafting("max_q", 0.2))
TEXTS = [PROMPTS[1], PROMPTS[2], PROMPTS[0], PROMPTS[1]]  # long, short, repeating, long
UNEVEN = Topology((-1, -1, -1, 0, 0, 1, 3, 5, 5, 7))
LOOKUP = PromptLookup(2, CPU)
Capture = Callable[[Callable[[], torch.Tensor], str], Any]


def strict(_: Noise) -> Match:
    return Match(Greedy())


# what drafts, from target, drafter, noise and the drafter's passes; what verifies
METHODS: dict[str, tuple[Any, Any]] = {
    "alone": (lambda *_: Nothing(CPU), strict),
    "chain": (lambda t, d, n, p: ModelDrafter(d, Greedy(), passes=p), strict),
    "MARS": (lambda t, d, n, p: ModelDrafter(d, Greedy(), passes=p), lambda n: Relaxed(Mars(0.5))),
    "sampling": (
        lambda t, d, n, p: ModelDrafter(d, Inversion(0.8, n, DRAFT), passes=p),
        lambda n: SpeculativeSampling(0.8, n),
    ),
    "look-up": (lambda *_: LOOKUP, strict),
    "look-up first": (
        lambda t, d, n, p: LookupFirst(LOOKUP, ModelDrafter(d, Greedy(), passes=p), 2),
        strict,
    ),
    "stops": (lambda t, d, n, p: ModelDrafter(d, Greedy(), None, STOP, p), strict),
    "tree": (lambda t, d, n, p: ModelDrafter(d, Greedy(), UNEVEN, None, p), strict),
    "wide tree": (lambda t, d, n, p: ModelDrafter(d, Greedy(), batch(4), None, p), strict),
    "racing tree": (
        lambda t, d, n, p: ModelDrafter(d, Race(0.8, n), UNEVEN, None, p),
        lambda n: Match(Race(0.8, n)),
    ),
    "sampled tree": (
        lambda t, d, n, p: ModelDrafter(d, DrawnRace(0.8, n), UNEVEN, None, p),
        lambda n: TreeSampling(0.8, n),
    ),
    "grown tree": (lambda t, d, n, p: ModelDrafter(d, Greedy(), Growth(3, 7, 4), None, p), strict),
    "head": (lambda t, d, n, p: HeadDrafter(d, Greedy(), passes=p, draft_length=GAMMA), strict),
    "head, short passes": (lambda t, d, n, p: HeadDrafter(d, Greedy(), passes=p), strict),
    "head, sampling": (
        lambda t, d, n, p: HeadDrafter(d, Inversion(0.8, n, DRAFT), None, None, p, GAMMA),
        lambda n: SpeculativeSampling(0.8, n),
    ),
    "head, look-up first": (
        lambda t, d, n, p: LookupFirst(LOOKUP, HeadDrafter(d, Greedy(), None, None, p, GAMMA), 2),
        strict,
    ),
    "head's tree": (lambda t, d, n, p: HeadDrafter(d, Greedy(), UNEVEN, None, p, 5), strict),
    "head's sampled tree": (
        lambda t, d, n, p: HeadDrafter(d, DrawnRace(0.8, n), UNEVEN, None, p, 5),
        lambda n: TreeSampling(0.8, n),
    ),
    "head's grown tree": (
        lambda t, d, n, p: HeadDrafter(d, Greedy(), Growth(3, 7, 4), None, p, 4),
        strict,
    ),
}


class Graphs:
    """Makes captures up, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, works: bool = True) -> None:
        self.captured: list[tuple[str, int]] = []  # label of the model, tokens of the pass
        self._works = works
        monkeypatch.setattr(fixed, "captures", lambda _: True)
        monkeypatch.setattr(fixed, "captured", self._capture)

    def _capture(self, run: Any, label: str) -> Callable[[], torch.Tensor] | None:
        logits, owner = run(), run.__self__
        self.captured.append((label, logits.shape[1]))
        kept = owner.hidden

        def replay() -> torch.Tensor:
            logits.copy_(run())
            if kept is not None:
                owner.hidden = kept.copy_(owner.hidden)
            return logits

        return replay if self._works else None


def facts(answer: Answer) -> tuple[Any, ...]:
    calls = [(c.position, c.drafted, c.tested, c.accepted, c.levels) for c in answer.calls]
    return answer.tokens, answer.ended, calls


def answers(
    target: LanguageModel,
    drafter: LanguageModel | HiddenDrafter,
    name: str,
    passes: Passes | None = None,
    drafts: Passes | None = None,
    limit: int = LIMIT,
) -> list[tuple[Any, ...]]:
    """The answers to all texts by one method, one after the other."""
    found = []
    for at, text in enumerate(TEXTS):
        noise = Noise(0, str(at), LIMIT, CPU, GAMMA)
        source: Drafter = METHODS[name][0](target, drafter, noise, drafts)
        gamma = 0 if name == "alone" else GAMMA
        verifier = METHODS[name][1](noise)
        found.append(facts(decode(target, source, verifier, text, gamma, limit, passes)))
    return found


@pytest.fixture(params=["run", "replayed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "replayed":
        Graphs(monkeypatch)


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", METHODS)
def test_fixed_shapes_decode_what_growing_ones_do(
    name: str, target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the columns hold that are not in use."""
    real = FixedPass.__call__
    lengths, of_head = [], []

    def poisoned(self: FixedPass, ids: Any, length: int, *rest: Any) -> torch.Tensor:
        for layer in self._cache.layers:
            layer.keys[:, :, length:] = 100.0
            layer.values[:, :, length:] = -1000.0
        if isinstance(self._model, HiddenDrafter):
            of_head.append(ids.shape[1])
        else:
            lengths.append(length)
        return real(self, ids, length, *rest)

    monkeypatch.setattr(FixedPass, "__call__", poisoned)
    head = name.startswith("head")
    drafts: Any = random_head(target) if head else drafter
    fixed_drafts = Passes(drafts)
    found = answers(target, drafts, name, Passes(target), fixed_drafts)
    assert found == answers(target, drafts, name)
    assert len(lengths) > len(TEXTS)
    assert bool(of_head) is head
    if head and name != "head, short passes":
        assert max(of_head) > 2
    if name not in ("alone", "look-up"):
        assert any(0 < call[3] < call[1] for _, _, calls in found for call in calls)


def test_what_an_earlier_text_left_behind_is_not_read(target: LanguageModel) -> None:
    """NaN would go through a mask."""
    head = random_head(target)
    passes, heads = Passes(target), Passes(head)
    found = answers(target, head, "head", passes, heads)
    with torch.inference_mode():
        for layer in (*heads.cache(1).layers, *passes.cache(1).layers):
            for states in layer._buffers:
                states.fill_(torch.nan)
    assert answers(target, head, "head", passes, heads) == found


@pytest.mark.parametrize("name", ["chain", "look-up", "tree"])
def test_answers_end_where_growing_shapes_end_them(
    name: str, target: LanguageModel, drafter: LanguageModel
) -> None:
    free = answers(target, drafter, "alone")[0][0]
    ended = replace(target, eos=(free[6],))
    passes, drafts = Passes(ended), Passes(drafter)
    for limit in (1, 2, 5, 12):
        found = answers(ended, drafter, name, passes, drafts, limit)
        assert found == answers(ended, drafter, name, limit=limit)
    assert any(one[1] for one in found)


@pytest.mark.thorough
@pytest.mark.parametrize("works", [True, False])
def test_a_pass_is_captured_once_for_all_answers(
    works: bool, target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that fails is not tried again, and the passes are run."""
    graphs = Graphs(monkeypatch, works)
    target, drafter = replace(target, label="t"), replace(drafter, label="d")
    passes, drafts = Passes(target), Passes(drafter)
    assert not passes.graph
    for _ in range(2):
        assert answers(target, drafter, "chain", passes, drafts) == answers(
            target, drafter, "chain"
        )
    assert graphs.captured == [("t", 1), ("t", 1 + GAMMA), ("d", 1), ("d", 2)]
    head = random_head(target)
    heads = Passes(head)
    assert not heads.graph
    answers(target, head, "head", passes, heads)  # the target's hidden states are kept
    assert graphs.captured[4:] == [("t", 1), ("t", 1 + GAMMA), ("head", 1), ("head", 1 + GAMMA)]
    answers(target, drafter, "grown tree", passes, drafts)
    assert graphs.captured[8:] == [("t", 1 + 7), ("d", 3)]
    assert passes.graph is drafts.graph is heads.graph is works


@torch.inference_mode()
def test_a_longer_text_takes_a_larger_cache_and_new_graphs(
    target: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs(monkeypatch)
    passes = Passes(target)
    for columns, made in (
        (9, 1),
        (COLUMN_BLOCK - 4, 1),
        (COLUMN_BLOCK - 3, 2),
        (20, 2),
        (3 * COLUMN_BLOCK, 3),
    ):
        sequence = Text(target, columns, (), 4, passes)
        assert len(graphs.captured) == 2 * made
    assert sequence.cache.layers[0]._capacity == 4 * COLUMN_BLOCK
    expecting = Passes(target)
    expecting.expect(2 * COLUMN_BLOCK)
    sequence = Text(target, 9, (), 4, expecting)
    assert sequence.cache.layers[0]._capacity == 2 * COLUMN_BLOCK


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["model", "head"])
def test_nothing_is_captured_once_answers_are_timed(
    kind: str, target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the record says what was."""
    graphs = Graphs(monkeypatch)
    drafts = drafter if kind == "model" else random_head(target)
    monkeypatch.setattr(pair, "load_pair", lambda *_: (target, drafts))
    rows = [{"prompt_id": "a", "token_ids": [3]}, {"prompt_id": "b", "token_ids": [5, 6] * 100}]

    def loaded(cache: str) -> pair.DecodingPair:
        settings: dict[str, Any] = {"label": "a", "cache": cache}
        given = {"drafter": "model", "rule": "greedy", "draft_length": 8, "temperature": 0}
        trees = {"tree": "symmetric", "width": 2, "draft_length": 4}
        methods = build_methods([given, given | trees])
        return pair.load_decoding_pair(
            Node("decoding", "a", {"seed": 0, "lookup": 2},
                 settings={"target": settings, "drafter": settings, "methods": methods}),
            V, 40,
        )  # fmt: skip

    def decoded(one: pair.DecodingPair) -> list[list[int]]:
        runs = [(method, row) for row in rows for method in one.runs]
        return [pair.decode_timed(one, method, row, 40)[0].tokens for method, row in runs]

    growing, static = loaded("dynamic"), loaded("static")
    compute.warm_up(static, rows)
    made = len(graphs.captured)
    widths = Counter(width for _, width in graphs.captured)
    expected = {"model": [1, 1, 2, 8, 9, 31], "head": [1, 1, 1, 8, 9, 9, 31]}[kind]
    assert sorted(widths.elements()) == expected
    assert decoded(static) == decoded(growing)
    assert len(graphs.captured) == made
    of_models = {"target": True, "drafter": True}
    assert pair.shape_facts(static) == {"static_shapes": of_models, "cuda_graph": of_models}
    none = {"target": False, "drafter": False}
    assert pair.shape_facts(growing) == {"static_shapes": none, "cuda_graph": none}


def test_device_cache_says_whether_shapes_are_fixed(target: LanguageModel) -> None:
    def model(device: str, refusal: str | None) -> Any:
        return SimpleNamespace(
            device=torch.device(device), label="m", static_refusal=lambda: refusal
        )

    for device, cache, made in (
        ("cpu", "auto", False),
        ("cpu", "static", True),
        ("cuda", "auto", True),
        ("cuda", "dynamic", False),
    ):
        assert fixed_shapes(cache, model(device, None)) is made
    assert not fixed_shapes("auto", model("cuda", "it has windows"))
    assert not fixed_shapes("dynamic", model("cuda", "it has windows"))
    with pytest.raises(PipelineError, match=r"device.cache=static: m can't decode so: it has wind"):
        fixed_shapes("static", model("cpu", "it has windows"))
