"""How the tests of the engines end where a server does not start."""

import sys

import pytest

from tests.engines.test_engines import NO_AMX, _served


def start(tmp_path, program):
    """Serve with a Python program that ends at once."""
    with _served([sys.executable, "-c", program], {}, tmp_path / "server.log"):
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
