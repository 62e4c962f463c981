"""No folder grows: each has at most the lines of Python that the table below gives it.

To raise a number is a decision, and the commit's message gives the reason. ``python -m
tests.test_size`` prints the table, with room for 20 lines.
"""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.paths import ROOT

SLACK = 200  # lines that a folder may have fewer than its number
LINES = {
    "analysis": 1049,
    "analysis/acceptance": 743,
    "analysis/certificates": 1065,
    "analysis/decoding": 978,
    "analysis/report": 2784,
    "analysis/statistics": 509,
    "analysis/trees": 553,
    "assets/tasks": 285,
    "benchmarks": 699,
    "conf": 269,
    "pipeline": 3916,
    "pipeline/decoding": 1409,
    "pipeline/engines": 1860,
    "pipeline/models": 1763,
    "pipeline/stages": 2297,
    "tests": 12544,
    "tools": 252,
}


def lines() -> Counter[str]:
    """Return the lines of Python by folder, to a depth of two; those of the tests are one."""
    counted = Counter[str]()
    for top in ("analysis", "assets", "benchmarks", "conf", "pipeline", "tests", "tools"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).parts[:-1]
            folder = "tests" if top == "tests" else "/".join(parts[:2])
            counted[folder] += len(path.read_text(encoding="utf-8").splitlines())
    return counted


def test_the_table_has_every_folder():
    assert lines().keys() == LINES.keys()
    assert not list(ROOT.glob("*.py"))


@pytest.mark.parametrize("folder", LINES)
def test_a_folder_keeps_its_size(folder):
    there = lines()[folder]
    assert there <= LINES[folder], f"{folder} has grown to {there} lines: is each of them needed?"
    assert there >= LINES[folder] - SLACK, f"{folder} has only {there} lines: lower the number"


if __name__ == "__main__":
    for folder, count in sorted(lines().items()):
        print(f'    "{folder}": {count + 20},')
