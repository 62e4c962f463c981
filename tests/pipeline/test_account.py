"""Stage account: what it says of answers, beside transformers and the certificates read plainly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.certificates.reference import certificate_of
from analysis.decoding.prediction import numbers, predict
from analysis.rules import Additive
from analysis.topk import TopK
from pipeline.execution import runner
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.stage import Node
from pipeline.store.answered import read_answered
from pipeline.store.artifacts import Artifact, Store
from pipeline.tasks.items import read_items
from tests.pipeline.answering import study, write_place

T = 0.6
METHODS = [
    "{drafter: model, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: additive, t: [0.2, 0.6], draft_length: 3, temperature: 0}",
    "{drafter: prompt_lookup, rule: additive, t: 0.6, draft_length: 3, temperature: 0}",
    "{drafter: model, sampling: speculative, draft_length: 3, temperature: 0.7}",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Node, Artifact, Artifact]:
    nodes = study(
        place,
        f"accuracy.tasks=['{place / 'own.jsonl'}']",
        "accuracy.items=null",
        f"accuracy.methods=[{', '.join(METHODS)}]",
        stage="account",
    ).nodes
    store = Store(place / "outputs" / "artifacts")
    (account,) = runner.ensure([nodes["account"][0]], store)
    (answered,) = runner.ensure([nodes["accuracy"][0]], store)
    return nodes["account"][0], answered, account


def read(place: Path, name: str, ids: list[int], answer: list[int]) -> np.ndarray:
    """Return log-probabilities (n, V) of a model at the steps of an answer, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place / name, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
    return logits.double().log_softmax(-1).numpy()


def test_an_account_is_what_both_models_say_read_plainly(
    place: Path, made: tuple[Node, Artifact, Artifact]
) -> None:
    _, answered, account = made
    facts = answered.record["facts"]["runs"]
    both = answered.read().to_pandas().merge(account.read().to_pandas())
    assert len(both) == answered.read().num_rows == account.read().num_rows
    tokenizer = load_tokenizer(str(place / "wide"), None, "test")
    item = read_items(place / "own.jsonl")[4]
    ids = encode(tokenizer, [item.prompt], "chat", enable_thinking=False)
    mine = both[both["item_id"] == item.id].set_index("run")
    rule = Additive(T)
    wanted = {"rule": "additive", "t": T}
    ruled = [one["rule"] == wanted and one["drafter"] == "model" for one in facts]
    run = ruled.index(True)
    alone = facts[run]["baseline"]
    for end, of in (("", run), ("_alone", alone)):
        answer = list(mine["token_ids"][of])
        log_p, log_q = (read(place, name, ids, answer) for name in ("wide", "narrow"))
        kl = (np.exp(log_p) * (log_p - log_q)).sum(1)
        bounds = np.array(
            [certificate_of(TopK.from_probabilities(row), rule) for row in np.exp(log_p)]
        )
        assert mine[f"certified{end}"][run] == (kl < bounds).sum()
        mean = np.minimum(bounds, np.log(2)).mean()
        assert mine[f"certificate{end}"][run] == pytest.approx(mean, abs=1e-4)
        if end == "":
            chosen = log_p[np.arange(len(answer)), answer]
            assert mine["departures"][run] == (log_p.argmax(1) != answer).sum()
            assert mine["conceded"][run] == pytest.approx((log_p.max(1) - chosen).sum(), abs=1e-4)
            assert mine["kl"][run] == pytest.approx(kl.mean(), abs=1e-4)
            assert mine["log_likelihood"][run] == pytest.approx(chosen.sum(), abs=1e-3)


def test_what_is_lossless_departs_nowhere_and_what_has_no_rule_has_no_certificate(
    made: tuple[Node, Artifact, Artifact],
) -> None:
    _, answered, account = made
    runs, table = answered.record["facts"]["runs"], account.read().to_pandas()
    by_run: dict[Any, Any] = dict(list(table.groupby("run")))
    for run, facts in enumerate(runs):
        own = by_run[run]
        greedy = facts["temperature"] == 0
        ruled = greedy and facts["rule"] is not None and facts["drafter"] == "model"
        assert own["certified"].notna().all() == ruled
        assert own["certified"].isna().all() != ruled
        exact = greedy and facts["lossless"]
        assert (own["departures"].sum() == 0) == exact
        assert (own["conceded"].sum() == 0) == exact


def test_more_relaxed_rules_are_certified_at_more_steps_of_the_same_answer(
    made: tuple[Node, Artifact, Artifact],
) -> None:
    """Along the target's own answer: certificates grow with t, the KL is the same."""
    _, answered, account = made
    runs = answered.record["facts"]["runs"]
    table = account.read().to_pandas().pivot(index="item_id", columns="run")
    order = [at for at, one in enumerate(runs) if one["rule"] and one["drafter"] == "model"]
    for strict, relaxed in itertools.pairwise(order):
        for name in ("certified_alone", "certificate_alone"):
            assert (table[name][strict] <= table[name][relaxed] + 1e-12).all()


def test_the_answers_are_not_asked_again_and_the_number_of_stored_tokens_identifies_it(
    made: tuple[Node, Artifact, Artifact],
) -> None:
    node, answered, _ = made
    assert node.upstream["accuracy"][0].fingerprint == answered.record["fingerprint"]
    assert node.config["stored"] == 256
    one: Any = read_answered("wide", answered, made[2])
    known = numbers(one)
    assert not known.drop(columns=["task", "item_id"]).isna().all().any()
    table, by_run = predict(one, 30, 0.95, 0)
    assert {"departures", "conceded", "kl_alone"} <= set(table["number"])
    assert isinstance(by_run, pd.DataFrame)
    assert len(by_run) == 3
