"""Drafts: against plain float64 arithmetic on two unpadded forward passes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline import columns
from pipeline.errors import PipelineError
from pipeline.models import compare, load
from pipeline.models.compare import ComparedPair, teacher_force
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import Found
from pipeline.models.passes import Batch
from pipeline.models.prompt_tokens import check_same_tokens, common_rows
from pipeline.stage import Out
from pipeline.stages import drafts
from pipeline.stages.distributions import STAGE as DISTRIBUTIONS
from pipeline.stages.drafts import STAGE
from pipeline.stages.prompts import STAGE as PROMPTS_STAGE
from pipeline.store import Store
from tests import divergences
from tests.analysis.cases import stored_columns
from tests.pipeline import heads
from tests.pipeline.studies import planned
from tests.pipeline.tiny import drafts_of, dump_of, publish, random_model, used

VOCAB, K, TOKENS = 96, 16, 90
PROMPTS = {"a": [5, 6, 7], "b": [8, 9, 10, 11, 12, 13], "c": [14]}
ANSWERS = {"a": [20, 21, 22, 23], "b": [24, 25], "c": [26, 27, 28]}


def tiny(seed: int, vocab: int = VOCAB) -> LanguageModel:
    return random_model(vocab, seed=seed, label=f"tiny-{seed}")


def pair(target: LanguageModel, drafter: LanguageModel, block: int = 1 << 20) -> ComparedPair:
    rows = min(target.vocab_size, drafter.vocab_size)
    return ComparedPair(target, drafter, rows, K, min(64, rows), 1.0, block)


def plain(model: LanguageModel, name: str, rows: int = VOCAB) -> np.ndarray:
    """Logits of one prompt's answer: one unpadded forward pass without a cache."""
    ids = torch.tensor([PROMPTS[name] + ANSWERS[name]])
    with torch.inference_mode():
        logits = model.module(input_ids=ids).logits[0]
    return logits[len(PROMPTS[name]) - 1 : -1, :rows].numpy()


def run(both: ComparedPair) -> Found:
    batch = Batch.make(list(PROMPTS.values()), list(ANSWERS.values()), torch.device("cpu"))
    return teacher_force(both, batch, lambda steps: None)


@pytest.mark.parametrize(
    ("block", "sampled"),
    [(1 << 20, None), (3 * VOCAB, 0.5)],  # all at once, a position at a time
)
def test_all_columns_equal_plain_forward_passes(block: int, sampled: float | None) -> None:
    both = replace(pair(tiny(1), tiny(2), block), sampled=sampled)
    found = run(both)
    for row, name in enumerate(PROMPTS):
        n = len(ANSWERS[name])
        z, w = plain(both.target, name), plain(both.drafter, name)
        wanted = divergences.compare_logits(z, w)
        # float32 passes with another batch and cache: logits agree to about 1e-5
        for field in vars(wanted).keys() - {*divergences.STOCHASTIC}:
            values = getattr(wanted, field)
            np.testing.assert_allclose(
                found[field][row, :n], values, rtol=2e-4, atol=1e-6, err_msg=field
            )
        stored = stored_columns(z, K)
        for field in ("top_surprisal", "log_tail", "entropy"):
            np.testing.assert_allclose(found[field][row, :n], stored[field], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(found["top_ids"][row, :n], stored["top_ids"])


@pytest.mark.parametrize(("temperature", "found"), [(0.5, 0.5), (0.0, None)])
def test_answers_have_a_temperature_when_they_are_drawn(
    temperature: float, found: float | None
) -> None:
    assert drafts.sampled_temperature({"temperature": temperature}) == found


def test_kl_and_tv_can_be_audited_from_the_columns() -> None:
    """All 64 >= V tokens of q are there: both follow."""
    size = 48
    target, drafter = tiny(1, size), tiny(2, size)
    both = ComparedPair(target, drafter, size, size, min(drafts.DRAFT_K, size), 1.0, 1 << 20)
    prompts = {name: [token % size for token in ids] for name, ids in PROMPTS.items()}
    answers = {
        name: pa.table({
            "token_id": pa.array([token % size for token in ids], pa.int32()),
            "top_ids": pa.array([list(range(3))] * len(ids), pa.list_(pa.int32())),
            "top_logits": pa.array([[0.0] * 3] * len(ids), pa.list_(pa.float32())),
        })
        for name, ids in ANSWERS.items()
    }  # fmt: skip
    task = planned(STAGE, "tiny", {})
    _, content = drafts.compare_shard(task, both, prompts, answers, lambda steps: None)
    for row in pq.read_table(pa.BufferReader(content)).to_pylist():
        ids = row["draft_top_ids"]
        p, q = np.zeros(size), np.zeros(size)
        for part, prefix in ((p, ""), (q, "draft_")):
            z = np.array(row[f"{prefix}top_logits"])
            log = (z - z[0]) - row[f"{prefix}top_surprisal"]
            part[row[f"{prefix}top_ids"]] = np.exp(log)
            rest = np.exp(row[f"{prefix}log_tail"])
            assert part.sum() + rest == pytest.approx(1, abs=1e-12)
        assert len(ids) == size
        assert row["tv"] == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)
        assert row["kl"] == pytest.approx((p * np.log(p / q)).sum(), abs=1e-12)
        assert row["draft_entropy"] == pytest.approx(-(q * np.log(q)).sum(), abs=1e-12)


def test_rows_that_one_model_has_alone_are_left_out_and_their_mass_is_told() -> None:
    both = pair(tiny(1, VOCAB + 8), tiny(2))
    found = run(both)
    for row, name in enumerate(PROMPTS):
        full = divergences.log_softmax(plain(both.target, name, VOCAB + 8))
        wanted = divergences.compare_logits(plain(both.target, name), plain(both.drafter, name))
        n = len(full)
        np.testing.assert_allclose(found["kl"][row, :n], wanted.kl, rtol=1e-4)
        alone = np.exp(full[:, VOCAB:]).sum(axis=1)
        np.testing.assert_allclose(found["left_out"][row, :n, 0], alone, rtol=1e-4)
    assert not found["left_out"][..., 1].any()
    same = run(pair(tiny(1), tiny(1)))
    assert not same["kl"].any()
    assert (same["argmax_rank"] == 1).all()


def write_dump(out: Out) -> None:
    """Write a dump whose first stored logit of prompt a is off by 0.5."""
    tables = []
    for name, answer in ANSWERS.items():
        z = plain(tiny(1), name)
        order = np.argsort(-z, axis=1, kind="stable")[:, :K]
        top = np.take_along_axis(z, order, axis=1)
        top[0, 0] += 0.5 * (name == "a")
        n = len(answer)
        moments = ("logsumexp", "top_surprisal", "log_tail", "entropy")
        values = {
            "token_id": np.array(answer),
            "top_ids": order,
            "top_logits": top,
            **dict.fromkeys(moments, np.zeros(n)),
        }
        tables.append(columns.steps_table(name, values, DISTRIBUTIONS.schema()))
    out.write(pa.concat_tables(tables))
    out.facts |= {"vocab_size": TOKENS, "k": K}


def test_the_stage_reports_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    rows = [{"prompt_id": name, "source": "s", "source_row": 0, "text": "", "token_ids": ids,
             "n_tokens": len(ids)} for name, ids in PROMPTS.items()]  # fmt: skip
    target, drafter = (used(tmp_path, label=label, batch=1) for label in "TD")
    prompts = planned(PROMPTS_STAGE, "tiny", {})
    publish(prompts, store, lambda out: out.write_rows(rows))
    decoded = dump_of(target, {"prompts": prompts}, temperature=0.5)
    publish(decoded, store, write_dump)
    task = drafts_of(target, drafter, {"prompts": prompts, "distributions": decoded})
    tokenizer = SimpleNamespace(
        decode=lambda ids: f"<{ids[0]}>", get_vocab=lambda: {"last": TOKENS - 1}
    )
    monkeypatch.setattr(load, "pair_tokenizer", lambda *_: tokenizer)
    loaded = tiny(1), tiny(2)
    monkeypatch.setattr(load, "load_pair", lambda *_: loaded)
    with monkeypatch.context() as change:
        change.setattr(loaded[1].module.config, "max_position_embeddings", 5)
        with pytest.raises(PipelineError, match="takes 5 tokens"):
            store.get(task)
    found = store.get(task)
    table = found.read()
    assert table["prompt_id"].to_pylist() == ["a"] * 4 + ["b"] * 2 + ["c"] * 3
    assert table["token_id"].to_pylist() == [*ANSWERS["a"], *ANSWERS["b"], *ANSWERS["c"]]
    words = found.read("tokens").to_pylist()
    assert {"token_id": 20, "text": "<20>"} in words
    facts = found.facts
    assert facts["drift"]["max_logit_difference"] == pytest.approx(0.5, abs=1e-3)
    assert facts["drift"]["changed_argmax"] == 0
    assert facts["sampled_temperature"] == 0.5
    assert facts["largest_mass_left_out"] == {"target": 0.0, "drafter": 0.0}
    tv = table["sampled_tv"].to_numpy()
    assert ((tv > 0) & (tv < 1)).all()


def test_permuted_vocabulary_is_refused() -> None:
    target = {f"t{i}": i for i in range(10)}
    check_same_tokens(target, dict(target), "A and B")
    permuted = target | {"t3": 7, "t7": 3}
    with pytest.raises(
        PipelineError,
        match=r"A and B: their tokenizers differ in 2 tokens "
        r"\('t3' is 3 and 7; 't7' is 7 and 3\)",
    ):
        check_same_tokens(target, permuted, "A and B")
    with pytest.raises(PipelineError, match="'t9' is 9 and missing"):
        check_same_tokens(target, {f"t{i}": i for i in range(9)}, "A and B")


def test_padded_rows_are_allowed_when_both_models_pad() -> None:
    assert common_rows(100, 100, 90, "A and B") == 100
    assert common_rows(100, 96, 90, "A and B") == 96
    assert common_rows(90, 90, 90, "A and B") == 90
    with pytest.raises(PipelineError, match="Rows may differ where both models have more"):
        common_rows(100, 90, 90, "A and B")
    with pytest.raises(PipelineError, match="have 100 and 80 rows, and the tokenizer 90"):
        common_rows(100, 80, 90, "A and B")


def test_a_pair_is_compared_alike_by_one_thread_and_by_two() -> None:
    both, found = replace(pair(tiny(1), tiny(2)), sampled=0.5), []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(run(both))
    torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("block", [1 << 20, 3 * VOCAB])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_head_is_compared_at_every_depth(block: int, reduced: bool) -> None:
    target = tiny(1)
    drafted = torch.arange(0, VOCAB, 2) if reduced else None
    head = heads.random_head(target, drafted)
    both = ComparedPair(target, head, VOCAB, K, 40, 1.0, block, depths=3)
    found = run(both)
    for row, name in enumerate(PROMPTS):
        n, text = len(ANSWERS[name]), torch.tensor([PROMPTS[name] + ANSWERS[name]])
        with torch.inference_mode():
            states = heads.states_of(target, text[0].tolist(), head.layers)
            at = torch.arange(text.shape[1])[None]
            outputs = GivenText(head.head, 3).read(head.embed(text), states[None], at, at >= 0)
        z = plain(target, name)
        for depth, output in enumerate(outputs):
            if len(PROMPTS[name]) - 1 < 1 + depth:
                continue  # a draft that would begin before the text does
            w = head.logits(output[0])[len(PROMPTS[name]) - 1 : -1].numpy()
            wanted = divergences.compare_logits(z, w)
            for field in ("kl", "tv", "draft_rank", "argmax_rank"):
                np.testing.assert_allclose(
                    found[f"depth_{field}"][row, :n, depth],
                    getattr(wanted, field),
                    rtol=5e-4,
                    atol=1e-5,
                    err_msg=f"{name} {field} {depth}",
                )
    torch.testing.assert_close(found["depth_kl"][:, :, 0], found["kl"])
    assert ("full_kl" in found) == reduced


def test_a_reduced_vocabulary_is_completed() -> None:
    """By the target's projection; inf where the choice is another."""
    target, drafted = tiny(1), torch.arange(0, VOCAB, 2)
    head = heads.random_head(target, drafted)
    outputs = torch.randn((200, 32), generator=torch.Generator().manual_seed(1))
    q, z = head.logits(outputs), torch.randn((200, VOCAB))
    whole = head.completed(outputs, q)
    assert whole is not None
    every = heads.random_head(target).logits(outputs)
    assert (every[:, ::2] - q[:, ::2]).abs().max() < 0.1  # the reduced rows are rounded
    wanted = torch.where(torch.arange(VOCAB) % 2 == 0, q, every).double().numpy()
    np.testing.assert_allclose(
        torch.log_softmax(whole.double(), 1), divergences.log_softmax(wanted), atol=1e-5
    )
    found = compare.compare_logits(z, [q], 1.0, completed=whole)
    full = found["full_kl"]
    same = wanted.argmax(1) == found["draft_token_id"].numpy()
    assert 0 < same.sum() < 200
    kl = divergences.kl(divergences.log_softmax(z.numpy()), divergences.log_softmax(wanted))
    np.testing.assert_allclose(full, np.where(same, kl, np.inf), rtol=1e-4)
    assert found["kl"].isinf().all()
