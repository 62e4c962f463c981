"""`python -m pipeline.reconcile` on files as engines and the study write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline import reconcile
from tests.analysis.test_conventions import CALLS


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
    assert "vLLM: 2 answers, 5 calls, drafts of 3" in said
    folder = tmp_path / "reconcile/answers.jsonl"
    table = pd.read_csv(folder / "vLLM-conventions.csv").set_index("number")["value"]
    assert table["Mean acceptance length"] == pytest.approx(1 + 6 / 5)
    assert table["avg_decoded_tokens_per_iter"] == pytest.approx(13 / 7)
    profile = json.loads((folder / "vLLM-speculation_profile.json").read_text())
    assert profile["marginal_accept_rates"] == [0.6, 0.4, 0.2]
    settings = json.loads((folder / "vLLM-settings.json").read_text())
    assert settings["vllm"]["synthetic_acceptance_rates"] == [0.6, 0.4, 0.2]


def test_a_table_of_calls_with_confidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens behind the first rejection were never tested, and are not counted."""
    confidence = [[0.9, 0.8, 0.7], [0.6], [], [0.9, 0.9, 0.1], [0.2, 0.9, 0.9]]
    path = tmp_path / "calls.parquet"
    CALLS.assign(confidence=confidence).to_parquet(path)
    reconcile.main([str(path), f"outputs={tmp_path}"])
    assert "calibration error" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "reconcile/calls.parquet/calls-reliability.csv")
    assert table["tokens"].sum() == 3 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (answer("a", None), "gave no histogram of accepted tokens"),
        (answer("a", [1, 2]) | {"metrics": {"speculative_decoding": {"num_spec_steps": 2}}},
         "lacks num_draft_tokens"),
        ({"id": "a", "choices": []}, "holds no calls of drafted chains"),
    ],
)  # fmt: skip
def test_wrong_answers(content: Any, said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "answers.jsonl", content)
    with pytest.raises(SystemExit, match=said):
        reconcile.main([str(path), f"outputs={tmp_path}"])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (CALLS.drop(columns="emitted"), "it lacks emitted"),
        (CALLS.assign(accepted=9), "accepted must lie from 0 to drafted"),
        (CALLS[:0], "give one row a call"),
    ],
)
def test_wrong_tables(table: pd.DataFrame, said: str, tmp_path: Path) -> None:
    table.to_parquet(tmp_path / "calls.parquet")
    for path, why in (("calls.parquet", said), (".", "no artifact of stage decoding")):
        with pytest.raises(SystemExit, match=why):
            reconcile.main([str(tmp_path / path), f"outputs={tmp_path}"])
