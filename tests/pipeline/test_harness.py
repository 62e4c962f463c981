"""The model of lm-evaluation-harness, where that is installed: its texts."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import harness
from pipeline.decoding.pair import DecodingPair, decode_timed
from pipeline.errors import PipelineError
from pipeline.models.load import load_model, load_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.method import with_baselines
from pipeline.plan.methods import build_methods
from pipeline.tasks.harness import text_tokens
from tests.results.models import WORDS, write_model

PROMPT = " ".join(WORDS[20:27])
METHODS = [
    {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0},
    {"drafter": "model", "rule": "additive", "t": 0.6, "draft_length": 3, "temperature": 0},
]
CONFIG = {"dtype": "float32", "head_dtype": "float32", "attention": "sdpa"}
SETTINGS = {"revision": None, "label": "tiny", "device": "cpu", "threads": 1}


def test_without_the_package_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(harness, "find_spec", lambda _: None)
    with pytest.raises(PipelineError, match=r'pip install -e "\.\[harness\]"'):
        harness.evaluate(["facts"], 1, [])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The pair, and a function that gives the model of a run."""
    pytest.importorskip("lm_eval")
    folder = tmp_path_factory.mktemp("harness")
    paths = [write_model(folder / "wide"), write_model(folder / "narrow", noise=0.06)]
    loaded: list[Any] = [
        load_model(CONFIG, SETTINGS | {"path": str(path)}, "test") for path in paths
    ]
    tokenizer = load_tokenizer(str(paths[0]), None, "test")
    methods = with_baselines(build_methods(METHODS))
    pair = DecodingPair(loaded[0], loaded[1], methods, 0, 0, 2)
    return pair, tokenizer, lambda run: harness.decoding_model(pair, pair.runs[run], tokenizer)


def request(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(kind, {}, arguments, 0, metadata=("task", 0, 1))


def test_answers_are_the_loops_and_are_cut_before_a_stop(models: Any) -> None:
    pair, tokenizer, model_of = models
    ids = encode(tokenizer, [PROMPT], "chat", enable_thinking=False)
    said = []
    for run, method in enumerate(pair.runs):
        model = model_of(run)
        context = model.apply_chat_template([{"role": "user", "content": PROMPT}])
        assert text_tokens(tokenizer, context) == ids
        answer, _ = decode_timed(pair, method, {"prompt_id": "task/0", "token_ids": ids}, 20)
        wanted = tokenizer.decode(answer.tokens, skip_special_tokens=True)
        whole = request("generate_until", context, {"until": [], "max_gen_toks": 20})
        stop = wanted.split()[3]
        cut = request("generate_until", context, {"until": [stop, ""], "max_gen_toks": 20})
        assert model.generate_until([whole, cut]) == [wanted, wanted.split(stop)[0]]
        assert model.calls == 2 * len(answer.calls)
        said.append(wanted)
    assert said[0] == said[1] != said[2]


def test_likelihoods_are_refused(models: Any) -> None:
    with pytest.raises(
        PipelineError, match="task is scored by likelihoods, which no method changes"
    ):
        models[2](0).loglikelihood([request("loglikelihood", PROMPT, " a")])


def test_the_tasks_of_the_harness_are_the_projects() -> None:
    """The YAML files name the data and allow as many tokens as the rows."""
    from pipeline.tasks.items import FOLDER, read_items

    tasks = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
    assert sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")) == tasks
    for task in tasks:
        lines = (FOLDER / f"{task}.yaml").read_text().splitlines()
        items = read_items(FOLDER / f"{task}.jsonl")
        (limit,) = {item["max_tokens"] for item in items}
        assert f"task: draft_acceptance_{task}" in lines
        assert f"metadata: {{version: 1, file: {task}}}" in lines
        assert any(f"max_gen_toks: {limit}," in line for line in lines), task
        code = any(item["kind"] == "python" for item in items)
        assert ("unsafe_code: true" in lines) is code
