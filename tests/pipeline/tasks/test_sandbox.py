"""Code of a model runs apart, within limits, and a pass can't be printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.tasks import sandbox
from pipeline.tasks.checks import score
from pipeline.tasks.items import Item

DOUBLE = "def f(x):\n    return 2 * x\n"
TESTS = ("f(2) == 4", "f(0) == 0")


def test_right_code_passes_and_wrong_code_does_not() -> None:
    modules = "import math, re\nfrom typing import List\nfrom collections import Counter\n"
    assert sandbox.passes(f"{modules}print('hello')\n{DOUBLE}", TESTS)
    assert not sandbox.passes("def f(x):\n    return x + 2\n", TESTS)  # one test of two
    assert not sandbox.passes("def f(x", TESTS)
    assert not sandbox.passes("", TESTS)


def test_an_answer_is_scored_by_its_tests() -> None:
    item = Item("a", "python", "?", TESTS, (), 8)
    assert score(item, f"```python\n{DOUBLE}```")
    assert not score(item, f"```python\n{DOUBLE.replace('2', '3')}```")


@pytest.mark.parametrize(
    "code",
    [
        "open('written', 'w')",
        "open('/etc/hostname')",
        "import socket\nsocket.socket()",
        "import os\nos.system('true')",
        "import sys\nsys.modules['random']._os.mkdir('made')",
        "import sys\nsys.modules['random']._os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import ctypes",
        "import resource",
        "import time\ntime.sleep(100)",
        "import pipeline",
        "input()",
        "x = bytearray(1 << 30)",
        "print('x' * (1 << 17))",
        "raise SystemExit(0)",
    ],
)
def test_what_is_not_allowed_fails(code: str) -> None:
    assert not sandbox.passes(f"{code}\n{DOUBLE}", TESTS)


def test_what_is_refused_is_seen_by_the_code() -> None:
    """The same code passes where the refusal is expected: it is what made the others fail."""
    refused = "try:\n    open('/etc/hostname')\n    opened = True\n"
    refused += "except (PermissionError, OSError):\n    opened = False\n"
    assert sandbox.passes(refused, ["opened is False"])
    assert not sandbox.passes(refused, ["opened is True"])


def test_the_kernel_refuses_files_and_sockets_without_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "run_code.py"
    text = sandbox.CHILD.read_text()
    assert text.count("    sys.addaudithook(refuse)\n") == 1
    child.write_text(
        text.replace("    sys.addaudithook(refuse)\n", "").replace("import heapq", "import _socket")
    )
    monkeypatch.setattr(sandbox, "CHILD", child)
    tried = "found = []\nfor what in (lambda: open('/etc/hostname'), lambda: _socket.socket()):\n"
    tried += "    try:\n        what()\n    except OSError as error:\n"
    tried += "        found.append(error.errno)\n"
    assert sandbox.passes(f"import _socket\n{tried}", ["found == [24, 24]"])  # EMFILE


def test_endless_code_is_stopped_and_a_pass_can_not_be_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    monkeypatch.setattr(sandbox, "ATTEMPTS", 1)
    assert not sandbox.passes("while True:\n    pass\n", TESTS)
    leave = "import sys\nsys.modules['random']._os._exit(0)\n"
    assert not sandbox.passes(f"{DOUBLE}print('passed')\n{leave}", TESTS)


def test_a_process_that_is_killed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [None, True]
    monkeypatch.setattr(sandbox, "_run", lambda *_: verdicts.pop(0))
    assert sandbox.passes(DOUBLE, TESTS)
    assert verdicts == []


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Let the process do something before it reads what it is to run."""
    path, text = folder / "run_code.py", sandbox.CHILD.read_text()
    assert text.count("    job = json.loads(") == 1
    path.write_text(text.replace("    job = json.loads(", f"    {before}\n    job = json.loads("))
    monkeypatch.setattr(sandbox, "CHILD", path)


BURN = "while sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) < 1.2: pass"


def test_what_a_busy_machine_takes_is_not_the_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither seconds by the clock nor processor time before the code begins decides."""
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    child(tmp_path, monkeypatch, f"__import__('time').sleep(1.5)\n    {BURN}")
    assert sandbox.passes(DOUBLE, TESTS)
    burns = "def f(x):\n    for _ in range(1 << 40): pass\n"
    run, verdicts = sandbox._run, list[bool | None]()

    def noting(*given: Any) -> bool | None:
        verdicts.append(run(*given))
        return verdicts[-1]

    monkeypatch.setattr(sandbox, "_run", noting)
    assert not sandbox.passes(burns, TESTS)
    assert verdicts == [False]  # what used up its processor time would do so again


def test_code_within_its_processor_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts by its ticks, so how much more than SECONDS is too much is its own."""
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    used = "used = lambda: sum(sys.modules['__main__'].resource.getrusage(0)[:2])\n"
    burn = "begun = used()\ndef f(x):\n    while used() < begun + 0.4: pass\n    return 2 * x\n"
    assert sandbox.passes(f"import sys\n{used}{burn}", TESTS)


def test_no_verdict_by_the_clock_is_no_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PATIENCE", 0.5)
    child(tmp_path, monkeypatch, "__import__('time').sleep(60)")
    with pytest.raises(PipelineError, match=r"not done in 0\.5 seconds by the clock, nor in 5 of"):
        sandbox.passes(DOUBLE, TESTS)
