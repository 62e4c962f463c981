"""A random model of a few thousand weights, plain passes of it, and decoding with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pipeline.decoding.choices import Greedy
from pipeline.decoding.loop import Answer, decode
from pipeline.decoding.verifiers import Match
from pipeline.models import load as models
from pipeline.models.load import LanguageModel

V, LIMIT = 24, 24
CPU = torch.device("cpu")
PROMPTS = [[5, 9, 5, 9, 5], list(range(3, 20)), [7]]


def tiny() -> LanguageModel:
    """A random Qwen3 whose distributions are neither flat nor certain, every time the same."""
    torch.manual_seed(0)
    shape = SimpleNamespace(hidden_size=32, layers=2, intermediate_size=48, heads=2, kv_heads=1)
    module = models.new_qwen3(shape, V)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return models.wrap(module, "tiny", CPU, "float32", (), "test")


@torch.inference_mode()
def logits(model: LanguageModel, text: list[int]) -> torch.Tensor:
    """All logits (n, V) of a text, in one pass without a cache."""
    return model.module(input_ids=torch.tensor([text]), use_cache=False).logits[0]


def plain_greedy(model: LanguageModel, prompt: list[int]) -> list[int]:
    """The answer of LIMIT tokens by one pass over the whole text for every token."""
    text = list(prompt)
    for _ in range(LIMIT):
        text.append(int(logits(model, text)[-1].argmax()))
    return text[len(prompt) :]


def greedy(target: LanguageModel, drafter: Any, prompt: list[int], gamma: int) -> Answer:
    """The answer of LIMIT tokens under strict greedy verification of gamma drafted tokens."""
    return decode(target, drafter, Match(Greedy()), prompt, gamma, LIMIT)
