"""How often a call waits for its device, counted on the CPU as if to read from it was to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from analysis.trees.topology import Topology, symmetric
from pipeline.decoding import loop
from pipeline.decoding.choices import Greedy, Noise
from pipeline.decoding.drafters import HeadDrafter, ModelDrafter, Nothing, stops
from pipeline.decoding.lookup import PromptLookup
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import Match
from pipeline.models import devices
from pipeline.models.load import LanguageModel
from pipeline.plan.method import Drafting
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, WAYS, V, greedy
from tests.pipeline.heads import random_head

TO_HOST = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__")
DYNAMIC = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2")


class Operations(TorchDispatchMode):
    """Counts operations that read a tensor to know what comes next."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        flags = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self._seen[name] += name in DYNAMIC or flags
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count what waits: `cpu` is what `devices.read` does once; all else is a mistake."""
    seen: Counter[str] = Counter()
    arrived: list[torch.Tensor] = []

    def watch(name: str, real: Any) -> Any:
        def method(self: torch.Tensor, *args: Any, **options: Any) -> Any:
            here = self.numel() == 0 or any(self is one for one in arrived)
            seen[name] += not here
            found = real(self, *args, **options)
            if name == "cpu":
                arrived.append(found)
            return found

        return method

    with monkeypatch.context() as patch:
        patch.setattr(devices, "waits", lambda _: True)
        for name in (*TO_HOST, "cpu", "numpy"):
            patch.setattr(torch.Tensor, name, watch(name, getattr(torch.Tensor, name)))
        with Operations(seen):
            yield seen


# what is drawn after a rejection is read once more; a tree that grows is chosen on the device
READS = dict.fromkeys(("sampling", "MARS, sampling", "truncated"), 2)


@pytest.mark.parametrize("name", WAYS)
def test_a_call_reads_once(
    name: str, target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And emits what it emits where nothing waits."""

    def answer(prompt: list[int]) -> loop.Answer:
        choice, verifier, tree = WAYS[name](Noise(0, "a", LIMIT, CPU, 3))
        return decode(target, ModelDrafter(drafter, choice, tree), verifier, prompt, 3, LIMIT)

    answer(PROMPTS[0])  # shapes are made once
    for prompt in PROMPTS:
        wanted = answer(prompt)
        with counted(monkeypatch) as seen:
            found = answer(prompt)
        assert (found.tokens, walk(found)) == (wanted.tokens, walk(wanted))
        reads = seen.pop("cpu")
        assert not +seen
        calls = 1 + len(found.calls)  # the prompt's too
        if name == "sampled tree":  # the two distributions after each accepted node
            assert reads == 2 * calls + sum(walk(found))
        else:
            grown = sum(call.drafted > 0 for call in found.calls) if "grown" in name else 0
            assert reads == calls * READS.get(name, 1) + grown


def walk(answer: loop.Answer) -> list[int]:
    return [call.accepted for call in answer.calls]


@pytest.mark.parametrize("source", [Nothing(CPU), PromptLookup(3, CPU)])
def test_without_a_model_only_verification_reads(
    source: Any, target: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as seen:
        calls = decode(target, source, Match(Greedy()), PROMPTS[0], 3, LIMIT).calls
    assert +seen == {"cpu": 1 + len(calls)}


@pytest.mark.parametrize("drafted", [None, torch.arange(0, V, 2)], ids=["all", "half"])
@pytest.mark.parametrize("tree", [None, symmetric(2, 3)], ids=["chain", "tree"])
def test_drafting_with_a_head_reads_nothing(
    drafted: torch.Tensor | None,
    tree: Topology | None,
    target: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_head(target, drafted)
    wanted = greedy(target, HeadDrafter(model, Greedy(), tree), PROMPTS[0], 3).tokens
    with counted(monkeypatch) as seen:
        answer = greedy(target, HeadDrafter(model, Greedy(), tree), PROMPTS[0], 3)
    assert answer.tokens == wanted
    assert +seen == {"cpu": 1 + len(answer.calls)}


def test_a_drafter_that_stops_is_asked_before_every_token(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ModelDrafter(drafter, Greedy(), None, partial(stops, Drafting("max_q", 0.2)))
    with counted(monkeypatch) as seen:
        calls = greedy(target, source, PROMPTS[0], 3).calls
    longest = [min(3, LIMIT - call.position - 1) for call in calls]
    asked = [min(call.drafted + 1, most) for call, most in zip(calls, longest, strict=True)]
    assert {call.drafted for call in calls} >= {0, 1, 3}
    assert +seen == {"cpu": 1 + len(calls) + sum(asked)}


def test_what_is_counted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(2)
    with counted(monkeypatch) as seen:
        assert one[0] > 0
        one.tolist()
        one[one > 0]
        torch.stack([one, one])[torch.tensor(1)]
        devices.read(one, one)
    assert seen["__bool__"] == seen["tolist"] == seen["index"] == seen["cpu"] == 1
    assert seen["_local_scalar_dense"] >= 1
    assert not seen["numpy"]
