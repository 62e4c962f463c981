"""Checks and timings that need a GPU: ``make check-gpu``.

First it prints a line for every check (`benchmarks.gpu_checks`), and ends at one that fails. Then
it times Qwen3's shapes with random weights (`benchmarks.gpu_timings`); nothing is downloaded. Rows
go to a CSV file.

``--reduced`` runs everything with small shapes, also on the CPU, where passes over the same buffers
run unrecorded.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu_checks import CHECKS
from benchmarks.gpu_timings import FULL, SMALL, Row, timings
from pipeline.core.paths import ROOT
from pipeline.models.devices import describe_machine, set_up

COLUMNS = ("part", "model", "setting", "value", "unit", "bound")  # of a row


def write_rows(rows: Iterator[Row], machine: Row, path: Path) -> None:
    """Print rows, and write them with their machine to a CSV file as they come."""
    of_machine = {name: machine[name] for name in ("gpu", "processor", "torch", "date")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *of_machine], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            value = f"{row['value']:.4g}"
            bound = "" if row["bound"] is None else f"{row['bound']:.4g}"
            writer.writerow(row | {"value": value, "bound": bound} | of_machine)
            file.flush()
            beside = f", bound {bound}" if bound else ""
            what = ", ".join(row[name] for name in ("part", "model", "setting") if row[name])
            print(f"{what}: {value} {row['unit']}{beside}", flush=True)
    print(f"results: {path}", flush=True)


def main() -> None:
    """Run the checks, then the timings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, on the CPU as well")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs/check-gpu.csv")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not arguments.reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    set_up(device, None)
    for name, check in CHECKS.items():
        print(f"{name}: {check(device)}", flush=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    machine = describe_machine(device)
    print(json.dumps(machine), flush=True)
    size = SMALL if arguments.reduced else FULL
    with tempfile.TemporaryDirectory() as folder:
        write_rows(timings(device, size, Path(folder)), machine, arguments.results)


if __name__ == "__main__":
    main()
