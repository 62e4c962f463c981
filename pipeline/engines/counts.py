"""The token ids, draft counts and seconds that an engine reports in its answers, and their sums.

| engine | counts of drafts are defined in |
|---|---|
| vLLM | `vllm/v1/metrics/stats.py`: RequestSpecDecodeMetrics (--per-request-spec-decode-metrics) |
| llama.cpp | `tools/server/server-task.cpp`: result_timings::to_json |
| MLX (mlx-vlm) | `mlx_vlm/server`: llama.cpp's timings, with draft_rounds |
| SGLang | `managers/tokenizer_manager.py`: _calculate_spec_decoding_metrics; `SpecTokensDetails` |
| Spec-Bench | `evaluation/eval.py`: accept_lengths, the tokens that each pass emitted |

Engines count calls *with a draft* only. Prefill emits the first of the n tokens of an answer. A
call emits its accepted tokens and one more, a pass without a draft emits one. So n - 1 - a passes
follow prefill, where a is the number of accepted tokens. vLLM also counts tokens that its last call
accepted beyond the end of an answer (max_tokens, a stop token): there may be up to that many more
passes. llama.cpp cuts drafts to what an answer may still have (`get_n_draft_max`), so this happens
at a stop token only (`post_decode` in `tools/server/server-context.cpp`). SGLang and MLX verify a
draft in every pass after prefill, so their calls are all passes.

**An answer without counts says nothing about drafts.** vLLM writes none unless it is told to, and
SGLang's chat only where the request asks. Such counts are NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from pipeline.core.errors import PipelineError
from pipeline.engines.answers import FormatError, Part, counted, read_answers

MOST = 10_000_000  # tokens or calls of an answer; more are damage
MOST_PLACES = 1024  # tokens of a draft; more are damage
MANY_CHOICES = "answers of several choices"
Count = Annotated[int, Field(ge=0, le=MOST)]


REMEDIES = {  # how an engine is made to count drafts in its answers
    "vLLM": "start vLLM with --per-request-spec-decode-metrics detailed",
    "SGLang": 'send SGLang "return_spec_tokens_details": true with each request',
    "llama.cpp": "take a newer llama.cpp",
}


def _at(*path: str) -> Any:
    return Field(default=None, validation_alias=AliasPath(*path))


def _of_sglang(*names: str) -> Any:
    """Return the field of SGLang's counts, whose names changed between versions."""
    paths = [AliasPath("sglang", name) for name in names]
    return Field(default=None, validation_alias=AliasChoices(*paths))


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
    draft_rounds: Count | None = _at("timings", "draft_rounds")  # MLX
    cache_n: Count | None = _at("timings", "cache_n")  # llama.cpp, since August 2025
    tokens_predicted: Count | None = None
    tokens_of_sglang: Count | None = _of_sglang("completion_tokens")
    verified: Count | None = _of_sglang("spec_verify_ct")
    proposed: Count | None = _of_sglang(
        "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"
    )
    correct: Count | None = _of_sglang(
        "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"
    )
    corrects: list[Count] | None = _of_sglang(
        "spec_correct_drafts_histogram", "spec_accept_histogram"
    )
    accept_lengths: list[Annotated[int, Field(ge=1, le=MOST_PLACES + 1)]] | None = (
        None  # Spec-Bench
    )


class EngineAnswer(NamedTuple):
    """What an engine says of one answer; None, or NaN, where it does not."""

    prompt: list[int] | None  # token ids
    tokens: list[int] | None  # token ids of the answer
    temperature: float  # of its sampling
    size: int | None  # number of tokens
    engine: str = ""  # vLLM, llama.cpp, MLX, SGLang or Spec-Bench; empty where it is not known
    calls: float = math.nan  # with a draft
    drafted: float = math.nan  # tokens
    accepted: float = math.nan  # tokens
    counted_passes: float = math.nan  # after prefill, where the engine counts all of them
    histogram: list[int] | None = None  # how many calls accepted 0, 1, ... tokens
    per_step: list[tuple[int, int]] | None = None  # (accepted, drafted) of every call in order
    ended: bool = False  # of llama.cpp, whether the model ended it
    seconds: float = math.nan  # of the whole request
    decode_seconds: float = math.nan  # after prefill, by the engine's clock

    def without_drafts(self) -> EngineAnswer:
        """Return the same answer, of which it is known that nothing was drafted for it."""
        return self._replace(calls=0, drafted=0, accepted=0, histogram=[], per_step=[])

    @property
    def passes(self) -> tuple[float, float]:
        """The least and the most passes after prefill."""
        if not math.isnan(self.counted_passes):
            return self.counted_passes, self.counted_passes
        if self.size is None or math.isnan(self.accepted):
            return math.nan, math.nan
        least = max(self.size - 1, 0) - self.accepted
        with_draft = float(self.drafted > 0) if math.isnan(self.calls) else self.calls
        return max(least, with_draft), max(least + self.last_accepted, with_draft)

    @property
    def last_accepted(self) -> int:
        """The most tokens that the last call can have accepted behind the answer's end."""
        if self.ended:
            return int(self.accepted)
        if self.per_step:
            return self.per_step[-1][0]
        return max((place for place, times in enumerate(self.histogram or ()) if times), default=0)


@dataclass(frozen=True)
class Counts:
    """The counts of an engine, of a page or summed over answers; NaN where one is not told.

    Passes are those of the target and requests, those without a draft too; of answers those after
    prefill.
    """

    engine: str  # as of an answer
    drafts: float  # calls with a draft; 0 without a drafter
    drafted: float  # tokens
    accepted: float  # tokens, those of the target's own not counted
    by_place: Sequence[float]  # accepted at each position of a draft, empty where it is not told
    passes: float  # the least that the counts allow
    most_passes: float  # the most
    emitted: float  # tokens of these passes
    seconds: float = math.nan  # that these passes took, added up over requests
    requests: float = math.nan  # that got a first token
    engine_steps: float = math.nan  # passes of the engine, each for one or more requests
    model: str = ""  # as a page names it
    answers: Mapping[str, EngineAnswer] = field(default_factory=dict)  # by name; empty of a page
    excluded: Mapping[str, int] = field(default_factory=dict)  # left out, by reason

    @property
    def drafting(self) -> bool | None:
        """Whether anything was drafted; None where the counts do not tell."""
        told = [n for n in (self.drafts, self.drafted, self.accepted) if not math.isnan(n)]
        if any(told):
            return True
        return False if 0 in (self.drafts, self.drafted) else None

    @property
    def load(self) -> float:
        """How many requests a step of the engine served, on average."""
        prefills = 0.0 if math.isnan(self.requests) else self.requests
        return (self.passes + prefills) / (self.engine_steps or math.nan)

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
    counting = {answer.engine for answer in answers.values() if not math.isnan(answer.accepted)}
    engines = sorted((counting or {answer.engine for answer in answers.values()}) - {""})
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(engines)}: give one")
    # an engine that counts drafts leaves the counts out where it made none; SGLang may not have
    # been asked for them
    every = [
        answer.without_drafts()
        if math.isnan(answer.accepted) and counting and (engines != ["SGLang"] or answer.size == 1)
        else answer
        for answer in answers.values()
    ]
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
        answers=dict(zip(answers, every, strict=True)),
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
    told = _told(part)
    sizes = (told.completion_tokens, told.tokens_of_sglang, told.predicted_n, told.tokens_predicted,
             len(told.ids or ()), _logged_tokens(part))  # fmt: skip
    request, milliseconds = part.request, told.predicted_ms or 0.0
    prompt = request.get("prompt", request.get("token_ids"))
    sampling = request.get("sampling_params") or request  # vLLM's /inference/v1/generate
    temperature = sampling.get("temperature") if isinstance(sampling, dict) else None
    answer = EngineAnswer(
        prompt if prompt and _are_ids(prompt) else None,
        told.ids,
        temperature if isinstance(temperature, int | float) else math.nan,
        next((size for size in sizes if size), None),
        engine=_engine(part),
        seconds=part.seconds,
        decode_seconds=milliseconds / 1000 or math.nan,
    )
    if told.calls is not None:
        answer = _of_vllm(answer, told)
    elif told.draft_n is not None:
        answer = _of_llama(answer, told, part)
    elif told.verified:
        answer = _of_sglang_counts(answer, told)
    elif told.accept_lengths is not None:
        passes, tokens = len(told.accept_lengths), sum(told.accept_lengths)
        answer = answer._replace(
            engine="Spec-Bench", size=1 + tokens, accepted=tokens - passes, counted_passes=passes
        )
    elif told.cache_n is not None and told.predicted_n is not None:
        answer = answer.without_drafts()  # llama.cpp leaves draft_n out where it is 0
    if answer.drafted > MOST_PLACES * answer.calls:  # NaN compares as false
        raise FormatError(
            f"has {answer.drafted} drafted tokens in {answer.calls} calls, above {MOST_PLACES} each"
        )
    return answer


def _told(part: Part) -> _Told:
    ids = part.content.get("token_ids" if part.is_choice else "tokens")
    extension = part.body.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    places = part.body.get("meta_info"), part.content.get("meta_info"), details
    found = [place for place in places if isinstance(place, Mapping)]
    found.sort(key=lambda place: "spec_verify_ct" not in place)
    fields = {
        "ids": ids,
        "sglang": found[0] if found else None,
        "accept_lengths": part.content.get("accept_lengths") if part.is_choice else None,
    }
    try:
        return _Told.model_validate({**part.body, **fields})
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise FormatError(f"has {place}={wrong['input']!r:.60}: {wrong['msg']}") from error


def _logged_tokens(part: Part) -> int:
    """Return how many tokens have log-probabilities; 0 where the prompt's may be among them."""
    logged = part.content.get("logprobs")
    if not isinstance(logged, Mapping) or part.request.get("echo"):
        return 0
    tokens = logged.get("content") or logged.get("tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def _engine(part: Part) -> str:
    """Return the engine that an answer's fields show, empty where none does."""
    if str(part.body.get("system_fingerprint")).startswith("vllm"):
        return "vLLM"
    if isinstance(part.body.get("timings"), Mapping):
        return "llama.cpp"
    return "SGLang" if "meta_info" in part.body or "sglext" in part.body else ""


def _of_llama(answer: EngineAnswer, told: _Told, part: Part) -> EngineAnswer:
    if told.draft_n is None or told.draft_n_accepted is None:
        raise FormatError("has draft_n without draft_n_accepted")
    why = part.body.get("stop_type"), part.content.get("finish_reason")
    return answer._replace(
        engine="llama.cpp" if told.draft_rounds is None else "MLX",
        calls=math.nan if told.draft_rounds is None else told.draft_rounds,
        drafted=told.draft_n,
        accepted=told.draft_n_accepted,
        counted_passes=math.nan if told.draft_rounds is None else told.draft_rounds,
        ended=any(reason in ("eos", "word", "stop") for reason in why),
    )


def _of_sglang_counts(answer: EngineAnswer, told: _Told) -> EngineAnswer:
    """Return the answer with SGLang's counts; without its accepted tokens, those of the answer."""
    calls = told.verified or 0
    if told.corrects:
        _check_histogram(told.corrects, calls, told.correct)
    accepted = told.correct
    if accepted is None:
        accepted = max((answer.size or 1) - 1 - calls, 0)
    return answer._replace(
        engine="SGLang",
        calls=calls,
        drafted=math.nan if told.proposed is None else told.proposed,
        accepted=accepted,
        counted_passes=calls,
        histogram=told.corrects or None,
    )


def _check_histogram(histogram: Sequence[int], calls: int, accepted: int | None) -> None:
    found = sum(histogram), sum(place * times for place, times in enumerate(histogram))
    if found != (calls, accepted) or len(histogram) > MOST_PLACES + 1:
        raise FormatError(
            f"has an acceptance_histogram of {found[0]} calls, {found[1]} accepted tokens and "
            f"{len(histogram)} places, and counts of {calls} calls and {accepted} tokens"
        )


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _of_vllm(answer: EngineAnswer, told: _Told) -> EngineAnswer:
    calls, accepted, drafted = told.calls or 0, told.accepted, told.drafted
    if accepted is None or drafted is None:
        raise FormatError("has num_spec_steps without num_accepted_draft_tokens, num_draft_tokens")
    if told.histogram is not None:
        _check_histogram(told.histogram, calls, accepted)
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
        histogram=told.histogram,
        per_step=per_step,
    )
