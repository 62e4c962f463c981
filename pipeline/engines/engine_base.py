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


class AnswerError(Exception):
    """An answer can't be used; the message follows its file and line."""


class AnswerPart(NamedTuple):
    """The part of a JSON object that is one answer: one of its `choices`, or all of it."""

    name: str  # of the answer
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

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:  # noqa: ARG002
        """Return the answer with the engine's counts of drafts, where it has some.

        Raises:
            AnswerError: the counts contradict each other.
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
        name: The engine's name, as printed.

        fields: The class that reads the fields of its answers.
        counts_remedy: What the user does to make it count drafts in its answers.
        leaves_out_zeros: Whether an answer without counts, in a file where others have some, means
            that nothing was drafted for it.
        counts_full_drafts: Whether its counts by position go up to the draft length; else they end
            at the longest draft that was accepted.
        cuts_drafts_at_limit: Whether it cuts a draft that would go beyond the tokens asked for.

        length_key: The name of its setting of the draft length.
        length_flags: The flags that set the draft length n: {n} is n, {more} is n + 1.
        schedule_key: The name of its setting of a draft length for each number of requests: a list
            of [first, last, length] from 1 on, both ends included. Empty where it has none.
        figures: What its log prints of drafts: the engine's own name, mapped to `MEAN_LENGTH`,
            `BY_POSITION` or `RATE`.

        logs_show_engine: Whether `wrote` recognises each of its answers that has log-probabilities;
            if not, its remedy is also offered for answers of an unknown engine.
        raw_remedy: What the user does to make it log the model's own log-probabilities.
        processed: Settings of a request that make its log-probabilities other than the model's own,
            mapped to the error message of each.
        softmax_error_per_token: The rounding error of a log-probability, in nats, for each token of
            the vocabulary; 0 where it does not grow with the vocabulary.

        metrics_prefix: What the names of its metrics begin with, up to and with the colon.
        metrics_flag: The flag that gives its server a page of /metrics; empty where it always has
            one.
        metrics: The metrics that are read, without prefix and _total, mapped to what they count.
            Empty where its pages are not read.
        gauges: What is read from metrics that may fall while a server runs.
        counts_prefill: Whether the passes and tokens of its page include those of prefill.
        decoding_waits: Whether a request's decoding time includes waiting while other requests are
            prefilled.
        tells_no_drafts: Whether a page without counts by position means that its server does not
            draft; else they may also be missing because nothing was drafted so far.

        model_owner: The owner that its /v1/models names, by which `pipeline.ask` recognises it.
            Empty where `pipeline.ask` can't ask it.
        endpoint: The path to which `pipeline.ask` sends each prompt.
        version_place: The path that tells its version, and the version's key in the reply.
    """

    name: ClassVar[str] = ""
    # answers
    fields: ClassVar[type[AnswerFields]] = AnswerFields
    counts_remedy: ClassVar[str] = ""
    leaves_out_zeros: ClassVar[bool] = True
    counts_full_drafts: ClassVar[bool] = True
    cuts_drafts_at_limit: ClassVar[bool] = False
    # draft length
    length_key: ClassVar[str] = "draft length"
    length_flags: ClassVar[str] = ""
    schedule_key: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, str]] = {}
    # log-probabilities
    logs_show_engine: ClassVar[bool] = True
    raw_remedy: ClassVar[str] = ""
    processed: ClassVar[Mapping[str, str]] = {}
    softmax_error_per_token: ClassVar[float] = 0.0
    # page of metrics
    metrics_prefix: ClassVar[str] = ""
    metrics_flag: ClassVar[str] = ""
    metrics: ClassVar[Mapping[str, str]] = {}
    gauges: ClassVar[frozenset[str]] = frozenset()
    counts_prefill: ClassVar[bool] = False
    decoding_waits: ClassVar[bool] = False
    tells_no_drafts: ClassVar[bool] = False
    # server
    model_owner: ClassVar[str] = ""
    endpoint: ClassVar[str] = ""
    version_place: ClassVar[tuple[str, str]] = ("", "")

    def wrote(self, part: AnswerPart) -> bool:  # noqa: ARG002
        """Say whether the content of an answer shows that this engine wrote it."""
        return False

    def has_layout(self, body: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Say whether an object without `choices` is an answer in this engine's own layout."""
        return False

    def read_fields(self, part: AnswerPart) -> AnswerFields:
        """Return the fields of an answer.

        Raises:
            AnswerError: a field has another form.
        """
        try:
            return self.fields.model_validate(self.field_places(part))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            raise AnswerError(f"has {place}={wrong['input']!r:.60}: {wrong['msg']}") from error

    def field_places(self, part: AnswerPart) -> dict[str, Any]:
        """Return an answer with what `fields` expects at its top."""
        return {**part.body, "ids": part.content.get("token_ids")}

    def logged_entries(self, part: AnswerPart) -> Sequence[Any]:  # noqa: ARG002
        """Return the log-probabilities of an answer in this engine's own layout.

        They are those of the chat format, one entry a token.

        Raises:
            AnswerError: it has none, or they are not read.
        """
        raise AnswerError(f"has log-probabilities of {self.name}, which are not read")

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
        AnswerError: they do not.
    """
    calls_there = sum(histogram)
    accepted_there = sum(tokens * times for tokens, times in enumerate(histogram))
    equal = (calls_there, accepted_there) == (calls, accepted)
    if not equal or len(histogram) > MAX_PLACES + 1:
        raise AnswerError(
            f"has an acceptance_histogram of {calls_there} calls, {accepted_there} accepted tokens "
            f"and {len(histogram)} places, and counts of {calls} calls and {accepted} tokens"
        )
