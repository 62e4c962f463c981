"""llama.cpp.

| what | defined in |
|---|---|
| counts of an answer | `tools/server/server-task.cpp`: result_timings::to_json |
| figures in the log | `tools/server/server-context.cpp`: print_timings |
| a page | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics |

llama.cpp cuts drafts to what an answer may still have (`get_n_draft_max`), so a call accepts tokens
beyond the end of an answer at a stop token only (`post_decode` in `server-context.cpp`). It leaves
draft_n out where it is 0. On a page all passes are n_decode_total times n_busy_slots_per_decode:
prefill's are among them, as is the first token of each answer among tokens_predicted_total.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from pipeline.engines.counts import Counts, EngineAnswer
from pipeline.engines.engine_base import (
    BY_POSITION,
    DRAFTS,
    MEAN_LENGTH,
    OTHER,
    RATE,
    AnswerError,
    AnswerFields,
    AnswerPart,
    Count,
    Engine,
    PageSums,
    field_at,
    mapping,
)

FINGERPRINT = re.compile(r"b\d+-[0-9a-f]+")  # build and commit
SAMPLED = "holds probabilities after sampling: log with post_sampling_probs=false"
PROCESSED = {
    "backend_sampling": "was sampled in the backend, where the softmax may be over the sampled "
    "candidates only: log with backend_sampling=false",
    "post_sampling_probs": SAMPLED,
}
ENDED = ("eos", "word", "stop")  # why the model, and not a limit, ended an answer
OWN_TIMINGS = {"predicted_n", "draft_n"}
LENGTH = "--spec-draft-n-max"


_field = partial(field_at, "timings")


class TimingFields(AnswerFields):
    """Counts and seconds in `timings`."""

    predicted_n: Count | None = _field("predicted_n")
    predicted_ms: Annotated[float, Field(ge=0, le=1e9)] | None = _field("predicted_ms")
    draft_n: Count | None = _field("draft_n")
    draft_n_accepted: Count | None = _field("draft_n_accepted")

    @property
    def size(self) -> int | None:
        """The number of tokens."""
        return self.predicted_n

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:
        """Return the answer with these counts, and the seconds after prefill."""
        answer = answer._replace(decode_seconds=(self.predicted_ms or 0.0) / 1000 or math.nan)
        if self.draft_n is None:
            return answer
        if self.draft_n_accepted is None:
            raise AnswerError("has draft_n without draft_n_accepted")
        reasons = part.body.get("stop_type"), part.content.get("finish_reason")
        return answer._replace(
            drafted=self.draft_n,
            accepted=self.draft_n_accepted,
            ended=any(reason in ENDED for reason in reasons),
        )


class LlamaFields(TimingFields):
    """Those of llama.cpp."""

    cache_n: Count | None = _field("cache_n")  # since August 2025
    tokens_predicted: Count | None = None

    @property
    def size(self) -> int | None:
        """The number of tokens."""
        return self.predicted_n or self.tokens_predicted

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:
        """Return the answer with these counts."""
        answer = super().add_counts(answer, part)
        counts_drafts = self.cache_n is not None and self.predicted_n is not None
        if self.draft_n is None and counts_drafts:
            return answer.without_drafts()
        return answer


class LlamaCpp(Engine):
    """llama.cpp's server: its /completion, and the endpoints that are OpenAI's."""

    name = "llama.cpp"
    fields = LlamaFields
    counts_remedy = "take a newer llama.cpp"
    cuts_drafts_at_limit = True
    length_key = LENGTH
    length_flags = LENGTH + " {n}"
    figures = MappingProxyType(
        {"mean len": MEAN_LENGTH, "acc per pos": BY_POSITION, "draft acceptance": RATE}
    )
    raw_remedy = "llama.cpp: post_sampling_probs=false, backend_sampling=false"
    processed = PROCESSED
    softmax_error_per_token = 2.0**-24  # its softmax adds the vocabulary up one by one, in float32
    metrics_prefix = "llamacpp:"
    metrics_flag = "--metrics"
    metrics = DRAFTS | {
        "n_decode": "engine_steps",
        "n_busy_slots_per_decode": "slots",
        "tokens_predicted": "tokens",
        "tokens_predicted_seconds": "seconds",
        "draft_verify_steps": "drafts" + OTHER,
        "draft_tokens": "drafted" + OTHER,
        "draft_tokens_accepted": "accepted" + OTHER,
    }
    gauges = frozenset({"slots"})
    counts_prefill = True
    decoding_waits = True
    model_owner = "llamacpp"
    endpoint = "/completion"
    version_place = ("/props", "build_info")

    def wrote(self, part: AnswerPart) -> bool:
        """Say whether an answer has its layout, fingerprint, timings or ids of logged tokens."""
        if not part.is_choice:
            return self.has_layout(part.body)
        if FINGERPRINT.fullmatch(str(part.body.get("system_fingerprint"))):
            return True
        if not OWN_TIMINGS.isdisjoint(mapping(part.body.get("timings"))):
            return True
        content = part.log_probs.get("content")
        return isinstance(content, list) and any("id" in mapping(entry) for entry in content)

    def has_layout(self, body: Mapping[str, Any]) -> bool:
        """Say whether an object is an answer of /completion."""
        return "completion_probabilities" in body or {"content", "stop"} <= set(body)

    def field_places(self, part: AnswerPart) -> dict[str, Any]:
        """Return an answer with its token ids."""
        ids = part.content.get("token_ids" if part.is_choice else "tokens")
        return {**part.body, "ids": ids}

    def logged_entries(self, part: AnswerPart) -> Sequence[Any]:
        """Return the log-probabilities of an answer of /completion."""
        entries: Sequence[Any] | None = part.body.get("completion_probabilities")
        if entries is None:
            raise AnswerError("has no completion_probabilities: ask for n_probs=N")
        return entries

    def page_counts(self, sums: PageSums) -> Counts:
        """Return the counts of a page; older ones have none of drafts."""
        engine_steps = sums.get("engine_steps")
        passes = engine_steps * sums.get("slots", 1.0)
        return Counts(
            engine=self.name,
            model=sums.model,
            drafts=sums.get("drafts"),
            drafted=sums.get("drafted"),
            accepted=sums.get("accepted"),
            by_place=sums.by_place,
            least_passes=passes,
            most_passes=passes,
            emitted=sums.get("tokens"),
            seconds=sums.get("seconds"),
            engine_steps=engine_steps,
        )

    def request_body(self, model: str, steps: int, log_probs: int) -> dict[str, Any]:  # noqa: ARG002
        """Return what a request to /completion has besides prompt and sampling."""
        body: dict[str, Any] = {"n_predict": steps, "return_tokens": True, "cache_prompt": False}
        body |= {"samplers": ["top_k", "top_p", "temperature"], "repeat_penalty": 1.0}
        if log_probs:
            body |= {"n_probs": log_probs, "backend_sampling": False}
        return body
