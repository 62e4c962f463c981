"""The errors a user can do something about; printed without a traceback."""

from pathlib import Path


class PipelineError(Exception):
    """An error of a user's input: the key or file, its value, the allowed values, the remedy."""


class DamagedError(PipelineError):
    """An artifact differs from its record. The runner sets it aside and makes it anew."""

    def __init__(self, directory: Path, reason: str) -> None:
        """Name the artifact's `directory`, and the file and its damage as `reason`."""
        super().__init__(
            f"{reason}: the command that made this artifact sets it aside and makes it anew"
        )
        self.directory = directory
        self.reason = reason


def first_line(error: BaseException) -> str:
    r"""Return the message of an error in one line, without a full stop.

    Examples:
        >>> first_line(ValueError("no.\nmore"))
        'no'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
