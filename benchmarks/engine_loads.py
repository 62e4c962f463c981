"""How many tokens at which load: vLLM or llama.cpp on this machine, measured and asked once more.

``python -m benchmarks.engine_loads vllm`` (or ``llama_cpp``) needs the environment of
`make check-engines`; ENGINES names it if it is not .venv-engines. It serves SmolLM2 alone, with its
head (vLLM) and with prompt look-up, each with drafts of several lengths, asks every server at each
load with `pipeline.ask`, and prints what `pipeline.engine` says of each drafter. Then it serves the
target alone and the recommended schedule once more. OVERRIDES of `pipeline.ask` may follow, as
``prompts.count=4 ask.concurrent=[1,2,4]``. Files are in outputs/engine_loads; a command that was
stopped goes on with the servers that it has not asked.

The last lines are a table (CSV). `speed` is that of the first run, with its interval;
`from_other_loads` is what the runs at the loads around this one predict for it; `again` is the
speed of the second run, whose server drafts as many tokens at each load as were recommended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.report.table import csv_text
from analysis.statistics.bootstrap import Resampling
from pipeline import ask, engine
from pipeline.core.commands import command
from pipeline.core.errors import PipelineError
from pipeline.core.paths import ROOT
from pipeline.engines.speed.by_load import load_rows, predicted_rows
from pipeline.engines.speed.comparison import Speed, compare
from pipeline.engines.speed.loads import Load, compare_by_load
from pipeline.engines.speed.runs import Run, read_run
from pipeline.engines.speed.schedule import Ranges, draft_lengths
from pipeline.study import Study
from tools import engines, smollm2

ENVIRONMENT = Path(os.environ.get("ENGINES", ".venv-engines"))
STUDY = ("study=quick", "distributions.steps=32", "distributions.temperature=0")
LOADS = "ask.concurrent=[1,4,8]"
THREADS = 2
HEAD = {"method": "eagle3", "model": str(ROOT / "assets/smollm2/drafter")}
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3}
COLUMNS = [
    "date", "engine", "drafter", "load", "in_flight", "draft_length", "acceptance_length",
    "tokens_per_pass", "cost", "speed", "speed_ci_low", "speed_ci_high", "from_other_loads",
    "again", "again_ci_low", "again_ci_high",
]  # fmt: skip
USAGE = "python -m benchmarks.engine_loads vllm|llama_cpp [OVERRIDES]"
LENGTHS: dict[str, dict[str, Sequence[int]]] = {  # of drafts, by engine and drafter
    "vllm": {"head": (1, 2, 4), "lookup": (2, 4)},
    "llama_cpp": {"lookup": (2, 4)},
}


class Measurement(NamedTuple):
    """What is measured: an engine, by the requests of a study."""

    engine: str
    folder: Path
    target: Path
    overrides: Sequence[str]
    loads: Sequence[int]
    statistics: Resampling

    def runs(self, name: str, drafter: str = "", lengths: Ranges | None = None) -> list[Run]:
        """Ask a server at each load, unless that was done; return the runs."""
        names = [f"{name}-at-{load}" for load in self.loads]
        files = [self.folder / "answers" / f"{one}.jsonl" for one in names]
        if not all(file.with_suffix(".after.txt").exists() for file in files):
            with self.served(drafter, lengths or []) as url:
                ask.main([url, *self.overrides, f"ask.name={name}"])
        return [read_run(file) for file in files]

    def served(self, drafter: str, lengths: Ranges) -> AbstractContextManager[str]:
        """Serve SmolLM2 with drafts of some lengths, by the number of requests."""
        longest = max((length for _, _, length in lengths), default=0)
        room: dict[str, Any] = {"requests": max(self.loads), "threads": THREADS}
        if self.engine == "llama_cpp":
            # with n-grams longer than a draft it drafts nothing
            flags = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2"]
            flags += ["--spec-ngram-simple-size-m", str(longest)]
            flags = flags if longest else []
            return engines.llama_cpp(ENVIRONMENT, self.folder, *flags, **room)
        config = {**(HEAD if drafter == "head" else NGRAM), "num_speculative_tokens": longest}
        if len(lengths) > 1:
            config["num_speculative_tokens_per_batch_size"] = lengths
        flags = ["--speculative-config", dumps(config)] if longest else []
        return engines.vllm(ENVIRONMENT, self.folder, self.target, *flags, **room)


def main(arguments: Sequence[str]) -> None:
    """Measure an engine's drafters at several loads, and ask the schedule's servers once more."""
    if not arguments or arguments[0] not in LENGTHS:
        raise PipelineError(f"the engine is {' or '.join(LENGTHS)}, not {arguments[:1]}: {USAGE}")
    name = arguments[0]
    folder = ROOT / "outputs" / "engine_loads" / name
    folder.mkdir(parents=True, exist_ok=True)
    target = smollm2.make(engines.package(ENVIRONMENT, engines.GGUF))
    own = [f"targets.smollm2.path={target}", f"outputs={folder}"]
    overrides = [*STUDY, LOADS, *own, *arguments[1:]]
    config = Study("stage=prompts", *overrides).config
    wanted = config.ask.concurrent
    loads = wanted if isinstance(wanted, list) else [wanted]
    statistics = Resampling(**vars(config.statistics))
    measurement = Measurement(name, folder, target, overrides, loads, statistics)
    base = measurement.runs("alone")
    tables = []
    for drafter, lengths in LENGTHS[name].items():
        runs = list(base)
        for length in lengths:
            ranges = [(1, max(loads), length)]
            runs += measurement.runs(f"{drafter}-{length}", drafter, ranges)
        print(f"\n{name}, {drafter}", flush=True)
        engine.main([*(str(run.path) for run in runs), f"outputs={folder}"])
        tables.append(compared_twice(measurement, drafter, runs))
    print(csv_text(pd.concat(tables), "%.3f"), end="")


def compared_twice(measurement: Measurement, drafter: str, runs: Sequence[Run]) -> pd.DataFrame:
    """Return a table of the measured lengths, and of the schedule's server once more."""
    loads, _ = compare_by_load(runs, measurement.statistics)
    schedule = draft_lengths(loads)
    again = asked_again(measurement, drafter, schedule)
    rows: list[dict[str, object]] = []
    for load in loads:
        at = load.requests or 0
        predicted = from_other_loads(loads, load)
        alone: dict[str, object] = {"load": at, "draft_length": 0, "speed": 1.0}
        measured = [row.columns() for row in load_rows([load]) if row.run is not None]
        for row in [alone, *measured]:
            length = row["draft_length"]
            second = again.get(at) if length == length_at(schedule, at) else None
            if second is not None:
                row["again"] = second.times
                row["again_ci_low"] = second.low
                row["again_ci_high"] = second.high
            rows.append({**row, "from_other_loads": predicted.get(length)})
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    table["date"] = date.today().isoformat()
    table["engine"] = measurement.engine
    table["drafter"] = drafter
    return table


def length_at(schedule: Ranges, requests: int) -> int:
    """Return the draft length of a schedule for a number of requests, 0 for none."""
    return next((length for first, last, length in schedule if first <= requests <= last), 0)


def from_other_loads(loads: Sequence[Load], load: Load) -> Mapping[object, float]:
    """Return the speed that the other loads predict for one between them, by draft length."""
    others = [other for other in loads if other is not load]
    ends = [other.requests or 0 for other in others if other.costs is not None]
    if not ends or not min(ends) < (load.requests or 0) < max(ends):
        return {}
    return {row.length: row.speed.times for row in predicted_rows(others, [load.requests], None)}


def asked_again(measurement: Measurement, drafter: str, schedule: Ranges) -> dict[int, Speed]:
    """Serve the target alone and the schedule once more; return the speed at each load.

    llama.cpp has one length for all loads: there only the loads of the longest count.
    """
    longest = max((length for _, _, length in schedule), default=0)
    if longest == 0:
        return {}
    alone = measurement.runs("alone-again")
    ranges = schedule if measurement.engine == "vllm" else [(1, max(measurement.loads), longest)]
    named = "-".join(f"{length}-to-{last}" for _, last, length in ranges)
    served = measurement.runs(f"{drafter}-again-{named}", drafter, ranges)
    speeds = {}
    for load, base, run in zip(measurement.loads, alone, served, strict=True):
        if measurement.engine == "vllm" or length_at(schedule, load) == longest:
            ((speeds[load],), notes) = compare(base, [run], measurement.statistics)
            print(f"again at load {load}: {'; '.join(notes)}")
    return speeds


if __name__ == "__main__":
    with command(USAGE, __doc__, sys.argv[1:]):
        main(sys.argv[1:])
