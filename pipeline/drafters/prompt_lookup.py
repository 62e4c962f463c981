"""Prompt look-up (n-gram drafting): copies what followed an earlier match in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from analysis.decoding.lookup import MATCHES_DIFFER, continuation
from pipeline.drafters.drafter_base import TextDrafter

if TYPE_CHECKING:
    from pipeline.core.stage import Json

ENGINES = {  # by decoding.lookup_match
    "earliest": "vLLM (ngram)",
    "latest": f"vLLM, llama.cpp (n-gram; {MATCHES_DIFFER})",
}


class PromptLookup(TextDrafter):
    """Drafts the `continuation` of an earlier occurrence of the last few tokens."""

    name: ClassVar[str] = "prompt_lookup"
    in_method_names: ClassVar[str] = "prompt lookup"
    in_sentences: ClassVar[str] = "prompt look-up"

    def __init__(self, longest: int, match: str = "latest") -> None:
        """Match at most `longest` tokens, at their "latest" or "earliest" occurrence."""
        self._longest = longest
        self._match = match

    @classmethod
    def engines(cls, settings: Json) -> str:
        """Return the engines that run look-up."""
        return ENGINES[settings["lookup_match"]]

    @classmethod
    def load(cls, settings: Json, prompts: Sequence[Sequence[int]]) -> PromptLookup:  # noqa: ARG003
        """Make one from the settings of decoding."""
        return cls(settings["lookup"], settings["lookup_match"])

    def draft(self, text: Sequence[int], count: int) -> list[int]:
        """Draft up to `count` tokens that followed the match; none without a match."""
        return continuation(text, self._longest, count, self._match)
