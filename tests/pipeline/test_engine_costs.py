"""Costs of a step in an engine, from pages that vLLM and llama.cpp wrote, and their use."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.acceptance.engine_speed import StepCosts
from pipeline import reconcile, solve
from pipeline.engines.costs import has_pages, read_costs, read_run, write_costs
from pipeline.errors import PipelineError
from tests.conftest import SmallStudy, pipeline
from tests.engines.samples import SAMPLES

COSTS = StepCosts("vLLM 0.32.0, one request at once", "model", (0.0, 1.0, 4.0), (1.0, 1.1, 1.3))


def asked(folder: Path, name: str, engine: str = "vLLM", answers: int = 30) -> Path:
    """Copy a sample as `pipeline.ask` leaves it, without its answers."""
    for page in ("before", "after"):
        shutil.copy(SAMPLES / f"{name}.{page}.txt", folder)
    about = {"engine": engine, "version": "1", "concurrent": 1, "answers_of_pages": answers}
    (folder / f"{name}.json").write_text(json.dumps(about))
    path = folder / f"{name}.jsonl"
    path.write_text("")
    return path


def test_the_pages_before_and_after_give_the_cost_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sums of the pages by hand: 30 answers of 48 tokens, the first of each from the prompt."""
    files = [asked(tmp_path, name) for name in ("vllm_alone", "vllm_draft")]
    reconcile.main([*map(str, files), f"outputs={tmp_path}"])
    assert "costs, for decoding.costs=FILE" in capsys.readouterr().out
    (folder,) = (tmp_path / "reconcile").iterdir()
    alone, drafted = pd.read_csv(folder / "pages.csv").to_dict("records")
    assert (alone["passes"], alone["tokens"]) == (1410, 1410)

    def spent(name: str, metric: str) -> float:
        pages = ((SAMPLES / f"{name}.{page}.txt").read_text() for page in ("before", "after"))
        found = [float(re.findall(rf"^vllm:{metric}\{{.*\}} (\S+)$", p, re.M)[0]) for p in pages]
        return found[1] - found[0]

    seconds = [
        spent(name, "inter_token_latency_seconds_sum") for name in ("vllm_alone", "vllm_draft")
    ]
    passes = spent("vllm_draft", "inter_token_latency_seconds_count")
    assert drafted["passes"] == passes
    assert drafted["speedup"] == pytest.approx(seconds[0] / seconds[1])
    costs = read_costs(folder / "costs.json")
    assert costs.engine == "vLLM 1, one request at once"
    assert costs.drafted == (0.0, 4.0)
    assert costs.costs[1] == pytest.approx((seconds[1] / passes) / (seconds[0] / 1410))


def test_llama_cpp_counts_the_prompts_passes_too(tmp_path: Path) -> None:
    """Of 1,440 tokens 1,410 come from passes after the prompts', and 168 were accepted drafts."""
    files = [asked(tmp_path, name, "llama.cpp") for name in ("llama_alone", "llama_ngram")]
    reconcile.main([*map(str, files), f"outputs={tmp_path}", "engine.drafter=prompt_lookup"])
    (folder,) = (tmp_path / "reconcile").iterdir()
    alone, drafted = pd.read_csv(folder / "pages.csv").to_dict("records")
    assert (alone["passes"], alone["tokens"]) == (1410, 1410)
    assert (drafted["passes"], drafted["tokens"]) == (1410 - 168, 1410)
    costs = read_costs(folder / "costs.json")
    assert costs.drafter == "prompt_lookup"
    assert costs.drafted[1] == pytest.approx(284 / 75)
    # passes without a draft cost what the target alone does
    mixed = (75 * costs.costs[1] + (1242 - 75)) / 1242
    assert mixed == pytest.approx(drafted["step_cost"])


def test_a_server_that_was_started_again_is_named(tmp_path: Path) -> None:
    files = [asked(tmp_path, name) for name in ("vllm_alone", "vllm_draft")]
    before, after = (tmp_path / f"vllm_draft.{page}.txt" for page in ("before", "after"))
    before.write_text(re.sub(r"(generation_tokens_total\{.*\}) .*", r"\1 1e9", after.read_text()))
    with pytest.raises(SystemExit, match=r"counts less than vllm_draft\.before\.txt"):
        reconcile.main([*map(str, files), f"outputs={tmp_path}"])


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "engine: field required"),
        ('{"engine": "e", "drafter": "head", "steps": [[1, 2]]}', "drafter: input should be"),
        ('{"engine": "e", "drafter": "model", "steps": []}', "steps: list should have at least 1"),
        ('{"engine": "e", "drafter": "model", "steps": [[1, 0]]}', "greater than 0"),
        ('{"engine": "e", "drafter": "model", "steps": [[1, 2], [1, 3]]}', "twice"),
        ("not JSON", "the file: invalid json"),
    ],
)
def test_files_that_are_no_costs_are_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(SystemExit, match=message):
        solve.main(["study=mini", f"outputs={tmp_path}", f"decoding.costs={path}"])
    with pytest.raises(PipelineError, match=r"^decoding\.costs=\S*none\.json can't be read"):
        read_costs(tmp_path / "none.json")


def test_solve_prints_the_best_draft_length_and_its_flags(
    small_study: SmallStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_costs(path := tmp_path / "costs.json", COSTS)
    assert read_costs(path) == COSTS
    own = [word for word in small_study.overrides if not word.startswith("outputs=")]
    where = [f"outputs={small_study.outputs}", f"decoding.costs={path}", "statistics.resamples=51"]
    solve.main([*own, "target=mini_large", *where])
    printed = capsys.readouterr().out
    assert "In vLLM 0.32.0, one request at once: not decided" in printed  # six prompts
    table = pd.read_csv(small_study.outputs / "tables" / "solve-mini.csv")
    speeds = table[table["table"] == "engine"]
    speeds = speeds[speeds["target"] == "mini-large"]
    assert speeds["draft_length"].tolist() == list(range(1, 9))
    costs = COSTS.at(speeds["draft_length"].to_numpy())
    assert speeds["speedup"].to_numpy() == pytest.approx(speeds["tokens_per_pass"] / costs)
    best = int(speeds[speeds["draft_length"] <= 4].set_index("draft_length")["speedup"].idxmax())
    text = (small_study.outputs / "engine_settings" / f"vllm-mini-large-{best}.sh").read_text()
    (command,) = [line for line in text.splitlines() if not line.startswith("#")]
    *_, config = shlex.split(command)
    assert json.loads(config)["num_speculative_tokens"] == best


def test_the_report_has_the_engines_table(small_study: SmallStudy, tmp_path: Path) -> None:
    """Look-up needs no drafter; its passes are replayed along the answers."""
    costs = StepCosts("llama.cpp b1", "prompt_lookup", (0.0, 4.0), (1.0, 2.0))
    write_costs(path := tmp_path / "costs.json", costs)
    own = ["study_name=engine", f"decoding.costs={path}"]
    pipeline(*small_study.overrides, *own)
    report = small_study.outputs / "report" / "engine"
    table = pd.read_csv(report / "tables" / "engine_speed.csv")
    large = table[table["target"] == "mini-large"].set_index("draft_length")
    assert (large["tokens_per_pass"] >= 1).all()
    assert large["speedup"].to_numpy() == pytest.approx(
        large["tokens_per_pass"] / large["step_cost"], rel=1e-4
    )
    assert "Expected speed in an engine" in (report / "tables.html").read_text()
