r"""The log lines of inference engines on speculative decoding.

vLLM, an interval a line: `SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput:
15.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: 150 tokens, Drafted: 300 tokens,
Per-position acceptance rate: 0.800, 0.500, 0.200, Avg Draft acceptance rate: 50.0%`.
SGLang, an interval of `--decode-log-interval` batches: `Decode batch, #running-req: 4, ...,
accept len: 2.94, accept rate: 0.65, ...`. The rate counts the target's own token in some versions
and not in others, so only the length is read.
llama.cpp, a request: `draft acceptance rate = 0.57576 (  171 accepted /   297 generated)`, in newer
versions `draft acceptance = 0.66 (257 accepted / 388 generated), mean len = 3.65` with the rates by
place on the same line or the next one, `acc per pos = (0.804, 0.701)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import PipelineError

NUMBER = r"(\d+(?:\.\d+)?|nan)"
VLLM = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {NUMBER}, "
    r"(?:Accepted throughput: \S+ tokens/s, Drafted throughput: \S+ tokens/s, )?"
    r"Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    rf"Per-position acceptance rate: ((?:{NUMBER}(?:, )?)+), "
    rf"Avg Draft acceptance rate: {NUMBER}%"
)
SGLANG = re.compile(
    rf"Decode batch.*#running-req: (\d+),.*accept len: {NUMBER}, accept rate: {NUMBER}, "
)
LLAMA = re.compile(
    rf"draft acceptance(?: rate)? = *{NUMBER} \( *(\d+) accepted / *(\d+) generated\)"
    rf"(?:, mean (?:acceptance length|len) = *{NUMBER})?"
    r"(?:, acceptance rate per position = \(([^)]*)\))?"
)
LLAMA_PLACES = re.compile(r"acc per pos = \(([^)]*)\)")
MARKS = {  # a line that has one is meant to be read
    "vLLM": ("SpecDecoding metrics:",),
    "SGLang": ("accept len:",),
    "llama.cpp": ("draft acceptance", "acc per pos ="),
}
HALF_LENGTH, HALF_RATE = 0.005, 0.0005  # half a unit of the last printed digit


@dataclass(frozen=True)
class Said:
    """What a line or an answer says.

    Attributes:
        calls: verifications, NaN where it can't be told; of SGLang's log requests that ran.
        drafted: tokens, NaN likewise.
        accepted: tokens, NaN likewise.
        by_place: accepted at each place of the draft; None where it is not told.
        tokens: a call, as printed; NaN where it is not.
    """

    calls: float
    drafted: float
    accepted: float
    by_place: Sequence[float] | None
    tokens: float = math.nan


def said_by(path: Path, text: str, excluded: dict[str, int]) -> tuple[str, list[Said]]:
    """Return the engine that wrote a log, and what its lines say.

    Lines that are cut off or damaged are counted in `excluded`.

    Raises:
        PipelineError: no line is about speculative decoding, those of two engines are, or of
            drafts of two lengths.
    """
    lines = text.splitlines()
    marked = {
        engine: [(at, line) for at, line in enumerate(lines, 1) if any(m in line for m in marks)]
        for engine, marks in MARKS.items()
    }
    engines = [engine for engine, found in marked.items() if found]
    if not engines:
        raise PipelineError(
            f"{path}: nothing in it is about speculative decoding: give a page of /metrics, the "
            "server's log, or answers as JSON Lines"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds lines of {' and '.join(engines)}: give one engine's")
    engine = engines[0]
    whole = not text or text.endswith("\n")
    readers: dict[str, Callable[[str], Said | None]] = {
        "vLLM": _vllm,
        "SGLang": _sglang,
        "llama.cpp": _llama,
    }
    said: list[Said] = []
    first: tuple[int, int] | None = None  # line and length of the first draft
    for at, line in _joined(marked[engine]):
        one = readers[engine](line)
        if one is None:
            cut = at == len(lines) and not whole
            reason = "truncated last line" if cut else "damaged lines"
            excluded[reason] = excluded.get(reason, 0) + 1
            continue
        if engine == "vLLM" and one.by_place is not None:
            first = first or (at, len(one.by_place))
            if len(one.by_place) != first[1]:
                raise PipelineError(
                    f"{path}: drafts of {first[1]} tokens on line {first[0]}, of "
                    f"{len(one.by_place)} on line {at}: the log is of two servers; give one"
                )
        said.append(one)
    if not said:
        raise PipelineError(f"{path}: none of its {len(marked[engine])} lines of {engine} is whole")
    return engine, said


def _joined(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines; llama.cpp's rates by place belong to the line before, if it has none."""
    held: tuple[int, str] | None = None
    for at, line in lines:
        if held is not None and "draft acceptance" in held[1] and LLAMA_PLACES.search(line):
            yield held[0], f"{held[1]} {line}"
            held = None
            continue
        if held is not None:
            yield held
        held = at, line
    if held is not None:
        yield held


def _vllm(line: str) -> Said | None:
    match = VLLM.search(line)
    if match is None:
        return None
    mean, accepted, drafted = float(match[1]), int(match[2]), int(match[3])
    rates = [float(rate) for rate in match[4].split(", ")]
    calls = _calls(mean, accepted, drafted, len(rates))
    by_place = _placed(rates, calls)
    if not drafted or abs(sum(by_place) - accepted) > 1 + calls * len(rates) * HALF_RATE:
        return None
    return Said(calls, drafted, accepted, by_place)


def _calls(mean: float, accepted: int, drafted: int, longest: int) -> float:
    """Return the calls that a mean length 1 + accepted / calls was printed for.

    Drafts of full length give them exactly. Where those do not fit the printed mean, drafts were
    shorter, and the mean gives them to half a unit of its last digit.
    """
    full = drafted / longest
    if accepted == 0 or abs(1 + accepted / full - mean) <= HALF_LENGTH + 1e-9:
        return full
    return accepted / (mean - 1) if mean > 1 else math.nan


def _sglang(line: str) -> Said | None:
    match = SGLANG.search(line)
    if match is None or float(match[2]) < 1 or int(match[1]) == 0:
        return None
    return Said(float(match[1]), math.nan, math.nan, None, float(match[2]))


def _llama(line: str) -> Said | None:
    match = LLAMA.search(line)
    if match is None:
        return None
    said = Said(math.nan, int(match[3]), int(match[2]), None)
    if abs(said.accepted / max(said.drafted, 1) - float(match[1])) > HALF_RATE:
        return None
    after = LLAMA_PLACES.search(line)
    listed = match[5] or (after[1] if after else None)
    if match[4] is None:
        return said
    try:
        rates = [float(rate) for rate in listed.split(",")] if listed else []
    except ValueError:
        return None
    longest = len(rates) or int(said.drafted) or 1
    mean = float(match[4])
    if said.accepted == 0 and not rates:
        return said
    calls = _llama_calls(mean, said.accepted, rates, longest, said.drafted)
    return replace(said, calls=calls, by_place=_placed(rates, calls) or None)


def _placed(rates: Sequence[float], calls: float) -> list[float]:
    """Return how many calls accepted a token at each place: whole where three digits tell them."""
    whole = calls <= 0.5 / HALF_RATE and float(calls).is_integer()
    return [float(round(rate * calls)) if whole else rate * calls for rate in rates]


def _llama_calls(
    mean: float, accepted: float, rates: Sequence[float], longest: int, drafted: float
) -> float:
    """Return the verifications of a request: a whole number that all its figures agree with."""
    if accepted == 0:
        return drafted / longest
    near = accepted / (mean - 1) if mean > 1 else math.nan
    if not math.isfinite(near):
        return near
    wide = near * HALF_LENGTH / (mean - 1) + 1
    fits = [
        n
        for n in range(max(1, math.floor(near - wide)), math.ceil(near + wide) + 1)
        if abs(1 + accepted / n - mean) <= HALF_LENGTH + 1e-9
        and all(abs(round(rate * n) - rate * n) <= n * HALF_RATE + 1e-6 for rate in rates)
    ]
    return float(min(fits, key=lambda n: abs(n - near))) if fits else near
