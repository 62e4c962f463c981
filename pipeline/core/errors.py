"""Errors of users' input, each reported in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis import RuleError
from pipeline.core.secrets import without_secrets


class PipelineError(Exception):
    """An error of a user's input; names the key or file, its value, what is allowed, the remedy.

    Anything that reads an input may raise it; a docstring names it if the caller has to know.
    """


class DamagedError(PipelineError):
    """An artifact differs from its record; `Store.get` sets it aside and computes it again."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"{reason}: the command that made this artifact sets it aside and makes it anew"
        )
        self.directory = directory
        self.reason = reason


EXPECTED = (PipelineError, OSError, RuleError)  # the user's or the machine's fault: a full disk
OF_INPUTS = (*EXPECTED, ValueError)  # ValueError is what libraries raise for names and files


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, without its full stop and without secrets.

    >>> first_line(ValueError("no.\nmore"))
    'no'
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return without_secrets(line.rstrip(". "))


def one_line(error: BaseException) -> str:
    r"""Return an error as printed: in one line, or in one for each problem of a `PipelineError`.

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
    """Collect the errors of inputs in `problems`, so that all are reported together."""
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
