"""Reads an engine's page of /metrics: counts of speculative decoding, passes, tokens and seconds.

| engine | counts of drafts | passes, tokens, seconds |
|---|---|---|
| vLLM | `vllm/v1/spec_decode/metrics.py`: SpecDecodingProm | `vllm/v1/metrics/loggers.py` |
| llama.cpp | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics | the same |

A page is in the text format 0.0.4 of Prometheus. Both engines count the drafts of *drafting calls*
only: a pass for which the drafter proposed nothing is in none of these counters. All passes are

- of vLLM the observations of inter_token_latency_seconds: one a pass and request, after the first
  token, which prefill emits;
- of llama.cpp n_decode_total, times n_busy_slots_per_decode: prefill's passes are among them, as is
  the first token of each answer among tokens_predicted_total.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from pipeline.core.errors import PipelineError
from pipeline.engines.answers import read_bytes
from pipeline.engines.counts import MOST_PLACES, Counts

ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}  # by the prefix of their metrics
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
LABELS = re.compile(f"(?:{LABEL.pattern})*")
DRAFTS = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
    "spec_decode_num_accepted_tokens_per_pos": "by_place",
}
METRICS = {  # without _total: what is read of each
    "vllm": DRAFTS
    | {
        "inter_token_latency_seconds_count": "passes",
        "inter_token_latency_seconds_sum": "seconds",
        "generation_tokens": "tokens",
        "time_to_first_token_seconds_count": "firsts",
    },
    "llamacpp": DRAFTS
    | {
        "n_decode": "passes",
        "n_busy_slots_per_decode": "slots",
        "tokens_predicted": "tokens",
        "tokens_predicted_seconds": "seconds",
        "draft_verify_steps": "drafts",  # names of a branch
        "draft_tokens": "drafted",
        "draft_tokens_accepted": "accepted",
    },
}
COUNTED = ("drafts", "drafted", "accepted", "passes", "most_passes", "emitted", "seconds")
MOST = 1e15  # of a counter; more is damage
SHOWN = 60  # characters of a line in an error


def page_of(path: Path) -> Counts | None:
    """Return the sums of a page, of NAME.after.txt less NAME.before.txt; None of another file."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    start = next((line for line in text.splitlines() if line.strip()), "")
    if not start.startswith(("# HELP ", "# TYPE ", *(f"{prefix}:" for prefix in ENGINES))):
        return None
    before = path.with_name(path.name.replace(".after.", ".before."))
    if before != path and before.is_file():
        return page_difference(before, path)
    return read_page(path, text)


def page_difference(first: Path, last: Path, prompts: int = 0) -> Counts:
    """Return the sums between two pages; llama.cpp counts prefill of `prompts`, and its tokens."""
    texts = [read_bytes(path).decode("utf-8-sig", errors="replace") for path in (first, last)]
    before, after = map(read_page, (first, last), texts)
    spent = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
    places = zip_longest(after.by_place, before.by_place, fillvalue=0.0)
    by_place = [late - early for late, early in places]
    if after.engine == "llama.cpp":
        for name in ("passes", "most_passes", "emitted"):
            spent[name] -= prompts
    if any(math.isnan(value) for value in spent.values()):
        raise PipelineError(
            f"{last} and {first.name} do not both count passes, tokens, seconds: give whole pages"
        )
    if min([*spent.values(), *by_place]) < 0:
        raise PipelineError(
            f"{last} counts less than {first.name}: it was restarted: ask again (ask.name=NAME)"
        )
    if not min(spent[name] for name in ("passes", "emitted", "seconds")):
        raise PipelineError(
            f"{last}: since {first.name} no answer got a second token, and only the passes for "
            "those are timed: ask for longer answers (distributions.steps=N ask.name=NAME)"
        )
    return replace(after, **spent, by_place=by_place)


def read_page(path: Path | str, text: str) -> Counts:
    """Return the sums of a page."""
    series = _series(path, text)
    models = {dict(labels).get("model_name", "") for *_, labels in series} - {""}
    for what, found in (("metrics", {engine for engine, *_ in series}), ("models", models)):
        if len(found) > 1:
            raise PipelineError(
                f"{path} holds {what} of {' and '.join(sorted(map(str, found)))}: leave one"
            )
    if not series:
        raise PipelineError(
            f"{path} has no counts of drafts or passes: give one of vLLM, or of llama.cpp --metrics"
        )
    engine = next(iter(series))[0]
    sums: dict[str, float] = {}
    placed: dict[str, float] = {}
    for (_, name, labels), value in series.items():
        at = dict(labels).get("position", "")
        into, key = (placed, at) if name == "by_place" else (sums, name)
        into[key] = into.get(key, 0.0) + value
    missing = [name for name in ("drafts", "drafted", "accepted") if name not in sums]
    if missing and (placed or len(missing) < 3):
        raise PipelineError(f"{path} lacks the counter of {missing[0]}: give the whole page")
    if len(placed) > MOST_PLACES or set(placed) != set(map(str, range(len(placed)))):
        raise PipelineError(
            f"{path} has {len(placed)} positions of drafts, {', '.join(sorted(placed)):.{SHOWN}}: "
            f"all from 0 on were expected, at most {MOST_PLACES}"
        )
    if sums.get("accepted", 0.0) > sums.get("drafted", 0.0):
        raise PipelineError(
            f"{path}: {sums['accepted']:g} tokens were accepted of {sums['drafted']:g} drafted: "
            "the counts contradict each other"
        )
    passes = sums.get("passes", math.nan) * sums.get("slots", 1.0)
    first_tokens = sums.get("firsts", math.nan) if engine == "vllm" else 0.0
    return Counts(
        engine=ENGINES[engine],
        model="".join(models),
        drafts=sums.get("drafts", 0.0),
        drafted=sums.get("drafted", 0.0),
        accepted=sums.get("accepted", 0.0),
        by_place=[placed[str(place)] for place in range(len(placed))],
        passes=passes,
        most_passes=passes,
        emitted=sums.get("tokens", math.nan) - first_tokens,
        seconds=sums.get("seconds", math.nan),
    )


def _series(
    path: Path | str, text: str
) -> dict[tuple[str, str, frozenset[tuple[str, str]]], float]:
    """Return the series of `METRICS`, by engine, meaning and labels; the last line may be cut."""
    series: dict[tuple[str, str, frozenset[tuple[str, str]]], float] = {}
    for number, line in enumerate(map(str.strip, text.split("\n")[:-1]), start=1):
        if not line or line.startswith("#"):
            continue
        place, match = f"{path}, line {number}", SAMPLE.fullmatch(line)
        if match is None:
            raise PipelineError(f"{place} is no metric ({line[:SHOWN]!r}): give the engine's page")
        name, inside, shown = match.groups(default="")
        engine, _, own = name.removesuffix("_total").partition(":")
        if (meaning := METRICS.get(engine, {}).get(own)) is None:
            continue
        if LABELS.fullmatch(inside) is None:
            raise PipelineError(f"{place}: the labels {{{inside[:SHOWN]}}} can't be read")
        key = (engine, meaning, frozenset(LABEL.findall(inside)))
        if key in series:
            raise PipelineError(f"{place}: {name} occurs twice: give one page")
        try:
            series[key] = float(shown)
        except ValueError:
            series[key] = math.nan
        if not 0 <= series[key] <= MOST:
            raise PipelineError(
                f"{place}: {name} is {shown[:SHOWN]}: a number from 0 to {MOST:g} was expected"
            )
    return series
