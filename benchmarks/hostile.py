"""Hostile inputs: keys, files and answers of every command, wrong in a random way.

Each trial is a process of its own, forked with everything imported, in a folder of its own: copies
of tiny models, prompts, answers of an engine, and the artifacts of a whole study. One key, one file
or the server is made hostile, and one command runs. It has to end with a status of its own and its
reason, without a traceback, a nan or an escape sequence on the terminal. It may leave nothing
half-written and may not touch what it does not own; its outputs verify.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from pipeline import ask, cli, verify
from pipeline.core.commands import CLOSED
from pipeline.core.escaping import CONTROLS
from pipeline.core.files import file_digest, remove
from pipeline.core.interruption import INTERRUPTED
from pipeline.core.paths import ROOT
from pipeline.settings.composition import composed
from tests.pipeline.toy import status

SECONDS = 20.0  # after which a command is interrupted: a huge value may be right, and take hours
ENDS = (0, 1, 2, INTERRUPTED, CLOSED)
SAMPLES = ROOT / "tests" / "engines" / "samples"
LONG = "x" * 5000
TEXTS = [
    *("", " ", "null", "-1", "0", "1e999", "nan", "true", "[]", "{}", "[1,[2]]", "{a: {b: c}}"),
    *("a\x1b[31mb\x07", "a\nerror: b", "\u202eabc", "θ 中 🦙", "\udc80", LONG, "..", "../x"),
    *(
        "~",
        "~nobody/x",
        "a/b",
        "a=b",
        "'",
        '"',
        "\\",
        "${nothing}",
        "${oc.env:NOWHERE}",
        "${root:}",
    ),
    *("???", "range(1,0)", "choice()", "hub/id", "/dev/null", "/dev/full", "{here}", "{here}/fifo"),
    *("{here}/circle", "{here}/dangling", "{here}/empty", "{here}/denied", "{here}/prompts.jsonl"),
    *("{here}/target", "{here}/text", "{here}/vllm_alone.after.txt"),
]
NUMBERS = [
    str(10**30),
    "100000000000",
    "4097",
    "1",
    "2",
    "-0.0",
    "0.5",
    "1e-300",
    "1e300",
    "[1]",
    "[0.5]",
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 10**30, -1e300, 1e308, float("nan"), float("inf"), "", "a\x1b[2Jb\r"),
    *("\ud800", LONG, [], {}, [[[]]], {"a": None}, ["\x00"], "../../x", "1"),
]
MORE = ("hydra.sweep.dir", "hydra.sweep.subdir", "nothing", "prompts.nothing")  # keys
STAGES = (
    *("prompts", "distributions", "certificates", "run_lengths", "drafts", "acceptance"),
    *("decoding", "accuracy", "report"),
)
MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
         "generation_config.json", "chat_template.jinja")  # fmt: skip
OF_MODELS = (
    "prompts.jsonl",
    *(f"{model}/{file}" for model in ("target", "drafter") for file in MODEL),
)
READ = {  # by each kind of command
    "pipeline": OF_MODELS,
    "sweep": OF_MODELS,
    "accuracy": ("tasks/facts.yaml", "tasks/facts.jsonl", "tasks/_base.yaml"),
    "log": ("vllm_logs_20.jsonl",),
    "own": ("conf/study/own.yaml", "conf/criteria/own.yaml", "conf/own_rules.py"),
    "solve": (),
    "fetch": OF_MODELS,
    "ask": OF_MODELS,
    "engine": ("vllm_alone.jsonl", "vllm_draft.jsonl"),
    "engine pages": ("vllm_alone.after.txt", "vllm_draft.after.txt"),
    "verify": (),
}
LOG_STUDY = ["study=log", "distributions.log.vocab_size=2048", "statistics.resamples=20"]
OF_A_STUDY = ("study", "target", "+target", "~target", "drafter", "outputs")
PLACES = ("artifact", "workspace", "stage", "locks", "aside", "identities", "report", "answers",
          "tables", "sweeps")  # fmt: skip
REASON = re.compile("^(error|failed|damaged|usage): |^unknown option|: failed: |\\| failed")
NAN = re.compile(r"\bnan\b", re.IGNORECASE)
LINKS = {"circle": "", "dangling": "nothing", "device": "/dev/full"}  # kinds of links
OWN = {
    "study/own.yaml": "# @package _global_\ndefaults: [_self_]\nnote: mine\n",
    "criteria/own.yaml": "# @package criteria\nown: {_target_: own_rules.Own, share: 0.5}\n",
    "own_rules.py": """
from dataclasses import dataclass
from analysis.rules import Rule

@dataclass(frozen=True, kw_only=True)
class Own(Rule):
    share: float

    def cut(self, dist):
        return self.threshold(dist.p0 * self.share)
""",
}


def quoted(key: str, value: str) -> str:
    """Return an override whose value is a text."""
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def keys_of(config: Any, above: str = "") -> Iterator[str]:
    """Yield every key of a configuration."""
    for key in config:
        yield above + str(key)
        if isinstance(config._get_node(key), DictConfig):
            yield from keys_of(config._get_node(key), f"{above}{key}.")


def wrong_json(value: Any, chance: random.Random) -> Any:
    """Return a JSON value in which one part is replaced, left out or doubled."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        place = chance.choice(places)
        copy: Any = value.copy()
        if chance.random() < 0.15:
            del copy[place]
        else:
            copy[place] = wrong_json(value[place], chance)
        return copy
    return chance.choice(VALUES)


def wrong_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return a file's content, damaged."""
    at = chance.randrange(len(content) + 1)
    flipped = bytearray(content or b"\0")
    for _ in range(chance.randint(1, 20)):
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    packed = gzip.compress(content)
    return chance.choice([
        *(b"", b"{}", b"[]", b"null", b"\n" * 1000, b"[" * 100_000, b"\x1b[31m\x07" * 50),
        *(content[:at], bytes(flipped), content[:at] + chance.randbytes(50) + content[at:]),
        *(content * 3, packed, packed[:-9], b"\xef\xbb\xbf" + content),
        b"\xff\xfe" + content.decode("latin-1").encode("utf-16-le"),
        *(content.replace(b'"', b'"\x1b[31m', 3), content.replace(b"\n", b"\r\n")),
        *(content.replace(b"0", b"9" * 400, 2), content.replace(b":", b"=", 5)),
    ])  # fmt: skip


def wrong_file(path: Path, chance: random.Random) -> str:
    """Make a file hostile; return how."""
    content = path.read_bytes()
    kind = chance.choice([*("bytes", "json") * 4, "gone", "folder", "fifo", *LINKS])
    if kind == "json":
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        at = chance.randrange(len(lines))
        try:
            for _ in range(chance.randint(1, 3)):
                lines[at] = json.dumps(wrong_json(json.loads(lines[at]), chance)).encode()
            content = b"\n".join(lines) + b"\n"
        except (ValueError, RecursionError):
            kind = "bytes"
    if kind == "bytes":
        content = wrong_bytes(content, chance)
    path.unlink()
    put_there(path, kind, content)
    return f"{path.name}: {kind}"


def put_there(path: Path, kind: str, content: bytes = b"mine") -> None:
    """Make something of a kind lie at a path."""
    if kind in ("json", "bytes"):
        path.write_bytes(content)
    elif kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in LINKS:
        path.symlink_to(path.name if kind == "circle" else LINKS[kind])


def prepare(base: Path) -> None:
    """Add to a folder with the models, prompts and outputs of a study what else commands read."""
    for name in ("vllm_alone", "vllm_draft", "llama_ngram", "vllm_logs_20"):
        packed = SAMPLES / f"{name}.jsonl.gz"
        (base / f"{name}.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
        for page in SAMPLES.glob(f"{name}.*.txt"):
            shutil.copy(page, base)
    (base / "text").write_text("no JSON\n")
    (base / "empty").touch()
    (base / "denied").touch(mode=0)
    for name, text in OWN.items():
        (base / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (base / "conf" / name).write_text(text)
    (base / "circle").symlink_to("circle")
    (base / "dangling").symlink_to("nothing")


@dataclass
class Trial:
    """A command in a folder of its own."""

    here: Path
    overrides: list[str]
    keys: list[str]  # of the configuration
    chance: random.Random
    hostile: list[str]  # what was made so
    stored: bool = False  # whether something in the outputs was

    def words(self) -> tuple[str, list[str]]:
        """Choose a command; make something hostile; return the command and its words."""
        chance = self.chance
        command = chance.choice(list(READ))
        study = [word.replace("{here}", str(self.here)) for word in self.overrides]
        if command == "log":
            study = [*LOG_STUDY, f"targets.log.path='{self.here}/vllm_logs_20.jsonl'"]
        outputs = self.here / "whole"
        study.append(f"outputs='{outputs}'")
        kinds = ["key", "key", "file", "file", "stored", "word"]
        kind = chance.choice([*kinds, "server", "server"] if command == "ask" else kinds)
        if kind == "file" and READ[command]:
            self.hostile.append(wrong_file(self.here / chance.choice(READ[command]), chance))
        elif kind == "key" and command != "verify":
            study += [self.key() for _ in range(chance.choice([1, 1, 2]))]
        elif kind == "stored" or command == "verify":
            self.store()
        stage = chance.choice(STAGES)
        if chance.random() < 0.6:
            self.remove(stage)
        word = self.text() if kind == "word" else None  # in the place of a word
        if command == "verify":
            return "verify", [word or str(outputs)]
        return self.arguments(command, study, stage, word)

    def arguments(
        self, command: str, study: list[str], stage: str, word: str | None
    ) -> tuple[str, list[str]]:
        """Return a command and its words for a study; a hostile `word` takes the place of one."""
        if command == "ask":
            return "ask", [word or "http://server", *study]
        if command.startswith("engine"):
            files = [str(self.here / name) for name in READ[command]]
            settings = [word for word in study if not word.startswith(OF_A_STUDY)]
            return "engine", [*files[:1], word or files[1], *settings]
        if command in ("solve", "fetch"):
            return command, [*study, *([word] if word else [])]
        if command == "own":
            study = [f"--config-dir={self.here}/conf", *study, "study=own", "criteria=own"]
        if command == "sweep":
            values = self.chance.choices(["0.1", "0.2", "0", "nan", "''", "a", "1e999"], k=2)
            return "sweep", ["-m", *study, f"stage={stage}", f"criteria.t={','.join(values)}"]
        stage = {"accuracy": "accuracy", "log": "certificates"}.get(command, stage)
        return "pipeline", [*study, f"stage={word or stage}"]

    def text(self) -> str:
        """Choose a hostile text."""
        text = self.chance.choice(TEXTS).replace("{here}", str(self.here))
        self.hostile.append(f"{text:.60}")
        return text

    def key(self) -> str:
        """Choose a key and a hostile value."""
        chance = self.chance
        key = chance.choice(self.keys)
        text = chance.choice(NUMBERS) if chance.random() < 0.4 else self.text()
        word = f"{key}={text}" if text in NUMBERS or chance.random() < 0.3 else quoted(key, text)
        self.hostile.append(word[:100])
        return chance.choice([*[""] * 9, "+", "~", "++"]) + word

    def remove(self, stage: str) -> None:
        """Remove the artifacts of a stage, which is computed again, or of all."""
        for name in self.chance.choice([[stage], list(STAGES)]):
            place = self.here / "whole" / "artifacts" / name
            if place.is_dir():
                shutil.rmtree(place)

    def store(self) -> None:
        """Make something in the outputs hostile."""
        self.stored = True
        chance = self.chance
        outputs = self.here / "whole"
        where = chance.choice(["file", "file", *PLACES])
        if where == "file":
            every = outputs.rglob("*")
            files = sorted(path for path in every if path.is_file() and not path.is_symlink())
            self.hostile.append(wrong_file(chance.choice(files), chance))
            return
        artifacts = sorted(
            path for stage in STAGES for path in outputs.glob(f"artifacts/{stage}/*")
        )
        artifact = chance.choice(artifacts)
        place = {
            "artifact": artifact,
            "workspace": artifact.with_name(f".{artifact.name[-12:]}.00000000.v1.partial"),
            "stage": artifact.parent,
            "locks": outputs / "artifacts" / ".locks",
            "aside": outputs / "artifacts" / "damaged",
            "identities": outputs / "artifacts" / ".identities.json",
            "report": outputs / "report",
            "answers": outputs / "answers",
            "tables": outputs / "tables",
            "sweeps": outputs / "sweeps",
        }[where]
        remove(place)
        kind = chance.choice(["bytes", "fifo", *LINKS])
        put_there(place, kind)
        self.hostile.append(f"{where} {place.name}: {kind}")

    def server(self, request: httpx2.Request) -> httpx2.Response:
        """Answer as vLLM does; where nothing else is hostile, not at all as it does."""
        chance = random.Random(f"{self.here.name} {request.url} {request.content!r}")
        body: Any = {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        if request.method == "POST":
            tokens = json.loads(request.content)["prompt"][:6]
            choice = {"index": 0, "text": "x", "token_ids": tokens, "finish_reason": "length"}
            body = {"id": "1", "model": "tiny", "choices": [choice]}
        page = request.url.path == "/metrics"
        if not self.hostile and chance.random() < 0.3:
            body = wrong_json(body, chance)
        content = json.dumps(body).encode()
        if page:
            content = (SAMPLES / "vllm_alone.after.txt").read_bytes()
        if self.hostile:
            return httpx2.Response(200, content=content)
        if chance.random() < 0.2:
            content = wrong_bytes(content, chance)
        if chance.random() < 0.1:
            raise httpx2.ReadError("\x1b[31mlost")
        return httpx2.Response(chance.choice([200] * 9 + [400, 429, 500, 204]), content=content)


def run(trial: Trial, command: str, words: list[str], log: Path) -> int:
    """Run a command in a new process; return its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code: Any = 1
    try:
        to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(to, descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which nohup ignores
        GlobalHydra.instance().clear()
        os.chdir(trial.here)
        os.environ["HOME"] = str(trial.here)
        ask.WAIT = 0.001
        client: Any = httpx2.AsyncClient
        vars(httpx2)["AsyncClient"] = partial(client, transport=httpx2.MockTransport(trial.server))
        sys.argv = [
            "draft-acceptance",
            *([] if command in ("pipeline", "sweep") else [command]),
            *words,
        ]
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
            if isinstance(code, str):
                print(code, file=sys.stderr, flush=True)
                code = 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def wait(pid: int) -> int | None:
    """Wait for a process, interrupt it where it takes long; return its status, None if it hangs."""
    begun = time.monotonic()
    asked = False
    while time.monotonic() - begun < 3 * SECONDS:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(found)
        if not asked and time.monotonic() - begun > SECONDS:
            asked = True
            os.kill(pid, signal.SIGINT)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    status(pid)
    return None


def digests(here: Path) -> dict[str, str]:
    """Return the digest of every file of a trial, by its path."""
    files = (path for path in here.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(here)): file_digest(path) for path in files}


def lost(whole: dict[str, str], before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the files of others that are not as before, and the tables that are nowhere any more.

    A table of an artifact with a damaged file may have been set aside with it. `whole` are the
    digests before anything was made hostile.
    """
    theirs = [name for name in before if not name.startswith("whole/")]
    tables = [
        name
        for name, digest in before.items()
        if name.endswith("/data.parquet") and whole.get(name) == digest
    ]
    changed = [name for name in theirs if after.get(name) != before[name]]
    return changed + [name for name in tables if before[name] not in after.values()]


def problems_of(code: int | None, printed: str, given: list[str]) -> Iterator[str]:
    """Yield what is wrong with how a command ended."""
    lines = printed.splitlines()
    if code is None:
        yield "it hangs"
    elif code not in ENDS:
        yield f"status {code}"
    if "Traceback (most" in printed:
        yield "a traceback"
    if CONTROLS.search(printed.replace("\r", "")):
        yield "an escape sequence"
    if not printed.strip():
        yield "not a word"
    elif code in (1, 2) and not any(REASON.search(line) for line in lines):
        yield "no reason"
    asked = any("nan" in word.lower() for word in given)  # then it is named as it is
    if not asked and any(NAN.search(line) for line in lines if not REASON.search(line)):
        yield "nan"


def half_written(outputs: Path, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the files that a command has left half-written in its outputs."""
    new = [name for name, digest in after.items() if before.get(name) != digest]
    left = [name for name in new if name.endswith(".tmp")]
    for name in new:
        file = outputs.parent / name
        if file.suffix in (".json", ".jsonl"):
            lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            try:
                for line in lines:
                    json.loads(line)
            except ValueError:
                left.append(name)
    return left


def sound(outputs: Path) -> Iterator[str]:
    """Yield what ``pipeline.verify`` finds in outputs that nothing hostile was put into."""
    told = StringIO()
    with redirect_stdout(told), redirect_stderr(told):
        code = verify.main([str(outputs)]) if outputs.is_dir() else 0
    if code:
        yield f"verify: {told.getvalue()}"


def hostile(
    base: Path, overrides: list[str], count: int, seed: int = 0, first: int = 0
) -> Counter[str]:
    """Run commands on hostile inputs; AssertionError tells all that ended wrongly."""
    done = Counter[str]()
    wrong = list[str]()
    whole = digests(base)
    keys = [*keys_of(composed([word.replace("{here}", str(base)) for word in overrides])), *MORE]
    log = base.with_name("log")
    for number in range(first, first + count):
        here = base.with_name(f"trial{number}")
        shutil.copytree(base, here, symlinks=True)
        os.mkfifo(here / "fifo")
        trial = Trial(here, overrides, keys, random.Random(f"{seed} {number}"), [])
        command, words = trial.words()
        before = digests(here)
        code = wait(run(trial, command, words, log))
        printed = log.read_bytes().decode("utf-8", errors="replace")
        problems = list(problems_of(code, printed, words + trial.hostile))
        after = digests(here)
        problems += [f"lost: {name}" for name in lost(whole, before, after)]
        left = half_written(here / "whole", before, after)
        problems += [f"half-written: {name}" for name in left]
        if not trial.stored:
            problems += sound(here / "whole")
        if problems:
            wrong.append(
                f"trial {number}: {'; '.join(problems)}\n{command} {words}\n{trial.hostile}\n"
                f"{printed[-3000:]}"
            )
        done[f"{command}: status {code}"] += 1
        shutil.rmtree(here)
    assert not wrong, f"{len(wrong)} of {count} ended wrongly:\n\n" + "\n\n".join(wrong)
    return done
