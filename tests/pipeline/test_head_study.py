"""A study whose drafter is a head on the target, through all stages, on tiny models."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.report import style
from benchmarks import robustness
from pipeline import verify
from pipeline.models.loading import load_model
from pipeline.stages.report import page
from pipeline.study import Study
from tests import methods
from tests.pipeline import heads, tiny
from tests.pipeline.reading import page_text

DEPTHS = 3
METHODS = (
    "{drafter: model, rule: greedy, draft_length: [1, 9]}",
    "{drafter: prompt_lookup, rule: greedy, draft_length: 3}",
    "{drafter: model, rule: additive, t: 0.2, draft_length: 3}",
    "{drafter: model, sampling: [speculative, races], draft_length: 3, temperature: 0.7}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def overrides(folder):
    given = robustness.tiny_study(folder)
    target = load_model(tiny.used(folder / "target"))
    layers = {"fc_norm": True, "eagle_aux_hidden_state_layer_ids": heads.LAYERS}
    for name, ids in (("reduced", torch.arange(2, tiny.VOCABULARY, 4)), ("full", None)):
        weights = heads.random_weights(target, len(heads.LAYERS), ids=ids, fc_norm=True)
        heads.write(target, weights, folder / name, **layers)
    return [
        *(x for x in given if not x.startswith(("drafter", "decoding=", "+decoding"))),
        "drafter=eagle3", f"drafter.path='{folder / 'reduced'}'", "drafter.label='a [head]'",
        f"drafter.head.depths={DEPTHS}", "drafter.dtype=float32", "decoding.lookup=1",
        "prompts.min_tokens=4",
        "decoding.steps=8", *methods.overrides(*METHODS), f"outputs='{folder / 'outputs'}'",
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["reduced", "full"])
def made(request, overrides, folder):
    """The study with its acceptance."""
    made = Study(*overrides, f"drafter.path='{folder / request.param}'", "stage=report")
    made.make("acceptance")
    return made


def test_depths_are_what_the_drafts_say(made):
    """The table against the columns; reduced: no KL is finite, since the target gives all mass."""
    drafts = made.artifact("drafts").read().to_pandas()
    table = made.artifact("acceptance").read("breakdown").to_pandas()
    table = table.set_index(["depth", "rule", "statistic"])["value"]
    kl, rank = (np.stack(drafts[f"depth_{name}"].to_list()) for name in ("kl", "draft_rank"))
    assert kl.shape == (36, DEPTHS)
    np.testing.assert_array_equal(kl[:, 0], drafts["kl"])
    reduced = np.isinf(kl).all()
    assert reduced == made.config.drafter.path.endswith("reduced")
    assert len(set(map(tuple, kl.T))) == (1 if reduced else DEPTHS)
    if reduced:  # certified by a q' over all tokens, at depth 1
        size = made.artifact("drafts").metadata["vocab_size"]
        kl[:, 0] = drafts["full_kl"].where(drafts["argmax_rank"] < size, np.inf)
    for d in range(DEPTHS):
        assert table[d + 1, "greedy", "acceptance"] == np.mean(rank[:, d] == 1)
        assert table[d + 1, "", "finite"] == np.mean(np.isfinite(kl[:, d]))
        assert table[d + 1, "", "kl_median"] == np.sort(kl[:, d])[17]
    if reduced:
        steps = made.artifact("acceptance").read().to_pandas()
        lower = steps.loc[steps["rule"] == "greedy", "lower"].to_numpy()
        full = drafts["full_kl"].to_numpy()
        assert 0 < np.isfinite(full).mean() < 1
        assert steps.groupby("rule")["certified"].mean()["greedy"] == np.mean(full < lower)
    else:
        assert "full_kl" not in drafts
    assert len(np.unique(drafts["draft_token_id"] % 2)) == (1 if reduced else 2)


@pytest.mark.thorough
def test_the_report_of_a_head(made, monkeypatch):
    reduced = made.config.drafter.path.endswith("reduced")
    if not reduced:  # drawing takes most of the time
        monkeypatch.setattr(style, "render", lambda _, kind: kind.encode())
        monkeypatch.setattr(page, "embedded", lambda _: "")
    [report] = made.make("report")
    text = page_text(report.directory)
    shown = text.split("\nWill a [head] be accepted?\n")[-1]
    shown = shown.split("\nHow the numbers were made\n")[0]
    shown = shown.replace("in the CSV files inf means", "")  # the note on all tables
    assert not re.search(r"\b(nan|inf|None)\b", shown)
    assert re.search(r"\| vLLM \(eagle3\) \|[^\n]* not decided \|", text)
    depths = pd.read_csv(report.directory / "tables/depths.csv")
    kl = depths[depths["statistic"] == "kl_median"]["value"]
    assert (len(kl), np.isinf(kl).all()) == (DEPTHS, reduced)
    decoded = pd.read_csv(report.directory / "tables/decoding_acceptance.csv")
    assert (decoded["differing"].dropna() == 0).sum() == 3
    assert verify.main([str(made.store.root.parent)]) == 0
