"""A command in a terminal: its help, interrupted, cut off, or unable to print a character."""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version

import pytest

from conf import schema
from pipeline import cli
from pipeline.core import commands
from pipeline.core.commands import CLOSED
from pipeline.core.errors import collect_errors
from pipeline.core.interruption import INTERRUPTED, TERMINATED
from pipeline.core.paths import ROOT
from pipeline.settings.composition import composed

BEGIN = "from pipeline.core.commands import run_as_command\nwith run_as_command():\n "
GOES_ON = ": the same command goes on from here\n"
KILL = "__import__('os').kill(__import__('os').getpid(), {})"


def run(body, begin="", **environment):
    """Run `body` in a terminal's context, in a process that hears SIGINT."""
    return subprocess.run(
        [sys.executable, "-c", begin + BEGIN + body], cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def test_a_closed_pipe_ends_the_command_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", BEGIN + "print('one'); print('two')"], cwd=ROOT,
                          stdout=writer, stderr=subprocess.PIPE, check=False)  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED, b"")
    with (
        pytest.raises(BrokenPipeError),
        collect_errors([]),
    ):  # nor is it a problem of a configuration
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("begin", "body", "status", "printed", "said"),
    [
        ("", "raise KeyboardInterrupt", INTERRUPTED, "", f"interrupted{GOES_ON}"),
        (f"class A:\n  def __del__(self): {KILL.format(2)}\n",  # which a destructor would lose
         "A()\n print('went on')", INTERRUPTED, "", f"interrupted{GOES_ON}"),
        ("", f"try:\n  {KILL.format(15)}\n  print('went on')\n finally: print('tidied')",
         TERMINATED, "tidied\n", f"terminated{GOES_ON}"),
        ("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n",  # as nohup does
         f"{KILL.format(2)}; print('went on')", 0, "went on\n", ""),
        ("", "open('/nowhere/x')", 1, "", "error: /nowhere/x: No such file or directory\n"),
    ],
)  # fmt: skip
def test_a_command_ends_in_one_line(begin, body, status, printed, said):
    done = run(body, begin)
    assert (done.returncode, done.stdout, done.stderr) == (status, printed, said)


REPLACED = f"try:\n  {KILL.format(15)}\n except BaseException: raise AttributeError('of a library')"
LOST = f"try:\n  {KILL.format(2)}\n except BaseException: pass\n print('went on')"


@pytest.mark.parametrize(
    ("body", "status", "printed", "said"),
    [
        (REPLACED, TERMINATED, "", "terminated"),
        (REPLACED.replace("AttributeError", "SystemExit"), TERMINATED, "", "terminated"),
        (REPLACED.replace("AttributeError", "PipelineError"), TERMINATED, "", "terminated"),
        (LOST, INTERRUPTED, "went on\n", "interrupted"),
        (f"with run_as_command():\n  {KILL.format(2)}", INTERRUPTED, "", "interrupted"),
        (
            f"with run_as_command(): print('done')\n {KILL.format(15)}",
            TERMINATED,
            "done\n",
            "terminated",
        ),
    ],
)
def test_an_interruption_stays_one_whatever_becomes_of_it(body, status, printed, said):
    done = run(body, "from pipeline.core.errors import PipelineError\n")
    assert (done.returncode, done.stdout, done.stderr) == (status, printed, said + GOES_ON)


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "A()"])
def test_a_command_that_begins_again_does_not_promise_to_go_on(body):
    begin = f"class A:\n  def __del__(self): {KILL.format(2)}\n"
    begin += "from pipeline.core.commands import command\n"
    done = run(f"with command('', '', []):\n  {body}", begin)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


def test_ask_and_fetch_go_on_and_the_other_commands_begin_again(monkeypatch):
    said = {}

    def recorded(*, goes_on):
        said[name] = goes_on
        return nullcontext()

    monkeypatch.setattr(commands, "run_as_command", recorded)
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit):
            import_module(f"pipeline.{name}").main(["--help"])
    assert [name for name in cli.COMMANDS if said[name]] == ["ask", "fetch"]


def test_an_interruption_of_an_exec_has_its_own_status(tmp_path):
    """Of a module, where Python would end by SIGINT whatever the signal."""
    (tmp_path / "own.py").write_text(f"{BEGIN}exec({KILL.format(15)!r})")
    done = subprocess.run(
        [sys.executable, "-m", "own"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (TERMINATED, f"terminated{GOES_ON}")


def test_a_signal_after_the_end_and_a_second_one_end_the_process_at_once():
    after = run(f"print('done')\n{KILL.format(15)}; print('went on')")
    assert (after.returncode, after.stdout, after.stderr) == (-signal.SIGTERM, "done\n", "")
    twice = f"try:\n  {KILL.format(2)}\n finally:\n  {{}}\n  {KILL.format(15)}\n  print('tidied')"
    same = run(twice.format("pass"))  # as `timeout` sends it twice
    assert (same.returncode, same.stdout) == (INTERRUPTED, "tidied\n")
    second = run(twice.format("import pipeline.core.interruption as e; e.TWICE = 0"))
    assert (second.returncode, second.stdout) == (-signal.SIGTERM, "")


@pytest.mark.parametrize(
    ("body", "printed", "said"),
    [
        (r"print('a\x1b[31m\tb\nc\u202ed\x9b\rθ')", "a\\x1b[31m\tb\nc\\u202ed\\x9b\\rθ\n", ""),
        (r"raise OSError(2, 'no', 'a\x1b[2Jb')", "", "error: a\\x1b[2Jb: no\n"),
        (r"raise SystemExit('\x07')", "", "\\x07\n"),
        (r"import sys; sys.stderr.write('\r3 of 4\x1b'); sys.stderr.write('\n\x1b[A')", "",
         "\n3 of 4\\x1b\n\x1b[A"),  # a return is read as a new line
    ],
)  # fmt: skip
def test_texts_of_others_do_nothing_to_the_terminal(body, printed, said):
    done = run(body)
    assert (done.stdout, done.stderr) == (printed, said)
    failed = run(r"raise KeyError('\x1b]0;title\x07')").stderr
    assert "\x1b" not in failed


def test_an_unexpected_error_has_its_traceback_and_any_character_is_printed():
    done = run("print('θ')\n raise KeyError('k')", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (1, "\\u03b8\n")
    assert done.stderr.startswith("Traceback")


def test_an_interruption_while_a_command_starts_ends_it_at_once(tmp_path):
    """Though the module that is imported just then catches everything."""
    (tmp_path / "omegaconf.py").write_text(
        "import os\ntry: os.kill(os.getpid(), 2)\nexcept BaseException: pass\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--help"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_help_lists_the_stages_the_groups_and_examples(capfd, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pipeline", "help"])
    with pytest.raises(SystemExit):
        cli.main()
    parts = capfd.readouterr().out.strip().split("\n\n")
    listed = {part.split("\n")[0].split()[0]: part.split("\n")[1:] for part in parts}
    assert tuple(line.split()[0] for line in listed["Stages"]) == schema.STAGE_NAMES
    groups = {path.name for path in (ROOT / "conf").iterdir() if list(path.glob("*.yaml"))}
    assert groups <= {line.split(":")[0] for line in listed["Groups"]}
    for line in listed["Examples:"]:
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "pipeline"]
        assert composed([word.split(",")[0] for word in words[3:] if word != "-m"])


def test_a_first_word_is_a_command_or_answered(monkeypatch, capsys):
    for name in cli.COMMANDS:
        monkeypatch.setattr(sys, "argv", ["draft-acceptance", name, "--help"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: python -m pipeline.{name} ")
    monkeypatch.setattr(sys, "argv", ["draft-acceptance", "slove", "study=mini"])
    with pytest.raises(SystemExit, match=r"slove is not a command .*solve"):
        cli.main()
    monkeypatch.setattr(sys, "argv", ["draft-acceptance", "--version"])
    cli.main()
    assert capsys.readouterr().out == f"draft-acceptance-study {version(cli.PROJECT)}\n"
