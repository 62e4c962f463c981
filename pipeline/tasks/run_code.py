"""The process that `pipeline.tasks.sandbox` runs a model's code in. Imports nothing of the project.

The kernel limits its time, memory and output, and gives it no new file descriptor: it can open
neither a file nor a socket nor a pipe. An audit hook, which can't be taken away, forbids all that
is no plain computation: other processes, other modules, native code. This is for the mistakes of a
model that means no harm: code that hunts for the word in the frames of this module would find it.
"""

from __future__ import annotations

# also what the code may import: no module can be loaded later
import bisect  # noqa: F401
import collections  # noqa: F401
import contextlib
import copy  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math
import operator  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import resource
import statistics  # noqa: F401
import string  # noqa: F401
import sys
import typing  # noqa: F401

FORBIDDEN = ("os", "posix", "resource", "time")  # loaded, and not for the code
ALLOWED = {  # audit events of plain computation
    "code.__new__",
    "compile",
    "exec",
    "object.__getattr__",
    "object.__setattr__",
    "object.__delattr__",
    "sys._getframe",
    "builtins.id",
}


def limit(seconds: int, memory: int, output: int) -> None:
    """Set the limits, hard ones: they can't be raised again.

    `seconds` are of processor time from now on: what it took to come here does not count, since it
    is larger on a busy machine. SIGXCPU ends the process then, and SIGKILL a second later.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = seconds + math.ceil(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (end, end + 1))
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, output),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def refuse(event: str, _: object) -> None:
    """Forbid what is not plain computation."""
    if event not in ALLOWED:
        raise PermissionError(f"{event} is not allowed here")


def main() -> None:
    """Run the code, then the tests; print the word and whether all are true."""
    job = json.loads(sys.stdin.read())
    limits = job["limits"]
    limit(limits["seconds"], limits["bytes"], limits["output"])
    for name in FORBIDDEN:
        del sys.modules[name]
    sys.addaudithook(refuse)
    passed = False
    with contextlib.suppress(BaseException):  # whatever the code raises, SystemExit as well
        names: dict[str, object] = {"__name__": "answer"}
        exec(compile(job["code"], "<answer>", "exec"), names)
        passed = all(eval(test, names) for test in job["tests"])
    sys.stdout.write(job["word"] + ("passed" if passed else "failed"))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
