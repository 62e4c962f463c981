"""Reads an engine's page of /metrics: counts of speculative decoding, passes, tokens and seconds.

A page is in the text format 0.0.4 of Prometheus. Each engine's module says which metrics are read.
They count the drafts of *drafting calls* only: a pass for which the drafter proposed nothing is in
none of these counters.

A series is a counter with its labels: each engine of a data-parallel server, or each replica behind
a router, has its own. Two pages are compared series by series, since a sum hides that one of them
began again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pipeline.core.errors import PipelineError
from pipeline.engines.counts import MAX_PLACES, Counts
from pipeline.engines.engine_base import PageSums
from pipeline.engines.packed_files import read_bytes
from pipeline.engines.printed_text import printable
from pipeline.engines.registry import ENGINES, engine_named, engines_with_pages

METRICS = {  # by name, without _total
    engine.metrics_prefix + name: (engine, meaning)
    for engine in ENGINES
    for name, meaning in engine.metrics.items()
}
PREFIXES = "|".join(engine.metrics_prefix for engine in ENGINES if engine.metrics_prefix)
PAGE = re.compile(rf"# (HELP|TYPE) |({PREFIXES})")  # begins one
STARTED = "process_start_time_seconds"
COUNTED = (
    "drafts", "drafted", "accepted", "least_passes", "most_passes", "emitted", "seconds",
    "requests", "engine_steps",
)  # fmt: skip
NEEDED = ("least_passes", "emitted", "seconds")
MAX_COUNTER = 1e15  # of a counter; more is damage
MAX_LINE_LENGTH = 10_000  # characters of a line; more are damage
SHOWN = 60  # characters of a line in an error
Labels = frozenset[tuple[str, str]]
Series = dict[tuple[str, Labels], float]  # by name, without _total, and labels


def page_of(path: Path) -> Counts | None:
    """Return the sums of a page, or of NAME.after.txt less NAME.before.txt; None if it is none."""
    text = _text(path)
    if PAGE.match(text.lstrip()) is None:
        return None
    before = path.with_name(path.name.replace(".after.", ".before."))
    if before != path and before.is_file():
        return page_difference(before, path)
    return read_page(path, text)


def is_page(path: Path) -> bool:
    """Say whether a file is a page of an engine."""
    return PAGE.match(_text(path).lstrip()) is not None


def page_difference(first: Path, last: Path, prompts: int = 0) -> Counts:
    """Return the sums between two pages in which `prompts` were answered.

    Raises:
        PipelineError: a series of the first page is missing or smaller on the last, or the pages
            lack a count that the speed needs.
    """
    early = _series(first, _text(first))
    late = _series(last, _text(last))
    before = _sums(first, early)
    after = _sums(last, late)
    broken = _break_between(first.name, early, late)
    if broken:
        raise PipelineError(f"{last} {broken}: ask again (ask.name=NAME), or save both pages again")
    spent = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
    places = zip_longest(after.by_place, before.by_place, fillvalue=0.0)
    by_place = [above - below for above, below in places]
    if engine_named(after.engine).counts_prefill:
        spent["requests"] = prompts or math.nan
        for name in ("least_passes", "most_passes", "emitted"):
            spent[name] -= prompts
    if any(math.isnan(spent[name]) for name in NEEDED):
        raise PipelineError(
            f"{last} and {first.name} do not both count passes, tokens, seconds: give whole pages"
        )
    if not min(spent[name] for name in NEEDED) > 0:
        raise PipelineError(
            f"{last}: since {first.name} no answer got a second token, and only the passes for "
            "those are timed: ask for longer answers (distributions.steps=N ask.name=NAME)"
        )
    return replace(after, **spent, by_place=by_place)


def _break_between(first: str, before: Series, after: Series) -> str:
    """Return the series that shows that a server was restarted or lost; empty if none does."""
    for (name, labels), early in before.items():
        inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels))
        shown = printable(f"{name}{{{inside}}}" if inside else name)
        late = after.get((name, labels))
        if late is None:
            return f"lacks {shown} of {first}: a server was lost, or the page was cut"
        if name == STARTED or name.endswith("_created"):
            if late != early:
                return f"is of a server that was restarted after {first} ({shown} is another)"
        elif late < early and not _may_fall(name):
            fall = f"from {early:,.10g} to {late:,.10g}"
            return f"counts less than {first}: a server was restarted ({shown} fell {fall})"
    return ""


def read_page(path: Path | str, text: str) -> Counts:
    """Return the sums of a page over its series; NaN where it lacks a counter.

    Raises:
        PipelineError: it is of another engine, or of several engines or models, a line is no
            metric, or counts contradict each other.
    """
    return _sums(path, _series(path, text))


def _sums(path: Path | str, series: Series) -> Counts:
    read = {key: value for key, value in series.items() if key[0] in METRICS}
    engines = {METRICS[name][0] for name, _ in read}
    models = {printable(dict(labels).get("model_name", "")) for _, labels in read} - {""}
    for what, names in (("metrics", {engine.name for engine in engines}), ("models", models)):
        if len(names) > 1:
            raise PipelineError(f"{path} holds {what} of {' and '.join(sorted(names))}: leave one")
    sums: dict[str, float] = {}
    placed: dict[str, float] = {}
    for (name, labels), value in read.items():
        meaning = METRICS[name][1]
        if meaning == "by_place":
            position = dict(labels).get("position", "")
            placed[position] = placed.get(position, 0.0) + value
        else:
            sums[meaning] = sums.get(meaning, 0.0) + value
    page = PageSums("".join(models), sums, _by_place(path, placed))
    counts = replace(engines.pop().page_counts(page), replicas=_replicas(read))
    if counts.accepted > counts.drafted:  # NaN compares as false
        raise PipelineError(
            f"{path}: {counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted: the "
            "counts contradict each other"
        )
    return counts


def _replicas(series: Series) -> int:
    """Return the largest number of series of one counter, positions of drafts aside."""
    names = Counter(name for name, _ in series if METRICS[name][1] != "by_place")
    return max(names.values(), default=1)


def _by_place(path: Path | str, placed: Mapping[str, float]) -> list[float]:
    """Return the counts by position, which must be 0, 1, ..."""
    if len(placed) > MAX_PLACES or set(placed) != set(map(str, range(len(placed)))):
        positions = printable(", ".join(sorted(placed)))
        raise PipelineError(
            f"{path} has {len(placed)} positions of drafts, {positions:.{SHOWN}}: all from 0 on "
            f"were expected, at most {MAX_PLACES}"
        )
    return [placed[str(position)] for position in range(len(placed))]


def _text(path: Path) -> str:
    """Return a file's text; headers that curl -i saved before the page become blank lines."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    blank = 0
    while text.startswith("HTTP/"):
        headers, _, text = text.partition("\n\n")
        blank += headers.count("\n") + 2
    return "\n" * blank + text


def _may_fall(name: str) -> bool:
    """Say whether a metric may fall while a server runs; all else that is read only grows."""
    if name not in METRICS:
        return False
    engine, meaning = METRICS[name]
    return meaning in engine.gauges


def _series(path: Path | str, text: str) -> Series:
    """Return the series that are read, and when they began; the last line may be cut.

    Raises:
        PipelineError: a line is no metric, or occurs twice, a counter is no number from 0 on, or
            the page is of another engine.
    """
    series: Series = {}
    for number, line in enumerate(map(str.strip, text.split("\n")[:-1]), start=1):
        if not line or line.startswith("#"):
            continue
        place = f"{path}, line {number}"
        try:
            if len(line) > MAX_LINE_LENGTH:
                raise ValueError
            (family,) = text_string_to_metric_families(line)
            (sample,) = family.samples
        except (ValueError, IndexError):
            raise PipelineError(
                f"{place} is no metric ({line[:SHOWN]!r}): give the engine's page"
            ) from None
        name = sample.name.removesuffix("_total")
        if name != STARTED and name.removesuffix("_created") not in METRICS:
            continue
        key = (name, frozenset(sample.labels.items()))
        if key in series:
            raise PipelineError(f"{place}: {sample.name} occurs twice: give one page")
        if not 0 <= sample.value <= MAX_COUNTER:
            raise PipelineError(
                f"{place}: {sample.name} is {sample.value:g}: a number from 0 to {MAX_COUNTER:g} "
                "was expected"
            )
        series[key] = float(sample.value)
    if not any(name in METRICS for name, _ in series):
        raise PipelineError(f"{path} {_unread_page(text)}")
    return series


def _unread_page(text: str) -> str:
    """Say why nothing of a page is read."""
    unread = [engine for engine in ENGINES if engine.metrics_prefix and not engine.metrics]
    for engine in unread:
        if re.search(f"^{engine.metrics_prefix}", text, re.MULTILINE):
            return f"is a page of {engine.name}, which is not read: give its answers"
    return f"has no counts of drafts or passes: give one of {engines_with_pages()}"
