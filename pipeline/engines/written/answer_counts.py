"""The draft counts that an engine reports of one answer.

| engine | defined in |
|---|---|
| vLLM | `vllm/v1/metrics/stats.py`: RequestSpecDecodeMetrics (--per-request-spec-decode-metrics) |
| llama.cpp | `tools/server/server-task.cpp`: result_timings::to_json |

Engines count calls *with a draft* only. Of an answer of n tokens, whose first one the prompt's pass
emits, a call emits its accepted tokens and one more, and a pass without a draft one. So n - 1 - a
passes follow the prompt's, a being the accepted tokens. vLLM counts accepted tokens behind the end
of an answer (max_tokens, a stop token) in the last call: the passes are up to as many more as this
call accepted. llama.cpp cuts drafts to what an answer may still have (`get_n_draft_max`), so it
does at a stop token only (`post_decode` in `tools/server/server-context.cpp`).

A histogram counts the calls that accepted 0, 1, ... tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.engines.written.answers import FormatError, Part
from pipeline.engines.written.pages import MOST_PLACES

MOST_CALLS = 10_000_000  # of an answer; more are damage
NAMES = {  # of the counts in an answer
    "vLLM": {
        "calls": "num_spec_steps",
        "drafted": "num_draft_tokens",
        "accepted": "num_accepted_draft_tokens",
    },
    "llama.cpp": {"drafted": "draft_n", "accepted": "draft_n_accepted"},
}
PER_STEP = ("per_step_accepted", "per_step_drafted")  # vLLM's, of every call in order


class AnswerCounts(NamedTuple):
    """The counts of one answer.

    Attributes:
        engine: vLLM or llama.cpp.
        calls: with a draft, NaN where they are not told.
        drafted: tokens.
        accepted: tokens.
        histogram: how many calls accepted 0, 1, ... tokens; None where it is not told.
        per_step: (accepted, drafted) of every call in order; None likewise.
        tokens: of the answer, None likewise.
        ended: of llama.cpp, whether the model ended it.
    """

    engine: str
    calls: float
    drafted: float
    accepted: float
    histogram: Sequence[int] | None = None
    per_step: Sequence[tuple[int, int]] | None = None
    tokens: int | None = None
    ended: bool = False

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


def counted_by(answer: Part) -> AnswerCounts | int | None:
    """Return the draft counts of an answer; its tokens where it has none.

    None for another choice of the same answer.

    Raises:
        FormatError: a number is missing, is no count, or contradicts another one.
    """
    if answer.content.get("index"):
        return None
    body = answer.body
    reported = {
        "vLLM": (body.get("metrics") or {}).get("speculative_decoding"),
        "llama.cpp": body.get("timings"),
    }
    tokens = _answer_tokens(answer)
    for engine, names in NAMES.items():
        info = reported[engine] or {}
        if info.get(next(iter(names.values()))) is None:
            continue
        values: dict[str, Any] = {what: info.get(name) for what, name in names.items()}
        for what, name in names.items():
            _check_count(name, values[what])
        calls, histogram = values.get("calls", math.nan), info.get("acceptance_histogram")
        if values["drafted"] > MOST_PLACES * values.get("calls", math.inf):
            raise FormatError(
                f"has {values['drafted']} drafted tokens in {calls} verifications: at most "
                f"{MOST_PLACES} each are allowed"
            )
        counts = AnswerCounts(
            engine, calls, values["drafted"], values["accepted"], histogram, None, tokens or None
        )
        if engine == "llama.cpp":
            why = body.get("stop_type"), answer.content.get("finish_reason")
            counts = counts._replace(ended=bool({"eos", "word", "stop"} & set(why)))
        if histogram is not None:
            _check_histogram(counts)
        per_step: list[Any] = [info.get(name) if calls else [] for name in PER_STEP]
        return counts if None in per_step else counts._replace(per_step=_steps(counts, *per_step))
    return tokens


def _answer_tokens(answer: Part) -> int:
    """Return the number of tokens of an answer; 0 where it is not given."""
    usage, timings = answer.body.get("usage") or {}, answer.body.get("timings") or {}
    ids = answer.content.get("token_ids")
    sizes = (
        usage.get("completion_tokens"),
        *(timings.get("predicted_n"), answer.body.get("tokens_predicted")),
        len(ids) if isinstance(ids, list) else None,
    )
    return next((size for size in sizes if type(size) is int and size > 0), 0)


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise FormatError(f"has {name}={value!r:.60}: a whole number of at least 0 was expected")


def _check_histogram(counts: AnswerCounts) -> None:
    histogram = counts.histogram
    if not isinstance(histogram, list) or not all(type(n) is int and n >= 0 for n in histogram):
        raise FormatError(f"has the histogram {histogram!r:.60}: a list of counts was expected")
    if len(histogram) > MOST_PLACES + 1 or sum(histogram) > MOST_CALLS:
        raise FormatError(
            f"has a histogram of {sum(histogram)} verifications of drafts of {len(histogram) - 1} "
            f"tokens: at most {MOST_CALLS} and {MOST_PLACES} are allowed"
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
            _check_count(name, value)
    if any(kept > tried for kept, tried in zip(accepted, drafted, strict=True)):
        raise FormatError("has a call in per_step_accepted that accepts more than it drafts")
    if (sum(accepted), sum(drafted)) != (counts.accepted, counts.drafted):
        raise FormatError(
            f"has {sum(accepted)} accepted and {sum(drafted)} drafted tokens by call, and counts "
            f"of {counts.accepted} and {counts.drafted}"
        )
    return list(zip(accepted, drafted, strict=True))
