"""Passes, tokens and seconds of a run, from pages that vLLM and llama.cpp wrote."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from analysis.statistics.bootstrap import Resampling
from pipeline.engines.clock import gain, has_pages, read_run
from pipeline.engines.runs import compare, read_engine_run
from pipeline.errors import PipelineError
from tests.engines.samples import SAMPLES


def asked(folder: Path, name: str, engine: str = "vLLM", answers: int = 30) -> Path:
    """Copy a sample as `pipeline.ask` leaves it, without its answers."""
    for page in ("before", "after"):
        shutil.copy(SAMPLES / f"{name}.{page}.txt", folder)
    about = {"engine": engine, "version": "1", "concurrent": 1, "answers_of_pages": answers}
    (folder / f"{name}.json").write_text(json.dumps(about))
    path = folder / f"{name}.jsonl"
    path.write_text("")
    return path


def test_the_pages_before_and_after_give_the_cost_of_a_step(tmp_path: Path) -> None:
    """The sums of the pages by hand: 30 answers of 48 tokens, the first of each from the prompt."""
    files = [asked(tmp_path, name) for name in ("vllm_alone", "vllm_draft")]
    alone, drafted = map(read_run, files)
    assert (alone.passes, alone.emitted) == (1410, 1410)

    def spent(name: str, metric: str) -> float:
        pages = ((SAMPLES / f"{name}.{page}.txt").read_text() for page in ("before", "after"))
        found = [float(re.findall(rf"^vllm:{metric}\{{.*\}} (\S+)$", p, re.M)[0]) for p in pages]
        return found[1] - found[0]

    seconds = [
        spent(name, "inter_token_latency_seconds_sum") for name in ("vllm_alone", "vllm_draft")
    ]
    passes = spent("vllm_draft", "inter_token_latency_seconds_count")
    assert drafted.passes == passes
    speedup, step_cost = gain(alone, drafted)
    assert speedup == pytest.approx(seconds[0] / seconds[1])
    assert drafted.drafted == 4 * drafted.drafts
    assert step_cost == pytest.approx((seconds[1] / passes) / (seconds[0] / 1410))


def test_llama_cpp_counts_the_prompts_passes_too(tmp_path: Path) -> None:
    """Of 1,440 tokens 1,410 come from passes after the prompts', and 168 were accepted drafts."""
    files = [asked(tmp_path, name, "llama.cpp") for name in ("llama_alone", "llama_ngram")]
    alone, drafted = map(read_run, files)
    assert (alone.passes, alone.emitted) == (1410, 1410)
    assert (drafted.passes, drafted.emitted) == (1410 - 168, 1410)
    _, cost = gain(alone, drafted)
    assert (drafted.drafted, drafted.drafts) == (284, 75)
    # passes without a draft cost what the target alone does
    mixed = (75 * cost + (1242 - 75)) / 1242
    step_cost = drafted.seconds / drafted.passes / (alone.seconds / alone.passes)
    assert mixed == pytest.approx(step_cost)


def test_a_server_that_was_started_again_is_named(tmp_path: Path) -> None:
    files = [asked(tmp_path, name) for name in ("vllm_alone", "vllm_draft")]
    before, after = (tmp_path / f"vllm_draft.{page}.txt" for page in ("before", "after"))
    before.write_text(re.sub(r"(generation_tokens_total\{.*\}) .*", r"\1 1e9", after.read_text()))
    with pytest.raises(PipelineError, match=r"counts less than vllm_draft\.before\.txt"):
        read_run(files[1])


def test_runs_that_are_not_what_they_should_be_are_named(tmp_path: Path) -> None:
    names = {"vllm_alone": "vLLM", "vllm_draft": "vLLM", "llama_ngram": "llama.cpp"}
    alone, drafted, other = (asked(tmp_path, *each) for each in names.items())
    for pair, message in {
        (drafted, drafted): r"vllm_draft\.after\.txt counts drafts: give the run without",
        (alone, alone): r"vllm_alone\.after\.txt counts no drafts",
        (alone, other): r"is of vLLM and .*llama_ngram\.after\.txt of llama\.cpp",
    }.items():
        base, run = (read_engine_run(path.with_suffix(".after.txt")) for path in pair)
        with pytest.raises(PipelineError, match=message):
            compare(base, [run], Resampling(10, 0.9, 0))


def test_pages_from_which_no_cost_follows_say_why(tmp_path: Path) -> None:
    """A page lacks the seconds of passes; and answers of one token each add to no counter."""
    path = asked(tmp_path, "vllm_alone")
    before, after = (tmp_path / f"vllm_alone.{name}.txt" for name in ("before", "after"))
    page = before.read_text()
    before.write_text(re.sub(r"^vllm:inter_token_latency_seconds_.*\n", "", page, flags=re.M))
    with pytest.raises(PipelineError, match=r"before\.txt does not say how long .*inter_token_lat"):
        read_run(path)
    before.write_text(page)
    after.write_text(page)
    with pytest.raises(PipelineError, match="no answer got a second token"):
        read_run(path)


@pytest.mark.parametrize("content", ["[1]", "{broken", "{}", '{"engine": 5}'])
def test_another_file_in_the_place_of_the_record_is_one_line(content: str, tmp_path: Path) -> None:
    path = asked(tmp_path, "llama_alone", "llama.cpp")
    path.with_suffix(".json").write_text(content)
    for read in (read_run, lambda path: has_pages(path, 30)):
        with pytest.raises(PipelineError, match=r"llama_alone\.json: .*pipeline\.ask"):
            read(path)
    assert not has_pages(path.with_suffix(".json"), 30)
