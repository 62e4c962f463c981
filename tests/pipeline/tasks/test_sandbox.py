"""Code of a model runs apart, within limits, and can't give itself a verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.tasks import sandbox

DOUBLE = "def f(x):\n    return 2 * x\n"
WRONG = "def f(x):\n    return 2 * x + 1\n"
TESTS = ("f(2) == 4", "f(0) == 0")
LEVELS = ["limits"] + ["namespaces"] * (sandbox.level() == "namespaces")


@pytest.fixture(params=LEVELS)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each level that this machine grants."""
    monkeypatch.setattr(sandbox, "level", lambda: request.param)
    return str(request.param)


def test_right_code_passes_and_wrong_code_does_not(kept: str) -> None:
    modules = "import math, re\nfrom typing import List\nfrom collections import Counter\n"
    assert sandbox.passes(f"{modules}print('hello' * (1 << 17))\n{DOUBLE}", TESTS)
    for code in ("def f(x):\n    return x + 2\n", "def f(x", "", WRONG):
        assert not sandbox.passes(code, TESTS), code


@pytest.mark.parametrize(
    "value", ["[1, (2, 'a')]", "{1: {2, 3}}", "None", "True", "0.1", "-1.5e300"]
)
def test_plain_values_come_back_as_they_are(value: str) -> None:
    code = f"def f():\n    return {value}\n"
    assert sandbox.passes(code, [f"f() == {value}"])
    assert not sandbox.passes(code, ["f() == 'other'"])
    assert sandbox.passes(code, ["f() is True"]) == (value == "True")


CHEATS = {
    "an object that equals all": "class A:\n    __eq__ = lambda *_: True\nf = lambda x: A()",
    "a number that does": "class A(int):\n    __eq__ = lambda *_: True\nf = lambda x: A(7)",
    "all replaced": f"import builtins\nbuiltins.all = lambda _: True\n{WRONG}",
    "eval replaced": f"import builtins\nbuiltins.eval = lambda *_: True\n{WRONG}",
    "stdout replaced": f"import sys, io\nsys.stdout = io.StringIO()\n{WRONG}",
    "a verdict printed": f"import sys\nsys.__stdout__.write('passed')\n{WRONG}",
    "constants of the caller": (
        "import sys\ndef f(x):\n"
        "    found = [c for c in sys._getframe(1).f_code.co_consts if isinstance(c, int)]\n"
        "    frame = sys._getframe(1)\n"
        "    while frame.f_back: frame = frame.f_back\n"
        "    texts = (str(frame.f_locals) + str(frame.f_globals)).split(' == ')[1:]\n"
        "    found += [int(text[0]) for text in texts]\n"
        "    return (found[-1:] or [-1])[0]\n"
    ),
    "leaving with success": f"{WRONG}import sys\nraise SystemExit(0)",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_the_code_replaces_makes_no_wrong_answer_right(cheat: str, kept: str) -> None:
    assert not sandbox.passes(CHEATS[cheat], TESTS)


@pytest.mark.parametrize(
    "code",
    [
        "open('written', 'w')",
        "open('/etc/hostname')",
        "import socket\nsocket.socket()",
        "import os\nos.system('true')",
        "import sys\nsys.modules['random']._os.mkdir('made')",
        "import sys\nsys.modules['random']._os.mkfifo('/tmp/made')",
        "import sys\nsys.modules['random']._os.setpriority(0, 0, 19)",
        "import sys\nsys.modules['random']._os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import ctypes",
        "import pipeline",
        "input()",
        "x = bytearray(1 << 30)",
    ],
)
def test_what_is_not_allowed_fails(code: str, kept: str) -> None:
    assert not sandbox.passes(f"{code}\n{DOUBLE}", TESTS)


def without_hook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the kernel alone: take the hook away, and keep the modules of system calls."""
    text = sandbox.CHILD.read_text()
    for line in ("    sys.addaudithook(refuse)\n", "    forget()\n"):
        assert text.count(line) == 1
        text = text.replace(line, "")
    path = folder / "run_code.py"
    path.write_text(text.replace("import heapq", "import _socket"))
    monkeypatch.setattr(sandbox, "CHILD", path)


TRY = """
import os, _socket
def errno(act, *given):
    try:
        act(*given)
    except OSError as error:
        return error.errno
    return 0
"""


def test_the_kernel_refuses_files_and_sockets_without_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    without_hook(tmp_path, monkeypatch)
    tests = ["errno(open, '/') == 24", "errno(_socket.socket) == 24"]  # EMFILE
    assert sandbox.passes(TRY, tests)


@pytest.mark.skipif(sandbox.level() != "namespaces", reason="the kernel grants no namespaces")
def test_in_namespaces_nothing_outside_can_be_made_seen_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_hook(tmp_path, monkeypatch)
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    read_only, not_permitted = 30, 1
    tests = [
        f"errno(os.{made}, '{path}/made') == {read_only}"
        for made in ("mkdir", "mkfifo", "mknod")
        for path in ("", ".")
    ]
    tests += [
        f"errno(os.mkdir, {str(tmp_path / 'made')!r}) == 2",
        f"errno(os.chroot, '/') == {not_permitted}",
        "os.getppid() == 0",
        "errno(os.setpriority, os.PRIO_USER, 0, 19) == 0",  # of its own namespace: itself
        "errno(os.sched_setaffinity, os.getppid(), {0}) == 0",
        f"errno(os.kill, {os.getpid()}, 0) == 3",
    ]
    for test in tests:
        assert sandbox.passes(TRY, [test]), test
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "run_code.py"]


@pytest.mark.thorough
def test_code_that_computes_or_waits_without_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    monkeypatch.setattr(sandbox, "PATIENCE", 4)
    for code in (
        "while True: pass",
        "sum(range(10 ** 12))",  # one call, which no signal handler interrupts
        "import sys\nlock = sys.modules['_thread'].allocate_lock()\nlock.acquire()\nlock.acquire()",
    ):
        assert not sandbox.passes(f"{code}\n{DOUBLE}", TESTS), code


def test_children_end_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pipe that only they hold: it ends when the last of them is gone."""
    without_hook(tmp_path, monkeypatch)
    monkeypatch.setattr(sandbox, "PATIENCE", 2)
    monkeypatch.setattr(sandbox, "ATTEMPTS", 1)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    popen = sandbox.subprocess.Popen
    monkeypatch.setattr(
        sandbox.subprocess, "Popen", lambda *a, **k: popen(*a, **k, pass_fds=[writer])
    )
    code = "import os\nwhile not os.fork(): pass\nimport signal\nsignal.pause()\n"
    assert not sandbox.passes(code if os.getuid() == 0 else "while True: pass", TESTS)
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_process_that_is_killed_or_never_begins_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (b"\n[4, 0]", 0)
    for first in ((b"\n", -9), (b"", -9), (b"", None)):
        runs = [first, right]
        monkeypatch.setattr(sandbox, "_run", lambda *_, runs=runs: runs.pop(0))
        assert sandbox.passes(DOUBLE, TESTS)
    monkeypatch.setattr(sandbox, "_run", lambda *_: (b"", None))
    with pytest.raises(PipelineError, match="did not start within 10 seconds"):
        sandbox.passes(DOUBLE, TESTS)
    for printed in (b"\n[4]", b"\n{", b'\n[{"tuple": 3}, 0]', b"\n" + b"[" * 30000, b"\n5"):
        monkeypatch.setattr(sandbox, "_run", lambda *_, printed=printed: (printed, 0))
        assert not sandbox.passes(DOUBLE, TESTS)


@pytest.mark.parametrize(
    "test", ["f(2) < 5", "f(2)", "f(2) == x", "f(2) is 4", "1 < f(2) == 4", "("]
)
def test_a_test_compares_with_a_literal(test: str) -> None:
    with pytest.raises(ValueError, match="give EXPRESSION == LITERAL"):
        sandbox.parse_test(test)
