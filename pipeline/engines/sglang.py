"""SGLang: answers only.

Counts are defined in `managers/tokenizer_manager.py`: _calculate_spec_decoding_metrics, and
`SpecTokensDetails`; their names changed between versions. Its /generate has them in meta_info, its
chat in sglext or meta_info, and there only where the request asks. Early versions count calls only.
SGLang verifies a draft in every pass after prefill, so its calls are all passes. The figures of its
log are in `managers/scheduler_metrics_mixin.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import AliasChoices, AliasPath, Field

from pipeline.engines.counts import EngineAnswer
from pipeline.engines.engine_base import (
    MEAN_LENGTH,
    RATE,
    AnswerError,
    AnswerFields,
    AnswerPart,
    Count,
    Engine,
    check_histogram,
    mapping,
)

COUNTS = "sglang counts"  # where `SGLang.field_places` puts the object that has them
PROCESSED = {
    name: f"has processed log-probabilities: log with {name}=false"
    for name in ("temp_scaled_logprobs", "top_p_normalized_logprobs")
}
CALLS = "spec_verify_ct"


def _field(*names: str) -> Any:
    """Return a field of the counts, under one of the names that it had."""
    paths = [AliasPath(COUNTS, name) for name in names]
    return Field(default=None, validation_alias=AliasChoices(*paths))


class SGLangFields(AnswerFields):
    """Counts of one request."""

    tokens: Count | None = _field("completion_tokens")
    drafts: Count | None = _field(CALLS)
    drafted: Count | None = _field(
        "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"
    )
    accepted: Count | None = _field(
        "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"
    )
    histogram: list[Count] | None = _field("spec_correct_drafts_histogram", "spec_accept_histogram")

    @property
    def size(self) -> int | None:
        """The number of tokens."""
        return self.tokens

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:  # noqa: ARG002
        """Return the answer with these counts.

        Where accepted tokens are left out, they follow from the size; NaN without a size.
        """
        if not self.drafts:
            return answer
        if self.histogram:
            check_histogram(self.histogram, self.drafts, self.accepted)
        accepted: float | None = self.accepted
        if accepted is None:
            accepted = math.nan
            if answer.size is not None:  # each pass emits its accepted tokens and one more
                accepted = max(answer.size - 1 - self.drafts, 0)
        return answer._replace(
            drafts=self.drafts,
            drafted=math.nan if self.drafted is None else self.drafted,
            accepted=accepted,
            counted_passes=self.drafts,
            histogram=self.histogram or None,
        )


class SGLang(Engine):
    """SGLang's server: its /generate, and the endpoints that are OpenAI's."""

    name = "SGLang"
    fields = SGLangFields
    counts_remedy = 'send SGLang "return_spec_tokens_details": true with each request'
    leaves_out_zeros = False  # the request may not have asked for them
    counts_full_drafts = False  # they end at the longest accepted draft; a tree has more tokens
    length_key = "--speculative-num-steps"
    length_flags = (
        "--speculative-num-steps {n} --speculative-num-draft-tokens {more} "
        "--speculative-eagle-topk 1"
    )
    figures = MappingProxyType({"accept len": MEAN_LENGTH, "accept rate": RATE})
    logs_show_engine = False
    raw_remedy = "SGLang: SGLANG_RETURN_ORIGINAL_LOGPROB=1"
    processed = PROCESSED
    metrics_prefix = "sglang:"

    def wrote(self, part: AnswerPart) -> bool:
        """Say whether an answer has what only SGLang adds."""
        return "meta_info" in part.body or "sglext" in part.body or "meta_info" in part.content

    def has_layout(self, body: Mapping[str, Any]) -> bool:
        """Say whether an object is an answer of /generate."""
        return isinstance(body.get("meta_info"), Mapping)

    def field_places(self, part: AnswerPart) -> dict[str, Any]:
        """Return an answer with its counts, wherever they stand."""
        details = mapping(part.body.get("sglext")).get("spec_tokens_details")
        places = part.body.get("meta_info"), part.content.get("meta_info"), details
        objects = [place for place in places if isinstance(place, Mapping)]
        counts = next(
            (place for place in objects if CALLS in place), objects[0] if objects else None
        )
        return {**super().field_places(part), COUNTS: counts}

    def logged_entries(self, part: AnswerPart) -> Sequence[Any]:  # noqa: ARG002
        """Refuse the log-probabilities of /generate."""
        raise AnswerError(
            "is of SGLang's /generate, whose log-probabilities are not read: ask its "
            "/v1/completions, with logprobs=N"
        )
