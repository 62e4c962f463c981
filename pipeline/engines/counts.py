"""The token ids, draft counts and seconds that an engine reports in its answers, and their sums.

| engine | counts of drafts are defined in |
|---|---|
| vLLM | `vllm/v1/metrics/stats.py`: RequestSpecDecodeMetrics (--per-request-spec-decode-metrics) |
| llama.cpp | `tools/server/server-task.cpp`: result_timings::to_json |

Engines count calls *with a draft* only. Of an answer of n tokens, whose first one prefill emits, a
call emits its accepted tokens and one more, and a pass without a draft one. So n - 1 - a passes
follow prefill, a being the accepted tokens. vLLM counts accepted tokens behind the end of an answer
(max_tokens, a stop token) in the last call: the passes are up to as many more as this call
accepted. llama.cpp cuts drafts to what an answer may still have (`get_n_draft_max`), so it does at
a stop token only (`post_decode` in `tools/server/server-context.cpp`); servers that write its
timings with draft_rounds count these calls. SGLang's own layout has the calls alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.errors import PipelineError
from pipeline.engines.answers import FormatError, Part, counted, read_answers

MOST = 10_000_000  # tokens or calls of an answer; more are damage
MOST_PLACES = 1024  # tokens of a draft; more are damage
MANY_CHOICES = "answers of several choices"
Count = Annotated[int, Field(ge=0, le=MOST)]


def _at(*path: str) -> Any:
    return Field(default=None, validation_alias=AliasPath(*path))


class _Told(BaseModel):
    """What an answer's fields say; None where there is no such field."""

    model_config = ConfigDict(strict=True)
    ids: list[Annotated[int, Field(ge=0)]] | None = None
    calls: Count | None = _at("metrics", "speculative_decoding", "num_spec_steps")
    drafted: Count | None = _at("metrics", "speculative_decoding", "num_draft_tokens")
    accepted: Count | None = _at("metrics", "speculative_decoding", "num_accepted_draft_tokens")
    histogram: list[Count] | None = _at("metrics", "speculative_decoding", "acceptance_histogram")
    kept: list[Count] | None = _at("metrics", "speculative_decoding", "per_step_accepted")
    tried: list[Count] | None = _at("metrics", "speculative_decoding", "per_step_drafted")
    completion_tokens: Count | None = _at("usage", "completion_tokens")
    predicted_n: Count | None = _at("timings", "predicted_n")
    predicted_ms: Annotated[float, Field(ge=0, le=1e9)] | None = _at("timings", "predicted_ms")
    draft_n: Count | None = _at("timings", "draft_n")
    draft_n_accepted: Count | None = _at("timings", "draft_n_accepted")
    draft_rounds: Count | None = _at("timings", "draft_rounds")
    tokens_predicted: Count | None = None
    tokens_of_sglang: Count | None = _at("meta_info", "completion_tokens")
    verified: Count | None = _at("meta_info", "spec_verify_ct")


class EngineAnswer(NamedTuple):
    """What an engine says of one answer; None, or NaN, where it does not."""

    prompt: list[int] | None  # token ids
    tokens: list[int] | None  # token ids of the answer
    temperature: float  # of its sampling
    size: int | None  # number of tokens
    engine: str = ""  # vLLM, llama.cpp or SGLang; empty where nothing was drafted
    calls: float = 0  # with a draft
    drafted: float = 0  # tokens
    accepted: int = 0  # tokens
    histogram: list[int] | None = None  # how many calls accepted 0, 1, ... tokens
    per_step: list[tuple[int, int]] | None = None  # (accepted, drafted) of every call in order
    ended: bool = False  # of llama.cpp, whether the model ended it
    seconds: float = math.nan  # of the whole request
    decode_seconds: float = math.nan  # after prefill, by the engine's clock

    @property
    def passes(self) -> tuple[float, float]:
        """The least and the most passes after prefill."""
        if self.size is None:
            return math.nan, math.nan
        least = max(self.size - 1, 0) - self.accepted
        with_draft = float(self.drafted > 0) if math.isnan(self.calls) else self.calls
        return max(least, with_draft), max(least + self.last_accepted, with_draft)

    @property
    def last_accepted(self) -> int:
        """The most tokens that the last call can have accepted behind the answer's end."""
        if self.ended:
            return self.accepted
        if self.per_step:
            return self.per_step[-1][0]
        return max((place for place, times in enumerate(self.histogram or ()) if times), default=0)


@dataclass(frozen=True)
class Counts:
    """The counts of an engine, of a page or summed over answers; NaN where one is not told.

    Passes are those of the target and requests, those without a draft too; of answers those after
    prefill.
    """

    engine: str  # vLLM, llama.cpp or SGLang; empty where answers do not tell
    drafts: float  # calls with a draft; 0 without a drafter
    drafted: float  # tokens
    accepted: float  # tokens, those of the target's own not counted
    by_place: Sequence[float]  # accepted at each position of a draft, empty where it is not told
    passes: float  # the least that the counts allow
    most_passes: float  # the most
    emitted: float  # tokens of these passes
    seconds: float = math.nan  # that these passes took, added up over requests
    model: str = ""  # as a page names it
    answers: Mapping[str, EngineAnswer] = field(default_factory=dict)  # by name; empty of a page
    excluded: Mapping[str, int] = field(default_factory=dict)  # left out, by reason

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """The least and the most tokens that a pass emits, of all passes."""
        least, most = self.most_passes, self.passes
        return self.emitted / (least or math.nan), self.emitted / (most or math.nan)


def read_sums(path: Path) -> Counts:
    """Add up the counts of all answers of a file, whether or not anything was drafted."""
    read, _, excluded = read_answers(path, read_answer)
    if not read:
        raise PipelineError(
            f"{path} holds no answers as JSON (left out: {counted(excluded)}): give answers that "
            "`python -m pipeline.ask URL` saved"
        )
    answers: dict[str, EngineAnswer] = {}
    for name, answer in read.items():
        if f"{name}#1" in read or answer is None:
            excluded[MANY_CHOICES] += answer is not None
        else:
            answers[name] = answer
    every = list(answers.values())
    engines = sorted({answer.engine for answer in every} - {""})
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(engines)}: give one")
    by_place: list[float] = []
    if all(answer.histogram is not None for answer in every):
        histograms = [answer.histogram or [] for answer in every]
        times = [sum(place) for place in zip_longest(*histograms, fillvalue=0)]
        by_place = [sum(times[place:]) for place in range(1, len(times))]
    sums = Counts(
        engine=engines[0] if engines else "",
        drafts=sum(answer.calls for answer in every),
        drafted=sum(answer.drafted for answer in every),
        accepted=sum(answer.accepted for answer in every),
        by_place=by_place,
        passes=sum(answer.passes[0] for answer in every),
        most_passes=sum(answer.passes[1] for answer in every),
        emitted=sum(math.nan if a.size is None else max(a.size - 1, 0) for a in every),
        answers=answers,
        excluded=+excluded,
    )
    if sums.accepted > sums.drafted:  # NaN compares as false
        raise PipelineError(
            f"{path}: {sums.accepted:g} tokens were accepted of {sums.drafted:g} drafted"
        )
    return sums


def read_answer(part: Part) -> EngineAnswer | None:
    """Return what an answer says; None for another choice of the same answer.

    Raises:
        FormatError: a field has another form, or a number contradicts another one.
    """
    if part.content.get("index"):
        return None
    ids = part.content.get("token_ids" if part.is_choice else "tokens")
    try:
        told = _Told.model_validate({**part.body, "ids": ids})
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise FormatError(f"has {place}={wrong['input']!r:.60}: {wrong['msg']}") from error
    sizes = (told.completion_tokens, told.tokens_of_sglang, told.predicted_n, told.tokens_predicted,
             len(told.ids or ()))  # fmt: skip
    request, milliseconds = part.request, told.predicted_ms or 0.0
    prompt = request.get("prompt", request.get("token_ids"))
    sampling = request.get("sampling_params") or request  # vLLM's /inference/v1/generate
    temperature = sampling.get("temperature") if isinstance(sampling, dict) else None
    answer = EngineAnswer(
        prompt if prompt and _are_ids(prompt) else None,
        told.ids,
        temperature if isinstance(temperature, int | float) else math.nan,
        next((size for size in sizes if size), None),
        seconds=part.seconds,
        decode_seconds=milliseconds / 1000 or math.nan,
    )
    if told.calls is not None:
        answer = _of_vllm(answer, told)
    elif told.draft_n is not None:
        if told.draft_n_accepted is None:
            raise FormatError("has draft_n without draft_n_accepted")
        why = part.body.get("stop_type"), part.content.get("finish_reason")
        answer = answer._replace(
            engine="llama.cpp",
            calls=math.nan if told.draft_rounds is None else told.draft_rounds,
            drafted=told.draft_n,
            accepted=told.draft_n_accepted,
            ended=any(reason in ("eos", "word", "stop") for reason in why),
        )
    elif told.verified is not None:
        accepted = max((answer.size or 1) - 1 - told.verified, 0)
        answer = answer._replace(
            engine="SGLang", calls=told.verified, drafted=math.nan, accepted=accepted
        )
    else:  # nothing was drafted for it
        answer = answer._replace(histogram=[], per_step=[])
    if answer.drafted > MOST_PLACES * answer.calls:  # NaN compares as false
        raise FormatError(
            f"has {answer.drafted} drafted tokens in {answer.calls} calls, above {MOST_PLACES} each"
        )
    return answer


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _of_vllm(answer: EngineAnswer, told: _Told) -> EngineAnswer:
    calls, accepted, drafted = told.calls or 0, told.accepted, told.drafted
    if accepted is None or drafted is None:
        raise FormatError("has num_spec_steps without num_accepted_draft_tokens, num_draft_tokens")
    if (histogram := told.histogram) is not None:
        found = sum(histogram), sum(place * times for place, times in enumerate(histogram))
        if found != (calls, accepted) or len(histogram) > MOST_PLACES + 1:
            raise FormatError(
                f"has an acceptance_histogram of {found[0]} calls, {found[1]} accepted tokens and "
                f"{len(histogram)} places, and counts of {calls} calls and {accepted} tokens"
            )
    per_step = None
    if told.kept is not None and told.tried is not None:
        per_step = list(zip(told.kept, told.tried, strict=False))
    elif not calls:  # vLLM then lists none
        per_step = []
    if per_step is not None:
        sums = len(per_step), sum(told.kept or ()), sum(told.tried or ())
        if sums != (calls, accepted, drafted) or any(kept > tried for kept, tried in per_step):
            raise FormatError(
                f"has per_step_accepted and per_step_drafted that contradict {calls} calls, "
                f"{accepted} accepted and {drafted} drafted tokens"
            )
    return answer._replace(
        engine="vLLM",
        calls=calls,
        drafted=drafted,
        accepted=accepted,
        histogram=histogram,
        per_step=per_step,
    )
