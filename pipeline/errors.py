"""The error a user can do something about; printed without a traceback."""


class PipelineError(Exception):
    """What was wrong, which key or file, what is allowed, what to do."""
