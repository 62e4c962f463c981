"""vLLM.

| what | defined in |
|---|---|
| counts of an answer | `vllm/v1/metrics/stats.py`: RequestSpecDecodeMetrics |
| counts of drafts on a page, and in the log | `vllm/v1/spec_decode/metrics.py` |
| passes, tokens, seconds on a page | `vllm/v1/metrics/loggers.py` |
| a schedule of draft lengths | `vllm/v1/spec_decode/dynamic/utils.py` |

An answer has counts only with --per-request-spec-decode-metrics. They include tokens that the last
call accepted beyond the end of the answer. On a page all passes are the observations of
inter_token_latency_seconds: one a pass and request, after the first token, which prefill emits.
"""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import Any

from pipeline.engines.counts import UNDRAFTED, Counts, EngineAnswer
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
    check_histogram,
    field_at,
    mapping,
)

LENGTH = "num_speculative_tokens"


_field = partial(field_at, "metrics", "speculative_decoding")


class VLLMFields(AnswerFields):
    """Counts of one request."""

    drafts: Count | None = _field("num_spec_steps")
    drafted: Count | None = _field("num_draft_tokens")
    accepted: Count | None = _field("num_accepted_draft_tokens")
    histogram: list[Count] | None = _field("acceptance_histogram")
    kept: list[Count] | None = _field("per_step_accepted")
    tried: list[Count] | None = _field("per_step_drafted")

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:  # noqa: ARG002
        """Return the answer with these counts."""
        if self.drafts is None:
            return answer
        if self.accepted is None or self.drafted is None:
            raise AnswerError(
                "has num_spec_steps without num_accepted_draft_tokens, num_draft_tokens"
            )
        if self.histogram is not None:
            check_histogram(self.histogram, self.drafts, self.accepted)
        return answer._replace(
            drafts=self.drafts,
            drafted=self.drafted,
            accepted=self.accepted,
            histogram=self.histogram,
            per_call=self._per_call(),
        )

    def _per_call(self) -> list[tuple[int, int]] | None:
        """Return (accepted, drafted) of each call; None where they are not told apart."""
        if self.kept is not None and self.tried is not None:
            per_call = list(zip(self.kept, self.tried, strict=False))
        elif not self.drafts:  # vLLM then lists none
            per_call = []
        else:
            return None
        sums = len(per_call), sum(self.kept or ()), sum(self.tried or ())
        counts = self.drafts, self.accepted, self.drafted
        if sums != counts or any(kept > tried for kept, tried in per_call):
            raise AnswerError(
                f"has per_step_accepted and per_step_drafted that contradict {self.drafts} calls, "
                f"{self.accepted} accepted and {self.drafted} drafted tokens"
            )
        return per_call


class VLLM(Engine):
    """vLLM's server, `vllm run-batch` and its /inference/v1/generate."""

    name = "vLLM"
    fields = VLLMFields
    counts_remedy = "start vLLM with --per-request-spec-decode-metrics detailed"
    length_key = LENGTH
    length_flags = "--speculative-config '{{..., \"" + LENGTH + "\": {n}}}'"
    schedule_key = LENGTH + "_per_batch_size"
    figures = MappingProxyType(
        {
            "Mean acceptance length": MEAN_LENGTH,
            "Per-position acceptance rate": BY_POSITION,
            "Avg Draft acceptance rate": RATE,
        }
    )
    logs_show_engine = False
    raw_remedy = "vLLM: --logprobs-mode raw_logprobs"
    metrics_prefix = "vllm:"
    metrics = DRAFTS | {
        "inter_token_latency_seconds_count": "passes",
        "inter_token_latency_seconds_sum": "seconds",
        "time_per_output_token_seconds_count": "passes" + OTHER,
        "time_per_output_token_seconds_sum": "seconds" + OTHER,
        "generation_tokens": "tokens",
        "time_to_first_token_seconds_count": "firsts",
        "iteration_tokens_total_count": "engine_steps",
    }
    model_owner = "vllm"
    endpoint = "/v1/completions"
    version_place = ("/version", "version")
    tells_no_drafts = True

    def wrote(self, part: AnswerPart) -> bool:
        """Say whether an answer has vLLM's fingerprint or its counts of drafts."""
        if str(part.body.get("system_fingerprint")).startswith("vllm"):
            return True
        counts = mapping(mapping(part.body.get("metrics")).get("speculative_decoding"))
        return counts.get("num_spec_steps") is not None

    def page_counts(self, sums: PageSums) -> Counts:
        """Return the counts of a page."""
        passes = sums.get("passes")
        emitted = sums.get("tokens") - sums.get("firsts")
        drafts = sums.get("drafts")
        drafted = sums.get("drafted")
        accepted = sums.get("accepted")
        lacks_drafts = math.isnan(drafts) and math.isnan(drafted)
        if lacks_drafts and "tokens" in sums and not emitted > passes * UNDRAFTED:
            # the counters are there only where vLLM drafts; data-parallel, not even there before
            # its pull request 24049
            drafts = drafted = accepted = 0.0
        return Counts(
            engine=self.name,
            model=sums.model,
            drafts=drafts,
            drafted=drafted,
            accepted=accepted,
            by_place=sums.by_place,
            least_passes=passes,
            most_passes=passes,
            emitted=emitted,
            seconds=sums.get("seconds"),
            requests=sums.get("firsts"),
            engine_steps=sums.get("engine_steps"),
        )

    def request_body(self, model: str, steps: int, log_probs: int) -> dict[str, Any]:
        """Return what a completion's request has besides prompt and sampling."""
        body = {"model": model, "max_tokens": steps, "return_token_ids": True}
        if log_probs:
            body |= {"logprobs": log_probs, "return_tokens_as_token_ids": True}
        return body
