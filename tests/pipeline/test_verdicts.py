"""What the verdict reads of answers to tasks, and what `pipeline.solve` prints."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.acceptance.verdict import DO_NOT, OPEN, advise, engines
from analysis.decoding.answers import Answered, accuracy, losses
from analysis.decoding.speed import speed
from analysis.rules import Additive, StrictGreedy
from pipeline import solve
from pipeline.decoding.decoded import read_decoded
from pipeline.paths import ROOT
from pipeline.study import Study
from tests import methods
from tests.conftest import SmallStudy
from tests.pipeline.tiny import write_model, write_prompts


def test_answers_are_counted_beside_those_of_the_target_alone() -> None:
    """Of 60 items the rule loses 30 and wins none: accuracy falls."""
    runs = pd.DataFrame(
        {
            "method": ["Autoregressive", "Strict greedy", "Additive (t = 0.1)"],
            "drafter": ["none", "model", "model"],
            "draft_length": [0, 4, 4],
            "temperature": 0.0,
            "baseline": 0,
            "rule": [None, StrictGreedy(), Additive(0.1)],
            "exact": [True, True, False],
        }
    )
    data = pd.DataFrame(
        [
            {"task": "t", "item_id": item, "run": at, "correct": at < 2 or item >= 30}
            | {"n_tokens": 4, "nats_given_up": 0.0, "departures": 0, "certified": 0}
            | {"common_prefix": 4, "gap": 1.0, "calls": 2, "emitted": 3, "ended": True}
            for item in range(60)
            for at in range(3)
        ]
    )
    seconds = data[["task", "item_id", "run"]].assign(seconds=1.0)
    answered = Answered("T", ["t"], runs, data, seconds)
    (row,) = losses(accuracy(answered, 20, 0.95, 0, 0.05)).to_dict("records")
    assert (row["rule"], row["alone"], row["right"], row["items"]) == ("additive t=0.1", 60, 30, 60)
    assert (row["falls"], row["within"], row["decision"]) == (True, False, "falls")
    assert row["drafter"] == "model"


def test_random_models_are_not_to_be_drafted_for(tmp_path: Path) -> None:
    """The drafter costs what the target costs, and knows nothing of it."""
    models = {
        "targets.local": write_model(tmp_path / "wide", 0),
        "drafter": write_model(tmp_path / "other", 1),
    }
    given = [
        text
        for key, path in models.items()
        for text in (f"{key}.path='{path}'", f"{key}.label={path.name}", f"{key}.dtype=float32")
    ]
    prompts = write_prompts(tmp_path / "prompts.jsonl", 30)
    study = Study(
        *("study=mini", "stage=decoding", "target=local", "drafter=local", *given),
        *(f"prompts.source='{prompts}'", "prompts.count=30", "prompts.min_tokens=3"),
        *methods.overrides("{drafter: model, rule: greedy, draft_length: 3}"),
        "decoding.steps=6",
        *("device={name: cpu, threads: 1}", f"outputs='{tmp_path}'"),
    )
    (made,) = study.make("decoding")
    decoded, statistics = read_decoded("wide", "other", made), (50, 0.95, 0)
    engine = engines(decoded.runs, head=False, match="latest")
    found = advise("wide", "other", speed(decoded, *statistics).assign(engine=engine))
    assert [own["engine"] for own in found.drafters] == ["vLLM, llama.cpp"]
    assert found.outcome in (DO_NOT, OPEN)  # OPEN where the machine was disturbed


def test_solve_prints_the_main_rows_and_writes_all(
    small_study: SmallStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    solve.main([*small_study.overrides, "solve.draft_lengths=[3,7]"])
    lines = capsys.readouterr().out.splitlines()
    for heading in ("Strictest setting that", "Tokens per call, by", "A drafter is certified on"):
        assert any(line.startswith(heading) for line in lines)
    assert any("any drafter within 0.05" in line for line in lines)
    file = Path(lines[-1].removeprefix("all rows: "))
    rows = pd.read_csv(file if file.is_absolute() else ROOT / file)
    assert set(rows["table"]) == {"solved", "promised", "needed"}
    shown = [line for line in lines if " additive " in line and "this drafter" in line]
    assert len(shown) == 2  # a row a target; the file has one for each that is wanted
    mine = rows[(rows["rule"] == "additive") & (rows["kind"] == "measured")]
    assert len(mine) == 2 * mine["wanted"].nunique()
