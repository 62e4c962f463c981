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

from pipeline.decoding import pair
from pipeline.decoding.choices import Noise
from pipeline.decoding.drafters import Nothing, model_drafter, stops
from pipeline.decoding.lookup import LookupFirst, PromptLookup
from pipeline.decoding.loop import Answer, decode
from pipeline.errors import PipelineError
from pipeline.models import fixed_passes as fixed
from pipeline.models.fixed_passes import COLUMN_BLOCK, FixedPass, Passes, fixed_shapes
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Text
from pipeline.plan.method import Drafting
from pipeline.plan.methods import build_methods
from pipeline.stages.decoding import compute
from pipeline.store.node import Node
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, WAYS, V
from tests.pipeline.heads import random_head

GAMMA = 4
TEXTS = [PROMPTS[1], PROMPTS[2], PROMPTS[0], PROMPTS[1]]  # long, short, repeating, long
LOOKUP = PromptLookup(2, CPU)


STOP = partial(stops, Drafting("max_q", 0.2))
OF_WAYS = ["greedy", "MARS", "sampling", "tree", "raced tree", "sampled tree", "grown tree"]
MADE = ["alone", "look-up", "look-up first", "stops"]  # besides WAYS, from a drafter that is greedy


def source_of(name: str, drafter: Any, noise: Noise, passes: Passes | None) -> tuple[Any, Any]:
    """What drafts by a way, and what verifies."""
    choice, verifier, tree = WAYS.get(name, WAYS["greedy"])(noise)
    if name in ("alone", "look-up"):
        return (Nothing(CPU) if name == "alone" else LOOKUP), verifier
    stop = STOP if name == "stops" else None
    made = model_drafter(drafter, choice, tree, stop, passes, GAMMA)
    return (LookupFirst(LOOKUP, made, 2) if name == "look-up first" else made), verifier


class Graphs:
    """Makes captures up, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captured: list[tuple[str, int]] = []  # label of the model, tokens of the pass
        monkeypatch.setattr(fixed, "captures", lambda _: True)
        monkeypatch.setattr(fixed, "captured", self._capture)

    def _capture(self, run: Any, label: str) -> Callable[[], torch.Tensor]:
        logits, owner = run(), run.__self__
        self.captured.append((label, logits.shape[1]))
        kept = owner.hidden

        def replay() -> torch.Tensor:
            logits.copy_(run())
            if kept is not None:
                owner.hidden = kept.copy_(owner.hidden)
            return logits

        return replay


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
        source, verifier = source_of(name, drafter, noise, drafts)
        gamma = 0 if name == "alone" else GAMMA
        found.append(facts(decode(target, source, verifier, text, gamma, limit, passes)))
    return found


@pytest.fixture(params=["run", "replayed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "replayed":
        Graphs(monkeypatch)


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("name", [*OF_WAYS, *MADE])
def test_fixed_shapes_decode_what_growing_ones_do(
    name: str,
    kind: str,
    target: LanguageModel,
    drafter: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
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
    drafts: Any = random_head(target) if kind == "head" else drafter
    found = answers(target, drafts, name, Passes(target), Passes(drafts))
    assert found == answers(target, drafts, name)
    assert len(lengths) > len(TEXTS)
    if name not in ("alone", "look-up"):
        assert bool(of_head) is (kind == "head")
        assert any(0 < call[3] < call[1] for _, _, calls in found for call in calls)


def test_what_an_earlier_text_left_behind_is_not_read(target: LanguageModel) -> None:
    """NaN would go through a mask."""
    head = random_head(target)
    passes, heads = Passes(target), Passes(head)
    found = answers(target, head, "greedy", passes, heads)
    with torch.inference_mode():
        for layer in (*heads.cache(1).layers, *passes.cache(1).layers):
            for states in layer._buffers:
                states.fill_(torch.nan)
    assert answers(target, head, "greedy", passes, heads) == found


@pytest.mark.parametrize("name", ["greedy", "look-up", "tree"])
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


def test_device_cache_says_whether_shapes_are_fixed() -> None:
    def made(cache: str, device: str, refusal: str | None = None) -> bool:
        named: Any = SimpleNamespace(
            device=torch.device(device), label="m", static_refusal=lambda: refusal
        )
        return fixed_shapes(cache, named)

    assert not made("auto", "cpu")
    assert made("static", "cpu")
    assert made("auto", "cuda")
    assert not made("dynamic", "cuda")
    assert not made("auto", "cuda", "it has windows")
    with pytest.raises(PipelineError, match=r"device.cache=static: m can't decode so: it has wind"):
        made("static", "cpu", "it has windows")
