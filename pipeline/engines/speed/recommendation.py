"""Which draft length an engine should have, by runs that were compared, and which to try next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.decoding.draft_length import best_length, costs_by_length
from pipeline.engines.registry import engine_named
from pipeline.engines.speed.comparison import Speed
from pipeline.engines.speed.runs import Run

SURE = 1.1  # a gain of two pages, from which on drafts are recommended


def recommendation(base: Run, runs: Sequence[Run], speeds: Sequence[Speed]) -> list[str]:
    """Return the recommended draft length, which to measure next, and the engine's flags."""
    pairs = list(zip(runs, speeds, strict=True))
    known = [(run, speed) for run, speed in pairs if run.length and not math.isnan(speed.times)]
    if not known:
        lengths = "how long its drafts are (decoding.draft_length=N)"
        missing = [
            f"{run.path.name} does not tell "
            f"{'seconds as BASE does' if math.isnan(speed.times) else lengths}"
            for run, speed in pairs
        ]
        return [
            f"no recommendation: {'; '.join(missing)}: give two pages of /metrics, or two files of "
            "answers that python -m pipeline.ask saved"
        ]
    known = [(run, speed) for run, speed in known if speed.compares]
    if not known:
        return [
            f"no recommendation: no run compares with {base.path.name} (see above): send the same "
            "requests to both servers, as many at once"
        ]
    known = [(run, speed) for run, speed in known if not run.hardly_drafts]
    if not known:
        return ["no recommendation: hardly a pass had a draft (see above)"]
    run, speed = max(known, key=lambda pair: pair[1].times)
    length = run.length or 0
    engine = engine_named(run.engine)
    name = engine.length_key
    following = _following(known)
    if speed.times <= 1:
        speed_text = f"{speed.times:.2f} times" if speed.rough else str(speed)
        return [
            f"no drafts: the best length measured, {name} = {length}, is {speed_text} as fast"
            f"{following}"
        ]
    doubt = doubt_of(speed)
    if doubt:
        return [f"{doubt}: {name} = {length}: {speed}{following}"]
    lines = [f"{name} = {length}: {speed}{following}"]
    if engine.length_flags:
        set_by = engine.length_flags.format(n=length, more=length + 1)
        lines.append(f"flags: {set_by}, the rest as in {run.path.name}'s server")
    return lines


def doubt_of(speed: Speed) -> str:
    """Return why a gain is not sure, empty where it is."""
    if speed.low <= 1:
        return f"not decided, the {'rough ' if speed.rough else ''}interval holds 1"
    if math.isnan(speed.low):
        return "not sure, two pages without a count of requests give no interval"
    if speed.rough and speed.times < SURE:
        return f"not sure, a gain of two pages below {SURE:g}"
    return ""


def known_rates(run: Run) -> list[float]:
    """Return the acceptance rates of a run by position, up to the first that was not tested."""
    rates = [min(rate, 1.0) for rate in run.acceptance[0]]
    unknown = next((index for index, rate in enumerate(rates) if math.isnan(rate)), len(rates))
    return rates[:unknown]


def _following(known: Sequence[tuple[Run, Speed]]) -> str:
    """Return which length to measure next, by the acceptance of the longest drafts.

    A length costs what was measured, or what lies between; one more than the longest is tried.
    """
    by_speed = sorted(known, key=lambda pair: pair[1].times)  # of one length the fastest counts
    costs = {run.length or 1: speed.cost for run, speed in by_speed if not math.isnan(speed.cost)}
    longest = max((run for run, _ in known), key=lambda run: run.length or 0)
    rates = known_rates(longest)
    if not costs or not rates:
        return ""
    lengths = {run.length for run, _ in known}
    length = longest.length or 1
    best = best_length(rates, costs_by_length(costs, length + 1))
    if best == 0:
        measured = max(costs)
        rho = (costs[measured] - 1) / measured
        return (
            f"; a drafted token costs {rho:.2f} passes and {longest.acceptance[1]:.2f} are "
            "accepted: no length pays"
        )
    return "" if best in lengths else f"; {best} was not measured, ask with {best} next"
