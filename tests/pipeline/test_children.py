"""Processes that a command starts end with it: interrupted, terminated or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.console import TERMINATED
from pipeline.errors import PipelineError
from pipeline.execution.children import processes
from tests.conftest import ROOT

SLOW = 60.0  # seconds that a crowded machine may take
POOL = """
import sys, time
from pipeline.console import terminal
from pipeline.execution.children import processes

if __name__ == "__main__":
    with terminal(), processes(2, "toy") as pool:
        for _ in range(2):
            pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def until(true: Callable[[], object], what: str) -> None:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < SLOW, what
        time.sleep(0.05)


def alive(children: list[psutil.Process]) -> list[str]:
    """The command lines of those that still run; a zombie waits for its parent only."""
    found = []
    for child in children:
        try:
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(child.cmdline()))
        except psutil.NoSuchProcess:
            pass
    return found


def ended(
    command: list[str], number: int, begun: Callable[[list[psutil.Process]], bool]
) -> tuple[int, str]:
    """Run a command, send it a signal when its children are there, and wait until none is left."""
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    ) as process:  # fmt: skip
        mine = psutil.Process(process.pid)
        until(lambda: process.poll() is not None or begun(mine.children(recursive=True)), "begun")
        children = mine.children(recursive=True)
        assert process.poll() is None
        assert children
        process.send_signal(number)
        process.wait(SLOW)
        until(lambda: not alive(children), f"left: {alive(children)}")
        assert process.stderr is not None
        return process.returncode, process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_child_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{POOL}")
    status, said = ended([str(script)], number, lambda children: len(children) >= 3)
    expected = {signal.SIGTERM: TERMINATED, signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}
    assert status == expected[number]
    first = {signal.SIGTERM: "terminated: ", signal.SIGKILL: "", signal.SIGINT: "interrupted: "}
    assert said.startswith(first[number])
    assert "Traceback" not in said


def test_a_process_that_the_system_ends_is_one_line() -> None:
    with (
        pytest.raises(PipelineError, match=r"^toy: the system killed a helper process"),
        processes(1, "toy") as pool,
    ):
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL).result()
