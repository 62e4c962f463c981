"""Answers of stage accuracy beside plain `generate`, and what lossless methods leave of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.decoding import answers
from pipeline.execution import runner
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.decoded import read_answered
from pipeline.tasks.checks import score
from pipeline.tasks.items import read_items, task_file
from tests.pipeline.answering import rows, study, write, write_place
from tests.results.models import WORDS

TIE = 1e-5  # of two logits: a pass over several tokens may choose the other one
TASKS = ["own", "facts"]
ITEMS = 4  # of each
LOSSLESS = [
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: tree, m: 3, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0, tree: dynamic, width: 2, "
    "nodes: 6}",
    "{drafter: lookup_first, rule: greedy, draft_length: 3, model_length: 2, temperature: 0}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
    "{drafter: model, sampling: races, draft_length: 2, temperature: 0.7, tree: symmetric, "
    "width: 2}",
    "{drafter: prompt_lookup, sampling: races, draft_length: 3, temperature: 0.7}",
]
RELAXED = [
    "{drafter: model, rule: additive, t: 0.6, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: mars, theta: 0.5, draft_length: 3, temperature: 0}",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_place(tmp_path_factory.mktemp("scores"))
    # answers long enough to part
    items = [
        row | {"max_tokens": 24, "expected": [WORDS[4 + 7 * at]], "wrong": []}
        for at, row in enumerate(rows())
    ]
    return write(folder / "own.jsonl", items).parent


def made(place: Path, methods: list[str], *overrides: str) -> tuple[Any, Artifact]:
    (node,) = study(
        place,
        f"accuracy.tasks=['{place / 'own.jsonl'}',facts]",
        f"accuracy.methods=[{', '.join(methods)}]",
        f"accuracy.items={ITEMS}",
        *overrides,
    ).nodes["accuracy"]
    return node, runner.ensure([node], Store(place / "outputs" / "artifacts"))[0]


@pytest.fixture(scope="module")
def answered(place: Path) -> tuple[Any, Artifact]:
    return made(place, [*LOSSLESS, *RELAXED])


def test_plain_generate_gives_every_item_the_score_of_the_target_alone(
    place: Path, answered: tuple[Any, Artifact]
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place / "wide", dtype=torch.float32)
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    table = answered[1].read().to_pandas()
    alone = table[table["run"] == 0].set_index(["task", "item_id"])
    for name in TASKS:
        path = place / "own.jsonl" if name == "own" else task_file(name)
        for item in read_items(path)[:ITEMS]:
            ids = torch.tensor([encode(tokenizer, [item["prompt"]], "chat", enable_thinking=False)])
            with torch.inference_mode():
                text = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False,
                    max_new_tokens=item["max_tokens"], pad_token_id=0,
                )[0, ids.shape[1] :]  # fmt: skip
            said = tokenizer.decode(text, skip_special_tokens=True)
            mine = alone.loc[(name, item["id"])]
            assert said == mine["answer"]
            assert score(item, said) == mine["correct"]
            assert list(mine["token_ids"]) == text.tolist()


def lossless_partings(one: answers.Answered) -> Any:
    """Answers that differ although their method is lossless."""
    found = answers.differing(one)
    return found[found["exact"]].reset_index(drop=True)


def test_what_is_lossless_leaves_every_answer_as_it_is(answered: tuple[Any, Artifact]) -> None:
    """Strict greedy, on trees as well, and races at equal seeds; near-ties are listed."""
    node, artifact = answered
    one = read_answered("wide", artifact)
    methods = node.settings["methods"]
    assert [method.lossless for method in methods] == [True] * len(LOSSLESS) + [False, False]
    parted = lossless_partings(one)
    assert (parted["gap"] < TIE).all(), f"answers that part:\n{parted}"
    left = answers.differing(one)
    left = left[~left["exact"]]
    assert set(left["method"]) == {"Additive (t = 0.6)", "MARS (θ = 0.5)"}
    drafted = one.data[one.data["run"] >= 2].groupby("run")["accepted"].sum()
    assert (drafted > 0).all()  # something was accepted, so something could go wrong
    sampled = one.runs.index[(one.runs["temperature"] > 0) & (one.runs["drafter"] == "none")]
    both = one.data[one.data["run"].isin([0, *sampled])].groupby(["task", "item_id"])["answer"]
    assert (both.nunique() > 1).any()  # races do not choose what greedy decoding does


@pytest.mark.thorough
def test_a_sampler_keeps_the_law_and_not_the_answers(place: Path) -> None:
    """Speculative sampling: other answers, accuracy within its interval."""
    many = [rows()[at % 6] | {"id": f"item {at}", "max_tokens": 4} for at in range(60)]
    path = write(place / "many.jsonl", many)
    method = "{drafter: model, sampling: speculative, draft_length: 3, temperature: 0.7}"
    _, artifact = made(place, [method], f"accuracy.tasks=['{path}']", "accuracy.items=60")
    one = read_answered("wide", artifact)
    table: Any = answers.accuracy(one, 20, 0.999, 0, 0.05).set_index("run")
    assert table["drafter"].tolist() == ["none", "model"]
    assert table.loc[1, "changed"] > 0.2
    assert table.loc[1, "difference_ci_low"] <= 0 <= table.loc[1, "difference_ci_high"]
    assert len(lossless_partings(one)) == 0
