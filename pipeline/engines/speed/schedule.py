"""The schedule of draft lengths by load, in words and as an engine's flag; and what-if.

At a measured load the schedule takes the fastest length measured there, or no drafts if the gain is
not sure. Between two measured loads it takes whichever of their two lengths is predicted to be
faster. It drafts there only for a predicted gain of `SURE`, since a prediction has no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from conf.schema import WhatIf
from pipeline.engines.registry import engine_named
from pipeline.engines.speed.by_load import load_rows, load_table, predicted_rows
from pipeline.engines.speed.comparison import Speed
from pipeline.engines.speed.loads import Load, costs_at, rates_and_draft_share
from pipeline.engines.speed.recommendation import SURE, doubt_of
from pipeline.engines.speed.runs import Run

Ranges = list[tuple[int, int, int]]  # first and last number of requests, draft length


def schedule(loads: Sequence[Load]) -> list[str]:
    """Return the schedule in lines, with what is not sure and what is still to be measured."""
    known = _known(loads)
    if not known:
        return [
            "no schedule: no run compares with the one without drafts at its load (see above): "
            "send the same requests to both servers, as many at once"
        ]
    ranges = draft_lengths(loads)
    reasons = [f"load {load.requests}: {_reason(load)}" for load in known]
    lines = [f"schedule: {_in_words(ranges)}", *reasons]
    return [*lines, _basis([load.requests or 0 for load in known]), *_flags(known, ranges)]


def draft_lengths(loads: Sequence[Load]) -> Ranges:
    """Return the draft length, 0 for none, of 1, 2, ... requests up to the largest measured load.

    Empty where no run compares with the one without drafts at its load.
    """
    known = _known(loads)
    return _ranges(known, {load.requests or 0: _chosen(load) for load in known})


def _known(loads: Sequence[Load]) -> list[Load]:
    """Return the loads that are told, and at which a run compares."""
    return [load for load in loads if load.measured and load.requests is not None]


def _fastest(load: Load) -> tuple[Run, Speed]:
    return max(load.measured.values(), key=lambda pair: pair[1].times)


def _chosen(load: Load) -> int:
    """Return the draft length at a measured load, 0 for none."""
    run, speed = _fastest(load)
    return 0 if speed.times <= 1 or doubt_of(speed) else run.length or 0


def _reason(load: Load) -> str:
    """Return the length at a measured load, and how sure it is."""
    run, speed = _fastest(load)
    if speed.times <= 1:
        return f"none: the fastest drafts, of {run.length}, are {speed} as fast"
    doubt = doubt_of(speed)
    if doubt:
        return f"{doubt}: drafts of {run.length} are {speed} as fast"
    near = [
        f"{length} ({other.times:.2f})"
        for length, (_, other) in sorted(load.measured.items())
        if length != run.length and other.times >= speed.low
    ]
    perhaps = f"; perhaps not faster than those of {', '.join(near)}" if near else ""
    return f"drafts of {run.length} are {speed} as fast{perhaps}"


def _ranges(loads: Sequence[Load], chosen: dict[int, int]) -> Ranges:
    """Return the draft length of 1, 2, ... requests up to the largest measured load, in ranges."""
    if not chosen:
        return []
    measured = sorted(chosen)
    lengths = dict.fromkeys(range(1, measured[0]), chosen[measured[0]]) | chosen
    for below, above in pairwise(measured):
        for requests in range(below + 1, above):
            lengths[requests] = _predicted(loads, requests, {chosen[below], chosen[above]})
    ranges = []
    for length, group in groupby(sorted(lengths), key=lengths.__getitem__):
        numbers = list(group)
        ranges.append((numbers[0], numbers[-1], length))
    return ranges


def _predicted(loads: Sequence[Load], requests: int, lengths: set[int]) -> int:
    """Return which of some draft lengths is predicted to be the fastest at a load."""
    if len(lengths) == 1:
        return next(iter(lengths))
    costs = costs_at(loads, requests)
    rates, share = rates_and_draft_share(loads)
    if costs is None or not rates:
        return min(lengths)
    speeds = costs.speeds(rates, share)
    best = max((length for length in lengths if length < len(speeds)), key=speeds.__getitem__)
    return best if speeds[best] >= SURE else min(lengths)


def _in_words(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][2] == 0:
        return "no drafts at any load"
    parts = []
    for first, last, length in ranges:
        tokens = f"{length} token{'' if length == 1 else 's'}" if length else "none"
        if first > 1 and (first, last, length) == ranges[-1]:
            parts.append(f"{tokens} from {first} on")
        else:
            span = f"{first}" if first == last else f"{first} to {last}"
            parts.append(f"{tokens} for {span} request{'' if last == 1 else 's'} at once")
    return ", ".join(parts)


def _basis(measured: Sequence[int]) -> str:
    """Say what was measured, and what was not."""
    last = f"above {measured[-1]} nothing was measured"
    if len(measured) == 1:
        return f"measured at load {measured[0]} alone: {last}"
    named = f"{', '.join(map(str, measured[:-1]))} and {measured[-1]}"
    gaps = any(above - below > 1 for below, above in pairwise(measured))
    between = (
        "; between them predicted, with costs interpolated over the logarithm of the load, and "
        f"drafts only where they gain {SURE:g}"
    )
    return f"measured at loads {named}{between if gaps else ''}; {last}"


def _flags(loads: Sequence[Load], ranges: Ranges) -> list[str]:
    """Return the line with the engine's flags; none where nothing is drafted."""
    longest = max(length for _, _, length in ranges)
    run, _ = max(
        (pair for load in loads for pair in load.measured.values()),
        key=lambda pair: pair[0].length == longest,
    )
    engine = engine_named(run.engine)
    if longest == 0 or not engine.length_flags:
        return []
    rest = f"the rest as in {run.path.name}'s server"
    flags = engine.length_flags.format(n=longest, more=longest + 1)
    if len(ranges) == 1:
        return [f"flags: {flags}, {rest}"]
    if not engine.schedule_key:
        return [f"{engine.name} has one length for all loads: {flags} for {longest}, {rest}"]
    replicas = max(load.base.replicas or 1 for load in loads)
    if replicas > 1 and any(load.base.asked for load in loads):
        return [
            f"no {engine.schedule_key}: it counts the requests of one engine, and the pages are of "
            f"{replicas} replicas that share them"
        ]
    form = [list(entry) for entry in ranges]
    flags = flags.replace("}'", f', "{engine.schedule_key}": {form}}}\'')
    lines = [f"flags: {flags}, {rest}"]
    if any(length == 0 for _, _, length in ranges):
        lines.append(
            "where it drafts none, this server may be slower than one without a drafter: measure it"
        )
    return lines


def _supposed(supposed: WhatIf) -> str:
    parts = []
    if supposed.acceptance is not None:
        parts.append(f"{supposed.acceptance:g} of the tested tokens were accepted")
    if supposed.concurrent is not None:
        parts.append(f"{supposed.concurrent} requests ran at once")
    return " and ".join(parts)


def _at_once(requests: int | None) -> str:
    return f"at {requests} request{'' if requests == 1 else 's'} at once"


def what_if(loads: Sequence[Load], supposed: WhatIf) -> list[str]:
    """Return the lines of a prediction at another acceptance rate or load.

    At a measured load and the acceptance that was measured it is no prediction.
    """
    requests = supposed.concurrent
    known = {load.requests: load for load in _known(loads)}
    heading = f"what if {_supposed(supposed)}:"
    if requests in known and supposed.acceptance is None:
        rows = [row for row in load_rows(loads) if row.load == requests]
        measured = f"{_at_once(requests)}, measured: {_reason(known[requests])}"
        return ["", heading, *load_table(rows), measured]
    asked = [load.requests for load in loads] if requests is None else [requests]
    rows = predicted_rows(loads, asked, supposed.acceptance)
    ends = [load for load in known if load]
    doubt = ""
    if requests is not None and not (ends and min(ends) <= requests <= max(ends)):
        doubt = (
            f"; not sure: costs change with the load, and {requests} is outside the measured loads"
        )
    lines = ["", heading, *load_table(rows)]
    for load in dict.fromkeys(row.load for row in rows):
        best = max((row for row in rows if row.load == load), key=lambda row: row.speed.times)
        at_load = "" if load is None else f"{_at_once(load)}: "
        prediction = f"{best.cells()['speed']} (the cost of its step: {best.source})"
        words = f"drafts of {best.length}"
        if best.speed.times <= 1:
            words = f"no drafts: the fastest, of {best.length}"
        elif best.speed.times < SURE:
            words = f"not sure, a predicted gain below {SURE:g}: drafts of {best.length}"
        lines.append(f"{at_load}{words}: {prediction}{doubt}")
    return lines
