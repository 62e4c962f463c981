"""Drafts: against plain float64 arithmetic on unpadded forward passes, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.errors import PipelineError
from pipeline.models import compare, load
from pipeline.models.compare import read_pair
from pipeline.models.tokens import check_same_tokens, common_rows
from pipeline.stages.prompts import STAGE as PROMPTS_STAGE
from pipeline.store import Store
from tests import divergences
from tests.analysis.cases import stored_columns
from tests.pipeline import heads
from tests.pipeline.studies import planned
from tests.pipeline.tiny import drafts_of, dump_of, publish, random_model, used

VOCAB, K = 96, 16
PROMPTS = {"a": [5, 6, 7], "b": [8, 9, 10, 11, 12, 13], "c": [14, 15]}
ANSWERS = {"a": [20, 21, 22, 23], "b": [24, 25], "c": [26, 27, 28]}
TARGET = random_model(VOCAB, seed=1)


def plain(model, name):
    """Logits of one prompt's answer: one forward pass without a cache."""
    ids = torch.tensor([PROMPTS[name] + ANSWERS[name]])
    with torch.inference_mode():
        logits = model.module(input_ids=ids).logits[0]
    return logits[len(PROMPTS[name]) - 1 : -1].numpy()


def made(root, monkeypatch, drafter, target=TARGET, temperature=0.0, **of_drafter):
    """The artifact of a pair on `ANSWERS`, decoded at a temperature."""
    store = Store(root)
    prompts = planned(PROMPTS_STAGE, "tiny", {})
    rows = [{"prompt_id": name, "source": "s", "source_row": 0, "text": "", "token_ids": ids,
             "n_tokens": len(ids)} for name, ids in PROMPTS.items()]  # fmt: skip
    publish(prompts, store, lambda out: out.write_rows(rows))
    decoded = dump_of(used(root, label="T", batch=2), {"prompts": prompts}, temperature=temperature)

    def write(out):
        steps = [
            {"prompt_id": name, "position": at, "token_id": token, "top_ids": [], "top_logits": []}
            | dict.fromkeys(("logsumexp", "top_surprisal", "log_tail", "entropy"), 0.0)
            for name, answer in ANSWERS.items()
            for at, token in enumerate(answer)
        ]
        out.write_rows(steps)
        out.facts |= {"k": K}

    publish(decoded, store, write)
    pair = used(root, label="T", batch=2), used(root, label="D", **of_drafter)
    tokenizer = SimpleNamespace(get_vocab=lambda: {"last": 89})
    monkeypatch.setattr(load, "pair_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(load, "load_pair", lambda *_: (target, drafter))
    return store.get(drafts_of(*pair, {"prompts": prompts, "distributions": decoded}))


def test_all_columns_equal_plain_forward_passes(tmp_path, monkeypatch):
    """And what is stored of both gives the KL again: all 64 tokens of q are there."""
    target, drafter = (random_model(60, seed=seed) for seed in (1, 2))
    found = made(tmp_path, monkeypatch, drafter, target)
    table = found.read().to_pandas()
    assert table["prompt_id"].tolist() == ["a"] * 4 + ["b"] * 2 + ["c"] * 3
    assert table["token_id"].tolist() == [*ANSWERS["a"], *ANSWERS["b"], *ANSWERS["c"]]
    assert not any(name.startswith(("sampled", "full")) for name in table)
    assert (found.facts["k"], found.facts["sampled_temperature"]) == (K, None)
    z, w = (np.concatenate([plain(model, name) for name in PROMPTS]) for model in (target, drafter))
    check_pair_columns(table, z, w)
    stored = stored_columns(z, K)
    for field in ("top_surprisal", "log_tail", "entropy"):
        np.testing.assert_allclose(table[field], stored[field], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(np.stack(table["top_ids"]), stored["top_ids"])
    q = np.zeros((9, 60))
    for row, step in zip(q, table.itertuples(), strict=True):
        row[step.draft_top_ids] = np.exp(
            step.draft_top_logits - step.draft_top_logits[0] - step.draft_top_surprisal
        )
    np.testing.assert_allclose(q, np.exp(divergences.log_softmax(w)), rtol=1e-4)


def check_pair_columns(table, z, w):
    """Float32 passes with a cache: logits agree to about 1e-5."""
    wanted = divergences.compare_logits(z, w)
    for name in ("kl", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank"):
        values = getattr(wanted, name)
        np.testing.assert_allclose(table[name], values, rtol=3e-4, atol=1e-6, err_msg=name)


def test_rows_that_one_model_has_alone_are_left_out(tmp_path, monkeypatch):
    """Of answers that were sampled there are the laws of stochastic verification as well."""
    wider, drafter = random_model(VOCAB + 8, seed=1), random_model(VOCAB, seed=2)
    found = made(tmp_path, monkeypatch, drafter, wider, temperature=0.5)
    table = found.read().to_pandas()
    z = np.concatenate([plain(wider, name)[:, :VOCAB] for name in PROMPTS])
    w = np.concatenate([plain(drafter, name) for name in PROMPTS])
    check_pair_columns(table, z, w)
    wanted = divergences.compare_logits(z / 0.5, w / 0.5)
    for name in ("tv", "erss_acceptance", "harmonic_mean"):
        np.testing.assert_allclose(table[f"sampled_{name}"], getattr(wanted, name), rtol=3e-4)
    assert (found.facts["vocab_size"], found.facts["sampled_temperature"]) == (VOCAB, 0.5)
    with monkeypatch.context() as change:
        change.setattr(drafter.module.config, "max_position_embeddings", 5)
        with pytest.raises(PipelineError, match="takes 5 tokens"):
            made(tmp_path / "short", monkeypatch, drafter)
    drafter.module.model.norm.weight.data[0] = torch.nan
    with pytest.raises(PipelineError, match="T and D: NaN or infinite logits for prompt b at st"):
        made(tmp_path / "broken", monkeypatch, drafter)


@pytest.mark.parametrize("reduced", [False, True])
def test_a_head_is_compared_at_every_depth(reduced):
    drafted = torch.arange(0, VOCAB, 2) if reduced else None
    head = heads.random_head(TARGET, drafted)
    text = torch.tensor([PROMPTS["b"] + ANSWERS["b"]])
    logits, drafts, completed = read_pair(TARGET, head, text[:, :-1], 2, depths=3)
    np.testing.assert_allclose(logits, plain(TARGET, "b"), atol=1e-5)
    assert [draft.shape for draft in drafts] == 3 * [(2, VOCAB)]
    assert (completed is not None) == reduced
    # tests/pipeline/test_eagle3.py holds the depths against the architecture
    found = compare.compare_logits(logits, drafts, 1.0, None, completed)
    torch.testing.assert_close(found["depth_kl"][:, 0], found["kl"], rtol=0, atol=0)
    assert ("full_kl" in found) == found["kl"].isinf().all() == reduced


def test_a_reduced_vocabulary_is_completed():
    """By the target's projection; inf where the choice is another."""
    head = heads.random_head(TARGET, torch.arange(0, VOCAB, 2))
    outputs = torch.randn((200, 32), generator=torch.Generator().manual_seed(1))
    q, z = head.logits(outputs), torch.randn((200, VOCAB))
    whole = head.completed(outputs, q)
    every = heads.random_head(TARGET).logits(outputs)
    assert (every[:, ::2] - q[:, ::2]).abs().max() < 0.1  # the reduced rows are rounded
    wanted = torch.where(torch.arange(VOCAB) % 2 == 0, q, every).double().numpy()
    np.testing.assert_allclose(
        torch.log_softmax(whole.double(), 1), divergences.log_softmax(wanted), atol=1e-5
    )
    found = compare.compare_logits(z, [q], 1.0, completed=whole)
    same = wanted.argmax(1) == found["draft_token_id"].numpy()
    assert 0 < same.sum() < 200
    kl = divergences.kl(divergences.log_softmax(z.numpy()), divergences.log_softmax(wanted))
    np.testing.assert_allclose(found["full_kl"], np.where(same, kl, np.inf), rtol=1e-4)


def test_a_permuted_vocabulary_is_refused():
    target = {f"t{i}": i for i in range(10)}
    check_same_tokens(target, dict(target), "A and B")
    with pytest.raises(PipelineError, match=r"A and B: .* 2 tokens \('t3' is 3 and 7; 't7' is 7"):
        check_same_tokens(target, target | {"t3": 7, "t7": 3}, "A and B")
    with pytest.raises(PipelineError, match="'t9' is 9 and missing"):
        check_same_tokens(target, {f"t{i}": i for i in range(9)}, "A and B")


def test_padded_rows_are_allowed_when_both_models_pad():
    for drafter, rows in ((100, 100), (96, 96)):
        assert common_rows(100, drafter, 90, "A and B") == rows
    assert common_rows(90, 90, 90, "A and B") == 90
    for drafter in (90, 80):
        with pytest.raises(PipelineError, match=rf"have 100 and {drafter} rows, and the tokenizer"):
            common_rows(100, drafter, 90, "A and B")
