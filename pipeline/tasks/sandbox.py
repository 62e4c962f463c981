"""Runs code that a model wrote, in a process of its own with limits.

The process (`pipeline/tasks/run_code.py`) is an isolated Python without environment, in an empty
directory. No code reaches this process: it sends a text and reads whether a word came back.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import PipelineError

CHILD = Path(__file__).with_name("run_code.py")
SECONDS = 5  # of processor time, from where the code begins: a busy machine must not decide
PATIENCE = 300  # seconds by the clock, for a machine that gives it no processor; code can't sleep
BYTES = 512 << 20  # of address space
OUTPUT = 1 << 16  # bytes that it may print
ATTEMPTS = 2  # to get a verdict: a process can be killed for another's sake


def passes(code: str, tests: Sequence[str]) -> bool:
    """Whether code runs within the limits, and every test, an expression, is true after it.

    Raises:
        PipelineError: it got no verdict in `PATIENCE` seconds by the clock, which says nothing of
            the code.
    """
    timed_out = False
    for _ in range(ATTEMPTS):
        try:
            verdict = _run(code, tests)
        except subprocess.TimeoutExpired:
            timed_out = True
            continue
        if verdict is not None:
            return verdict
        timed_out = False
    if timed_out:
        raise PipelineError(
            f"code of an answer was not done in {PATIENCE} seconds by the clock, nor in "
            f"{SECONDS} of processor time: the machine is too busy to judge it"
        )
    return False


def _run(code: str, tests: Sequence[str]) -> bool | None:
    """Return the verdict of one process; None where a signal ended it before it gave one."""
    word = secrets.token_hex(16)  # of the verdict: printing "passed" is no way to pass
    job = {
        "code": code,
        "tests": list(tests),
        "word": word,
        "limits": {"seconds": SECONDS, "bytes": BYTES, "output": OUTPUT},
    }
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as printed:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", str(CHILD)],
            input=json.dumps(job).encode(),
            stdout=printed,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env={},
            timeout=PATIENCE,
            check=False,
        )
        printed.seek(0)
        said = printed.read(OUTPUT).rpartition(word.encode())
    if said[1]:
        return said[2] == b"passed"
    # it left by itself, or used its processor time up: it would again
    return False if done.returncode >= 0 or done.returncode == -signal.SIGXCPU else None
