"""The error a user can do something about; printed without a traceback."""


class PipelineError(Exception):
    """What was wrong, which key or file, what is allowed, what to do."""


def first_line(error: BaseException) -> str:
    r"""Return what an error says, in one line without a full stop.

    Example:
        >>> first_line(ValueError("no.\nmore"))
        'no'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
