"""A page of /metrics in the text format 0.0.4 of Prometheus: what is about speculative decoding."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.formats.engine_lines import count

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
OURS = ("vllm:spec_decode_", "llamacpp:spec_decode_", "sglang:spec_accept_")
SHOWN = 60  # characters of a line in an error
Series = dict[tuple[str, frozenset[tuple[str, str]]], tuple[float, int]]  # value and line


def read_scrape(path: Path, text: str, excluded: dict[str, int]) -> Series:
    """Return the series of a page that are about speculative decoding, without `_total`.

    A page ends with a newline. What lies behind the last one was cut off and is counted in
    `excluded`.

    Raises:
        PipelineError: a line is no sample, a series occurs twice, or a value is no number of at
            least 0; names the file and the line.
    """
    lines = text.split("\n")
    if lines.pop().strip():
        count(excluded, "truncated last line")
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
        name, inside, value = match.groups()
        if not name.startswith(OURS) or name.endswith("_created"):
            continue
        labels = frozenset(LABEL.findall(inside or ""))
        if LABEL.sub("", inside or ""):
            raise PipelineError(f"{at}: the labels {{{inside[:SHOWN]}}} can't be read")
        if not re.fullmatch(r"\+?[\d.]+([eE][+-]?\d+)?", value):
            raise PipelineError(f"{at}: {name} is {value}: a number of at least 0 was expected")
        key = (name.removesuffix("_total"), labels)
        if key in found:
            raise PipelineError(
                f"{at}: {name} was on line {found[key][1]} already: give one scrape; an earlier "
                "one is engine.since=FILE"
            )
        found[key] = (float(value), number)
    return found


def since(path: Path, now: Series, before: Series) -> Series:
    """Return the series with what they counted since an earlier scrape; gauges stay."""
    counted: Series = {}
    for (name, labels), (value, line) in now.items():
        began = before.get((name, labels), (0.0, 0))[0] if not name.startswith("sglang:") else 0.0
        if value < began:
            raise PipelineError(
                f"{path}, line {line}: {name} is {value:g}, less than the {began:g} of "
                "engine.since: the server was restarted in between, or the two are exchanged"
            )
        counted[name, labels] = (value - began, line)
    return counted


def counters(path: Path, series: Series, engine: str) -> tuple[float, float, float, list[float]]:
    """Return calls, drafted and accepted tokens, and those accepted at each place of the draft.

    Raises:
        PipelineError: a metric is missing, or a place.
    """
    sums: dict[str, float] = {}
    placed: dict[int, float] = {}
    start, per_place = f"{engine}:spec_decode_num_", "accepted_tokens_per_pos"
    for (name, labels), (value, line) in series.items():
        what = name.removeprefix(start)
        sums[what] = sums.get(what, 0.0) + value
        if what == per_place:
            place = dict(labels).get("position", "")
            if not place.isdecimal():
                raise PipelineError(
                    f"{path}, line {line}: {name} needs a label position, a whole number"
                )
            placed[int(place)] = placed.get(int(place), 0.0) + value
    for what in ("drafts", "draft_tokens", "accepted_tokens"):
        if what not in sums:
            raise PipelineError(f"{path} lacks {start}{what}_total")
    if sorted(placed) != list(range(len(placed))):
        raise PipelineError(
            f"{path}: {start}{per_place}_total has the positions "
            f"{', '.join(map(str, sorted(placed)))}: one is missing"
        )
    by_place = [placed[place] for place in range(len(placed))]
    return sums["drafts"], sums["draft_tokens"], sums["accepted_tokens"], by_place


def tokens_a_call(path: Path, series: Series) -> tuple[float, int, int]:
    """Return SGLang's mean tokens a call over its ranks that decoded in the last interval.

    And how many these are, and how many were idle, which have 0.

    Raises:
        PipelineError: none decoded with a draft.
    """
    lengths = [one[0] for (name, _), one in series.items() if name == "sglang:spec_accept_length"]
    busy = [length for length in lengths if length > 0]
    if not busy or min(busy) < 1:
        raise PipelineError(
            f"{path}: sglang:spec_accept_length is missing, below 1, or 0 at every rank: nothing "
            "was decoded with a draft in the last interval"
        )
    return sum(busy) / len(busy), len(busy), len(lengths) - len(busy)
