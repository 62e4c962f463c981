"""A command in a terminal: interrupted, cut off by its reader, or unable to print a character."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.console import CLOSED, INTERRUPTED, interrupts
from tests.conftest import ROOT

BEGIN = "from pipeline.console import terminal\nwith terminal():\n "


def run(body: str, *, closed: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `body` in a terminal's context, its output read by nobody when `closed`."""
    reader, writer = os.pipe()
    if closed:
        os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", BEGIN + body],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=writer if closed else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
        if not closed:
            os.close(reader)


@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_ends_the_command_without_a_word(flush: bool) -> None:
    done = run(f"print('one', flush={flush}); print('two', flush={flush})", closed=True)
    assert (done.returncode, done.stderr) == (CLOSED, "")


def test_an_interruption_while_modules_are_imported_is_one_line() -> None:
    done = run("raise KeyboardInterrupt")
    assert done.returncode == INTERRUPTED
    assert done.stderr == "interrupted: the same command goes on from here\n"


def test_any_output_can_print_any_character() -> None:
    done = run("print('0.1–0.2 θ')", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "0.1-0.2 \\u03b8\n")
    assert run("print('0.1–0.2 θ')", PYTHONIOENCODING="utf-8").stdout == "0.1–0.2 θ\n"


def test_an_interruption_that_a_library_turned_into_an_error_is_one() -> None:
    error = ValueError("while composing")
    error.__context__ = KeyboardInterrupt()
    assert interrupts(error)
    assert not interrupts(ValueError("by itself"))
