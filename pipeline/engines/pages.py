"""Reads an engine's page of /metrics: counts of speculative decoding, passes, tokens and seconds.

| engine | counts of drafts | passes, tokens, seconds |
|---|---|---|
| vLLM | `vllm/v1/spec_decode/metrics.py`: SpecDecodingProm | `vllm/v1/metrics/loggers.py` |
| llama.cpp | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics | the same |

A page is in the text format 0.0.4 of Prometheus. Both engines count the drafts of *drafting calls*
only: a pass for which the drafter proposed nothing is in none of these counters. All passes are

- of vLLM the observations of inter_token_latency_seconds: one a pass and request, after the first
  token, which the prompt's pass emits;
- of llama.cpp n_decode_total, times n_busy_slots_per_decode: prompts' passes are among them, as is
  the first token of each answer among tokens_predicted_total.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

METRIC_PREFIXES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}  # of an engine's metrics
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
DRAFTS = "spec_decode_num_"
LATENCIES = ("inter_token_latency_seconds", "time_per_output_token_seconds")  # new and old name
READ = {  # metrics beside those of drafts
    "vllm": {"generation_tokens", "time_to_first_token_seconds_count"}
    | {f"{name}_{part}" for name in LATENCIES for part in ("count", "sum")},
    "llamacpp": {
        *("tokens_predicted", "tokens_predicted_seconds", "n_decode"),
        "n_busy_slots_per_decode",
    },
}
FORK = {  # names of a branch of llama.cpp
    "draft_verify_steps": f"{DRAFTS}drafts",
    "draft_tokens": f"{DRAFTS}draft_tokens",
    "draft_tokens_accepted": f"{DRAFTS}accepted_tokens",
}
SHOWN = 60  # characters of a line in an error
MOST_PLACES = 1024  # tokens of a draft; more are damage
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]  # by name and labels


@dataclass(frozen=True)
class EngineCounts:
    """The counts of an engine, of a page or summed over answers; NaN where one is not told.

    Attributes:
        engine: vLLM, llama.cpp or SGLang; empty where answers do not tell.
        drafts: calls with a draft; 0 without a drafter.
        drafted: tokens.
        accepted: tokens, those of the target's own not counted.
        by_place: accepted at each place of a draft, empty where it is not told.
        passes: of the target and requests, those without a draft too; of answers those after each
            prompt's, the least that the counts allow.
        most_passes: the most.
        emitted: tokens of these passes.
        seconds: that these passes took, added up over requests.
        answers: what each answer counts, by its name; empty of a page.
        excluded: which answers were left out, and how often.
    """

    engine: str
    drafts: float
    drafted: float
    accepted: float
    by_place: Sequence[float]
    passes: float
    most_passes: float
    emitted: float
    seconds: float = math.nan
    answers: Mapping[str, Any] = field(default_factory=dict)
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """The least and the most tokens that a pass emits, of all passes."""
        least, most = self.most_passes, self.passes
        return self.emitted / (least or math.nan), self.emitted / (most or math.nan)


def is_page(text: str) -> bool:
    """Return whether a text is a page of /metrics, by its first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.startswith(("# HELP ", "# TYPE ", *(f"{start}:" for start in METRIC_PREFIXES)))


def read_page(path: Path | str, text: str) -> EngineCounts:
    """Return the sums of a page.

    Raises:
        PipelineError: it is of two engines or models, a line is damaged, or a counter is missing;
            names the file, and the line where there is one.
    """
    series = _series(path, text)
    models = {model for _, labels in series if (model := dict(labels).get("model_name"))}
    engines = {name.partition(":")[0] for name, _ in series}
    if not engines:
        raise PipelineError(
            f"{path} has no counts of drafts or passes: give a page of vLLM, or of llama.cpp "
            "started with --metrics"
        )
    for what, names in (("metrics", engines), ("models", models)):
        if len(names) > 1:
            raise PipelineError(
                f"{path} holds {what} of {' and '.join(sorted(names))}: leave the lines of one"
            )
    engine = engines.pop()
    sums = defaultdict[tuple[str, str], float](float)
    for (name, labels), value in series.items():
        sums[name.removeprefix(f"{engine}:"), dict(labels).get("position", "")] += value
    drafts, drafted, accepted, by_place = _drafts(path, engine, sums)
    passes, emitted, seconds = _passes(engine, {name: sums[name, at] for name, at in sums})
    return EngineCounts(
        engine=METRIC_PREFIXES[engine],
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        by_place=by_place,
        passes=passes,
        most_passes=passes,
        emitted=emitted,
        seconds=seconds,
    )


def _series(path: Path | str, text: str) -> Series:
    """Return the series that are read, without `_total`; the last line may be cut off.

    Raises:
        PipelineError: a line is no sample, a series occurs twice, or a value is no number of at
            least 0; names the file and the line.
    """
    series: Series = {}
    for number, line in enumerate(map(str.strip, text.split("\n")[:-1]), start=1):
        if not line or line.startswith("#"):
            continue
        place, match = f"{path}, line {number}", SAMPLE.fullmatch(line)
        if match is None:
            raise PipelineError(
                f"{place} is no metric ({line[:SHOWN]!r}): give the page as the engine's /metrics "
                "sent it"
            )
        name, inside, value = match.groups(default="")
        engine, _, own = name.removesuffix("_total").partition(":")
        own = FORK.get(own, own) if engine == "llamacpp" else own
        of_drafts = engine in METRIC_PREFIXES and own.startswith("spec_decode_")
        if (not of_drafts and own not in READ.get(engine, ())) or name.endswith("_created"):
            continue
        if LABEL.sub("", inside):
            raise PipelineError(f"{place}: the labels {{{inside[:SHOWN]}}} can't be read")
        key = (f"{engine}:{own}", frozenset(LABEL.findall(inside)))
        if key in series:
            raise PipelineError(f"{place}: {name} occurs twice: give one page")
        series[key] = _number(f"{place}: {name}", value)
    return series


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise PipelineError(f"{what} is {text[:SHOWN]}: a number of at least 0 was expected")
    return value


def _drafts(
    path: Path | str, engine: str, sums: dict[tuple[str, str], float]
) -> tuple[float, float, float, list[float]]:
    """Return calls with a draft, drafted and accepted tokens, and those accepted by place.

    Raises:
        PipelineError: some of these metrics are there and others are missing, or a place is.
    """
    counted = {key: value for key, value in sums.items() if key[0].startswith("spec_decode_")}
    if not counted:
        return 0.0, 0.0, 0.0, []
    totals = []
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        if (DRAFTS + name, "") not in counted:
            raise PipelineError(f"{path} lacks {engine}:{DRAFTS}{name}_total")
        totals.append(counted[DRAFTS + name, ""])
    per_place = f"{DRAFTS}accepted_tokens_per_pos"
    placed = {place: value for (name, place), value in counted.items() if name == per_place}
    if len(placed) > MOST_PLACES:
        raise PipelineError(
            f"{path}: {engine}:{per_place}_total has {len(placed)} positions, more than the "
            f"{MOST_PLACES} that a draft may have: give the page as the engine sent it"
        )
    if set(placed) != set(map(str, range(len(placed)))):
        raise PipelineError(
            f"{path}: {engine}:{per_place}_total has the positions {', '.join(sorted(placed))}: "
            "one is missing"
        )
    drafts, drafted, accepted = totals
    return drafts, drafted, accepted, [placed[str(place)] for place in range(len(placed))]


def _passes(engine: str, sums: dict[str, float]) -> tuple[float, float, float]:
    """Return passes, the tokens that they emitted, and their seconds."""

    def read(name: str) -> float:
        return sums.get(name, math.nan)

    if engine == "vllm":
        latency = next((name for name in LATENCIES if f"{name}_count" in sums), LATENCIES[0])
        emitted = read("generation_tokens") - read("time_to_first_token_seconds_count")
        return read(f"{latency}_count"), emitted, read(f"{latency}_sum")
    passes = read("n_decode") * sums.get("n_busy_slots_per_decode", 1.0)
    return passes, read("tokens_predicted"), read("tokens_predicted_seconds")
