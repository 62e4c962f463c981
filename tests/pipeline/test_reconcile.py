"""`python -m pipeline.reconcile` on files of engines and of the study, and beside a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline import reconcile
from tests.analysis.test_conventions import CALLS
from tests.conftest import SmallStudy
from tests.engines import samples
from tests.pipeline.test_engine_counts import FILES


def answer(name: str, histogram: list[int] | None, **changed: Any) -> dict[str, Any]:
    """An answer with vLLM's per-request metrics."""
    accepted = sum(n * times for n, times in enumerate(histogram or []))
    calls = sum(histogram or [1])
    said = {"num_spec_steps": calls, "num_draft_tokens": 3 * calls,
            "num_accepted_draft_tokens": accepted, "acceptance_histogram": histogram}  # fmt: skip
    return {"id": name, "model": "m", "choices": [], "metrics": {"speculative_decoding": said},
            **changed}  # fmt: skip


def lines(path: Path, *objects: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, objects)) + "\n")
    return path


def test_answers_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = answer("a", [1, 1, 0, 1]), answer("b", [1, 0, 1, 0])
    path = lines(tmp_path / "answers.jsonl", first, {"id": "c", "choices": []}, second, first)
    reconcile.main([str(path), f"outputs={tmp_path}"])
    said = capsys.readouterr().out
    assert "vLLM: 2 answers, 5 passes, drafts of 3" in said
    assert "does not say how many tokens were emitted" in said  # no usage
    folder = tmp_path / "reconcile/answers.jsonl"
    table = pd.read_csv(folder / "vLLM-conventions.csv").set_index("number")["value"]
    assert table["Mean acceptance length"] == pytest.approx(1 + 6 / 5)
    assert table["avg_decoded_tokens_per_iter"] == pytest.approx(13 / 7)
    profile = json.loads((folder / "vLLM-speculation_profile.json").read_text())
    assert profile["marginal_accept_rates"] == [0.6, 0.4, 0.2]
    settings = json.loads((folder / "vLLM-settings.json").read_text())
    assert settings["vllm"]["synthetic_acceptance_rates"] == [0.6, 0.4, 0.2]


def test_a_table_of_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "calls.parquet"
    CALLS.to_parquet(path)
    reconcile.main([str(path), f"outputs={tmp_path}"])
    drafts = CALLS[CALLS["drafted"] > 0]
    table = pd.read_csv(tmp_path / "reconcile/calls.parquet/places.csv")
    assert table["accepted"].tolist() == [(drafts["accepted"] >= at).sum() for at in (1, 2, 3)]
    printed = capsys.readouterr().out
    assert "mean over answers of e / C" in printed
    CALLS.astype(dict.fromkeys(["drafted", "accepted", "emitted"], str)).to_parquet(path)
    reconcile.main([str(path), f"outputs={tmp_path}"])  # numbers written as text
    assert capsys.readouterr().out == printed


def test_a_table_of_calls_with_confidences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the second call the third token was not tested; |2 - 1.8| and |0 - 0.3| of three."""
    calls = pd.DataFrame({"answer": 0, "drafted": [1, 3, 0], "accepted": [1, 1, 0]})
    calls["emitted"] = calls["accepted"] + 1
    calls["confidence"] = [[0.95], [0.85, 0.3, 0.6], None]
    path = tmp_path / "calls.parquet"
    calls.to_parquet(path)
    reconcile.main([str(path), f"outputs={tmp_path}"])
    assert "(ECE): 0.1667" in capsys.readouterr().out
    bins = pd.read_csv(tmp_path / "reconcile/calls.parquet/calls-reliability.csv")
    assert bins["confidence"].tolist() == pytest.approx([0.3, 0.85, 0.95])
    for wrong in ([0.95, 0.1], [1.5], ["high"], [None], 0.95, "0", None):
        calls["confidence"] = [wrong, [0.5] * 3, []]
        calls.astype({"confidence": object}).head(1).to_parquet(path)
        with pytest.raises(SystemExit, match="confidence must be a list"):
            reconcile.main([str(path), f"outputs={tmp_path}"])


def test_without_histograms_the_engines_counts_are_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reconcile.main([str(FILES / "llama.jsonl"), f"outputs={tmp_path}"])
    assert "the file has sums over calls" in capsys.readouterr().out
    folder = tmp_path / "reconcile/llama.jsonl"
    assert [path.name for path in folder.iterdir()] == ["calls.csv"]
    calls = pd.read_csv(folder / "calls.csv")
    assert calls["accepted"].tolist() == [6]
    assert calls["tokens_per_pass"].tolist() == [pytest.approx(13 / 7)]


def test_passes_without_a_draft_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Look-up in vLLM: 630 tokens in 375 passes, of which 100 had a draft."""
    reconcile.main([str(FILES / "vllm_ngram.txt"), f"outputs={tmp_path}"])
    assert "One page can't tell whether drafts pay" in capsys.readouterr().out
    row = pd.read_csv(tmp_path / "reconcile/vllm_ngram.txt/calls.csv").iloc[0]
    assert row["tokens_per_pass"] == pytest.approx(630 / 375)
    assert row["tokens_per_drafting_call"] == pytest.approx(3.74)
    reconcile.main([str(FILES / "vllm_ngram.jsonl"), f"outputs={tmp_path}"])
    folder = tmp_path / "reconcile/vllm_ngram.jsonl"
    row = pd.read_csv(folder / "calls.csv").iloc[0]
    assert row["tokens_per_pass"] <= 630 / 375 <= row["tokens_per_pass_upper"]
    table = pd.read_csv(folder / "vLLM-conventions.csv").set_index("number")["value"]
    assert table["Mean acceptance length"] == pytest.approx(3.74)  # as vLLM prints
    assert table["#Mean accepted tokens"] == pytest.approx(630 / 356)
    places = pd.read_csv(folder / "places.csv")
    assert places["reached"].tolist() == [100, 77, 58, 51, 48]  # one draft had 3 tokens
    assert places["accepted"].tolist() == [77, 58, 52, 48, 39]


def test_a_file_of_the_same_name_replaces_all_of_an_earlier_one(tmp_path: Path) -> None:
    """Of vLLM's answers profiles are written, of a page none."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    reconcile.main([str(lines(tmp_path / "first/k=3", answer("a", [1, 1]))), f"outputs={tmp_path}"])
    folder = tmp_path / "reconcile/k=3"
    assert (folder / "vLLM-settings.json").exists()
    second = tmp_path / "second/k=3"
    second.write_text((FILES / "vllm.txt").read_text())
    reconcile.main([str(second), f"outputs={tmp_path}"])
    assert sorted(path.name for path in folder.iterdir()) == ["calls.csv", "places.csv"]


def test_short_drafts_that_cannot_be_told_apart_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = answer("a", [1, 0, 0, 2])
    short["metrics"]["speculative_decoding"]["num_draft_tokens"] = 7
    reconcile.main([str(lines(tmp_path / "a.jsonl", short)), f"outputs={tmp_path}"])
    assert "drafts are not always of 3 tokens" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "reconcile/a.jsonl/vLLM-conventions.csv")
    value = table.set_index("number")["value"]
    assert value["acceptanceRate"] == pytest.approx(6 / 7)
    assert np.isnan(value["1 + sum of products of conditional rates"])


@pytest.mark.parametrize(
    ("spec", "speed", "verdict"),
    [("draft", 1.2436, "drafting pays"), ("ngram", 0.874, "drafting does not pay")],
)
def test_two_pages_give_the_cost_of_a_step_and_the_speed(
    spec: str, speed: float, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM without drafts took 17.37 s for 630 tokens; of the others the page's own sums."""
    base, page = FILES / "vllm_base.txt", FILES / f"vllm_{spec}.txt"
    reconcile.main([str(base), str(page), f"outputs={tmp_path}"])
    assert verdict in capsys.readouterr().out
    (file,) = (tmp_path / "reconcile").glob("*/pages.csv")
    alone, drafted = pd.read_csv(file).to_dict("records")
    assert alone["tokens_per_pass"] == 1
    assert drafted["speedup"] == pytest.approx(speed, abs=1e-4)
    assert drafted["speedup"] == pytest.approx(drafted["tokens_per_pass"] / drafted["step_cost"])
    assert drafted["speedup"] == pytest.approx(
        alone["seconds_per_token"] / drafted["seconds_per_token"]
    )


def test_spec_benchs_answers_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two turns of 3 and 2 calls; nothing says how many tokens were drafted."""
    choice = {"index": 0, "turns": ["a", "b"], "decoding_steps": [3, 2], "new_tokens": [9, 3],
              "wall_time": [1.0, 1.0], "accept_lengths": [3, 1, 4, 1, 1]}  # fmt: skip
    said = {"question_id": 81, "category": "writing", "model_id": "m", "choices": [choice]}
    reconcile.main([str(lines(tmp_path / "a.jsonl", said)), f"outputs={tmp_path}"])
    assert "Spec-Bench: 2 answers, 5 passes" in capsys.readouterr().out
    folder = tmp_path / "reconcile/a.jsonl"
    assert pd.read_csv(folder / "calls.csv")["tokens_per_pass"].tolist() == [2.0]
    places = pd.read_csv(folder / "places.csv")
    assert places["conditional"].tolist() == [2 / 5, 1.0, 1 / 2]
    value = pd.read_csv(folder / "Spec-Bench-conventions.csv").set_index("number")["value"]
    assert value["#Mean accepted tokens"] == 2.0
    assert value["Average_AL"] == pytest.approx((8 / 3 + 2 / 2) / 2)
    assert value[["Mean acceptance length", "acceptanceRate"]].isna().all()
    settings = json.loads((folder / "Spec-Bench-settings.json").read_text())
    assert list(settings) == ["sglang"]


def test_answers_that_stage_decoding_writes_are_read(
    small_study: SmallStudy, tmp_path: Path
) -> None:
    """As many tokens a pass as its artifact says of the same run."""
    (folder,) = (small_study.outputs / "artifacts/decoding").glob("mini_large-*")
    reconcile.main([str(folder), f"outputs={tmp_path}"])
    rows = pd.read_csv(tmp_path / "reconcile" / folder.name / "calls.csv")
    (file,) = (folder / "timings/answers").glob("greedy_draft_length=3_temperature=0.jsonl")
    reconcile.main([str(file), f"outputs={tmp_path}"])
    theirs = pd.read_csv(tmp_path / "reconcile" / file.name / "calls.csv").iloc[0]
    ours = rows[rows["from"] == "Strict greedy, gamma 3, T 0"].iloc[0]
    for name in ("passes", "tokens_per_pass"):
        assert theirs[name] == ours[name]


def test_the_command_holds_an_engine_beside_the_study(
    small_study: SmallStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for word in small_study.overrides if not word.startswith("outputs=")]
    outputs = f"outputs={small_study.outputs}"
    reconcile.main([str(FILES / "vllm.txt"), *given, outputs])
    printed = capsys.readouterr().out
    assert "vLLM, 12 series" in printed
    folder = small_study.outputs / "reconcile" / "vllm.txt"
    calls, places = (pd.read_csv(folder / f"{name}.csv") for name in ("calls", "places"))
    assert calls["tokens_per_drafting_call"][0] == 2.5
    calls, places = (table[table["target"] == "mini-large"] for table in (calls, places))
    ours = places[(places["from"] == "stage decoding") & (places["rule"] == "greedy")]
    assert len(ours) == 3  # decoded with drafts of three
    along = calls[(calls["from"] == "stage acceptance") & (calls["rule"] == "greedy")]
    shown = places[(places["from"] == "stage acceptance") & (places["rule"] == "greedy")]
    assert along["passes"].item() == shown["reached"].iloc[0]
    assert along["accepted"].item() == shown["accepted"].sum()
    assert np.allclose(shown["of_all"], shown["accepted"] / along["passes"].item())
    assert (shown["conditional"] >= shown["of_all"]).all()
    assert 0 < along["calibration_error"].item() < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "0 files were given: give one"),
        ([str(FILES / "vllm_ngram.txt"), str(FILES / "vllm_base.txt")],
         "counts 100 drafts: give the page of a server without drafts first"),
        ([str(FILES / "vllm_base.txt"), str(FILES / "vllm_base.txt")], "counts no drafts: start"),
        ([str(FILES / "vllm_base.txt"), str(FILES / "llama.txt")], "is of vLLM and"),
        ([str(FILES / "vllm_base.txt"), str(FILES / "vllm.txt")], "how long its passes took"),
        ([str(FILES / "vllm_base.txt"), str(FILES / "vllm.jsonl")], "is no page of /metrics"),
        ([str(FILES / "llama.jsonl"), "study=mini", "engine.draft_length=1000000"],
         "give at most 1024"),
        (CALLS.assign(drafted=10**6), "drafted, accepted and emitted must be whole numbers"),
        (CALLS.assign(drafted=1025), "whole numbers, and drafted at most 1024"),
        (CALLS.assign(emitted=99), "emitted must lie from 1 to accepted + 1"),
        (CALLS.assign(emitted=0), "emitted must lie from 1 to accepted + 1"),
        (CALLS.assign(drafted=np.inf), "drafted, accepted and emitted must be whole numbers"),
        (CALLS.assign(emitted=1.5), "drafted, accepted and emitted must be whole numbers"),
        ([str(FILES / "missing")], "missing can't be read: No such file"),
        ([str(FILES / "llama.jsonl"), "study=mini"], "engine.draft_length must be given"),
        ([str(FILES / "vllm.txt"), "study=mini", "engine.draft_length=4"], "drafts of 3 tokens"),
        ([str(FILES / "vllm.txt"), "study=mini", "drafter=none"], "the study has no drafter"),
        ([str(FILES / "vllm.txt"), "engine.draft_length=0"], "engine.draft_length=0 is not"),
        (["."], "no artifact of stage decoding"),
        (CALLS.drop(columns="emitted"), "it lacks emitted"),
        (CALLS.assign(accepted=9), "accepted must lie from 0 to drafted"),
        (CALLS[:0], "give one row a call"),
        (answer("a", [1, 2]) | {"metrics": {"speculative_decoding": {"num_spec_steps": 2}}},
         "line 1 has num_draft_tokens=None"),
        ({"id": "a", "choices": []}, "no answer reports draft counts"),
    ],
)  # fmt: skip
def test_wrong_files_and_words_are_one_line(words: Any, message: str, tmp_path: Path) -> None:
    if isinstance(words, pd.DataFrame):
        words.to_parquet(tmp_path / "calls.parquet")
        words = [str(tmp_path / "calls.parquet")]
    elif isinstance(words, dict):
        words = [str(lines(tmp_path / "answers.jsonl", words))]
    with pytest.raises(SystemExit) as error:
        reconcile.main([*words, f"outputs={tmp_path}"])
    assert message in str(error.value)
    assert str(error.value).startswith("error: ")


def test_a_study_that_was_not_computed_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"does not exist yet: run `python -m pipeline study=mini"):
        reconcile.main([str(FILES / "vllm.txt"), "study=mini", f"outputs={tmp_path}"])


@pytest.mark.parametrize(
    ("name", "match", "accepted"),
    [("vllm_alone", "earliest", None), ("vllm_ngram", "earliest", None),
     ("llama_alone", "fixed", 168), ("llama_ngram", "fixed", 168)],
)  # fmt: skip
def test_look_up_is_predicted_along_any_answers(
    name: str, match: str, accepted: int | None, tmp_path: Path
) -> None:
    """Along answers with drafts and without; no model is read. The engines' own counts agree."""
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in samples.lines(name)))
    words = ["engine.drafter=prompt_lookup", "engine.draft_length=4", f"outputs={tmp_path}"]
    reconcile.main([str(path), *words, f"decoding.lookup_match={match}"])
    table = pd.read_csv(tmp_path / f"reconcile/{path.name}/calls.csv").set_index("from")
    row = table.loc["look-up along the answers"]
    if accepted is not None:
        assert row["accepted"] == accepted
    if "vLLM" in table.index:  # its last calls accept tokens behind the end of answers
        counted = table.loc["vLLM"]
        assert row["drafting_calls"] == counted["drafting_calls"]
        assert counted["tokens_per_pass"] <= row["tokens_per_pass"]
        assert row["tokens_per_pass"] <= counted["tokens_per_pass_upper"]
