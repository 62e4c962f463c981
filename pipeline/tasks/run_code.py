"""The process that `pipeline.tasks.sandbox` runs a model's code in. Imports nothing of the project.

It evaluates expressions after the code and prints their values as JSON. It never learns which
values are right, so nothing that the code replaces here can turn a wrong answer into a right one.
In namespaces of its own it leaves the file system and gives up every capability. The kernel limits
its time, memory and output, and gives it no new file descriptor. An audit hook, which can't be
taken away, forbids all that is no plain computation.
"""

from __future__ import annotations

# also what the code may import: no module can be loaded later
import bisect  # noqa: F401
import collections  # noqa: F401
import contextlib
import copy  # noqa: F401
import datetime  # noqa: F401
import decimal
import fractions
import functools  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math
import operator  # noqa: F401
import os
import random  # noqa: F401
import re  # noqa: F401
import resource
import signal
import statistics  # noqa: F401
import string  # noqa: F401
import sys
import typing  # noqa: F401

FORBIDDEN = ("os", "posix", "resource", "signal", "_signal", "time")  # loaded, not for the code
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


def enclose(empty: str) -> None:
    """Make an empty, read-only root of a directory, and give up all capabilities.

    For a process with a user and a mount namespace of its own.

    Raises:
        OSError: the kernel refused a step.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *given: object) -> None:
        if getattr(libc, name)(*given):
            raise OSError(ctypes.get_errno(), name)

    read_only, no_suid, no_devices, no_programs = 1, 2, 4, 8
    flags = read_only | no_suid | no_devices | no_programs
    call("mount", b"none", empty.encode(), b"tmpfs", flags, None)
    os.chroot(empty)
    os.chdir("/")
    call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())  # version 3
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    for name in [name for name in sys.modules if "ctypes" in name]:
        del sys.modules[name]


def limit(seconds: int, memory: int, output: int) -> None:
    """Set the limits, hard ones: they can't be raised again.

    `seconds` are of processor time from now on: what it took to come here does not count, since it
    is larger on a busy machine. The process leaves then; SIGKILL ends it a second later.
    """
    leave = os._exit
    signal.signal(signal.SIGXCPU, lambda *_: leave(1))
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = seconds + math.ceil(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (end, end + 1))
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, output),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))


def forget() -> None:
    """Empty the modules of system calls, which other modules hold by a name of their own."""
    for name in FORBIDDEN:
        vars(sys.modules.pop(name)).clear()


def refuse(event: str, _: object) -> None:
    """Forbid what is not plain computation."""
    if event not in ALLOWED:
        raise PermissionError(f"{event} is not allowed here")


def plain_value(value: object) -> object:
    """Return a value as JSON can hold it: what is no list, as {its kind: its items}.

    Raises:
        TypeError: it is no plain value.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (fractions.Fraction, decimal.Decimal)):
        return float(value)
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    if isinstance(value, dict):
        return {"dict": [[plain_value(key), plain_value(one)] for key, one in value.items()]}
    for kind, name in ((tuple, "tuple"), (set, "set"), (frozenset, "set")):
        if isinstance(value, kind):
            return {name: [plain_value(one) for one in value]}
    raise TypeError(f"{type(value)} is no plain value")


def main() -> None:
    """Print a line before the code runs, and after it the values of the expressions."""
    job = json.loads(sys.stdin.read())
    if job["root"]:
        enclose(job["root"])
    write = os.write
    sys.stdout = sys.stderr  # which goes nowhere: what the code prints
    limit(job["seconds"], job["bytes"], job["output"])
    forget()
    sys.addaudithook(refuse)
    write(1, b"\n")
    with contextlib.suppress(BaseException):  # whatever the code raises, SystemExit as well
        names: dict[str, object] = {"__name__": "answer"}
        exec(compile(job["code"], "<answer>", "exec"), names)
        write(1, json.dumps([plain_value(eval(one, names)) for one in job["expressions"]]).encode())


if __name__ == "__main__":
    main()
