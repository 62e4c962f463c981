"""vLLM and llama.cpp themselves: asked and checked. `make check-engines` runs this."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import ask, engine
from pipeline.engines.clock import read_run
from pipeline.study import Study
from tests.conftest import pipeline
from tests.engines.samples import answer_ids
from tests.engines.servers import ENGINES, MINI, gguf, llama_cpp, vllm
from tools import smollm2

pytestmark = pytest.mark.skipif(ENGINES is None, reason="needs make check-engines")
LENGTH = 3  # of drafts
MINI_STUDY = ["study=mini", "target=mini_large", "prompts.count=8", "distributions.steps=24",
              "distributions.temperature=0"]  # fmt: skip


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def answers(outputs: Path, url: str, name: str, *overrides: str) -> Path:
    """Ask a server; return the file of its answers."""
    ask.main([url, *overrides, f"outputs={outputs}", f"ask.name={name}"])
    return outputs / "answers" / f"{name}.jsonl"


@pytest.fixture(scope="module")
def alone(outputs: Path) -> Iterator[dict[str, Path]]:
    """The embedded target in vLLM without drafts: answers, and logs."""
    with vllm(outputs, MINI / "large", "--max-logprobs", "256") as url:
        yield {
            name: answers(outputs, url, name, *MINI_STUDY, f"ask.log_probs={count}")
            for name, count in (("alone", 0), ("logs_20", 20), ("logs_256", 256))
        }


def check(outputs: Path, capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run engine, which raises where a check fails; return its screen."""
    engine.main([*map(str, words), f"outputs={outputs}"])
    return capsys.readouterr().out


def test_logs_certify_what_the_project_decodes(alone: dict[str, Path], outputs: Path) -> None:
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
def test_vllm_drafts_as_predicted(
    config: dict[str, object],
    own: list[str],
    alone: dict[str, Path],
    outputs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = str(config["method"])
    speculative = json.dumps(config | {"num_speculative_tokens": LENGTH})
    arguments = ["--speculative-config", speculative]
    arguments += ["--per-request-spec-decode-metrics", "detailed"]
    with vllm(outputs, MINI / "large", *arguments) as url:
        drafted = answers(outputs, url, name, *MINI_STUDY)
    study = [word for word in MINI_STUDY if not word.startswith("prompts.")]
    screen = check(outputs, capsys, alone["alone"], drafted, *study, *own)
    assert "8 of 8 answers as predicted" in screen
    assert "8 of 8 equal those without drafts" in screen
    assert f"num_speculative_tokens = {LENGTH}: " in screen
    about = json.loads(drafted.with_suffix(".json").read_text())
    assert about["version"].startswith("0.32")
    assert [read_run(path).emitted for path in (alone["alone"], drafted)] == [8 * 23] * 2


def test_llama_cpps_look_up_leaves_its_answers(outputs: Path) -> None:
    study = ["study=smollm2", "distributions.steps=24"]
    lookup = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
    lookup += ["--spec-ngram-simple-size-m", str(LENGTH), "--spec-draft-n-max", str(LENGTH)]
    target = smollm2.make(gguf(), outputs / "SmolLM2")
    asked = [*study, "prompts.count=8", "ask.concurrent=1", f"targets.smollm2.path={target}"]
    files = []
    for name, arguments in (("llama_alone", []), ("llama_ngram", lookup)):
        with llama_cpp(outputs, *arguments) as url:
            files.append(answers(outputs, url, name, *asked))
    alone, drafted = ([json.loads(line) for line in file.open()] for file in files)
    assert [answer_ids(line) for line in drafted] == [answer_ids(line) for line in alone]
    assert sum(line["response"]["timings"].get("draft_n", 0) for line in drafted) > 0
