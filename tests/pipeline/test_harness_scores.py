"""Stage accuracy beside others that ask the same: lm-evaluation-harness, and plain `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.decoding import answers
from pipeline.decoding.pair import load_decoding_pair
from pipeline.execution import runner
from pipeline.models.load import load_tokenizer, pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.decoded import read_answered
from pipeline.tasks.checks import score
from pipeline.tasks.items import FOLDER, read_items, task_file
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
    # items of one length, as a YAML file of the harness has one, and answers long enough to part
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


def harness_tasks(place: Path) -> Path:
    """Write the YAML file of the task own, which the files of the project include."""
    folder = place / "harness"
    folder.mkdir(exist_ok=True)
    for name in ("_base.yaml", "harness.py"):
        (folder / name).write_text((FOLDER / name).read_text())
    (folder / "own.yaml").write_text(
        "include: _base.yaml\ntask: own\n"
        "generation_kwargs: {until: [], max_gen_toks: 24, do_sample: false}\n"
        f"metadata: {{version: 1, file: '{place / 'own.jsonl'}'}}\n"
    )
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_runner_of_the_harness_gives_every_item_the_same_score(
    place: Path, answered: tuple[Any, Artifact]
) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from pipeline.harness import decoding_model

    node, artifact = answered
    tokenizer = pair_tokenizer(node.config, node.settings, "targets.local")
    pair = load_decoding_pair(node, 1 + max(tokenizer.get_vocab().values()), 0)
    folders = [str(FOLDER), str(harness_tasks(place))]
    manager = TaskManager(include_path=folders, include_defaults=False)
    table = artifact.read().to_pandas()
    verdicts = set()
    for run, method in enumerate(pair.runs):
        if method.temperature or method.tree is not None:
            continue  # the noise of a sample is keyed by the names that the harness gives
        found = simple_evaluate(
            decoding_model(pair, method, tokenizer),
            tasks=["own", "draft_acceptance_facts"],
            limit=ITEMS,
            task_manager=manager,
            apply_chat_template=True,
            bootstrap_iters=0,
        )
        for name in TASKS:
            asked = name if name == "own" else f"draft_acceptance_{name}"
            mine = table[(table["task"] == name) & (table["run"] == run)]
            samples = sorted(found["samples"][asked], key=lambda one: one["doc_id"])
            assert [one["doc"]["id"] for one in samples] == mine["item_id"].tolist()
            assert [one["resps"][0][0] for one in samples] == mine["answer"].tolist()
            assert [bool(one["acc"]) for one in samples] == mine["correct"].tolist()
            assert found["results"][asked]["acc,none"] == pytest.approx(mine["correct"].mean())
            verdicts |= {(run, verdict) for verdict in mine["correct"]}
    assert {(0, True), (0, False)} <= verdicts  # scores of one value would show nothing


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
