"""Faults of the hub on loopback: each changes an answer, or sends another itself."""

from __future__ import annotations

import json
from typing import Any

from tests.pipeline.hub import Answer, Fault


def status(code: int, **headers: str) -> Fault:
    """A hub that answers with this status; `Retry_After` is the header Retry-After."""

    def fault(answer: Answer) -> bool:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        answer.status, answer.body, answer.headers = code, b"", named
        return False

    return fault


def hang(answer: Answer) -> bool:
    """A hub that takes a request and never answers."""
    answer.hub.leaving.wait()
    answer.handler.close_connection = True
    return True


def cut(answer: Answer) -> bool:
    """A connection that breaks off in the middle of a body, once for each path."""
    if len(answer.hub.asked(answer.path)) == 1 and answer.handler.command == "GET":
        answer.send(len(answer.body) // 2)
        return True
    return False


def truncated(answer: Answer) -> bool:
    """A file of which the half is missing, and the hub does not know it."""
    answer.body = answer.body[: len(answer.body) // 2]
    return False


def flipped(answer: Answer) -> bool:
    """A file with one wrong bit."""
    at = len(answer.body) // 2
    answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
    return False


def of_another_commit(answer: Answer) -> bool:
    """A file that is served as one of another commit."""
    answer.headers["X-Repo-Commit"] = "f" * 40
    return False


def sha(value: Any) -> Fault:
    """A hub that tells something else than a commit."""

    def fault(answer: Answer) -> bool:
        answer.body = json.dumps(json.loads(answer.body) | {"sha": value}).encode()
        return False

    return fault


def times(count: int, fault: Fault) -> Fault:
    """A fault that passes after `count` requests."""
    left = [count]

    def passing(answer: Answer) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fault(answer)

    return passing
