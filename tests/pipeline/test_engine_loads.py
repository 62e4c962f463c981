"""Runs at several loads: which belong together, what is predicted, and the schedule."""

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest

from analysis.decoding.draft_length import expected_tokens
from analysis.report import style
from analysis.statistics.bootstrap import Resampling
from conf.schema import WhatIf
from pipeline import engine
from pipeline.engines.speed.by_load import load_rows, predicted_rows, rows_between
from pipeline.engines.speed.comparison import compare
from pipeline.engines.speed.loads import compare_by_load, costs_at
from pipeline.engines.speed.runs import read_run, run_files
from pipeline.engines.speed.schedule import what_if
from tests.engines import metrics, vllm_page

STATISTICS = Resampling(200, 0.95, 0)
PLACES = 6000, 3000  # accepted of 10,000 drafts of two: rates 0.6 and 0.5, 1.9 tokens a step
COUNTS = {"requests": 1000}


def write(folder, name, cost, places=(), asked=None, served=None, **others):
    """Write a page of 19,000 tokens; a step costs so many passes of 10 ms.

    `asked` is the load in NAME.json, `served` the requests in a step of the engine.
    """
    passes = round(19_000 / (1 + sum(places) / 10_000))
    accepted = tuple(round(place * passes / 10_000) for place in places)
    counters = {"passes": passes, "seconds": 0.01 * cost * passes, "by_place": accepted}
    text = vllm_page(**COUNTS | counters | others)
    if served is not None:
        steps = (passes + 1000) / served
        text += f'vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}\n'
    (folder / f"{name}.after.txt").write_text(text)
    if asked is not None:
        record = {"concurrent": asked, "engine": "vLLM", "answers_of_pages": 0}
        (folder / f"{name}.json").write_text(json.dumps(record))
    return folder / f"{name}.after.txt"


def grid(folder, costs, told="asked", places=PLACES):
    """Write a run without drafts and one with drafts of two for each load: its cost of a step."""
    for load, cost in costs.items():
        write(folder, f"a{load}", 1.0, **{told: load})
        write(folder, f"d{load}", cost, places, **{told: load})
    return folder


def screen_of(capsys, *words, render=lambda figure, kind: b""):
    """What the command prints. It draws its figures, but only the test of their files renders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "render", render)
        engine.main([*map(str, words)])
    return capsys.readouterr().out


def loads_of(folder):
    runs = [read_run(path) for path in run_files(folder)]
    runs.sort(key=lambda run: run.counts.drafting is not False)
    return compare_by_load(runs, STATISTICS)


@pytest.mark.parametrize("told", ["asked", "served"])
def test_runs_are_paired_by_load(told, tmp_path, capsys):
    """By what was asked for, and by the pages alone; 1.9 tokens at 1.2 and 2.4 passes a step."""
    grid(tmp_path, {1: 1.2, 8: 2.4}, told)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    rows = [line.split() for line in screen.splitlines() if " measured " in line]
    assert [(row[0], row[2], row[4]) for row in rows] == [("1", "2", "1.900"), ("8", "2", "1.900")]
    assert "1.58 times, roughly" in screen
    assert "0.79 times, roughly" in screen
    assert "of another load" not in screen


def test_files_may_be_given_in_any_order(tmp_path):
    grid(tmp_path, {1: 1.2, 4: 2.0})
    names = ("a4", "d1", "d4", "a1")
    loads, notes = compare_by_load(
        [read_run(tmp_path / f"{n}.after.txt") for n in names], STATISTICS
    )
    assert [(load.requests, load.base.path.name[0], len(load.runs)) for load in loads] == [
        (1, "a", 1),
        (4, "a", 1),
    ]
    assert notes == []


def test_the_schedule_is_what_vllm_reads(tmp_path, capsys):
    """Ranges from 1 on, both ends included, no gap; the most drafted tokens are the maximum."""
    grid(tmp_path, {1: 1.2, 16: 2.4})
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    flags = re.search(r"--speculative-config '(.*)', the rest", screen)[1].replace("..., ", "")
    config = json.loads(flags)
    ranges = config["num_speculative_tokens_per_batch_size"]
    assert config["num_speculative_tokens"] == 2
    assert ranges[0][0] == 1
    assert ranges[-1][1:] == [16, 0]
    assert "slower than one without a drafter: measure it" in screen
    assert all(entry[0] == before[1] + 1 for before, entry in pairwise(ranges))
    # 1.9 tokens at 1.2 + 1.2 log2(n) / 4 passes: 1.1 times as fast up to n = 3.01
    assert ranges == [[1, 3, 2], [4, 16, 0]]
    assert "schedule: 2 tokens for 1 to 3 requests at once, none from 4 on" in screen
    assert "between them predicted" in screen
    assert "above 16 nothing was measured" in screen


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({1: 1.2, 2: 1.3}, "schedule: 2 tokens from 1 on|schedule: 2 tokens for 1 to 2"),
        ({1: 2.0, 2: 2.1}, "schedule: no drafts at any load\n"),
        ({4: 1.2, 5: 2.0}, "schedule: 2 tokens for 1 to 4 requests at once, none from 5 on\n"),
    ],
)
def test_one_length_needs_no_schedule(costs, said, tmp_path, capsys):
    screen = screen_of(capsys, grid(tmp_path, costs), f"outputs={tmp_path}/o")
    assert re.search(said, screen)
    assert ("per_batch_size" in screen) == ("none from 5" in said)
    assert ("flags:" in screen) == ("2 tokens" in said)
    assert "not decided" not in screen  # where drafts are slower, nothing is left to decide


def test_a_gain_that_is_not_sure_is_not_in_the_schedule(tmp_path, capsys):
    """1.9 tokens at 1.75 passes are 1.09 times as fast: two pages are not sure below 1.1."""
    screen = screen_of(capsys, grid(tmp_path, {1: 1.2, 2: 1.75}), f"outputs={tmp_path}/o")
    assert "none from 2 on" in screen
    assert "load 2: not sure, a gain of two pages below 1.1: drafts of 2 are 1.09" in screen
    assert re.search(r"1\.09 times, roughly .*, not sure\n", screen)


def test_the_schedule_says_how_sure_it_is(tmp_path, capsys):
    screen = screen_of(capsys, grid(tmp_path, {1: 1.2, 8: 2.4}), f"outputs={tmp_path}/o")
    said = screen.split("schedule: ")[1].splitlines()
    assert re.search(r"load 1: .* 2 .*1\.58 times, roughly \[1\.5\d, 1\.6\d\]", said[1])
    assert re.search(r"load 8: none.* 2.* 0\.79 times, roughly \[0\.7\d, 0\.8\d\]", said[2])


def scheduled(folder, name, drafts, passes=19_000, asked=8, seconds=0.01):
    """Write a page of a server with a schedule, in which few of the passes had a draft of two."""
    text = vllm_page(passes, seconds * passes, 1000, passes, (drafts // 2, drafts // 4))
    for counter, count in (("drafts", drafts), ("draft_tokens", 2 * drafts)):
        text = re.sub(f"(num_{counter}_total.*) .*", rf"\1 {count}", text)
    (folder / f"{name}.after.txt").write_text(text)
    record = {"concurrent": asked, "engine": "vLLM", "answers_of_pages": 0}
    (folder / f"{name}.json").write_text(json.dumps(record))
    return read_run(folder / f"{name}.after.txt")


@pytest.mark.parametrize("drafts", [0, 100])
def test_a_server_that_hardly_drafts_tells_nothing_of_drafts(drafts, tmp_path, capsys):
    """With a schedule of none at this load: its speed is shown, and nothing follows from it."""
    grid(tmp_path, {1: 1.2})
    write(tmp_path, "a8", 1.0, asked=8)
    scheduled(tmp_path, "d8", drafts)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    rows = [line for line in screen.splitlines() if re.match(" +8 ", line)]
    assert len(rows) == 1
    assert re.search(r" 2 .* - +not known .*hardly any drafts", rows[0])
    assert f"d8.after.txt: {drafts} of 19,000 passes had a draft" in screen
    assert "measured at load 1 alone" in screen
    alone = tmp_path / "a8.after.txt", tmp_path / "d8.after.txt"
    assert "no recommendation: hardly" in screen_of(capsys, *alone)


@pytest.mark.parametrize(("drafts", "hardly"), [(199, True), (200, False), (201, False)])
def test_few_drafts_tell_nothing(drafts, hardly, tmp_path):
    assert scheduled(tmp_path, "d", drafts, 10_000).hardly_drafts == hardly


@pytest.mark.parametrize(("drafts", "told"), [(1899, False), (1900, True), (1901, True)])
def test_a_tenth_of_the_passes_tells_the_cost_of_a_step(drafts, told, tmp_path):
    """Of a run whose passes all take as long, so that a step costs one; both count as measured."""
    base = read_run(write(tmp_path, "a", 1.0, asked=8))
    loads, notes = compare_by_load([base, scheduled(tmp_path, "d8", drafts)], STATISTICS)
    assert notes == []
    assert math.isnan(loads[0].speeds[0].cost) != told
    assert any("too few to tell what a step" in note for note in loads[0].notes) != told
    assert list(loads[0].measured) == [2]


def test_few_drafts_in_slow_passes_are_not_another_load(tmp_path):
    """Passes that are 5 % faster than alone would make a step of a tenth of them cost 0.5."""
    base = read_run(write(tmp_path, "a", 1.0, asked=8))
    run = scheduled(tmp_path, "d8", 1900, seconds=0.0095)
    (speed,), _ = compare(base, [run], STATISTICS)
    assert speed.cost == pytest.approx(0.5, abs=1e-3)
    assert speed.compares
    run = scheduled(tmp_path, "d8", 80, seconds=0.0123)  # as if a step cost 55 passes
    assert compare(base, [run], STATISTICS)[0][0].compares
    run = scheduled(tmp_path, "d8", 1900, seconds=0.0089)
    assert not compare(base, [run], STATISTICS)[0][0].compares


def test_other_lengths_are_predicted_and_marked(tmp_path):
    """At rates 0.6, 0.5, 0.5 and costs linear in the length: 1.1, 1.2 and 1.3 passes."""
    loads, _ = loads_of(grid(tmp_path, {1: 1.2, 8: 2.4}))
    rows = {(row.load, row.length): row for row in load_rows(loads)}
    assert rows.keys() == {(load, length) for load in (1, 8) for length in (1, 2, 3)}
    for length, cost in ((1, 1.1), (3, 1.3)):
        row = rows[1, length]
        assert (row.verdict, row.run) == ("predicted", None)
        tokens = expected_tokens([0.6, 0.5], length)[length]
        assert row.speed.times == pytest.approx(tokens / cost, rel=1e-3)
        assert row.columns()["known"] == "predicted"
        assert math.isnan(row.columns()["speed_ci_low"])
    assert rows[1, 2].verdict == ""
    assert rows[1, 1].source == "between lengths"
    assert rows[1, 3].source == "beyond the longest"


def test_a_load_between_two_is_predicted_between_their_speeds(tmp_path):
    """Half way in the logarithm from 1 to 16: a step costs (1.2 + 2.4) / 2 passes."""
    loads, _ = loads_of(grid(tmp_path, {1: 1.2, 16: 2.4}))
    row = predicted_rows(loads, [4], None)[1]
    assert (row.load, row.length, row.verdict) == (4, 2, "predicted")
    assert row.speed.cost == pytest.approx(1.8, rel=1e-3)
    assert row.speed.times == pytest.approx(1.9 / 1.8, rel=1e-3)
    assert (row.speed.low, row.speed.high) == pytest.approx((1.9 / 2.4, 1.9 / 1.2), rel=1e-3)
    assert row.source == "between loads 1 and 16"
    assert "predicted" in row.cells()["speed"]
    assert predicted_rows(loads, [1], None)[1].source == "measured"
    for outside, nearest in ((32, 16), (64, 16)):
        assert (
            f"measured at load {nearest}, the nearest"
            in predicted_rows(loads, [outside], None)[1].source
        )


def test_costs_between_loads_have_the_lengths_of_both(tmp_path):
    grid(tmp_path, {1: 1.2, 16: 2.4})
    write(tmp_path, "e16", 2.0, (6000,), asked=16)
    loads, _ = loads_of(tmp_path)
    costs = costs_at(loads, 4)
    assert costs.lengths == {2}
    assert costs.source(1) == "between lengths, between loads 1 and 16"
    assert costs.steps[1] == pytest.approx((1.1 + 2.0) / 2, rel=1e-3)


def test_what_if_takes_the_costs_seen(tmp_path, capsys):
    """At acceptance 0.7 drafts of two are 2.19 tokens; the load is not the one measured."""
    alone = tmp_path / "alone.txt"
    drafted = tmp_path / "drafted.txt"
    write(tmp_path, "a", 1.0).rename(alone)
    write(tmp_path, "d", 1.2, PLACES).rename(drafted)
    screen = screen_of(capsys, alone, drafted, "what_if.acceptance=0.7", "what_if.concurrent=8")
    assert "num_speculative_tokens = 2: 1.58 times" in screen  # what was measured comes first
    said = screen.split("what if ")[1]
    assert said.startswith("0.7 of the tested tokens were accepted and 8 requests ran at once:")
    assert re.search(r"8 +2 +2\.190 +2\.190 +1\.20 passes .*1\.8[23] times, predicted\n", said)
    assert "measured at a load that is not told" in said
    assert "8 requests at once: drafts of 3" in said
    assert "beyond the longest at a load" in said.splitlines()[-1]
    # other numbers than those of the runs, and nothing but those
    screen = screen_of(capsys, alone, drafted, "what_if.acceptance=0")
    said = screen.splitlines()[-1]
    assert said.startswith("no drafts")
    assert "0.91 times, predicted" in said


@pytest.mark.parametrize(("requests", "sure"), [(1, True), (4, True), (16, True), (17, False)])
def test_a_load_beyond_the_measured_ones_is_not_sure(requests, sure, tmp_path):
    """Costs of loads 1 and 16 tell of the loads between, and of no other."""
    loads, _ = loads_of(grid(tmp_path, {1: 1.2, 16: 1.3}))
    said = what_if(loads, WhatIf(acceptance=0.9, concurrent=requests))[-1]
    assert ("not sure" in said) != sure
    assert "drafts of 3" in said


@pytest.mark.parametrize(("acceptance", "sure"), [(0.31, False), (0.33, True)])
def test_a_predicted_gain_below_a_tenth_is_not_sure(acceptance, sure, tmp_path, capsys):
    """Of drafts of one at 1.2 passes: 1.31 and 1.33 tokens are 1.09 and 1.11 times as fast."""
    runs = write(tmp_path, "a", 1.0), write(tmp_path, "d", 1.2, (6000,))
    said = screen_of(capsys, *runs, f"what_if.acceptance={acceptance}").splitlines()[-1]
    assert ("not sure" in said) != sure


def test_what_if_needs_two_runs_and_acceptance(tmp_path):
    alone = write(tmp_path, "a", 1.0)
    with pytest.raises(SystemExit, match="what_if was given, and not BASE and SPEC"):
        engine.main([str(alone), "what_if.concurrent=8"])
    with pytest.raises(SystemExit, match=r"what_if\.acceptance=1\.5"):
        engine.main([str(alone), "what_if.acceptance=1.5"])
    with pytest.raises(SystemExit, match=r"what_if\.concurrent=0"):
        engine.main([str(alone), "what_if.concurrent=0"])


def test_what_if_of_runs_that_do_not_compare_predicts_nothing(tmp_path):
    alone = write(tmp_path, "a", 1.0, model="m")
    drafted = write(tmp_path, "d", 1.2, PLACES, model="n")
    with pytest.raises(SystemExit, match="what_if: no run that compares tells"):
        engine.main([str(alone), str(drafted), "what_if.concurrent=8"])


def test_a_load_without_a_run_of_the_target_alone_is_left_out(tmp_path, capsys):
    grid(tmp_path, {1: 1.2, 8: 2.4})
    write(tmp_path, "d4", 1.5, PLACES, asked=4)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "d4.after.txt is left out: it is of load 4, and no run without drafts is" in screen
    write(tmp_path, "a16", 1.0, asked=16)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "a16.after.txt has no run with drafts at its load, 16" in screen


def test_what_was_asked_for_counts_before_the_pages(tmp_path, capsys):
    """A server that runs eight at once, asked with 16: its page looks like that of eight."""
    grid(tmp_path, {2: 1.2})
    for name, places, asked in (("a8", (), 8), ("d8", PLACES, 8), ("d16", PLACES, 16)):
        write(tmp_path, name, 1.0 if not places else 2.0, places, asked=asked, served=8)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "d16.after.txt is left out: it is of load 16" in screen


def test_another_load_by_the_pages_is_left_out(tmp_path, capsys):
    """1.5 times as many requests in a step are the same load, more are another one."""
    grid(tmp_path, {2: 1.2, 8: 2.4}, "served")
    write(tmp_path, "near", 1.5, PLACES, served=2.99)
    write(tmp_path, "far", 1.5, PLACES, served=3.1)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "far.after.txt is left out: it is of load 3" in screen
    assert "near.after.txt is left out" not in screen


def test_two_runs_without_drafts_at_one_load_are_refused(tmp_path):
    grid(tmp_path, {1: 1.2, 8: 2.4})
    write(tmp_path, "b8", 1.0, asked=8)
    with pytest.raises(
        SystemExit, match=r"b8\.after\.txt counts no drafts, as .*a8.*load, 8: give"
    ):
        engine.main([str(tmp_path)])


def five(folder, name, drafts, asked=10, places=(0.8, 0.5)):
    """Write a page of several replicas, each with its number of drafts, and its record."""
    text = metrics(drafts)
    if not places:
        text = "".join(vllm_page(2 * n, 0.04 * n, n // 20, engine=at) for at, n in drafts.items())
    (folder / f"{name}.after.txt").write_text(text)
    record = {"concurrent": asked, "engine": "vLLM", "answers_of_pages": 0}
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_five_replicas_are_noted_and_have_no_schedule(tmp_path, capsys):
    """The engine's schedule counts its own requests: of ten at once each of five has two."""
    replicas = {str(at): 1000 for at in range(5)}
    grown = {at: n * 1.15 for at, n in replicas.items()}
    five(tmp_path, "a10", grown, 10, ())
    five(tmp_path, "d10", replicas, 10)
    for name, cost, places in (("a20", 1.0, ()), ("d20", 2.4, PLACES)):
        write(tmp_path, name, cost, places, asked=20)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "d10.after.txt is of 5 replicas: of 10 requests at once each has 2.0" in screen
    assert "schedule: 2 tokens for 1 to" in screen
    assert (
        "no num_speculative_tokens_per_batch_size: it counts the requests of one engine" in screen
    )
    assert "flags:" not in screen


def test_a_replica_that_was_lost_between_two_runs_does_not_compare(tmp_path, capsys):
    replicas = {str(at): 1000 for at in range(5)}
    five(tmp_path, "a10", {at: n * 1.15 for at, n in replicas.items()}, 10, ())
    five(tmp_path, "d10", {at: n * 1.25 for at, n in replicas.items() if at != "4"}, 10)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert (
        "a10.after.txt has 5 replicas and d10.after.txt 4: the speed is that of another" in screen
    )
    assert "flags:" not in screen


@pytest.mark.parametrize(
    ("after", "said"), [({"0": 500, "1": 3000}, "was restarted"), ({"1": 3000}, "was lost")]
)
def test_a_restart_or_a_lost_replica_ends_the_command(after, said, tmp_path):
    """Also in a directory of several loads."""
    grid(tmp_path, {1: 1.2, 8: 2.4})
    five(tmp_path, "d9", after, 8)
    (tmp_path / "d9.before.txt").write_text(metrics({"0": 1000, "1": 1000}))
    with pytest.raises(SystemExit, match=rf"d9\.after\.txt.*{said}"):
        engine.main([str(tmp_path)])


def test_fewer_requests_than_asked_for_are_noted(tmp_path, capsys):
    grid(tmp_path, {1: 1.2})
    for name, cost, places in (("a16", 1.0, ()), ("d16", 2.0, PLACES)):
        write(tmp_path, name, cost, places, asked=16, served=8)
    screen = screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")
    assert "d16.after.txt was asked with 16 at once, and 8.0 ran on average" in screen
    write(tmp_path, "d16", 2.0, PLACES, asked=16, served=10.7)  # 16 are 1.495 times as many
    assert "d16.after.txt was asked" not in screen_of(capsys, tmp_path, f"outputs={tmp_path}/o")


def test_requests_in_flight_that_differ_do_not_compare(tmp_path, capsys):
    paths = write(tmp_path, "a", 1.0, asked=8), write(tmp_path, "d", 1.2, PLACES, asked=8)
    for path, measured in zip(paths, (7.6, 3.0), strict=True):
        record = {"concurrent": 8, "in_flight": measured}
        path.with_name(path.name.replace(".after.txt", ".json")).write_text(json.dumps(record))
    screen = screen_of(capsys, *paths)
    assert "a.after.txt had 7.6 requests in flight and d.after.txt 3.0" in screen
    assert "flags:" not in screen


def test_a_directory_stands_for_its_runs(tmp_path):
    grid(tmp_path, {1: 1.2})
    (tmp_path / "README.txt").write_text("no page")
    (tmp_path / "a1.jsonl").write_text("")
    (tmp_path / "d1.before.txt").write_text("# HELP x y\n")
    assert [path.name for path in run_files(tmp_path)] == ["a1.jsonl", "d1.after.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SystemExit, match=r"empty has no answers .* and no page"):
        engine.main([str(empty)])


def test_the_table_and_the_figure_are_written(tmp_path, capsys):
    outputs = tmp_path / "outputs"
    words = grid(tmp_path, {1: 1.2, 8: 2.4}), f"outputs={outputs}"
    screen = screen_of(capsys, *words, render=style.render)
    name = "a1_speed_by_load"
    assert f"{name}.csv, .pdf, .png" in screen
    assert {path.name for path in (outputs / "engine").iterdir()} == {
        f"{name}.{kind}" for kind in ("csv", "pdf", "png")
    }
    assert (outputs / "engine" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    lines = (outputs / "engine" / f"{name}.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3
    assert sum("predicted" in line for line in lines) == 4


def test_prefill_takes_part_of_the_seconds_of_whole_requests(tmp_path):
    """Requests of 4 s alone, 3 s of them in passes; with drafts 2.5 s, 1.2 s of them in passes."""
    from tests.pipeline.test_engine_comparison import answer

    runs = []
    for name, seconds, passes, places in (("a", 4.0, 300, ()), ("d", 2.5, 100, (100, 100))):
        rows = [answer(f"c{at}", 31, seconds, name) for at in range(10)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        spent = {"a": 30.0, "d": 12.0}[name]
        for moment, share in (("before", 0), ("after", 1)):
            text = vllm_page(passes * share, spent * share, 10 * share, 300 * share,
                             tuple(n * share for n in places))  # fmt: skip
            (tmp_path / f"{name}.{moment}.txt").write_text(text if share else text or "")
        path.with_suffix(".json").write_text('{"answers_of_pages": 10, "concurrent": 1}')
        runs.append(read_run(path))
    loads, _ = compare_by_load(runs, STATISTICS)
    (speed,) = loads[0].speeds
    assert (speed.times, speed.cost) == pytest.approx((1.6, 1.2))
    assert (speed.decoding, speed.rest) == pytest.approx((0.75, 1.3 / 4))
    predicted = loads[0].costs.speeds([1.0, 1.0], 1.0)
    assert predicted[0] == pytest.approx(1.0)
    assert predicted[2] == pytest.approx(1.6)
    assert np.all(np.diff(predicted[:3]) > 0)


@pytest.mark.parametrize("asked", [0, -1, "8", True, None, 10**9, float("inf"), float("nan")])
def test_a_record_with_a_damaged_load_tells_none(asked, tmp_path):
    """The page beside it does, unless that is damaged, too."""
    path = write(tmp_path, "a", 1.0, asked=asked, served=4)
    run = read_run(path)
    assert run.load == (1 if asked is True else 4)
    assert read_run(write(tmp_path, "b", 1.0, asked=asked, served=1e9)).load == (
        1 if asked is True else None
    )


def test_the_answers_tell_their_load_without_a_record(tmp_path):
    from tests.pipeline.test_engine_comparison import answer, rows

    values = [answer(f"c{at}", 11, 1.0, "a") | {"concurrent": 4} for at in range(3)]
    assert read_run(rows(tmp_path / "a.jsonl", values)).load == 4
    values[0]["concurrent"] = 8  # two loads in a file
    assert read_run(rows(tmp_path / "a.jsonl", values)).load is None


def llama_run(folder, load, seconds, decode_seconds, drafted):
    """Write ten answers of llama.cpp, of 31 tokens each, and their pages; read them.

    With drafts of two, in ten calls an answer that each accept one token, 20 passes an answer.
    """
    name = f"{'d' if drafted else 'a'}{load}"
    said = {"draft_n": 20, "draft_n_accepted": 10} if drafted else {}
    timings = {"predicted_n": 31, "predicted_ms": 1000 * decode_seconds, "cache_n": 0, **said}
    body = {"content": "x", "stop": True, "tokens": [5] * 31, "timings": timings}
    rows = [
        {"custom_id": f"c{at}", "response": body, "seconds": seconds, "concurrent": load}
        for at in range(10)
    ]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    passes = 210 if drafted else 310  # of which ten are prefill's
    counters = {
        "n_decode_total": passes / load, "n_busy_slots_per_decode": load,
        "tokens_predicted_total": 310, "tokens_predicted_seconds_total": 10 * decode_seconds,
        "spec_decode_num_drafts_total": 100 if drafted else 0,
        "spec_decode_num_draft_tokens_total": 200 if drafted else 0,
        "spec_decode_num_accepted_tokens_total": 100 if drafted else 0,
    }  # fmt: skip
    places = {0: 100, 1: 0} if drafted else {}
    key = "spec_decode_num_accepted_tokens_per_pos_total"
    counters |= {f'{key}{{position="{place}"}}': n for place, n in places.items()}
    for moment, share in (("before", 0), ("after", 1)):
        text = "".join(f"llamacpp:{of} {share * count}\n" for of, count in counters.items())
        path.with_suffix(f".{moment}.txt").write_text(text)
    record = {"answers_of_pages": 10, "concurrent": load, "engine": "llama.cpp"}
    path.with_suffix(".json").write_text(json.dumps(record))
    return read_run(path)


@pytest.mark.parametrize(("load", "whole"), [(1, False), (2, True), (8, True)])
def test_llama_cpps_clock_is_not_taken_with_several_requests(load, whole, tmp_path):
    """Decoding takes twice as long, since it waits for the prefill of others; requests do not."""
    base = llama_run(tmp_path, load, 4.0, 1.0, drafted=False)
    run = llama_run(tmp_path, load, 4.0, 2.0, drafted=True)
    (speed,), notes = compare(base, [run], STATISTICS)
    assert speed.times == pytest.approx(1.0 if whole else 0.5)
    # 30 tokens of 20 passes, half of them with a draft: (1.5 or 3 passes each - 0.5) / 0.5
    assert speed.cost == pytest.approx(2.0 if whole else 5.0)
    assert ("whole requests" in notes[0]) == whole
    assert speed.compares


def test_llama_cpps_loads_are_compared_by_one_clock(tmp_path):
    runs = [
        llama_run(tmp_path, load, 4.0, 2.0 if drafted else 1.0, drafted)
        for load in (1, 8)
        for drafted in (False, True)
    ]
    loads, _ = compare_by_load(runs, STATISTICS)
    assert [load.speeds[0].times for load in loads] == pytest.approx([1.0, 1.0])
    assert all("whole requests" in load.notes[0] for load in loads)


@pytest.mark.parametrize(("load", "compares"), [(1, True), (2, False)])
def test_llama_cpps_pages_of_several_requests_do_not_compare(load, compares, tmp_path):
    for drafted in (False, True):
        llama_run(tmp_path, load, 4.0, 1.0, drafted)
    base, run = (read_run(tmp_path / f"{name}{load}.after.txt") for name in "ad")
    (speed,), notes = compare(base, [run], STATISTICS)
    assert speed.compares == compares
    assert any("prefill of others" in note for note in notes) != compares


@pytest.mark.parametrize(("load", "measured"), [(7, False), (8, True), (9, False)])
def test_what_if_at_a_measured_load_is_what_was_measured(load, measured, tmp_path, capsys):
    folder = grid(tmp_path, {1: 1.2, 8: 2.4})
    words = f"outputs={tmp_path}/o", f"what_if.concurrent={load}"
    said = screen_of(capsys, folder, *words).splitlines()[-1]
    assert said.startswith(f"at {load} requests at once")
    assert ("measured: none: the fastest drafts, of 2, are 0.79 times" in said) == measured
    assert ("predicted" in said) != measured
    other = screen_of(capsys, folder, *words, "what_if.acceptance=0.9").splitlines()[-1]
    assert "predicted" in other


@pytest.mark.parametrize(
    ("costs", "between"),
    [
        ({1: 1.2, 2: 1.4}, []),
        ({1: 1.2, 3: 1.4}, [2]),
        ({1: 1.2, 8: 2.4}, [2, 4]),
        ({1: 1.2, 9: 2.4}, [2, 4, 8]),
        ({1: 1.2, 4: 2.0, 8: 2.4}, [2]),
        ({3: 1.2, 13: 2.4}, [6, 12]),
        ({8: 2.4}, []),
    ],
)
def test_the_figure_has_predictions_between_loads(costs, between, tmp_path):
    loads, _ = loads_of(grid(tmp_path, costs))
    rows = rows_between(loads)
    assert sorted({row.load for row in rows}) == between
    assert {row.verdict for row in rows} <= {"predicted"}
