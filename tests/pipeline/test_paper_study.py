"""The paper's study from a hub on loopback: fetched, computed on the CPU, and again without a hub.

The models are random and small, under the paper's names and with its vocabulary.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

from pipeline.core.paths import ROOT
from tests.conftest import HEAVY
from tests.pipeline import tiny
from tests.pipeline.hub import MODELS, PROSE, Hub, Repository, ultrachat

pytestmark = pytest.mark.thorough
VOCABULARY, SHARDED = 151_936, "Qwen/Qwen3-4B"
OVERRIDES = [
    "study=paper",
    "prompts.count=12",
    "distributions.steps=8",
    "device={name: cpu, threads: 1}",
    "targets.qwen3_1_7b.dtype=float32",
    "targets.qwen3_4b.dtype=float32",
    "drafter.dtype=float32",
    "statistics.resamples=50",
    "decoding.prompts=1",
    "decoding.steps=4",
]


def random_qwen3(name, folder):
    """Write a random Qwen3 of 151,936 tokens, 4B in shards; the drafter is 1.7B with noise."""
    torch.manual_seed(max(MODELS[name], 1))
    module = tiny.new_qwen3(VOCABULARY, 8, 16, (2, 1))
    with torch.no_grad():
        for label, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=2.0 if "embed" in label else 0.7)
        if MODELS[name] == 0:
            for weight in module.parameters():
                weight += 0.1 * weight.std() * torch.randn_like(weight)
    tokens = tiny.byte_tokenizer(PROSE, 400), tiny.TEMPLATE, "<|end|>", "<|pad|>"
    size = "1MB" if name == SHARDED else "1GB"
    tiny.save_model(module.bfloat16(), folder, *tokens, max_shard_size=size)


@dataclass(frozen=True)
class Fetched:
    """A hub, the cache that was fetched from it, and where the study's artifacts go."""

    hub: Hub
    home: Path
    outputs: Path

    def run(self, module, *arguments, offline="0"):
        """What a command of the project prints."""
        call = "main()" if module == "pipeline.cli" else "main(sys.argv[1:])"
        script = (
            f"import sys; from {module} import main; {call}\n"
            f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
        )
        variables = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home),
                     "HF_HUB_OFFLINE": offline, "OMP_NUM_THREADS": "1"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, f"outputs={self.outputs}"],
            cwd=ROOT, capture_output=True, text=True, env=os.environ | variables, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """The study, fetched and computed once; then the hub is gone."""
    place, repositories = tmp_path_factory.mktemp("paper"), [ultrachat()]
    for at, name in enumerate(MODELS):
        random_qwen3(name, place / f"{at}")
        files = {path.name: path.read_bytes() for path in (place / f"{at}").iterdir()}
        repositories.append(Repository("models", name, files))
    study = Fetched(Hub(*repositories), place / "home", place / "outputs")
    with study.hub.serving():
        assert "heavy: []" in study.run("pipeline.fetch", "study=paper")
        study.hub.requests.clear()
        printed = study.run("pipeline.cli", *OVERRIDES)
        assert printed.count(": computing") == 1 + 6 * 2 + 1  # prompts, six stages a target, report
        assert not study.hub.requests  # what was fetched is enough
    return study


def test_tables_1_to_6_and_figures_1_to_5(fetched):
    [place] = (fetched.outputs / "report").iterdir()
    page = (place / "index.html").read_text(encoding="utf-8")
    for at in range(1, 7):
        assert len(pd.read_csv(place / f"tables/table{at}.csv"))
        assert (place / f"tables/table{at}.tex").stat().st_size
        assert f"Table {at}" in page
    for at in range(1, 6):
        assert (place / f"figures/figure{at}.pdf").stat().st_size
        assert f"Figure {at}" in page
    assert all(one.main in page for one in fetched.hub.repositories.values())  # commits
    table = pd.read_csv(place / "tables/table1.csv")
    assert {"Qwen3-1.7B", "Qwen3-4B"} <= set(table.to_numpy().ravel()) | set(table.columns)
    places = sorted((fetched.outputs / "artifacts/distributions").glob("qwen3*"))
    assert [place.name.rpartition("-")[0] for place in places] == ["qwen3_1_7b", "qwen3_4b"]
    for place in places:
        assert f'"vocab_size": {VOCABULARY}' in (place / "record.json").read_text()


@pytest.mark.parametrize("offline", ["0", "1"], ids=["gone", "offline"])
def test_again_without_a_hub(fetched, offline):
    """Nothing is computed, nor is anything heavy loaded; new steps and prompts need no hub."""
    printed = fetched.run("pipeline.cli", *OVERRIDES, offline=offline)
    assert "computing" not in printed
    assert "heavy: []" in printed
    printed = fetched.run("pipeline.cli", *OVERRIDES, f"note=run{offline}", offline=offline)
    assert printed.count(": computing") == 1  # the report, which has the note, and needs no models
    assert "torch" not in printed.partition("heavy: ")[2]
    more = [f"prompts.count={5 + int(offline)}", "distributions.steps=2", "stage=distributions"]
    printed = fetched.run("pipeline.cli", *OVERRIDES, *more, offline=offline)
    assert printed.count(": computing") == 3
    lines = fetched.run("pipeline.fetch", "study=paper", offline=offline).splitlines()
    assert sum("(from the cache: " in line for line in lines) == len(fetched.hub.repositories)
