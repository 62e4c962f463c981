"""Reads the counts of speculative decoding that engines keep: calls, drafted and accepted tokens.

| engine | written as | defined in |
|---|---|---|
| vLLM | scrape | `vllm/v1/spec_decode/metrics.py`: SpecDecodingProm |
| vLLM | answers | pull request 48915: metrics.speculative_decoding |
| SGLang | answers | `.../managers/tokenizer_manager.py`: _calculate_spec_decoding_metrics |
| llama.cpp | scrape | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics |
| llama.cpp | answers | `tools/server/server-task.cpp`: result_timings::to_json |

A scrape is a page of /metrics in the text format 0.0.4 of Prometheus. A call is a verification by
the target. All three engines divide what is accepted at a place of the draft by all calls;
`place_rows` gives the share of those that reached the place as well. Names of the counts in answers
changed between versions; all are read. A histogram counts the calls that accepted 0, 1, ... tokens.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from analysis.statistics.trajectories import place_shares
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import (
    FormatError,
    Part,
    counted,
    read_answers,
    read_bytes,
    read_objects,
)

ODD_SHARE = 0.01  # of the accepted tokens, without a place: a page is read while it is counted
NAMES: dict[str, dict[str, tuple[str, ...]]] = {  # of the counts in an answer
    "SGLang": {
        "calls": ("spec_verify_ct",),
        "drafted": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    },
    "vLLM": {
        "calls": ("num_spec_steps",),
        "drafted": ("num_draft_tokens",),
        "accepted": ("num_accepted_draft_tokens",),
        "histogram": ("acceptance_histogram",),
    },
    "llama.cpp": {"drafted": ("draft_n",), "accepted": ("draft_n_accepted",)},
}
STARTS = {"vllm": "vLLM", "llamacpp": "llama.cpp"}  # of the metrics of a page
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
OURS = tuple(f"{start}:spec_decode_" for start in STARTS)
SHOWN = 60  # characters of a line in an error
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]  # by name and labels


@dataclass(frozen=True)
class EngineCounts:
    """The counts of an engine.

    Attributes:
        engine: vLLM, SGLang or llama.cpp.
        pieces: what was read, "12 series".
        calls: verifications, NaN where they are not told.
        drafted: tokens, NaN likewise.
        accepted: tokens, those of the target's own not counted; NaN likewise.
        by_place: accepted at each place of the draft, empty where it is not told.
        histograms: of each answer that tells it, how many calls accepted 0, 1, ... tokens.
        excluded: what was left out, and how often.
    """

    engine: str
    pieces: str
    calls: float
    drafted: float
    accepted: float
    by_place: Sequence[float] = ()
    histograms: Mapping[str, Sequence[int]] = field(default_factory=dict)
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens_per_call(self) -> float:
        """The accepted tokens of a call, and the target's own."""
        return 1 + self.accepted / self.calls

    @property
    def places(self) -> list[dict[str, float]]:
        """The shares of `place_shares` at each place.

        A place is reached where the one before was accepted. Drafts that end earlier count as
        rejected at it, which makes both shares too small; engines do not tell such drafts apart.
        """
        reached = [self.calls, *self.by_place][: len(self.by_place)]
        return place_shares(self.calls, reached, self.by_place)


def read_counts(path: Path) -> EngineCounts:
    """Return what an engine counted, of a page of /metrics or of answers as JSON.

    Raises:
        PipelineError: the file can't be read, holds nothing of speculative decoding, two models or
            numbers that contradict each other; names the file, and the line where there is one.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    first = next((line for line in text.splitlines() if line.strip()), "")
    page = first.startswith(("# HELP ", "# TYPE ", *(f"{start}:" for start in STARTS)))
    counts = _of_page(path, text) if page else _of_answers(path)
    _check(path, counts)
    return counts


def _of_answers(path: Path) -> EngineCounts:
    """Add up what each answer counted; of a stream, what it said last."""
    found, _, excluded = read_answers(path, read_objects(path), counted_by)
    if not found:
        raise PipelineError(
            f"{path} holds neither a page of /metrics nor answers as JSON (left out: "
            f"{counted(excluded)}): give one of them; server logs are not read"
        )
    told: dict[str, dict[str, Any]] = {}
    for name, (_, said) in found.items():
        counts = [one for one in said if one]
        if counts:
            told[name] = counts[-1]
        elif None not in said:
            excluded["answers that report no draft counts"] += 1
    engines = {one["engine"] for one in told.values()}
    if not engines:
        raise PipelineError(
            f"{path}: no answer reports draft counts; SGLang puts them into meta_info "
            "(spec_verify_ct), llama.cpp in timings (draft_n), "
            "vLLM in metrics.speculative_decoding (start it with "
            "--per-request-spec-decode-metrics summary)"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(sorted(engines))}: give one")
    calls, drafted, accepted = (
        sum(one[name] for one in told.values()) for name in ("calls", "drafted", "accepted")
    )
    histograms = {name: one["histogram"] for name, one in told.items() if one["histogram"]}
    by_place: list[float] = []
    if len(histograms) == len(told):
        times = [sum(at) for at in zip_longest(*histograms.values(), fillvalue=0)]
        by_place = [sum(times[place:]) for place in range(1, len(times))]
    return EngineCounts(
        engines.pop(),
        f"{len(told)} answers",
        calls,
        drafted,
        accepted,
        by_place,
        histograms,
        +excluded,
    )


def counted_by(part: Part) -> dict[str, Any] | None:
    """Return the draft counts of a part of an answer: engine, calls, drafted, accepted, histogram.

    Empty where it says nothing; None for another choice of the same answer.

    Raises:
        FormatError: a number is missing, is no count, or contradicts the histogram.
    """
    if part.said.get("index"):
        return None

    body, said = part.body, part.said
    sglang = (body.get("sglext") or {}).get("spec_tokens_details")
    told = {
        "SGLang": body.get("meta_info") or said.get("meta_info") or sglang,
        "vLLM": (body.get("metrics") or {}).get("speculative_decoding"),
        "llama.cpp": body.get("timings"),
    }
    for engine, names in NAMES.items():
        info = told[engine] or {}
        if not info.get(next(iter(names.values()))[0]):
            continue
        counts: dict[str, Any] = {"engine": engine, "calls": math.nan, "histogram": None}
        for what, known in names.items():
            name = next((name for name in known if info.get(name) is not None), known[0])
            counts[what] = info.get(name)
            if what != "histogram" and (type(counts[what]) is not int or counts[what] < 0):
                raise FormatError(
                    f"has {name}={counts[what]!r}: a whole number of at least 0 was expected"
                )
        if counts["histogram"] is not None:
            _check_histogram(counts)
        return counts
    return {}


def _check_histogram(counts: Mapping[str, Any]) -> None:
    found = counts["histogram"]
    if not isinstance(found, list) or not all(type(n) is int and n >= 0 for n in found):
        raise FormatError(f"has the histogram {found!r}: a list of counts was expected")
    calls, accepted = sum(found), sum(place * times for place, times in enumerate(found))
    if (calls, accepted) != (counts["calls"], counts["accepted"]):
        raise FormatError(
            f"has a histogram of {calls} verifications and {accepted} accepted tokens, and counts "
            f"of {counts['calls']} and {counts['accepted']}"
        )


def _of_page(path: Path, text: str) -> EngineCounts:
    """Add up the series of a page of /metrics: of all engines that serve one model."""
    excluded = Counter[str]()
    series = _series(path, text, excluded)
    models = {model for _, labels in series if (model := dict(labels).get("model_name"))}
    engines = {name.partition(":")[0] for name, _ in series}
    if not engines:
        raise PipelineError(
            f"{path} has no counts of drafts: start the server with a drafter, and llama.cpp with "
            "--metrics; SGLang counts them in its answers"
        )
    for what, names in (("metrics", engines), ("models", models)):
        if len(names) > 1:
            raise PipelineError(
                f"{path} holds {what} of {' and '.join(sorted(names))}: leave the lines of one"
            )
    engine = engines.pop()
    counts = _counters(path, series, engine)
    return EngineCounts(STARTS[engine], f"{len(series)} series", *counts, excluded=+excluded)


def _series(path: Path, text: str, excluded: Counter[str]) -> Series:
    """Return the series of a page that are about speculative decoding, without `_total`.

    A page ends with a newline. What lies behind the last one was cut off and is counted in
    `excluded`.

    Raises:
        PipelineError: a line is no sample, a series occurs twice, or a value is no number of at
            least 0; names the file and the line.
    """
    lines = text.split("\n")
    excluded["truncated last line"] += bool(lines.pop().strip())
    found: Series = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        at, match = f"{path}, line {number}", SAMPLE.fullmatch(line)
        if match is None:
            raise PipelineError(
                f"{at} is no metric ({line[:SHOWN]!r}): give the page as the engine's /metrics "
                "sent it"
            )
        name, inside, value = match.groups(default="")
        if not name.startswith(OURS) or name.endswith("_created"):
            continue
        if LABEL.sub("", inside):
            raise PipelineError(f"{at}: the labels {{{inside[:SHOWN]}}} can't be read")
        if not re.fullmatch(r"\+?[\d.]+([eE][+-]?\d+)?", value):
            raise PipelineError(f"{at}: {name} is {value}: a number of at least 0 was expected")
        key = (name.removesuffix("_total"), frozenset(LABEL.findall(inside)))
        if key in found:
            raise PipelineError(f"{at}: {name} occurs twice: give one page")
        found[key] = float(value)
    return found


def _counters(path: Path, series: Series, engine: str) -> tuple[float, float, float, list[float]]:
    """Return calls, drafted and accepted tokens, and those accepted at each place of the draft.

    Raises:
        PipelineError: a metric is missing, or a place.
    """
    start, per_place = f"{engine}:spec_decode_num_", "accepted_tokens_per_pos"
    sums = defaultdict[tuple[str, str], float](float)
    for (name, labels), value in series.items():
        sums[name.removeprefix(start), dict(labels).get("position", "")] += value
    names = ("drafts", "draft_tokens", "accepted_tokens")
    for what in names:
        if (what, "") not in sums:
            raise PipelineError(f"{path} lacks {start}{what}_total")
    placed = {place: value for (what, place), value in sums.items() if what == per_place}
    if set(placed) != set(map(str, range(len(placed)))):
        raise PipelineError(
            f"{path}: {start}{per_place}_total has the positions {', '.join(sorted(placed))}: "
            "one is missing"
        )
    calls, drafted, accepted = (sums[what, ""] for what in names)
    return calls, drafted, accepted, [placed[str(place)] for place in range(len(placed))]


def _check(path: Path, counts: EngineCounts) -> None:
    """Refuse what no engine counts; NaN compares as false.

    Raises:
        PipelineError: more was accepted than drafted, or at a place than calls reached it.
    """
    if counts.calls == 0 or counts.drafted == 0:
        raise PipelineError(f"{path}: no token was drafted: let the engine decode first")
    placed, reached = sum(counts.by_place), [counts.calls, *counts.by_place]
    wrong = None
    if counts.accepted > counts.drafted:
        wrong = f"{counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted"
    elif any(after > before * (1 + ODD_SHARE) for before, after in pairwise(reached)):
        wrong = "more tokens were accepted at a place of the draft than calls reached it"
    elif counts.by_place and abs(placed - counts.accepted) > max(1.0, ODD_SHARE * counts.accepted):
        wrong = f"{counts.accepted:g} tokens were accepted, {placed:g} by their places"
    if wrong:
        raise PipelineError(f"{path}: {wrong}: the numbers mix several engines, or are damaged")
