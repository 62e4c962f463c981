"""The draft counts that an engine reports in its answers, and their sums over a file.

| engine | defined in |
|---|---|
| vLLM | `vllm/v1/metrics/stats.py`: RequestSpecDecodeMetrics (--per-request-spec-decode-metrics) |
| llama.cpp | `tools/server/server-task.cpp`: result_timings::to_json |

Engines count calls *with a draft* only. Of an answer of n tokens, whose first one the prompt's pass
emits, a call emits its accepted tokens and one more, and a pass without a draft one. So n - 1 - a
passes follow the prompt's, a being the accepted tokens. vLLM counts accepted tokens behind the end
of an answer (max_tokens, a stop token) in the last call: the passes are up to as many more as this
call accepted. llama.cpp cuts drafts to what an answer may still have (`get_n_draft_max`), so it
does at a stop token only (`post_decode` in `tools/server/server-context.cpp`); servers that write
its timings with draft_rounds count these calls. SGLang's own layout has the calls alone.

A histogram counts the calls that accepted 0, 1, ... tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.engines.answers import FormatError, Part, counted, read_answers
from pipeline.engines.pages import MOST_PLACES, EngineCounts
from pipeline.errors import PipelineError

MOST = 10_000_000  # tokens or calls of an answer; more are damage
MANY_CHOICES = "answers of several choices"
PER_STEP = ("per_step_accepted", "per_step_drafted")  # vLLM's, of every call in order


class AnswerCounts(NamedTuple):
    """The counts of one answer.

    Attributes:
        engine: vLLM, llama.cpp or SGLang; empty where nothing was drafted.
        calls: with a draft, NaN where they are not told.
        drafted: tokens, NaN likewise.
        accepted: tokens.
        histogram: how many calls accepted 0, 1, ... tokens; None where it is not told.
        per_step: (accepted, drafted) of every call in order; None likewise.
        tokens: of the answer, None likewise.
        ended: of llama.cpp, whether the model ended it.
        seconds: of the whole request, NaN likewise.
        decode_seconds: behind the prompt's pass, by the engine's clock, NaN likewise.
    """

    engine: str
    calls: float
    drafted: float
    accepted: float
    histogram: Sequence[int] | None = None
    per_step: Sequence[tuple[int, int]] | None = None
    tokens: int | None = None
    ended: bool = False
    seconds: float = math.nan
    decode_seconds: float = math.nan

    @property
    def passes(self) -> tuple[float, float]:
        """The least and the most passes after the prompt's, NaN where tokens are not told."""
        if self.tokens is None:
            return math.nan, math.nan
        least = max(self.tokens - 1, 0) - self.accepted
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


def read_counts(path: Path) -> EngineCounts:
    """Add up the counts of all answers of a file, at least one of which reports drafts.

    Raises:
        PipelineError: the file can't be read, no answer reports drafts, or it holds two models or
            numbers that contradict each other; names the file, and the line where there is one.
    """
    counts = read_sums(path)
    check_drafts(path, counts)
    return counts


def check_drafts(path: Path, counts: EngineCounts) -> None:
    """Check that the counts of a file are those of a run with drafts.

    Raises:
        PipelineError: no answer reports drafts, nothing was drafted, or the counts contradict each
            other; names the file.
    """
    if not counts.engine:
        raise PipelineError(
            f"{path}: no answer reports draft counts; llama.cpp puts them into timings (draft_n), "
            "vLLM into metrics.speculative_decoding (start it with "
            "--per-request-spec-decode-metrics detailed)"
        )
    if counts.drafts == 0 or counts.drafted == 0:
        raise PipelineError(
            f"{path}: no token was drafted: start the engine with a drafter and let it decode"
        )
    if counts.accepted > counts.drafted:  # NaN compares as false
        raise PipelineError(
            f"{path}: {counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted: the "
            "numbers are damaged"
        )


def read_sums(path: Path) -> EngineCounts:
    """Add up the counts of all answers of a file, whether or not anything was drafted.

    Raises:
        PipelineError: as `read_counts`.
    """
    read, _, excluded = read_answers(path, answer_counts)
    if not read:
        raise PipelineError(
            f"{path} holds no answers as JSON (left out: {counted(excluded)}): give answers that "
            "`python -m pipeline.ask URL` saved"
        )
    answers: dict[str, AnswerCounts] = {}
    for name, counts in read.items():
        if f"{name}#1" in read or counts is None:
            excluded[MANY_CHOICES] += counts is not None
        else:
            answers[name] = counts
    engines = sorted({answer.engine for answer in answers.values()} - {""})
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(engines)}: give one")
    every = list(answers.values())
    ends = [answer.passes for answer in every]
    emitted = [math.nan if a.tokens is None else max(a.tokens - 1, 0) for a in every]
    histograms = [answer.histogram for answer in every if answer.histogram is not None]
    by_place: list[float] = []
    if len(histograms) == len(answers):
        times = [sum(place) for place in zip_longest(*histograms, fillvalue=0)]
        by_place = [sum(times[place:]) for place in range(1, len(times))]
    return EngineCounts(
        engine=engines[0] if engines else "",
        drafts=sum(answer.calls for answer in every),
        drafted=sum(answer.drafted for answer in every),
        accepted=sum(answer.accepted for answer in every),
        passes=sum(least for least, _ in ends),
        most_passes=sum(most for _, most in ends),
        emitted=sum(emitted),
        by_place=by_place,
        answers=answers,
        excluded=+excluded,
    )


def answer_counts(answer: Part) -> AnswerCounts | None:
    """Return the draft counts of an answer; None for another choice of the same answer.

    Raises:
        FormatError: a number is missing, is no count, or contradicts another one.
    """
    if answer.content.get("index"):
        return None
    counts = _counts(answer)
    milliseconds = (answer.body.get("timings") or {}).get("predicted_ms")
    if isinstance(milliseconds, int | float) and 0 < milliseconds < math.inf:
        counts = counts._replace(decode_seconds=milliseconds / 1000)
    return counts._replace(seconds=answer.seconds)


def _counts(answer: Part) -> AnswerCounts:
    tokens = _answer_tokens(answer) or None
    vllm = (answer.body.get("metrics") or {}).get("speculative_decoding") or {}
    llama, sglang = answer.body.get("timings") or {}, answer.body.get("meta_info") or {}
    if vllm.get("num_spec_steps") is not None:
        return _vllm(vllm, tokens)
    if llama.get("draft_n") is not None:
        drafted, accepted = _count(llama, "draft_n"), _count(llama, "draft_n_accepted")
        calls = _count(llama, "draft_rounds") if "draft_rounds" in llama else math.nan
        why = answer.body.get("stop_type"), answer.content.get("finish_reason")
        ended = bool({"eos", "word", "stop"} & set(why))
        found = AnswerCounts("llama.cpp", calls, drafted, accepted, tokens=tokens, ended=ended)
    elif sglang.get("spec_verify_ct") is not None:
        calls = _count(sglang, "spec_verify_ct")
        accepted = max((tokens or 1) - 1 - calls, 0)
        found = AnswerCounts("SGLang", calls, math.nan, accepted, tokens=tokens)
    else:  # nothing was drafted for it
        return AnswerCounts("", 0, 0, 0, histogram=(), per_step=(), tokens=tokens)
    _check_drafts(found)
    return found


def _vllm(info: Mapping[str, Any], tokens: int | None) -> AnswerCounts:
    calls, drafted = _count(info, "num_spec_steps"), _count(info, "num_draft_tokens")
    accepted = _count(info, "num_accepted_draft_tokens")
    counts = AnswerCounts("vLLM", calls, drafted, accepted, tokens=tokens)
    _check_drafts(counts)
    if (histogram := info.get("acceptance_histogram")) is not None:
        counts = counts._replace(histogram=histogram)
        _check_histogram(counts)
    per_step: list[Any] = [info.get(name) if calls else [] for name in PER_STEP]
    return counts if None in per_step else counts._replace(per_step=_steps(counts, *per_step))


def _answer_tokens(answer: Part) -> int:
    """Return the number of tokens of an answer; 0 where it is not given."""
    usage, timings = answer.body.get("usage") or {}, answer.body.get("timings") or {}
    meta, ids = answer.body.get("meta_info") or {}, answer.content.get("token_ids")
    told: dict[str, Any] = {
        "completion_tokens": usage.get("completion_tokens", meta.get("completion_tokens")),
        "predicted_n": timings.get("predicted_n"),
        "tokens_predicted": answer.body.get("tokens_predicted"),
        "token_ids": len(ids) if isinstance(ids, list) else None,
    }
    for name, size in told.items():
        if type(size) is int and size > 0:
            return _count(told, name)
    return 0


def _count(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    if type(value) is not int or not 0 <= value <= MOST:
        raise FormatError(f"has {name}={value!r:.60}: a whole number from 0 to {MOST} was expected")
    return value


def _check_drafts(counts: AnswerCounts) -> None:
    if counts.drafted > MOST_PLACES * counts.calls:  # NaN compares as false
        raise FormatError(
            f"has {counts.drafted} drafted tokens in {counts.calls} verifications: at most "
            f"{MOST_PLACES} each are allowed"
        )


def _check_histogram(counts: AnswerCounts) -> None:
    histogram = counts.histogram
    if not isinstance(histogram, list) or not all(
        type(n) is int and 0 <= n <= MOST for n in histogram
    ):
        raise FormatError(f"has the histogram {histogram!r:.60}: a list of counts was expected")
    if len(histogram) > MOST_PLACES + 1:
        raise FormatError(
            f"has a histogram of drafts of {len(histogram) - 1} tokens: at most {MOST_PLACES} are "
            "allowed"
        )
    calls, accepted = sum(histogram), sum(place * times for place, times in enumerate(histogram))
    if (calls, accepted) != (counts.calls, counts.accepted):
        raise FormatError(
            f"has a histogram of {calls} verifications and {accepted} accepted tokens, and counts "
            f"of {counts.calls} and {counts.accepted}"
        )


def _steps(counts: AnswerCounts, accepted: Any, drafted: Any) -> list[tuple[int, int]]:
    """Return (accepted, drafted) of every call, as vLLM lists them."""
    for name, values in zip(PER_STEP, (accepted, drafted), strict=True):
        if not isinstance(values, list) or len(values) != counts.calls:
            raise FormatError(f"has {name} that is no list of {counts.calls} calls")
        for value in values:
            _count({name: value}, name)
    if any(kept > tried for kept, tried in zip(accepted, drafted, strict=True)):
        raise FormatError("has a call in per_step_accepted that accepts more than it drafts")
    if (sum(accepted), sum(drafted)) != (counts.accepted, counts.drafted):
        raise FormatError(
            f"has {sum(accepted)} accepted and {sum(drafted)} drafted tokens by call, and counts "
            f"of {counts.accepted} and {counts.drafted}"
        )
    return list(zip(accepted, drafted, strict=True))
