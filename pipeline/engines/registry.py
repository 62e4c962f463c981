"""The engines. To add one, write a class in a file beside this one and list it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.engines.engine_base import AnswerPart, Engine
from pipeline.engines.llama_cpp import LlamaCpp
from pipeline.engines.mlx import MLX
from pipeline.engines.sglang import SGLang
from pipeline.engines.spec_bench import SpecBench
from pipeline.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (VLLM(), SGLang(), MLX(), LlamaCpp(), SpecBench())
UNKNOWN = Engine()  # a server with OpenAI's layout that does not say what it is


def engine_of(part: AnswerPart) -> Engine:
    """Return the engine whose marks an answer has, `UNKNOWN` where it has none."""
    return next((engine for engine in ENGINES if engine.wrote(part)), UNKNOWN)


def engine_named(name: str) -> Engine:
    """Return the engine of a name, `UNKNOWN` where there is none."""
    return next((engine for engine in ENGINES if engine.name == name), UNKNOWN)


def served_engines() -> str:
    """Return the names of the engines that `pipeline.ask` asks."""
    return " or ".join(engine.name for engine in ENGINES if engine.model_owner)


def engines_with_pages() -> str:
    """Return the engines whose pages are read, with the flag that makes a server have one."""
    pages = [f"{engine.name} {engine.metrics_flag}" for engine in ENGINES if engine.metrics]
    return ", or of ".join(page.strip() for page in pages)


def has_own_layout(body: Mapping[str, Any]) -> bool:
    """Say whether an object without `choices` is an answer of one of the engines."""
    return any(engine.has_layout(body) for engine in ENGINES)


def counts_remedy(engine: Engine) -> str:
    """Return how an engine is made to count drafts in its answers; of an unknown one all ways."""
    if engine is UNKNOWN:
        return ", ".join(one.counts_remedy for one in ENGINES if one.counts_remedy)
    return engine.counts_remedy or f"take a newer {engine.name}"


def raw_remedy(engine: Engine) -> str:
    """Return how an engine is made to log the model's own values."""
    ways = engine.raw_remedy
    if not ways:
        ways = "; ".join(one.raw_remedy for one in ENGINES if not one.logs_show_engine)
    return f"log raw values ({ways})"
