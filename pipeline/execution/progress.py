"""Progress of a stage: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

SECONDS = 60.0  # between two lines of a log; a stage that takes less writes none
LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} so far, {rate_fmt}, about {remaining} left"
)


class _Lines(tqdm):
    """A bar as lines, one for each of its states."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Return the function that prints a state."""
        return lambda text: print(text.strip(), file=file, flush=True) if text else None


def progress_bar(total: int, unit: str, label: str) -> tqdm[Any]:
    """Return a bar on stderr that counts to `total`.

    Args:
        total: what is to be done, with what remains of it when a run goes on.
        unit: of `total`, in the singular.
        label: of what is running.
    """
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, desc=label)
    return _Lines(
        total=total, unit=unit, desc=label, bar_format=LINE,
        delay=SECONDS, mininterval=SECONDS, miniters=1,
    )  # fmt: skip
