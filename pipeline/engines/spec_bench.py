"""Answers that Spec-Bench's scripts wrote, of whatever engine they ran.

Its `evaluation/eval.py` defines accept_lengths: the tokens that each pass emitted.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipeline.engines.counts import MAX_PLACES, EngineAnswer
from pipeline.engines.engine_base import AnswerFields, AnswerPart, Engine


class SpecBenchFields(AnswerFields):
    """Counts of the turns of one question."""

    accept_lengths: list[Annotated[int, Field(ge=1, le=MAX_PLACES + 1)]]

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:  # noqa: ARG002
        """Return the answer with these counts."""
        passes = len(self.accept_lengths)
        tokens = sum(self.accept_lengths)
        return answer._replace(size=1 + tokens, accepted=tokens - passes, counted_passes=passes)


class SpecBench(Engine):
    """The answers that Spec-Bench's scripts write."""

    name = "Spec-Bench"
    fields = SpecBenchFields

    def wrote(self, part: AnswerPart) -> bool:
        """Say whether an answer has the tokens of each pass."""
        return part.is_choice and part.content.get("accept_lengths") is not None

    def field_places(self, part: AnswerPart) -> dict[str, Any]:
        """Return an answer with the tokens of each pass."""
        return {**super().field_places(part), "accept_lengths": part.content["accept_lengths"]}
