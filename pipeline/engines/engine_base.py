"""The base class of engines: answers, log-probabilities, page of metrics, server.

An engine is one class in a file of its own; `pipeline.engines.registry` lists them and finds the
one that wrote an answer or a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from pipeline.engines.counts import MAX_PLACES, Counts, EngineAnswer

MAX_COUNT = 10_000_000  # tokens or calls of an answer; more are damage
OTHER = ", other name"  # in the meaning of a metric: what has another name now, or in a branch
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MEAN_LENGTH = "1 + accepted tokens / drafts"
BY_POSITION = "accepted tokens at each position / drafts"
RATE = "accepted / drafted tokens"
DRAFTS = {  # metrics that vLLM and llama.cpp call the same, but for the prefix
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
    "spec_decode_num_accepted_tokens_per_pos": "by_place",
}


def field_at(*path: str) -> Any:
    """Return a field of `AnswerFields` that stands at a path of keys in an answer."""
    return Field(default=None, validation_alias=AliasPath(*path))


class FormatError(Exception):
    """An answer is wrong; the message follows its file and line."""


class Part(NamedTuple):
    """An answer: a choice of an object, or all of it."""

    answer: str  # its name
    line: int  # where it stands
    request: Mapping[str, Any]  # what was asked, empty where the file does not have it
    body: Mapping[str, Any]  # the object
    content: Mapping[str, Any]  # the choice, or the object
    seconds: float  # that the request took, NaN where the file does not have it
    load: float = math.nan  # requests that were asked for at once, NaN likewise
    source: str = ""  # of the prompt, empty likewise

    @property
    def is_choice(self) -> bool:
        """Whether it is one of `choices`; else it is in an engine's own layout."""
        return self.content is not self.body

    @property
    def log_probs(self) -> Mapping[str, Any]:
        """The log-probabilities of a choice; empty where it has none."""
        return mapping(self.content.get("logprobs"))


class AnswerFields(BaseModel):
    """What an answer's fields say, None where there is no such field; here those of any server.

    A subclass adds those of its engine.
    """

    model_config = ConfigDict(strict=True)
    ids: list[Annotated[int, Field(ge=0)]] | None = None
    completion_tokens: Count | None = field_at("usage", "completion_tokens")

    @property
    def size(self) -> int | None:
        """The number of tokens, by the engine's own fields."""
        return None

    def add_counts(self, answer: EngineAnswer, part: Part) -> EngineAnswer:  # noqa: ARG002
        """Return the answer with the engine's counts of drafts, where it has some.

        Raises:
            FormatError: the counts contradict each other.
        """
        return answer


class PageSums:
    """The sums of the counters of a page, by their meaning; NaN where the page lacks one."""

    def __init__(self, model: str, sums: Mapping[str, float], by_place: list[float]) -> None:
        self.model = model
        self.by_place = by_place
        self._sums = sums

    def __contains__(self, meaning: str) -> bool:
        return meaning in self._sums

    def get(self, meaning: str, otherwise: float = math.nan) -> float:
        """Return a sum, under its usual name or another one."""
        return self._sums.get(meaning, self._sums.get(meaning + OTHER, otherwise))


class Engine:
    """An engine; as it is, any server with OpenAI's layout whose answers do not name their engine.

    Attributes:
        name: as printed.
        fields: the fields of its answers.
        counts_remedy: how to make it count drafts in its answers.
        leaves_out_zeros: whether it drafted nothing for an answer without counts, where others of
            the file have some.
        counts_full_drafts: whether its counts by position go up to the draft length.
        cuts_drafts_at_limit: whether a draft never goes beyond the tokens that were asked for.
        length_key: its setting of the draft length.
        length_flags: the flags that set it; {n} tokens are drafted, {more} is one more.
        schedule_key: its setting of the draft length by the number of requests that run, a list of
            [first, last, length] from 1 on, both ends included; empty where it has none.
        figures: what its log prints of drafts, by its own names: `MEAN_LENGTH`, `BY_POSITION` or
            `RATE`.
        logs_show_engine: whether `wrote` tells every answer of its with log-probabilities.
        raw_remedy: how to make it log the model's own values.
        processed: settings of a request that change the log-probabilities, and the error.
        softmax_error_per_token: of a log-probability, in nats, for each token of the vocabulary.
        metrics_prefix: with the sign behind it.
        metrics_flag: the flag without which its server has no page of /metrics.
        metrics: the meaning of each, without prefix and _total; empty where pages are not read.
        gauges: meanings of metrics that may fall while a server runs.
        counts_prefill: whether passes and tokens of a page include those of prefill.
        decoding_waits: whether the seconds of a request's decoding hold the prefill of others.
        model_owner: of its models in /v1/models; empty where `pipeline.ask` can't ask it.
        endpoint: that answers one prompt.
        version_place: the endpoint and the key of its version.
        tells_no_drafts: whether a page without counts by position means that it does not draft.
    """

    name: ClassVar[str] = ""
    fields: ClassVar[type[AnswerFields]] = AnswerFields
    counts_remedy: ClassVar[str] = ""
    leaves_out_zeros: ClassVar[bool] = True
    counts_full_drafts: ClassVar[bool] = True
    cuts_drafts_at_limit: ClassVar[bool] = False
    length_key: ClassVar[str] = "draft length"
    length_flags: ClassVar[str] = ""
    schedule_key: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, str]] = {}
    logs_show_engine: ClassVar[bool] = True
    raw_remedy: ClassVar[str] = ""
    processed: ClassVar[Mapping[str, str]] = {}
    softmax_error_per_token: ClassVar[float] = 0.0
    metrics_prefix: ClassVar[str] = ""
    metrics_flag: ClassVar[str] = ""
    metrics: ClassVar[Mapping[str, str]] = {}
    gauges: ClassVar[frozenset[str]] = frozenset()
    counts_prefill: ClassVar[bool] = False
    decoding_waits: ClassVar[bool] = False
    model_owner: ClassVar[str] = ""
    endpoint: ClassVar[str] = ""
    version_place: ClassVar[tuple[str, str]] = ("", "")
    tells_no_drafts: ClassVar[bool] = False

    def wrote(self, part: Part) -> bool:  # noqa: ARG002
        """Say whether the content of an answer shows that this engine wrote it."""
        return False

    def has_layout(self, body: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Say whether an object without `choices` is an answer in this engine's own layout."""
        return False

    def read_fields(self, part: Part) -> AnswerFields:
        """Return the fields of an answer.

        Raises:
            FormatError: a field has another form.
        """
        try:
            return self.fields.model_validate(self.field_places(part))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            raise FormatError(f"has {place}={wrong['input']!r:.60}: {wrong['msg']}") from error

    def field_places(self, part: Part) -> dict[str, Any]:
        """Return an answer with what `fields` expects at its top."""
        return {**part.body, "ids": part.content.get("token_ids")}

    def logged_entries(self, part: Part) -> Sequence[Any]:  # noqa: ARG002
        """Return the log-probabilities of an answer in this engine's own layout.

        They are those of the chat format, one entry a token.

        Raises:
            FormatError: it has none, or they are not read.
        """
        raise FormatError(f"has log-probabilities of {self.name}, which are not read")

    def page_counts(self, sums: PageSums) -> Counts:
        """Return the counts of a page of /metrics."""
        raise NotImplementedError

    def request_body(self, model: str, steps: int, log_probs: int) -> dict[str, Any]:
        """Return what a request has besides prompt and sampling: `log_probs` a token, 0 is none."""
        raise NotImplementedError


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object of JSON; an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def check_histogram(histogram: Sequence[int], calls: int, accepted: int | None) -> None:
    """Check that the calls by accepted tokens add up to the other counts.

    Raises:
        FormatError: they do not.
    """
    calls_there = sum(histogram)
    accepted_there = sum(tokens * times for tokens, times in enumerate(histogram))
    equal = (calls_there, accepted_there) == (calls, accepted)
    if not equal or len(histogram) > MAX_PLACES + 1:
        raise FormatError(
            f"has an acceptance_histogram of {calls_there} calls, {accepted_there} accepted tokens "
            f"and {len(histogram)} places, and counts of {calls} calls and {accepted} tokens"
        )
