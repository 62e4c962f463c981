"""The counts of an engine: for one answer, for a page of /metrics, for all answers of a file.

A *draft* that is counted is a pass of one request that verifies one; it is also named a call.

Some engines count every pass after prefill: SGLang and MLX, which verify a draft in each, and
Spec-Bench (`counted_passes`). vLLM's answers count passes with a draft only, llama.cpp's none. For
these two: prefill emits the first of the n tokens of an answer, a pass with a draft its accepted
tokens and one more, a pass without a draft one. So n - 1 - a passes follow prefill, where a is the
number of accepted tokens. The last pass may also accept tokens beyond the end of an answer
(max_tokens, a stop token): where an engine counts those, there may be up to that many more passes.

**An answer without counts says nothing about drafts.** Such counts are NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_PLACES = 1024  # tokens of a draft; more are damage
UNDRAFTED = 1.01  # tokens per pass, above which something was drafted


class EngineAnswer(NamedTuple):
    """What an engine says of one answer; None or NaN where it says nothing."""

    prompt: list[int] | None  # token ids
    tokens: list[int] | None  # token ids of the answer
    temperature: float  # of its sampling
    size: int | None  # number of tokens
    engine: str = ""  # its name; empty where nothing tells it
    drafts: float = math.nan  # calls: passes that verify a draft
    drafted: float = math.nan  # tokens
    accepted: float = math.nan  # tokens
    counted_passes: float = math.nan  # after prefill, where the engine counts all of them
    histogram: list[int] | None = None  # how many calls accepted 0, 1, ... tokens
    per_call: list[tuple[int, int]] | None = None  # (accepted, drafted), in order
    ended: bool = False  # by the model, so that all accepted tokens may lie behind its end
    seconds: float = math.nan  # of the whole request
    load: float = math.nan  # requests that were asked for at once
    source: str = ""  # of the prompt
    decode_seconds: float = math.nan  # after prefill, by the engine's clock

    def without_drafts(self) -> EngineAnswer:
        """Return the same answer with counts of 0: nothing was drafted for it."""
        return self._replace(drafts=0, drafted=0, accepted=0, histogram=[], per_call=[])

    @property
    def passes_range(self) -> tuple[float, float]:
        """The least and the most passes after prefill."""
        if not math.isnan(self.counted_passes):
            return self.counted_passes, self.counted_passes
        if self.size is None or math.isnan(self.accepted):
            return math.nan, math.nan
        least = max(self.size - 1, 0) - self.accepted
        with_draft = float(self.drafted > 0) if math.isnan(self.drafts) else self.drafts
        return max(least, with_draft), max(least + self.last_accepted, with_draft)

    @property
    def last_accepted(self) -> int:
        """The most tokens that the last call can have accepted beyond the end of the answer."""
        if self.ended:
            return int(self.accepted)
        if self.per_call:
            return self.per_call[-1][0]
        return max((place for place, times in enumerate(self.histogram or ()) if times), default=0)


@dataclass(frozen=True)
class Counts:
    """The counts of an engine, from a page or summed over answers; NaN where one is unknown.

    Passes are passes of the target for one request, also those without a draft. Counts from answers
    leave out prefill.
    """

    engine: str  # as of an answer
    drafts: float  # passes that verify a draft; 0 without a drafter
    drafted: float  # tokens
    accepted: float  # tokens, those of the target's own not counted
    by_place: Sequence[float]  # accepted at each position of a draft, empty where it is not told
    least_passes: float  # that the counts allow
    most_passes: float  # likewise
    emitted: float  # tokens of these passes
    seconds: float = math.nan  # that these passes took, added up over requests
    requests: float = math.nan  # that got a first token
    engine_steps: float = math.nan  # passes of the engine, each for one or more requests
    model: str = ""  # as a page names it
    replicas: int = 1  # engines that a page counts apart
    answers: Mapping[str, EngineAnswer] = field(default_factory=dict)  # by name; empty of a page
    excluded: Mapping[str, int] = field(default_factory=dict)  # left out, by reason

    @property
    def drafting(self) -> bool | None:
        """Whether anything was drafted; None where the counts do not tell."""
        known = [n for n in (self.drafts, self.drafted, self.accepted) if not math.isnan(n)]
        if any(known):
            return True
        return False if 0 in (self.drafts, self.drafted) else None

    @property
    def load(self) -> float:
        """How many requests a step of the engine served, on average."""
        prefills = 0.0 if math.isnan(self.requests) else self.requests
        return (self.least_passes + prefills) / (self.engine_steps or math.nan)

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """The least and the most tokens that a pass emits, of all passes."""
        least = self.emitted / (self.most_passes or math.nan)
        most = self.emitted / (self.least_passes or math.nan)
        return least, most
