"""Runs code that a model wrote, in a process of its own with limits.

The process (`pipeline/tasks/run_code.py`) is an isolated Python without environment, in an empty
directory. No code reaches this process: it sends a text and reads whether a word came back.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHILD = Path(__file__).with_name("run_code.py")
SECONDS = 2  # of processor time
PATIENCE = 60  # seconds by the clock: a busy machine must not decide; code can't sleep
BYTES = 512 << 20  # of address space
OUTPUT = 1 << 16  # bytes that it may print
ATTEMPTS = 2  # to get a verdict: a process can be killed for another's sake


def passes(code: str, tests: Sequence[str]) -> bool:
    """Whether code runs within the limits, and every test, an expression, is true after it."""
    for _ in range(ATTEMPTS):
        verdict = _run(code, tests)
        if verdict is not None:
            return verdict
    return False


def _run(code: str, tests: Sequence[str]) -> bool | None:
    """Return the verdict of one process; None where it was ended before it gave one."""
    word = secrets.token_hex(16)  # of the verdict: printing "passed" is no way to pass
    job = {
        "code": code,
        "tests": list(tests),
        "word": word,
        "limits": {"seconds": SECONDS, "bytes": BYTES, "output": OUTPUT},
    }
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as printed:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-B", str(CHILD)],
                input=json.dumps(job).encode(),
                stdout=printed,
                stderr=subprocess.DEVNULL,
                cwd=empty,
                env={},
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        printed.seek(0)
        said = printed.read(OUTPUT).rpartition(word.encode())
    return said[2] == b"passed" if said[1] else None
