"""Runs code that a model wrote, in a process of its own, and judges what it returns in this one.

The process (`pipeline/tasks/run_code.py`) is an isolated Python without environment. It gets the
code and expressions such as ``double(3)``, and prints their values. Which values are right never
enters it: this process compares. Where the kernel allows it (`level`), the process has namespaces
of its own, made by unshare(1) of util-linux: it sees no file, no network and no other process.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

CHILD = Path(__file__).with_name("run_code.py")
APART = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net"]
APART += ["--ipc", "--uts"]
SECONDS = 5  # of processor time, from where the code begins
PATIENCE = 10  # seconds by the clock, from where the process begins: code may wait
BYTES = 512 << 20  # of address space
OUTPUT = 1 << 16  # bytes that it may print
ATTEMPTS = 2  # to get a verdict: a process can be killed for another's sake


def passes(code: str, tests: Sequence[str]) -> bool:
    """Whether code runs within the limits, and every test holds after it.

    Args:
        code: what a model wrote.
        tests: each as `parse_test` takes it.

    Raises:
        PipelineError: the process did not come to the code in `PATIENCE` seconds, which says
            nothing of the code.
    """
    parsed = [parse_test(test) for test in tests]
    found = values(code, [expression for expression, _, _ in parsed], level() == "namespaces")
    return found is not None and all(
        one is wanted if same else one == wanted
        for one, (_, same, wanted) in zip(found, parsed, strict=True)
    )


def parse_test(test: str) -> tuple[str, bool, Any]:
    """Return of a test its expression, whether it must be the value itself, and the value.

    Raises:
        ValueError: it is not ``EXPRESSION == LITERAL``, nor ``is`` True, False or None.

    >>> parse_test("add(2, 5) == 7"), parse_test("is_even(4) is True")
    (('add(2, 5)', False, 7), ('is_even(4)', True, True))
    """
    with suppress(ValueError, SyntaxError):
        tree = ast.parse(test, mode="eval").body
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
            same, wanted = isinstance(tree.ops[0], ast.Is), ast.literal_eval(tree.comparators[0])
            if isinstance(tree.ops[0], ast.Eq) or (same and wanted in (True, False, None)):
                return ast.unparse(tree.left), same, wanted
    raise ValueError(f"test {test!r} is not allowed: give EXPRESSION == LITERAL, or is True")


@cache
def level() -> str:
    """Return what code is kept within: "namespaces", or "limits" where the kernel grants none."""
    granted = shutil.which("unshare") is not None and values("", ["1"], True) == [1]
    return "namespaces" if granted else "limits"


def values(code: str, expressions: Sequence[str], enclosed: bool) -> list[Any] | None:
    """Return the values of expressions after code; None where it fails, or a value isn't plain."""
    for _ in range(ATTEMPTS):
        printed, status = _run(code, expressions, enclosed)
        begun = printed.startswith(b"\n")
        if begun and status != -signal.SIGKILL:
            break
        if not begun and status is not None and status >= 0:
            return None  # the kernel refused a step before the code
    else:
        if not begun:
            raise PipelineError(
                f"the code of an answer did not start within {PATIENCE} seconds: the machine is "
                "too busy, run again when it is idle"
            )
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        found = [_value(one) for one in json.loads(printed)]
        return found if len(found) == len(expressions) else None
    return None


def _value(found: Any) -> Any:
    if isinstance(found, dict):
        ((kind, items),) = found.items()
        return {"tuple": tuple, "set": set, "dict": dict}[kind](map(_value, items))
    return [_value(one) for one in found] if isinstance(found, list) else found


def _run(code: str, expressions: Sequence[str], enclosed: bool) -> tuple[bytes, int | None]:
    """Return what one process printed, and its status; None where the clock ended it."""
    job = {"code": code, "expressions": list(expressions), "seconds": SECONDS, "bytes": BYTES}
    job["output"] = OUTPUT
    apart = [str(shutil.which("unshare")), *APART] if enclosed else []
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as printed:
        job["root"] = empty if enclosed else None
        process = subprocess.Popen(
            [*apart, sys.executable, "-I", "-S", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env={},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(job).encode(), timeout=PATIENCE)
            status = process.returncode
        except subprocess.TimeoutExpired:
            status = None
        finally:  # its children too
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        return printed.read(OUTPUT), status
