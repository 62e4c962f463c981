"""The metrics page of an inference engine: Prometheus text, one scrape.

Defined by the text format 0.0.4 of Prometheus, and by vLLM's `vllm/v1/spec_decode/metrics.py`
(SpecDecodingProm), SGLang's `python/sglang/srt/metrics/collector.py` (SchedulerMetricsCollector)
and llama.cpp's `tools/server/server-task.cpp` (server_task_result_metrics::to_metrics).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PipelineError

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
ESCAPED = re.compile(r"\\(.)")
OURS = ("vllm:spec_decode_", "llamacpp:spec_decode_", "sglang:spec_accept_")
TRUNCATED = "truncated last line"
SHOWN = 60  # characters of a line in an error


@dataclass(frozen=True)
class Series:
    """A line of a scrape that is about speculative decoding.

    Attributes:
        name: without the suffix `_total`.
        labels: what tells it from others of the name.
        value: at the time of the scrape.
        line: in the file.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    line: int

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What it has in common with the same series in another scrape."""
        return self.name, frozenset(self.labels.items())


def is_scrape(text: str) -> bool:
    """Whether a text is a page of metrics, and neither a log nor answers."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.startswith(("# HELP ", "# TYPE ", "vllm:", "sglang:", "llamacpp:"))


def read_scrape(path: Path, text: str, excluded: dict[str, int]) -> list[Series]:
    """Return the series of `text` that are about speculative decoding, in order.

    A page ends with a newline. What lies behind the last one was cut off and is counted in
    `excluded`.

    Raises:
        PipelineError: a line is no sample, a series occurs twice, or a value is no number of at
            least 0; names the file and the line.
    """
    lines = text.split("\n")
    if lines.pop().strip():
        excluded[TRUNCATED] = 1
    found: dict[object, Series] = {}
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        if match is None:
            raise PipelineError(
                f"{path}, line {number} is no metric ({line[:SHOWN]!r}): give the page as the "
                "engine's /metrics sent it"
            )
        if match[1].startswith(OURS) and not match[1].endswith("_created"):
            one = _series(path, number, match)
            if one.key in found:
                raise PipelineError(
                    f"{path}, line {number}: {match[1]} was on line {found[one.key].line} already: "
                    "give one scrape; an earlier one is engine.since=FILE"
                )
            found[one.key] = one
    return list(found.values())


def _series(path: Path, number: int, match: re.Match[str]) -> Series:
    text, labels, end = match[2] or "", {}, 0
    while end < len(text):
        label = LABEL.match(text, end)
        if label is None:
            raise PipelineError(
                f"{path}, line {number}: the labels {{{text[:SHOWN]}}} can't be read"
            )
        labels[label[1]] = ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], label[2])
        end = label.end()
    try:
        value = float(match[3])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise PipelineError(
            f"{path}, line {number}: {match[1]} is {match[3]}: a number of at least 0 was expected"
        )
    return Series(match[1].removesuffix("_total"), labels, value, number)


def since(path: Path, now: list[Series], earlier: list[Series]) -> list[Series]:
    """Return the series with what they counted since an earlier scrape; gauges stay.

    Raises:
        PipelineError: a counter is smaller than before.
    """
    before = {one.key: one.value for one in earlier}
    counted = []
    for one in now:
        began = 0.0 if one.name.startswith("sglang:") else before.get(one.key, 0.0)
        if one.value < began:
            raise PipelineError(
                f"{path}, line {one.line}: {one.name} is {one.value:g}, less than the {began:g} of "
                "engine.since: the server was restarted in between, or the two are exchanged"
            )
        counted.append(Series(one.name, one.labels, one.value - began, one.line))
    return counted
