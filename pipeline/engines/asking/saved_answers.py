"""The files of `pipeline.ask`: answers, the record of the server, pages of /metrics.

NAME.jsonl has an answer a line, NAME.json says which server gave them and how it was asked, and
NAME.before.txt and NAME.after.txt are its pages before and after the requests.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError
from pipeline.core.files import regular, write_whole
from pipeline.engines.answers.checksums import CHECKSUM, is_unchanged
from pipeline.engines.printed_text import printable


def check_same_server(
    record: Path, about: Mapping[str, Any], requests: Iterable[Mapping[str, Any]]
) -> None:
    """Raise a PipelineError for answers of another model, engine, draft length or load.

    Args:
        record: the file NAME.json of the saved answers.
        about: what it would say of the server now.
        requests: those that are answered already.
    """
    other = "give ask.name=NAME for a new file"
    if not record.is_file():
        if all("model" in request for request in requests):
            return  # these name it, and are equal to the new ones
        raise PipelineError(f"{record}, which says what answered before, is missing: {other}")
    try:
        known = dict(json.loads(record.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise PipelineError(
            f"{record} can't be read ({type(error).__name__}), so it does not say what answered "
            f"before: {other}"
        ) from error
    for name in ("engine", "model", "weights", "draft_length"):
        is_unknown = known.get(name) in (None, "") or about[name] in (None, "")
        if not is_unknown and known[name] != about[name]:
            raise PipelineError(
                f"{record} has answers of {name}={printable(known[name])}, the server now has "
                f"{printable(about[name])}: {other}, or start the server as it was"
            )
    load = known.get("concurrent", about["concurrent"])
    if load != about["concurrent"]:
        raise PipelineError(
            f"{record} has answers of concurrent={printable(load)}, not {about['concurrent']}: "
            f"{other}, or go on with ask.concurrent={printable(load)}"
        )


def write_server_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write the record of the server."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def write_page(path: Path, page: str | None) -> None:
    """Write a page of /metrics, or remove that of an earlier run."""
    if page is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, page.encode("utf-8", errors="replace"))


def read_answered(path: Path, requests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requests that a file has answers to, and cut off its torn last line.

    Raises:
        PipelineError: the file answers other requests, or was changed.
    """
    if path.is_symlink():
        raise PipelineError(f"{path} is a link: give ask.name=NAME for a file of its own")
    if not path.exists():
        return {}
    regular(path)
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    answered = {}
    other = "give ask.name=NAME for a new file, or delete this one"
    for number, line in enumerate(whole[:end].splitlines(), start=1):
        try:
            row = json.loads(line)
            name = row["custom_id"]
            request = row["request"]
        except (ValueError, LookupError, TypeError, RecursionError):
            name = None
            request = None
        if not isinstance(name, str) or name not in requests or requests[name] != request:
            raise PipelineError(
                f"{path}, line {number} answers another request (prompts, steps, sampling or "
                f"log-probabilities differ): {other}"
            )
        if not is_unchanged(row):
            raise PipelineError(
                f"{path}, line {number} was changed since it was saved (its {CHECKSUM} differs): "
                "delete this line, and it is asked again, or give ask.name=NAME for a new file"
            )
        answered[name] = request
    torn = whole[end:]
    if torn:
        begins = (_beginning(name, request) for name, request in requests.items())
        if not any(torn.startswith(text) or text.startswith(torn) for text in begins):
            raise PipelineError(f"{path}: its last line is no answer to this study: {other}")
        os.truncate(path, end)  # never written again: what is there is paid for
    return answered


def _beginning(name: str, request: Any) -> bytes:
    """Return how the line of an answer begins."""
    return json.dumps({"custom_id": name, "request": request})[:-1].encode()


def mean_in_flight(path: Path) -> float | None:
    """Return the mean number of requests in flight, while any was, from a file of answers.

    None if a line, of an earlier version, does not say when the request began.
    """
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    if not rows or any("began" not in row for row in rows):
        return None
    spans = sorted((row["began"], row["began"] + row["seconds"]) for row in rows)
    busy = 0.0
    until = -math.inf
    for begin, end in spans:
        busy += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return round(sum(row["seconds"] for row in rows) / busy, 3)
