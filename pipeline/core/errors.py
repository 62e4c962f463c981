"""User errors, collected and told in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis import RuleError
from pipeline.core.secrets import without_secrets


class PipelineError(Exception):
    """An error of a user's input: the key or file, its value, the allowed values, the remedy.

    Whatever reads an input may raise it; docstrings name it where a caller has to know.
    """


class DamagedError(PipelineError):
    """An artifact differs from its record. The runner sets it aside and makes it anew."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"{reason}: the command that made this artifact sets it aside and makes it anew"
        )
        self.directory = directory
        self.reason = reason


EXPECTED = (PipelineError, OSError, RuleError)  # of a user's making, or the machine's: a full disk
OF_INPUTS = (*EXPECTED, ValueError)  # as libraries raise for names and files that they refuse


def first_line(error: BaseException) -> str:
    r"""Return the message of an error in one line, without a full stop and without secrets.

    >>> first_line(ValueError("no.\nmore"))
    'no'
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return without_secrets(line.rstrip(". "))


def one_line(error: BaseException) -> str:
    r"""Return an error as printed: in one line, of a `PipelineError` one for each problem.

    Passwords and tokens are left out.

    >>> one_line(ValueError("no\n  more")), one_line(KeyError("t")), one_line(OSError(28, "full", "f"))
    ('no more', "KeyError: 't'", 'f: full')
    """  # noqa: E501
    if isinstance(error, OSError) and error.filename:
        return without_secrets(f"{error.filename}: {error.strerror}")
    if isinstance(error, PipelineError):
        lines = without_secrets(str(error)).splitlines()
        return "\n".join(" ".join(line.split()) for line in lines)
    text = without_secrets(" ".join(str(error).split()))
    return text if text and isinstance(error, OF_INPUTS) else f"{type(error).__name__}: {text}"


@contextmanager
def collect_errors(problems: list[str]) -> Iterator[None]:
    """Collect errors of inputs, so that all are reported together."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OF_INPUTS as error:
        problems.append(one_line(error))


def raise_collected(problems: list[str]) -> None:
    """Raise the collected problems as one error, if there are any."""
    if problems:
        raise PipelineError("\n".join(dict.fromkeys(problems)))
