"""What the kinds of drafters say of themselves on a report's page."""

from types import SimpleNamespace

import pandas as pd
import pytest

from pipeline.drafters import KINDS
from pipeline.stages.report.inputs import _with_drafters

MODEL = SimpleNamespace(head=None)
HEAD = SimpleNamespace(head={"layers": [1]})


@pytest.mark.parametrize(
    ("models", "match", "of_model", "of_lookup"),
    [
        ([MODEL], "earliest", "vLLM, llama.cpp", "vLLM (ngram)"),  # look-up alone is timed
        ([MODEL, MODEL], "latest", "vLLM, llama.cpp", "vLLM, llama.cpp (n-gram; matches differ)"),
        ([MODEL, HEAD], "earliest", "vLLM (eagle3)", "vLLM (ngram)"),
    ],
)
def test_methods_have_the_engines_and_the_title_that_their_kind_says(
    models, match, of_model, of_lookup
):
    runs = pd.DataFrame({"drafter": ["none", "model", "prompt_lookup"]})
    chains = runs.assign(tree=None, sampling=None, lossless=True, rule="greedy")
    task = SimpleNamespace(runtime=SimpleNamespace(models=models), settings={"lookup_match": match})
    source = SimpleNamespace(tasks={"decoding": task})
    found = _with_drafters(runs, SimpleNamespace(runs=chains, rules={}), source, "small")
    assert found["engine"].tolist() == ["", of_model, of_lookup]
    assert found["drafter_title"].tolist()[1:] == ["small", "prompt look-up"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_title_or_files_of_which_the_study_names_the_label(kind):
    assert bool(kind.in_sentences) != kind.has_files
