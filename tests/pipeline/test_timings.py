"""Timings belong to a machine: timed again where another is asked for, else shown and named."""

import multiprocessing
import os
import shutil
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

from conf.schema import Device
from pipeline import cli
from pipeline.core import shards, timings
from pipeline.core.errors import PipelineError
from pipeline.core.shards import compute_shards, nested, write_tables
from pipeline.core.timings import (
    Asked,
    distinct,
    in_words,
    machines,
    own_threads,
    processor,
    timed_on,
)
from pipeline.models.devices import set_up
from pipeline.settings.composition import composed
from pipeline.study import STAGES, Study
from tests.pipeline import toy
from tests.pipeline.toy import flip, tasks

HERE, ELSEWHERE = processor(), "Another processor"


def machine(processor=HERE, device="cpu", threads=1, gpu=None):
    return {
        "processor": processor, "device": device, "gpu": gpu, "threads": threads,
        "torch": "2.9", "date": "2026-11-27",
    }  # fmt: skip


def record(asked=(None, None), **of):
    made = machine(**of)
    entries = dict(zip(("device", "threads"), asked, strict=True))
    return {"processor": made["processor"], "asked": entries, "facts": {"machines": [made]}}


OWN = {"processor": HERE}
CARRIED = {"processor": ELSEWHERE}


@pytest.mark.parametrize(
    ("made", "asked", "suits"),
    [
        (record((None, 1)), Asked(None, 1), True),
        (record((None, 1)), Asked(None, 2), False),
        (record((None, 1)), Asked("cpu", 1), True),
        (record((None, 1)), Asked("cuda", 1), False),
        (record((None, 1)), Asked(None, None), False),
        (record((None, 2), threads=2), Asked(None, None), True),
        (record((None, 3), threads=3), Asked(None, None), False),
        (record((None, 2), threads=2, **CARRIED), Asked(None, 2), True),
        (record(threads=2), Asked(None, 2), True),  # which is what it has
        (record(threads=2), Asked(None, 3), False),
        (record(threads=2), Asked(None, None), True),
        (record(("cuda", None), device="cuda", gpu="H"), Asked(None, None), False),
        (record(device="cuda", gpu="H"), Asked(None, None), True),  # as of Ray's workers
        (record(("cpu", None), device="cpu"), Asked(None, None), True),
        (record(device="cuda", gpu="H"), Asked("cuda:0", None), True),
        (record(device="cuda:0", gpu="H"), Asked("cuda", None), True),
        (record(device="cuda:1", gpu="H"), Asked("cuda", None), False),
        (record((None, 1), **CARRIED), Asked(None, None), True),  # not asked for
        (record((None, 1), **CARRIED), Asked(None, 1), True),
        (record((None, 1), **CARRIED), Asked(None, 2), False),
        (record(("cuda", None), device="cuda", gpu="H", **CARRIED), Asked(None, None), True),
        (record(("cuda", None), device="cuda", gpu="H", **CARRIED), Asked("cpu", None), False),
        (record((None, 1), **CARRIED), Asked(None, 1, here=True), False),
        (record((None, 1)), Asked(None, 1, here=True), True),
    ],
)
def test_timings_suit_what_is_asked_for(made, asked, suits, monkeypatch):
    """On a machine with two threads and without a GPU."""
    monkeypatch.setattr(timings, "own_threads", lambda: 2)
    monkeypatch.setattr(timings, "own_device", lambda: "cpu")
    assert bool(asked.rank(made)) == suits


@pytest.mark.parametrize(
    ("made", "asked", "suits"),
    [
        (record(), Asked(None, None), False),
        (record(), Asked("cpu", None), True),
        (record(("cpu", None)), Asked(None, None), False),
        (record(device="cuda", gpu="H"), Asked(None, None), True),
        (record(("cuda", None), device="cuda:0", gpu="H"), Asked(None, None), True),
        (record(**CARRIED), Asked(None, None), True),
    ],
)
def test_a_gpu_that_was_added_is_another_device(made, asked, suits, monkeypatch):
    monkeypatch.setattr(timings, "own_device", lambda: "cuda")
    assert bool(asked.rank(made)) == suits
    old = {key: value for key, value in made.items() if key != "asked"}  # as 1.0 wrote it
    if made["asked"] == {"device": None, "threads": None}:
        assert asked.rank(old) == asked.rank(made)


def test_null_is_what_torch_had_before_it_was_set():
    """Another job of a sweep may have set it."""
    had = torch.get_num_threads()
    own = own_threads()
    other = 1 if own > 1 else min(2, os.cpu_count())
    try:
        for threads, has in ((None, own), (other, other), (None, own)):
            set_up(torch.device("cpu"), threads)
            assert torch.get_num_threads() == has
        assert own_threads() == own
    finally:
        torch.set_num_threads(had)


def test_timings_of_this_machine_come_first_then_those_of_the_same_words():
    found = [
        record((None, 2), threads=2, **CARRIED),
        record(threads=2),
        record((None, 2), threads=2),
    ]
    ranks = [Asked(None, 2).rank(one) for one in found]
    assert ranks == sorted(set(ranks))
    assert Asked(None, 3).rank({**found[0], "facts": {"machines": []}}) > 0  # nothing was timed


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"name": "auto", "threads": None, "timings": "any"}, Asked(None, None)),
        ({"name": "cuda", "threads": 2, "timings": "here"}, Asked("cuda", 2, here=True)),
    ],
)
def test_auto_and_null_ask_for_nothing(keys, asked):
    assert Asked.of(Device(batch=None, **keys)) == asked


def test_artifacts_of_version_1_0_say_where_they_were_timed():
    old = {
        "processor": ELSEWHERE, "versions": {"torch": "2.9"}, "date": "2026-11-27",
        "facts": {"device": "NVIDIA H100", "torch_threads": 4}, "files": {"timings/runs": ""},
    }  # fmt: skip
    assert machines(old) == [machine(ELSEWHERE, "cuda", 4, "NVIDIA H100")]
    assert Asked("cpu", None).rank(old) == 0
    assert Asked("cuda", 4).rank(old) > 0
    assert machines(old | {"files": {"data.parquet": ""}}) == []
    assert timed_on(old | {"files": {}}) is None


def test_a_line_names_machine_device_threads_torch_and_date():
    gpu = machine(device="cuda:0", threads=2, gpu="H100") | {"date": "2026-11-28"}
    assert in_words(distinct([gpu, machine(ELSEWHERE), gpu])) == (
        "Another processor, cpu, 1 CPU thread, torch 2.9, 2026-11-27; "
        f"{HERE}, H100 (cuda:0), 2 CPU threads, torch 2.9, 2026-11-28"
    )
    assert timed_on(record()).startswith(f"timed on {HERE}, cpu")
    carried = timed_on(record(**CARRIED))
    assert carried.startswith(f"timed on another machine: {ELSEWHERE}, cpu")
    assert "device.timings=here" in carried


# --- in the store ---------------------------------------------------------------------------------


class Timed(toy.Sums):
    """Sums that say, as the real stages do, on which machine a shard was computed."""

    def compute(self, names, progress):
        toy.note(f"shard {','.join(names)}")
        rows = [
            {"prompt_id": name, "token_ids": [self.tokens[name][0] + self.noise]} for name in names
        ]
        made = machine(processor=timings.processor(), threads=self.task.asked.threads or 2)
        tables = {"data": rows, "timings/runs": [{"threads": made["threads"]}]}
        return made, [nested(TIMED, tables)]

    @property
    def noise(self):
        return self.task.runtime.toy["tokens"].get(self.task.asked.threads, 0)

    def metadata(self, measured):
        return {"machines": distinct(measured)}


def open_timed(task, inputs):
    sums = toy.open_sums(task, inputs)
    return Timed(sums.task, sums.tokens)


def timed(task, inputs, out):
    names = inputs["prompts"].read(columns=["prompt_id"])["prompt_id"].to_pylist()
    finished = compute_shards(task, inputs, out, names, open_timed)
    write_tables(task, out, finished, "prompt")


def shown(_, inputs, out):
    toy.note("shown")
    times = inputs["timed"].read("timings/runs")["threads"].to_pylist()
    out.write_rows([{"count": len(times)}])
    out.write_rows([{"threads": times[0]}], "timings/runs")
    out.metadata["machines"] = machines(inputs["timed"].record)


TIMED = toy.stage(
    timed,
    data={"prompt_id": "string", "token_ids": "list<int32>"},
    timings_runs={"threads": "int32"},
)
SHOWN = toy.stage(shown, data={"count": "int32"}, timings_runs={"threads": "int32"})


def asking(threads=None, *, here=False, device=None, tokens=None):
    """A stage that is timed, and a page made from it, both with some number of threads."""
    prompts, _, last = tasks()
    asked = Asked(device, threads, here)
    runtime = last.runtime.__class__(**vars(last.runtime))
    runtime.toy = runtime.toy | {"tokens": tokens or {}}
    made = replace(last, stage=TIMED, inputs={"prompts": prompts}, asked=asked, runtime=runtime)
    return made, replace(made, stage=SHOWN, inputs={"timed": made})


@pytest.fixture
def elsewhere(monkeypatch):
    """A function: from now on this is another machine."""

    def leave(name=ELSEWHERE):
        monkeypatch.setattr(timings, "processor", lambda: name)
        monkeypatch.setattr("pipeline.core.environment.processor", lambda: name)
        monkeypatch.setattr("pipeline.core.store.environment", lambda: old | {"processor": name})

    from pipeline.core.environment import environment

    old = environment()
    return leave


def log(store):
    """What was computed since the last call."""
    path = store.root.parent / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def threads_of(artifact):
    return {row["threads"] for row in artifact.read("timings/runs").to_pylist()}


SHARDS = ["shard"] * 3


def test_another_number_of_threads_is_timed_again_and_both_are_kept(store):
    one, two = (store.get(asking(threads)[1]) for threads in (1, 2))
    assert log(store) == ["prompts", *SHARDS, "shown", *SHARDS, "shown"]
    assert (threads_of(one), threads_of(two)) == ({1}, {2})
    assert one.content == two.content  # tokens are equal
    for threads, page in ((1, one), (2, two)):
        timed_artifact = store.get(asking(threads)[0])
        assert threads_of(timed_artifact) == {threads}
        assert store.get(asking(threads)[1]).directory == page.directory
    assert log(store) == []
    names = sorted(path.name for path in (store.root / "timed").iterdir())
    assert [name.rpartition("-")[0] for name in names] == ["toy", "toy.2"]
    assert not list(store.root.rglob(".*partial"))


def test_the_device_that_is_asked_for_is_timed(store):
    """The number of threads may stay."""
    store.get(asking(1)[0])
    assert store.find(asking(1, device="cuda")[0]) is None
    assert store.find(asking(1, device="cpu")[0]) is not None


def test_what_was_carried_is_shown_and_not_timed_again_unasked(store, elsewhere):
    page = store.get(asking(1)[1])
    log(store)
    elsewhere()
    for threads in (1, None):  # null: on this machine another number of cores
        assert store.get(asking(threads)[1]).directory == page.directory
    assert log(store) == []
    assert "another machine" in timed_on(page.record)
    other = store.get(asking(2)[1])  # asked for
    assert log(store) == [*SHARDS, "shown"]
    assert "another machine" not in timed_on(other.record)
    assert timed_on(other.record).startswith(f"timed on {ELSEWHERE}, cpu, 2 CPU threads")


def test_this_machine_is_timed_where_that_is_asked_for_and_then_comes_first(store, elsewhere):
    before = store.get(asking(1)[1])
    elsewhere()
    log(store)
    here = store.get(asking(1, here=True)[1])
    assert log(store) == [*SHARDS, "shown"]
    assert (here.directory, here.content) != (before.directory, before.content)
    assert here.content == before.content
    assert store.get(asking(1)[1]).directory == here.directory
    assert store.get(asking(1, here=True)[1]).directory == here.directory
    assert log(store) == []
    elsewhere(HERE)  # carried back
    assert store.get(asking(1)[1]).directory == before.directory


def test_a_new_page_of_timings_that_were_carried_says_so(store, elsewhere):
    """It is made on this machine, its timings are not."""
    store.get(asking(1)[0])
    elsewhere()
    log(store)
    page = store.get(asking(1)[1])
    assert log(store) == ["shown"]
    assert page.record["processor"] == ELSEWHERE
    assert timed_on(page.record).startswith(f"timed on another machine: {HERE}")
    assert store.find(asking(1, here=True)[1]) is None
    here = store.get(asking(1, here=True)[1])
    assert log(store) == [*SHARDS, "shown"]
    assert timed_on(here.record).startswith(f"timed on {ELSEWHERE}")


def test_a_page_is_made_again_where_its_timings_were(store):
    made, page = asking(1)
    first = store.get(page)
    shutil.rmtree(store.find(made).directory)
    assert store.fresh(page)  # an input that was deleted makes nothing stale
    log(store)
    store.get(replace(made, stage=replace(TIMED, compute=lambda *of: slower(*of))))
    assert not store.fresh(page)
    assert [task.stage.name for task in store.missing([page])] == ["shown"]
    second = store.get(page)
    assert log(store) == [*SHARDS, "shown"]
    assert (first.content, second.record["input_timings"]) != (second.content, None)
    assert first.content == second.content
    assert len(list((store.root / "shown").iterdir())) == 1


def slower(task, inputs, out):
    timed(task, inputs, out)
    out.write_rows([{"threads": 7}] * 3, "timings/runs")


def test_killed_while_it_is_timed_again_loses_nothing(store, monkeypatch):
    """The finished shards wait for the same command; another command leaves them alone."""
    store.get(asking(1)[1])
    log(store)
    write, written = shards.write_sealed, []

    def stopping(path, content):
        write(path, content)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_sealed", stopping)
        with pytest.raises(KeyboardInterrupt):
            store.get(asking(2)[1])
    assert log(store) == ["shard"] * 2
    assert threads_of(store.get(asking(1)[1])) == {1}
    store.get(asking(3)[1])
    assert log(store) == [*SHARDS, "shown"]
    assert threads_of(store.get(asking(2)[1])) == {2}
    assert log(store) == ["shard", "shown"]
    assert not list(store.root.rglob(".*partial"))


def test_unfinished_timings_of_another_machine_are_not_continued(store, elsewhere, monkeypatch):

    def stopping(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tests.pipeline.test_timings.write_tables", stopping)
        with pytest.raises(KeyboardInterrupt):
            store.get(asking(1)[0])
    log(store)
    elsewhere()
    made = store.get(asking(1)[0])
    assert log(store) == SHARDS
    assert {one["processor"] for one in machines(made.record)} == {ELSEWHERE}


@pytest.mark.parametrize("name", ["timings/runs.parquet", "data.parquet", "record.json"])
def test_damaged_timings_are_made_anew_and_the_others_stay(store, name, capsys):
    made = {threads: store.get(asking(threads)[0]) for threads in (1, 2)}
    log(store)
    flip(made[2].directory / name)
    capsys.readouterr()
    assert threads_of(store.get(asking(2)[0])) == {2}
    assert log(store) == SHARDS
    assert f"damaged: {made[2].directory / name}" in capsys.readouterr().out
    assert threads_of(store.get(asking(1)[0])) == {1}
    assert log(store) == []


def test_processes_that_ask_for_different_timings_at_once_get_them(store):
    context = multiprocessing.get_context("fork")
    asked = [asking(threads)[1] for threads in (1, 2, 1, 2)]
    running = [context.Process(target=store.get, args=(task,)) for task in asked]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0] * 4
    assert sorted(log(store)) == sorted(["prompts", *SHARDS, *SHARDS, "shown", "shown"])
    for threads in (1, 2):
        assert threads_of(store.get(asking(threads)[1])) == {threads}


def test_other_tokens_are_said_and_stay_with_their_times(store, capsys):
    one = store.get(asking(1)[0])
    capsys.readouterr()
    two = store.get(asking(2, tokens={2: 5})[0])
    told = capsys.readouterr().out
    assert "timed toy: 6 answers have other tokens than in" in told
    assert one.directory.name in told
    assert one.read()["token_ids"].to_pylist() != two.read()["token_ids"].to_pylist()
    assert store.get(asking(1)[0]).content == one.content
    store.get(asking(3)[0])
    told = capsys.readouterr().out
    assert two.directory.name in told
    assert f"{one.directory.name} (" not in told


def test_nothing_is_locked_where_the_timings_are_there(store):
    for threads in (1, 2):
        store.get(asking(threads)[1])
    with FileLock(store.root / ".locks" / "moving.lock"):
        for threads in (1, 2):
            store.get(asking(threads)[1])


# --- of real stages -------------------------------------------------------------------------------


def stages(small_study, *overrides, stage="report"):
    study = Study(*small_study.overrides, *overrides)
    return [task.stage.name for task in study.store.missing(study.tasks[stage])]


@pytest.mark.parametrize(
    ("overrides", "made"),
    [
        ((), []),
        (("device.name=auto",), []),  # nothing is asked for but what is there, a CPU
        (("device.threads=2",), ["decoding", "decoding", "report"]),
        (("device.name=cuda",), ["decoding", "decoding", "report"]),
        (("device.timings=here",), []),
        (("device.batch=7",), []),
        (("execution={engine: ray, workers: 1}",), []),
    ],
)
def test_a_study_times_again_what_is_asked_for(small_study, overrides, made):
    assert stages(small_study, *overrides) == made


def test_a_study_that_was_carried_is_shown(small_study, elsewhere):
    elsewhere()
    assert stages(small_study) == []
    assert stages(small_study, "device.threads=null") == []
    assert stages(small_study, "device.timings=here") == ["decoding", "decoding", "report"]
    study = Study(*small_study.overrides)
    assert timed_on(study.artifact("report").record).startswith("timed on another machine")


def test_terminal_and_page_name_the_machine(small_study):
    study = Study(*small_study.overrides)
    made = [study.artifact("decoding", target) for target in study.targets]
    found = distinct([one for artifact in made for one in machines(artifact.record)])
    assert {(one["processor"], one["device"], one["threads"]) for one in found} == {
        (HERE, "cpu", 1)
    }
    assert small_study.printed.splitlines().count(f"timed on {in_words(found)}") == 1
    page = (small_study.outputs / "report/mini/index.html").read_text()
    assert f"Machine: {in_words(found[:1])}" in page


def test_right_answers_are_shown_whatever_they_were_timed_with(tmp_path):
    """They take hours: a report never asks for them."""
    keys = ["study=mini", "target=mini_large", f"outputs={tmp_path}", "accuracy.tasks=[facts]"]
    study = Study(*keys)
    [task] = study.tasks["accuracy"]

    def answered(_, __, out):
        out.metadata["machines"] = [machine()]

    study.store.get(replace(task, stage=replace(task.stage, compute=answered)))
    study.config = study.config.model_copy(
        update={"device": study.config.device.model_copy(update={"threads": 2})}
    )
    study.tasks["accuracy"] = STAGES["accuracy"].plan(study)
    [report] = STAGES["report"].plan(study)
    above = report.inputs["accuracy/mini_large"]
    assert study.store.find(study.tasks["accuracy"][0]) is None  # with two threads
    with pytest.raises(
        PipelineError, match=r"accuracy .* device\.\* .*, cpu, 1 CPU thread, .*: run "
    ):
        study.artifact("accuracy")
    assert study.store.find(above) is not None
    assert report.asked.threads == 2


@pytest.mark.thorough
def test_a_command_that_asks_for_more_threads_prints_their_times(tmp_path, capsys):
    from benchmarks import robustness

    overrides = [*robustness.tiny_study(tmp_path), f"outputs={tmp_path / 'outputs'}"]
    contents = {}
    for threads in (1, 2, 1):
        keys = [*overrides, f"device.threads={threads}", "stage=decoding"]
        _, _, [made] = cli.run(composed(keys))
        told = capsys.readouterr().out
        assert f"cpu, {threads} CPU thread" in told
        assert ("decoding local: cached" in told) == (threads in contents)
        assert made.metadata["torch_threads"] == threads
        assert "other tokens" not in told
        contents[threads] = made.directory
    assert len(set(contents.values())) == 2
