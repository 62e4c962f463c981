"""Errors of the hub's client as one line: the status, the reason, the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import PipelineError, first_line

EXPECTED = {
    "model": "config.json, model*.safetensors and the tokenizer's files",
    "dataset": "its .parquet, .jsonl or .txt files (docs/reproduce.md)",
}
SECONDS = 8.0  # to wait for an answer


class HubError(PipelineError):
    """The hub did not give a file; `reason` is a part of the message."""

    def __init__(self, message: str, reason: str) -> None:
        """Take the message and its reason."""
        super().__init__(message)
        self.reason = reason


@contextmanager
def explained(name: str, kind: str, wanted: str, key: str) -> Iterator[None]:
    """Ask the hub, with a limit on the time of each request.

    Args:
        name: owner/name.
        kind: model or dataset.
        wanted: from the hub, for errors.
        key: of the configuration, likewise.

    Raises:
        HubError: it did not answer, or the client could not use the answer.
    """
    _limit_requests()
    try:
        yield
    except Exception as error:  # the hub's client raises many kinds
        reason, advice = _diagnosis(name, kind, key, error)
        message = (
            f"{key}={name}: the hub did not give {wanted}: {reason}. {advice}. Or take a local "
            f"copy: {key}=DIRECTORY, with {EXPECTED[kind]}"
        )
        raise HubError(message, reason) from error


def _limit_requests() -> None:
    """Limit the time of every request: the client lists files, for one, without a limit."""
    from huggingface_hub.utils import get_session

    hooks = get_session().event_hooks
    if _limit not in hooks["request"]:
        hooks["request"].append(_limit)


def _limit(request: Any) -> None:
    limits = request.extensions.get("timeout", {})
    for step in ("connect", "read", "write", "pool"):
        given = limits.get(step)
        if given is None or request.method == "HEAD":
            limits[step] = min(given or SECONDS, SECONDS)
    request.extensions["timeout"] = limits


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def demanded_wait(error: BaseException) -> int | None:
    """Return the seconds that a hub with too many requests (429) demands; None: another error."""
    from huggingface_hub.utils import parse_ratelimit_headers

    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        if getattr(response, "status_code", None) == 429:
            limit = parse_ratelimit_headers(response.headers)
            seconds = response.headers.get("Retry-After", "")
            if seconds.isdigit():
                return int(seconds)
            return int(SECONDS) if limit is None else limit.reset_in_seconds
    return None


def _diagnosis(name: str, kind: str, key: str, error: Exception) -> tuple[str, str]:
    """Return the reason of an error of the hub's client, and the remedy."""
    for cause in _causes(error):
        classes = {parent.__name__ for parent in type(cause).__mro__}
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return _of_status(status, classes, name, kind, key, demanded_wait(error))
        if "OfflineModeIsEnabled" in classes:
            return (
                "HF_HUB_OFFLINE is set",
                "Unset it and run `make fetch STUDY=...` where there is a network",
            )
        if "TimeoutException" in classes:
            return "it does not answer", "Check the network and try again later"
        if "NetworkError" in classes or "ProxyError" in classes:
            reason = f"it can't be reached ({type(cause).__name__}: {first_line(cause)})"
            return reason, "Check the network, or run `make fetch STUDY=...` where there is one"
    return f"{type(error).__name__}: {first_line(error)}", "Give the same command again"


def _of_status(
    status: int, classes: set[str], name: str, kind: str, key: str, wait: int | None
) -> tuple[str, str]:
    """Return the reason of an HTTP status, and the remedy; `classes` are those of the error."""
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if "GatedRepoError" in classes:
        reason = f"{status}, it is given only to those who accept its conditions"
        return reason, f"Accept them at {page}, then run `hf auth login`"
    if status == 401:
        reason = "401, no public repository has this name, or the token is not valid"
        return reason, "Check the name; for a private repository run `hf auth login`"
    if status == 403:
        return "403, the token may not read it", "Run `hf auth login` with one that may"
    if "RevisionNotFoundError" in classes:
        revision = "prompts.revision" if kind == "dataset" else f"{key.rpartition('.')[0]}.revision"
        return "404, it has no such revision", f"Check {revision}"
    if status == 404:
        return "404, no such repository or file", "Check the name"
    if status == 429:
        return "429, too many requests", f"Wait {wait} s, then give the same command"
    if status >= 500:
        return f"{status}, the hub is out of order", "Try again later"
    return f"HTTP status {status}", "Try again later"
