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
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.engines.answers import FormatError, Part, counted, read_answers
from pipeline.engines.pages import MOST_PLACES, Counts
from pipeline.errors import PipelineError

MOST = 10_000_000  # tokens or calls of an answer; more are damage
MANY_CHOICES = "answers of several choices"
Count = Annotated[int, Field(ge=0, le=MOST)]
Ids = list[Annotated[int, Field(ge=0)]]


class _Fields(BaseModel):
    """Fields of an answer; those that are not named here are ignored."""

    model_config = ConfigDict(strict=True)


class _Drafts(_Fields):
    num_spec_steps: Count | None = None
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: Annotated[list[Count], Field(max_length=MOST_PLACES + 1)] | None = None
    per_step_accepted: list[Count] | None = None
    per_step_drafted: list[Count] | None = None


class _Metrics(_Fields):
    speculative_decoding: _Drafts | None = None


class _Timings(_Fields):
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    draft_rounds: Count | None = None
    predicted_n: Count | None = None
    predicted_ms: float | None = None


class _Told(_Fields):
    completion_tokens: Count | None = None
    spec_verify_ct: Count | None = None


class _Body(_Fields):
    metrics: _Metrics | None = None
    timings: _Timings | None = None
    usage: _Told | None = None
    meta_info: _Told | None = None
    tokens_predicted: Count | None = None


class _Tokens(_Fields):
    token_ids: Ids | None = None
    tokens: Ids | None = None


class Answer(NamedTuple):
    """What an engine says of one answer; None, or NaN, where it does not.

    Attributes:
        prompt: token ids.
        tokens: token ids of the answer.
        temperature: of its sampling.
        size: number of tokens.
        engine: vLLM, llama.cpp or SGLang; empty where nothing was drafted.
        calls: with a draft.
        drafted: tokens.
        accepted: tokens.
        histogram: how many calls accepted 0, 1, ... tokens.
        per_step: (accepted, drafted) of every call in order.
        ended: of llama.cpp, whether the model ended it.
        seconds: of the whole request.
        decode_seconds: after prefill, by the engine's clock.
    """

    prompt: list[int] | None
    tokens: list[int] | None
    temperature: float
    size: int | None
    engine: str = ""
    calls: float = 0
    drafted: float = 0
    accepted: int = 0
    histogram: list[int] | None = None
    per_step: list[tuple[int, int]] | None = None
    ended: bool = False
    seconds: float = math.nan
    decode_seconds: float = math.nan

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


def read_sums(path: Path) -> Counts:
    """Add up the counts of all answers of a file, whether or not anything was drafted.

    Raises:
        PipelineError: the file can't be read, holds two models or engines, or numbers that
            contradict each other; names the file, and the line where there is one.
    """
    read, _, excluded = read_answers(path, read_answer)
    if not read:
        raise PipelineError(
            f"{path} holds no answers as JSON (left out: {counted(excluded)}): give answers that "
            "`python -m pipeline.ask URL` saved"
        )
    answers: dict[str, Answer] = {}
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
            f"{path}: {sums.accepted:g} tokens were accepted of {sums.drafted:g} drafted: the "
            "numbers are damaged"
        )
    return sums


def read_answer(part: Part) -> Answer | None:
    """Return what an answer says; None for another choice of the same answer.

    Raises:
        FormatError: a field has another form, or a number contradicts another one.
    """
    if part.content.get("index"):
        return None
    try:
        body = _Body.model_validate(part.body)
        ids = _Tokens.model_validate(
            {key: part.content.get(key) for key in ("token_ids" if part.is_choice else "tokens",)}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise FormatError(f"has {place}={wrong['input']!r:.60}: {wrong['msg']}") from error
    tokens = ids.token_ids if part.is_choice else ids.tokens
    timings, usage, meta = body.timings or _Timings(), body.usage or _Told(), body.meta_info
    sizes = [usage.completion_tokens, meta and meta.completion_tokens, timings.predicted_n,
             body.tokens_predicted, len(tokens or ())]  # fmt: skip
    size = next((size for size in sizes if size), None)
    request = part.request
    sampling = request.get("sampling_params") or request  # vLLM's /inference/v1/generate
    prompt, temperature = request.get("prompt", request.get("token_ids")), math.nan
    if isinstance(sampling, dict) and isinstance(sampling.get("temperature"), int | float):
        temperature = sampling["temperature"]
    milliseconds = timings.predicted_ms or 0.0
    answer = Answer(
        prompt if prompt and _are_ids(prompt) else None,
        tokens,
        temperature,
        size,
        seconds=part.seconds,
        decode_seconds=milliseconds / 1000 if 0 < milliseconds < math.inf else math.nan,
    )
    drafts = body.metrics and body.metrics.speculative_decoding
    if drafts is not None and drafts.num_spec_steps is not None:
        return _of_vllm(answer, drafts)
    if timings.draft_n is not None:
        if timings.draft_n_accepted is None:
            raise FormatError("has timings.draft_n without draft_n_accepted")
        calls = math.nan if timings.draft_rounds is None else timings.draft_rounds
        why = part.body.get("stop_type"), part.content.get("finish_reason")
        answer = answer._replace(
            engine="llama.cpp",
            calls=calls,
            drafted=timings.draft_n,
            accepted=timings.draft_n_accepted,
            ended=any(reason in ("eos", "word", "stop") for reason in why),
        )
    elif meta is not None and meta.spec_verify_ct is not None:
        calls = meta.spec_verify_ct
        accepted = max((size or 1) - 1 - calls, 0)
        answer = answer._replace(engine="SGLang", calls=calls, drafted=math.nan, accepted=accepted)
    else:  # nothing was drafted for it
        return answer._replace(histogram=[], per_step=[])
    _check_drafts(answer)
    return answer


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _of_vllm(answer: Answer, drafts: _Drafts) -> Answer:
    calls, histogram = drafts.num_spec_steps or 0, drafts.acceptance_histogram
    kept, tried = drafts.per_step_accepted, drafts.per_step_drafted
    if not calls:  # vLLM then lists none
        kept, tried = [], []
    sums = accepted, drafted = drafts.num_accepted_draft_tokens, drafts.num_draft_tokens
    answer = answer._replace(
        engine="vLLM", calls=calls, drafted=drafted, accepted=accepted, histogram=histogram
    )
    _check_drafts(answer)
    if histogram is not None:
        found = sum(histogram), sum(place * times for place, times in enumerate(histogram))
        if found != (calls, accepted):
            raise FormatError(
                f"has an acceptance_histogram of {found[0]} calls and {found[1]} accepted tokens, "
                f"and counts of {calls} and {accepted}"
            )
    if kept is None or tried is None:
        return answer
    per_step = list(zip(kept, tried, strict=False))
    if not len(kept) == len(tried) == calls or (sum(kept), sum(tried)) != sums:
        raise FormatError(
            f"has per_step_accepted and per_step_drafted that do not add up to {calls} calls, "
            f"{accepted} accepted and {drafted} drafted tokens"
        )
    if any(one > of for one, of in per_step):
        raise FormatError("has a call in per_step_accepted that accepts more than it drafts")
    return answer._replace(per_step=per_step)


def _check_drafts(answer: Answer) -> None:
    if answer.drafted > MOST_PLACES * answer.calls:  # NaN compares as false
        raise FormatError(
            f"has {answer.drafted} drafted tokens in {answer.calls} calls: at most {MOST_PLACES} "
            "each are allowed"
        )
