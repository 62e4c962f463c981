"""A command in a terminal: interrupted, cut off by its reader, or unable to print a character."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from conf import schema
from pipeline import cli
from pipeline.config import composed
from pipeline.errors import CLOSED, INTERRUPTED, TERMINATED, noted
from tests.conftest import ROOT, SmallStudy, pipeline

BEGIN = "from pipeline.errors import terminal\nwith terminal():\n "


def listen() -> None:
    """Let a child process hear SIGINT, which a shell ignores for what it runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(body: str, *, closed: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `body` in a terminal's context, its output read by nobody when `closed`."""
    reader, writer = os.pipe()
    if closed:
        os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", BEGIN + body],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=writer if closed else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=listen,
        )
    finally:
        os.close(writer)
        if not closed:
            os.close(reader)


@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_ends_the_command_without_a_word(flush: bool) -> None:
    done = run(f"print('one', flush={flush}); print('two', flush={flush})", closed=True)
    assert (done.returncode, done.stderr) == (CLOSED, "")


def test_a_closed_pipe_is_no_problem_of_a_configuration() -> None:
    with pytest.raises(BrokenPipeError), noted([]):
        raise BrokenPipeError


def test_an_interruption_is_one_line() -> None:
    done = run("raise KeyboardInterrupt")
    assert done.returncode == INTERRUPTED
    assert done.stderr == "interrupted: the same command goes on from here\n"


@pytest.mark.parametrize("command", ["", ".verify", ".solve", ".fetch"])
def test_an_interruption_while_a_command_starts_ends_it_at_once(
    command: str, tmp_path: Path
) -> None:
    """Though the module that is imported just then catches everything."""
    (tmp_path / "omegaconf.py").write_text(
        "import os\ntry: os.kill(os.getpid(), 2)\nexcept BaseException: pass\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-m", f"pipeline{command}", "--help"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        preexec_fn=listen,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("number", "status"), [(2, INTERRUPTED), (15, TERMINATED)])
def test_an_interruption_that_a_destructor_would_lose_ends_the_command(
    number: int, status: int
) -> None:
    body = (
        f"class A:\n  def __del__(self): __import__('os').kill(__import__('os').getpid(), {number})"
    )
    done = run(f"exec({body!r})\n A()\n print('went on')")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.endswith("ed: the same command goes on from here\n")


def test_errors_of_a_user_are_a_line_and_others_have_their_traceback() -> None:
    done = run("from pipeline.errors import PipelineError\n raise PipelineError('k=0: is wrong')")
    assert (done.returncode, done.stderr) == (1, "error: k=0: is wrong\n")
    assert run("open('/nowhere/x')").stderr == "error: /nowhere/x: No such file or directory\n"
    done = run("raise KeyError('k')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("KeyError: 'k'\n")


def test_what_nohup_ignores_stays_ignored() -> None:
    begin = "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}{BEGIN}os.kill(os.getpid(), 2); print('went on')"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_sigterm_is_one_line_after_what_was_begun_is_tidied_up() -> None:
    kill = "__import__('os').kill(__import__('os').getpid(), 15)"
    done = run(f"try:\n  {kill}\n  print('went on')\n finally: print('tidied')")
    assert (done.returncode, done.stdout) == (TERMINATED, "tidied\n")
    assert done.stderr == "terminated: the same command goes on from here\n"


def test_any_output_can_print_any_character() -> None:
    done = run("print('0.1–0.2 θ')", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "0.1\\u20130.2 \\u03b8\n")
    assert run("print('0.1–0.2 θ')", PYTHONIOENCODING="utf-8").stdout == "0.1–0.2 θ\n"


def printed(*arguments: str) -> str:
    """What ``python -m pipeline`` prints."""
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_lists_the_stages_the_groups_and_five_examples() -> None:
    assert printed("help") == printed("--help")
    parts = printed("--help").strip().split("\n\n")
    listed = {part.split("\n")[0].split()[0]: part.split("\n")[1:] for part in parts}
    assert tuple(line.split()[0] for line in listed["Stages"]) == schema.STAGE_NAMES
    groups = {path.name for path in (ROOT / "conf").iterdir() if list(path.glob("*.yaml"))}
    assert groups <= {line.split(":")[0] for line in listed["Groups"]}
    assert len(listed["Examples:"]) == 5
    for line in listed["Examples:"]:
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "pipeline"]
        given = [word.split(",")[0] for word in words[3:] if word != "-m"]
        assert composed(given)


def test_a_word_that_is_no_command_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draft-acceptance", "slove", "study=mini"])
    message = "slove is not a command (did you mean solve?): give one of ask,"
    with pytest.raises(SystemExit, match=re.escape(message)):
        cli.main()


def test_a_first_word_runs_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in cli.COMMANDS:
        monkeypatch.setattr(sys, "argv", ["draft-acceptance", name, "--help"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: python -m pipeline.{name} ")


def test_a_run_says_first_what_is_cached(small_study: SmallStudy) -> None:
    said = small_study.printed.split("\n")[0]
    assert said.startswith("plan: prompts 1 to run, distributions 2 to run, certificates ")
    assert said.endswith(", report 1 to run")
    place = small_study.outputs / "report/mini"
    assert f"report: {place}/index.html\nopen it in a browser, or mail it: " in small_study.printed
    wanted = ["stage=certificates", "criteria=additive", "criteria.t=0.123"]
    first, second, *_ = pipeline(*small_study.overrides, *wanted).stdout.split("\n")
    assert first == "plan: prompts 1 cached, distributions 2 cached, certificates 2 to run"
    assert second.startswith("certificates mini_large: computing")


def test_acceptance_ends_with_the_rules_that_matter(small_study: SmallStudy) -> None:
    said = pipeline(*small_study.overrides, "stage=acceptance").stdout
    file = small_study.outputs / "tables/acceptance-mini.csv"
    assert said.endswith(f"all rows: {file}\n")
    every = pd.read_csv(file)
    rules = every.groupby("target")["rule"].nunique()
    for target, count in rules.items():
        lines = [line for line in said.split("\n") if line.startswith(f"{target} ")]
        assert 1 < len(lines) <= 5 < count
        mine = every[(every["target"] == target) & (every["p given up_ci_high"] <= 0.01)]
        mine = mine[~mine["rule"].str.startswith("tree")]
        best = mine.loc[mine["length"].idxmax(), "rule"]
        assert any(f" {best} " in line for line in lines)
        assert any(" greedy " in line for line in lines)
