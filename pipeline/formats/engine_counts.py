"""What inference engines count of speculative decoding: calls, drafted and accepted tokens.

| engine | written as | defined in |
|---|---|---|
| vLLM | scrape, log | `vllm/v1/spec_decode/metrics.py`: SpecDecodingProm, SpecDecodingLogging |
| SGLang | scrape, log | `python/sglang/srt/managers/scheduler_metrics_mixin.py`: log_decode_stats |
| SGLang | answers | `.../managers/tokenizer_manager.py`: _calculate_spec_decoding_metrics |
| llama.cpp | scrape | `tools/server/server-task.cpp`: server_task_result_metrics::to_metrics |
| llama.cpp | log | `tools/server/server-context.cpp`: server_slot::print_timings |
| llama.cpp | answers | `tools/server/server-task.cpp`: result_timings::to_json |

A call is a verification by the target. All three engines divide what is accepted at a place of the
draft by all calls; `places` gives the share of those that reached the place as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from analysis.statistics.calls import place_shares
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import FormatError
from pipeline.formats.engine_lines import read_records
from pipeline.formats.engine_requests import Request, request_of
from pipeline.formats.engine_scrapes import Series, is_scrape, read_scrape, since
from pipeline.formats.engine_speech import Said, said_by

ANSWERS = re.compile(r"\s*(\{|\[\s*\{|(data|event|id)?:)")  # JSON, or a saved event stream
ODD_SHARE = 0.01  # of the accepted tokens, without a place: a page is read while it is counted


@dataclass
class Counts:
    """What an engine counted.

    Attributes:
        engine: vLLM, SGLang or llama.cpp.
        written: scrape, log or answers.
        calls: verifications, NaN where they are not told.
        drafted: tokens, NaN likewise.
        accepted: tokens, those of the target's own not counted; NaN likewise.
        by_place: accepted at each place of the draft, empty where it is not told.
        tokens_per_call: 1 + accepted / calls, or as the engine printed it.
        pieces: series, lines or answers that were read.
        excluded: what was left out, and how often.
    """

    engine: str
    written: str
    calls: float
    drafted: float
    accepted: float
    by_place: Sequence[float]
    tokens_per_call: float
    pieces: int
    excluded: dict[str, int] = field(default_factory=dict)

    @property
    def places(self) -> list[dict[str, float]]:
        """The shares of `place_shares` at each place.

        A place is reached where the one before was accepted. Drafts that end earlier count as
        rejected at it, which makes both shares too small; engines do not tell such drafts apart.
        """
        reached = [self.calls, *self.by_place][: len(self.by_place)]
        return place_shares(self.calls, reached, self.by_place)


def read_counts(path: Path, model: str | None = None, earlier: Path | None = None) -> Counts:
    """Return what an engine wrote into a file, whatever the format.

    Args:
        path: of a scrape of /metrics, a log, or answers as JSON Lines.
        model: which one counts, by its name in the file.
        earlier: a scrape whose counts are taken off.

    Raises:
        PipelineError: the file can't be read, holds nothing of speculative decoding, two models or
            numbers that contradict each other; names the file, and the line where there is one.
    """
    text, excluded = _text(path), dict[str, int]()
    if is_scrape(text):
        series = read_scrape(path, text, excluded)
        if earlier is not None:
            series = since(path, series, read_scrape(earlier, _text(earlier), {}))
        counts = _of_series(path, series, model, excluded)
    elif earlier is not None:
        raise PipelineError(f"engine.since={earlier}: {path} is no page of /metrics: leave it out")
    elif ANSWERS.match(text):
        counts = _of_requests(path, _requests(path, model, excluded), excluded)
    else:
        _one(path, set(), model)
        counts = _of_log(path, text, excluded)
    _check(path, counts)
    return counts


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise PipelineError(f"{path} can't be read: {error.strerror}") from error


def _of_series(
    path: Path, series: Sequence[Series], model: str | None, excluded: dict[str, int]
) -> Counts:
    names = {one.labels["model_name"] for one in series if "model_name" in one.labels}
    wanted = _one(path, names, model)
    series = [one for one in series if one.labels.get("model_name", model) == wanted]
    engines = {one.name.partition(":")[0] for one in series}
    if not engines:
        raise PipelineError(
            f"{path} has no metrics of speculative decoding: start the server with a drafter"
            + (" and --enable-metrics (SGLang) or --metrics (llama.cpp)")
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds metrics of {' and '.join(sorted(engines))}: give one")
    engine = engines.pop()
    if engine == "sglang":
        lengths = [one.value for one in series if one.name == "sglang:spec_accept_length"]
        if not lengths or min(lengths) < 1:
            raise PipelineError(
                f"{path}: sglang:spec_accept_length is missing or below 1: nothing was decoded "
                "with a draft in the last interval"
            )
        mean = float(np.mean(lengths))
        return Counts(
            "SGLang", "scrape", math.nan, math.nan, math.nan, [], mean, len(lengths), excluded
        )
    sums = []
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        own = [one.value for one in series if one.name == f"{engine}:spec_decode_num_{name}"]
        if not own:
            raise PipelineError(f"{path} lacks {engine}:spec_decode_num_{name}_total")
        sums.append(sum(own))
    placed: dict[int, float] = {}
    for one in series:
        if one.name == f"{engine}:spec_decode_num_accepted_tokens_per_pos":
            try:
                place = int(one.labels["position"])
            except (KeyError, ValueError) as error:
                raise PipelineError(
                    f"{path}, line {one.line}: {one.name} needs a label position, a whole number"
                ) from error
            placed[place] = placed.get(place, 0.0) + one.value
    if sorted(placed) != list(range(len(placed))):
        raise PipelineError(
            f"{path}: {engine}:spec_decode_num_accepted_tokens_per_pos_total has the positions "
            f"{', '.join(map(str, sorted(placed)))}: one is missing"
        )
    calls, drafted, accepted = sums
    label = {"vllm": "vLLM", "llamacpp": "llama.cpp"}[engine]
    by_place = [placed[place] for place in range(len(placed))]
    length = 1 + accepted / calls if calls else math.nan
    return Counts(
        label, "scrape", calls, drafted, accepted, by_place, length, len(series), excluded
    )


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


def _requests(path: Path, model: str | None, excluded: dict[str, int]) -> list[Request]:
    """Return the answers of a file that tell of drafts; of a stream what it said last."""
    found: dict[object, Request | None] = {}
    for record in read_records(path, excluded):
        try:
            name, request = request_of(record.value)
        except FormatError as error:
            raise PipelineError(f"{path}, line {record.line} {error}") from error
        key = name if name is not None else ("stream" if record.streamed else record.line)
        if key in found and not record.streamed:
            raise PipelineError(f"{path}, line {record.line}: answer {name} was there already")
        if request is not None or key not in found:
            found[key] = request
    names = {one.model for one in found.values() if one is not None and one.model is not None}
    wanted = _one(path, names, model)
    silent = sum(one is None for one in found.values())
    if silent:
        excluded["answers that tell nothing of drafts"] = silent
    return [one for one in found.values() if one is not None and one.model in (None, wanted)]


def _of_requests(path: Path, requests: Sequence[Request], excluded: dict[str, int]) -> Counts:
    engines = {one.engine for one in requests}
    if not engines:
        raise PipelineError(
            f"{path}: no answer tells of drafts: SGLang does in meta_info (spec_verify_ct), "
            "llama.cpp in timings (draft_n); for vLLM give a page of /metrics or its log"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(sorted(engines))}: give one")
    return _sum(engines.pop(), "answers", [one.said for one in requests], excluded)


def _of_log(path: Path, text: str, excluded: dict[str, int]) -> Counts:
    engine, said = said_by(path, text, excluded)
    if engine != "SGLang":
        return _sum(engine, "log", said, excluded)
    weights = [one.calls for one in said]  # requests that ran, of intervals of as many batches
    mean = float(np.average([one.tokens for one in said], weights=weights))
    return Counts(engine, "log", math.nan, math.nan, math.nan, [], mean, len(said), excluded)


def _sum(engine: str, written: str, said: Sequence[Said], excluded: dict[str, int]) -> Counts:
    calls, drafted, accepted = (
        sum(getattr(one, name) for one in said) for name in ("calls", "drafted", "accepted")
    )
    by_place: Sequence[float] = []
    if all(one.by_place is not None for one in said):
        lists = [one.by_place for one in said if one.by_place is not None]
        by_place = _added(lists)
    length = 1 + accepted / calls if calls else math.nan
    return Counts(engine, written, calls, drafted, accepted, by_place, length, len(said), excluded)


def _added(lists: Iterable[Sequence[float]]) -> list[float]:
    longest: list[float] = []
    for one in lists:
        longest += [0.0] * (len(one) - len(longest))
        for at, value in enumerate(one):
            longest[at] += value
    return longest


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
    elif counts.by_place and abs(placed - counts.accepted) > max(
        1.0, ODD_SHARE * counts.accepted, counts.calls * len(counts.by_place) * 5e-4
    ):
        wrong = f"{counts.accepted:g} tokens were accepted, {placed:g} by their places"
    if wrong:
        raise PipelineError(f"{path}: {wrong}: the numbers are not of one engine, or damaged")
