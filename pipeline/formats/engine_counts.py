"""What inference engines count of speculative decoding: calls, drafted and accepted tokens.

| engine | written as | defined in |
|---|---|---|
| vLLM | scrape | `vllm/v1/spec_decode/metrics.py`: SpecDecodingProm |
| vLLM | answers | pull request 48915: metrics.speculative_decoding |
| SGLang | scrape | `python/sglang/srt/metrics/collector.py`: SchedulerMetricsCollector |
| SGLang | answers | `.../managers/tokenizer_manager.py`: _calculate_spec_decoding_metrics |
| llama.cpp | scrape | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics |
| llama.cpp | answers | `tools/server/server-task.cpp`: result_timings::to_json |

A scrape is a page of /metrics in the text format 0.0.4 of Prometheus. A call is a verification by
the target. All three engines divide what is accepted at a place of the draft by all calls;
`places` gives the share of those that reached the place as well. Names of the counts in answers
changed between versions; all are read. A histogram counts the calls that accepted 0, 1, ... tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from analysis.statistics.trajectories import place_shares
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import FormatError
from pipeline.formats.engine_lines import body_of, count, read_bytes, read_objects
from pipeline.formats.engine_scrape import Series, counters, read_scrape, since, tokens_a_call

ANSWERS = re.compile(r"^\s*(\{|\[\s*\{|(data|event|id)?:)", re.MULTILINE)  # JSON, or events
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


@dataclass
class Counts:
    """What an engine counted.

    Attributes:
        engine: vLLM, SGLang or llama.cpp.
        written: scrape or answers.
        calls: verifications, NaN where they are not told.
        drafted: tokens, NaN likewise.
        accepted: tokens, those of the target's own not counted; NaN likewise.
        by_place: accepted at each place of the draft, empty where it is not told.
        pieces: series or answers that were read.
        excluded: what was left out, and how often.
        printed_length: tokens a call, where the engine gives nothing else.
    """

    engine: str
    written: str
    calls: float
    drafted: float
    accepted: float
    by_place: Sequence[float]
    pieces: int
    excluded: dict[str, int] = field(default_factory=dict)
    printed_length: float | None = None

    @property
    def tokens_per_call(self) -> float:
        """1 + accepted / calls, or as the engine printed it."""
        if self.printed_length is not None:
            return self.printed_length
        return 1 + self.accepted / self.calls if self.calls else math.nan

    @property
    def places(self) -> list[dict[str, float]]:
        """The shares of `place_shares` at each place.

        A place is reached where the one before was accepted. Drafts that end earlier count as
        rejected at it, which makes both shares too small; engines do not tell such drafts apart.
        """
        reached = [self.calls, *self.by_place][: len(self.by_place)]
        return place_shares(self.calls, reached, self.by_place)


def read_counts(path: Path, model: str | None = None, earlier: Path | None = None) -> Counts:
    """Return what an engine counted, of a scrape of /metrics or of answers as JSON.

    Args:
        path: of the file.
        model: which one counts, by its name in the file.
        earlier: a scrape whose counts are taken off.

    Raises:
        PipelineError: the file can't be read, holds nothing of speculative decoding, two models or
            numbers that contradict each other; names the file, and the line where there is one.
    """
    text, excluded = read_bytes(path).decode("utf-8", errors="replace"), dict[str, int]()
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.startswith(("# HELP ", "# TYPE ", "vllm:", "sglang:", "llamacpp:")):
        series = read_scrape(path, text, excluded)
        if earlier is not None:
            before = read_bytes(earlier).decode("utf-8", errors="replace")
            series = since(path, series, read_scrape(earlier, before, {}))
        counts = _of_series(path, series, model, excluded)
    elif earlier is not None:
        raise PipelineError(f"engine.since={earlier}: {path} is no page of /metrics: leave it out")
    elif ANSWERS.search(text):
        counts = _of_answers(path, model, excluded)
    else:
        raise PipelineError(
            f"{path} holds neither a page of /metrics nor answers as JSON: give one of them (what "
            "a server prints into its log is not read)"
        )
    _check(path, counts)
    return counts


def _of_series(path: Path, series: Series, model: str | None, excluded: dict[str, int]) -> Counts:
    models = {key: dict(key[1]).get("model_name") for key in series}
    wanted = _one(path, {name for name in models.values() if name is not None}, model)
    series = {key: one for key, one in series.items() if models[key] in (None, wanted)}
    engines = {name.partition(":")[0] for name, _ in series}
    if not engines:
        raise PipelineError(
            f"{path} has no metrics of speculative decoding: start the server with a drafter"
            " and --enable-metrics (SGLang) or --metrics (llama.cpp)"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds metrics of {' and '.join(sorted(engines))}: give one")
    engine = engines.pop()
    if engine == "sglang":
        length, busy, idle = tokens_a_call(path, series)
        excluded |= {"idle ranks": idle} if idle else {}
        unknown = math.nan
        return Counts("SGLang", "scrape", unknown, unknown, unknown, [], busy, excluded, length)
    label = {"vllm": "vLLM", "llamacpp": "llama.cpp"}[engine]
    return Counts(label, "scrape", *counters(path, series, engine), len(series), excluded)


def _one(path: Path, names: set[str], model: str | None) -> str | None:
    """Return the model that counts, of those that a file names."""
    if model is not None and not names:
        raise PipelineError(f"engine.model={model}: {path} names no model: leave it out")
    if model is not None and model not in names:
        raise PipelineError(
            f"engine.model={model} is not in {path}: it has {', '.join(sorted(names))}"
        )
    if model is None and len(names) > 1:
        raise PipelineError(
            f"{path} holds {len(names)} models ({', '.join(sorted(names))}): engine.model=NAME "
            "takes one"
        )
    return model if model is not None else next(iter(names), None)


def _of_answers(path: Path, model: str | None, excluded: dict[str, int]) -> Counts:
    """Add up what each answer counted; of a stream, what it said last."""
    found: dict[object, dict[str, Any] | None] = {}
    again = set[object]()
    for line, value, streamed in read_objects(path, excluded):
        read = body_of(value)
        if isinstance(read, str):
            count(excluded, read)
            continue
        try:
            name, one = request_of(*read)
        except FormatError as error:
            raise PipelineError(f"{path}, line {line} {error}") from error
        if streamed and name is None and (one is None or read[0].get("stop") is False):
            continue  # llama.cpp's stream ends with the whole counts
        key = line if name is None else name
        held = found.get(key)
        # the counts of a stream grow; others are given once
        grows = streamed and (held is None or (one is not None and _size(one) > _size(held)))
        if key in found and not grows:
            if one is not None and (not streamed or one != held or one["engine"] == "vLLM"):
                again.add(key)
            continue
        if one is not None or key not in found:
            found[key] = one
    silent = sum(one is None for one in found.values())
    if silent:
        excluded["answers that tell nothing of drafts"] = silent
    if again:
        excluded["answers given again"] = len(again)
    told = [one for one in found.values() if one is not None]
    wanted = _one(path, {one["model"] for one in told if one["model"] is not None}, model)
    told = [one for one in told if one["model"] in (None, wanted)]
    engines = {one["engine"] for one in told}
    if not engines:
        raise PipelineError(
            f"{path}: no answer tells of drafts: SGLang does in meta_info (spec_verify_ct), "
            "llama.cpp in timings (draft_n), vLLM in metrics.speculative_decoding (start it with "
            "--per-request-spec-decode-metrics summary)"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(sorted(engines))}: give one")
    by_place: list[float] = []
    if all(one["by_place"] is not None for one in told):
        by_place = [sum(at) for at in zip_longest(*(one["by_place"] for one in told), fillvalue=0)]
    calls, drafted, accepted = (
        sum(one[name] for one in told) for name in ("calls", "drafted", "accepted")
    )
    return Counts(engines.pop(), "answers", calls, drafted, accepted, by_place, len(told), excluded)


def _size(one: Mapping[str, Any]) -> int:
    return int(one["drafted"] + one["accepted"])


def request_of(body: Mapping[str, Any], custom: Any) -> tuple[str | None, dict[str, Any] | None]:
    """Return the id of an answer, and what it says of drafts; None where it says nothing.

    What it says is a mapping: engine, model, calls, drafted, accepted and by_place.

    Raises:
        FormatError: a number is missing, is no count, or contradicts the histogram.
    """

    def inside(held: Any, *names: str) -> Mapping[str, Any]:
        for name in names:
            held = held.get(name) if isinstance(held, Mapping) else None
        return held if isinstance(held, Mapping) else {}

    choice: Any = next(iter(body.get("choices") or []), None)
    sglang = (
        inside(body, "meta_info")
        or inside(choice, "meta_info")
        or inside(body, "sglext", "spec_tokens_details")
    )
    told = {
        "SGLang": (sglang, "spec_verify_ct"),
        "vLLM": (inside(body, "metrics", "speculative_decoding"), "num_spec_steps"),
        "llama.cpp": (inside(body, "timings"), "draft_n"),
    }
    name = custom or body.get("id") or sglang.get("id")
    engine = next((engine for engine, (info, key) in told.items() if info.get(key)), None)
    if engine is None:
        return name, None
    said = _said(told[engine][0], NAMES[engine])
    return name, {"engine": engine, "model": body.get("model"), **said}


def _said(info: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the counts of an answer, each under the first of its names that is there."""
    said: dict[str, Any] = {"calls": math.nan, "by_place": None}
    for what, known in names.items():
        name = next((name for name in known if info.get(name) is not None), known[0])
        value = info.get(name)
        if what == "histogram":
            if value is not None:
                said["by_place"] = _places(value, said["calls"], said["accepted"])
        elif value is None:
            raise FormatError(f"lacks {name}")
        elif type(value) is not int or value < 0:
            raise FormatError(f"has {name}={value!r}: a whole number of at least 0 was expected")
        else:
            said[what] = value
    return said


def _places(histogram: Any, calls: int, accepted: int) -> list[int]:
    if not isinstance(histogram, list) or not all(type(n) is int and n >= 0 for n in histogram):
        raise FormatError(f"has the histogram {histogram!r}: a list of counts was expected")
    by_place = [sum(histogram[place:]) for place in range(1, len(histogram))]
    if sum(histogram) != calls or sum(by_place) != accepted:
        raise FormatError(
            f"has a histogram of {sum(histogram)} verifications and {sum(by_place)} accepted "
            f"tokens, and counts of {calls} and {accepted}"
        )
    return by_place


def _check(path: Path, counts: Counts) -> None:
    """Refuse what no engine counts; NaN compares as false.

    Raises:
        PipelineError: more was accepted than drafted, or at a place than at the one before.
    """
    if counts.calls == 0 or counts.drafted == 0:
        raise PipelineError(f"{path}: no token was drafted: let the engine decode first")
    placed = sum(counts.by_place)
    wrong = None
    if counts.accepted > counts.drafted:
        wrong = f"{counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted"
    elif any(after > before * (1 + ODD_SHARE) for before, after in pairwise(counts.by_place)):
        wrong = "more tokens were accepted at a place of the draft than at the one before"
    elif counts.by_place and counts.by_place[0] > counts.calls * (1 + ODD_SHARE):
        wrong = f"{counts.by_place[0]:g} calls of {counts.calls:g} accepted a first token"
    elif counts.by_place and abs(placed - counts.accepted) > max(1.0, ODD_SHARE * counts.accepted):
        wrong = f"{counts.accepted:g} tokens were accepted, {placed:g} by their places"
    if wrong:
        raise PipelineError(f"{path}: {wrong}: the numbers are not of one engine, or damaged")
