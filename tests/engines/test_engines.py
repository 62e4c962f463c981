"""vLLM and llama.cpp themselves: asked and checked. `make check-engines` runs this."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import ask, engine
from pipeline.engines.speed.runs import read_run
from pipeline.study import Study
from tests.conftest import pipeline
from tests.engines import answer_ids, skipped_where_it_cannot_run
from tools import engines, smollm2

ROOT = Path(__file__).resolve().parents[2]
ENGINES = os.environ.get("ENGINES")  # an environment with the packages of tests/engines/engines.txt
MINI = ROOT / "assets" / "mini"


@contextmanager
def vllm(folder, model, *arguments):
    """Serve a model with vLLM; skips the test where this processor can't."""
    with (
        skipped_where_it_cannot_run(),
        engines.vllm(Path(ENGINES), folder, model, *arguments) as url,
    ):
        yield url


@contextmanager
def llama_cpp(folder, *arguments):
    """Serve SmolLM2 with llama.cpp; skips the test where this processor can't."""
    with skipped_where_it_cannot_run(), engines.llama_cpp(Path(ENGINES), folder, *arguments) as url:
        yield url


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
    target = smollm2.make(engines.package(Path(ENGINES), engines.GGUF), outputs / "SmolLM2")
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
    assert f"drafts of {LENGTH} by" in screen
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
