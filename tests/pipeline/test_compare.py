"""Logits of a pair compared, against plain formulas; those by digits and hand; stage drafts."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch

from analysis.acceptance.judgement import Steps, rounding
from pipeline.core.errors import PipelineError
from pipeline.core.store import Store
from pipeline.drafters import pairs
from pipeline.drafters.pairs import read_pair
from pipeline.models import logit_comparison as compare
from pipeline.models.logit_comparison import compare_logits
from pipeline.models.tokens import check_same_tokens, common_rows
from pipeline.stages import drafts as drafts_stage
from pipeline.stages.prompts import STAGE as PROMPTS_STAGE
from tests import divergences
from tests.analysis.cases import noisy, stored_columns
from tests.pipeline import heads
from tests.pipeline.heads import neural
from tests.pipeline.tiny import drafts_of, dump_of, planned, publish, random_model, used

LAWS = ("tv", "erss_acceptance", "harmonic_mean")
PAIR = ("kl", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank")
VOCAB, K = 96, 16
PROMPTS = {"a": [5, 6, 7], "b": [8, 9, 10, 11, 12, 13], "c": [14, 15]}
ANSWERS = {"a": [20, 21, 22, 23], "b": [24, 25], "c": [26, 27, 28]}
TARGET = random_model(VOCAB, seed=1)
PASSES = {"rtol": 3e-4, "atol": 1e-6}  # float32 with a cache: logits agree to about 1e-5


def agree(found, wanted, names=PAIR, prefix="", rtol=1e-11, atol=1e-15):
    for name in names:
        values = getattr(wanted, name)
        np.testing.assert_allclose(found[prefix + name], values, rtol, atol, err_msg=name)


@pytest.mark.parametrize(("temperature", "sampled"), [(1.0, None), (2.0, 0.5), (0.5, 0.5)])
def test_device_formulas_equal_the_numpy_ones(temperature, sampled):
    """Rows of more than one chunk, with ties of logits and of p/q, equal and masked tokens."""
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((50, 9000))).astype(np.float32)
    w = (z + rng.standard_normal((50, 1)) ** 3 * rng.standard_normal(z.shape)).astype(np.float32)
    z[:10], w[:20] = z[:10].round(), w[:20].round()
    w[39] = z[39]
    z[40:, 3:6] = w[40:, 5:9] = -np.inf
    found = compare_logits(torch.from_numpy(z), [torch.from_numpy(w)], temperature, sampled)
    assert not found["kl"][39]
    agree(found, divergences.compare_logits(z / temperature, w / temperature))
    if sampled:  # sums of 9000 float64 terms in another order
        agree(found, divergences.compare_logits(z / sampled, w / sampled), LAWS, "sampled_")
    else:
        assert not any(name.startswith("sampled_") for name in found)


def test_the_library_compares_as_the_stage_does():
    """`Steps.from_logits` is NumPy, stage drafts torch: the same KL and ranks, ties included."""
    rng = np.random.default_rng(5)
    for noise in (0.0, 0.01, 1.0):
        z, w = noisy(150, 60, 3.0, noise, seed=6)
        z[:50], w[:100] = z[:50].round(), w[:100].round()
        z[120:, 3:6] = w[120:, rng.integers(0, 60, 4)] = -np.inf
        found = compare_logits(torch.from_numpy(z), [torch.from_numpy(w)], 0.7)
        steps = Steps.from_logits(z, w, temperature=0.7)
        for name in ("draft_rank", "argmax_rank"):
            np.testing.assert_array_equal(getattr(steps, name), found[name])
        agree(vars(steps), SimpleNamespace(**found), ("kl", "draft_log_prob"), rtol=1e-12)


def test_masked_tokens_on_the_device():
    """-inf in both, in the target's or in the drafter's logits alone; all of it at 1e4 as well."""
    rng = np.random.default_rng(1)
    z, w = (rng.integers(-4000, 1, (30, 20)).astype(np.float32) / 1024 for _ in range(2))
    z[:, 3:6] = w[:, 5:9] = -np.inf
    w[20:, 9:] = z[20:, 9:] = -np.inf
    w[:10, 5:9] = 0.5  # the rest have a drafter that masks what the target has: KL is infinite
    for rows in (slice(None), slice(10, None)):  # some, or all are infinite
        wanted = divergences.compare_logits(z[rows], w[rows])
        assert np.isposinf(wanted.kl).sum() == 20
        for shift in (np.float32(0), np.float32(10_000)):
            target, draft = torch.from_numpy(z[rows] + shift), torch.from_numpy(w[rows] + shift)
            agree(compare_logits(target, [draft], 1.0), wanted, rtol=1e-12)


def test_equal_models_accept_everything_and_disjoint_ones_nothing():
    """1 - TV and the first draft of races; Lemma C.1 of arXiv 2504.15475 between the two ends."""
    rng = np.random.default_rng(4)
    z, w = (torch.from_numpy(rng.standard_normal((20, 30)).astype(np.float32)) for _ in range(2))

    def laws(w):
        found = compare_logits(z, [w], 1.0, 0.5)
        return [1 - found["sampled_tv"], *(found[f"sampled_{name}"] for name in LAWS[1:])]

    speculative, races, harmonic = laws(z.clone())
    for value, wanted in ((speculative, 1.0), (races, 1.0), (harmonic, 0.5)):
        torch.testing.assert_close(value, torch.full_like(value, wanted), rtol=1e-14, atol=0)
    speculative, races, harmonic = laws(w)
    assert ((harmonic < races) & (races < speculative) & (speculative < 1)).all()
    z[:, :15] = w[:, 15:] = -torch.inf
    assert all((value.abs() < 1e-15).all() for value in laws(w))


@pytest.mark.parametrize("apart", [1.0, 1e-7])
def test_long_sums_keep_their_digits(apart):
    """KL against exact sums: within the rounding that a certificate allows, 1e-13 sqrt(2 KL)."""
    rng = np.random.default_rng(5)
    z = torch.from_numpy(2 * rng.standard_normal((1, 50_001)))
    w = z + apart * torch.from_numpy(rng.random(z.shape))
    kl = compare_logits(z, [w], 1.0)["kl"].item()
    log_p, log_q = (torch.log_softmax(x, 1)[0].tolist() for x in (z, w))
    pairs = zip(log_p, log_q, strict=True)
    exact = math.fsum(math.exp(a) * (a - b + math.expm1(b - a)) for a, b in pairs)
    assert abs(kl - exact) < 1e-13 * (kl + math.sqrt(2 * kl))
    assert kl > 0


def test_depths_are_compared_as_the_pair_is():
    rng = np.random.default_rng(3)
    z, w = (torch.from_numpy((3 * rng.standard_normal((30, 96))).round(1).astype(np.float32))
            for _ in range(2))  # fmt: skip
    w[:20, ::3] = -torch.inf  # a reduced vocabulary
    found = compare_logits(z, [w, z, w], 0.7)
    for name in compare.AT_DEPTH:
        by_depth = found[f"depth_{name}"]
        assert by_depth.shape == (30, 3)
        torch.testing.assert_close(by_depth[:, 0], found[name], rtol=0, atol=0)
        torch.testing.assert_close(by_depth[:, 2], found[name], rtol=0, atol=0)
    assert not found["depth_kl"][:, 1].any()
    assert found["kl"].isinf().tolist() == [True] * 20 + [False] * 10


@pytest.mark.parametrize("noise", [1e-6, 0.03, 10.0])
def test_kl_agrees_with_fifty_digits_within_its_stated_rounding(noise):
    z, w = noisy(6, 40, 3.0, noise)
    with mpmath.workdps(50):
        kl = divergences.kl(divergences.log_softmax(z), divergences.log_softmax(w))
        for value, *logits in zip(kl, z, w, strict=True):
            p, q = ([mpmath.exp(mpmath.mpf(float(x))) for x in row] for row in logits)
            p, q = [x / mpmath.fsum(p) for x in p], [x / mpmath.fsum(q) for x in q]
            true = float(mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)))
            assert abs(value - true) <= rounding(np.array([true]))[0]
            # the textbook form loses all digits at 1e-6, where the KL is about 1e-12
            assert abs(value - true) <= 1e-6 * true


def test_by_hand_with_zeros():
    with np.errstate(divide="ignore"):
        p, q = np.log([[0.5, 0.5, 0.0]]), np.log([[0.25, 0.5, 0.25]])
    assert divergences.kl(p, q)[0] == pytest.approx(0.5 * math.log(2), rel=1e-14)
    assert (divergences.kl(q, p)[0], divergences.kl(p, p)[0]) == (math.inf, 0)
    assert (divergences.total_variation(p, q)[0], divergences.total_variation(p, p)[0]) == (0.25, 0)
    assert divergences.harmonic_mean(p, q)[0] == pytest.approx(0.125 / 0.75 + 0.25, rel=1e-14)


def test_erss_acceptance_is_its_definition():
    p, q = np.exp(np.array(noisy(30, 25, 3.0, 2.0), dtype=np.float64))
    p[:10, 3:9] = q[:20, 5:12] = 0
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    wanted = [
        sum(1 / np.maximum(a / a[i], b / b[i]).sum() for i in np.flatnonzero((a > 0) & (b > 0)))
        for a, b in zip(p, q, strict=True)
    ]
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            divergences.erss_acceptance(np.log(p), np.log(q)), wanted, rtol=1e-12
        )


def test_ties_go_against_the_drafter():
    # target ranks: token 2 first, then 0 and 3 (tied, by id), then 1
    z = np.array([[1.0, 0.0, 2.0, 1.0]], dtype=np.float32)
    tied = np.array([[5.0, 1.0, 5.0, 5.0]], dtype=np.float32)
    token, rank = divergences.drafted_token(z, tied)
    assert (token[0], rank[0]) == (3, 3)
    assert divergences.argmax_rank(z, tied)[0] == 3  # tokens 0 and 3 rank before token 2
    best = np.array([[0.0, 1.0, 5.0, 5.0 - 1e-6]], dtype=np.float32)
    assert divergences.drafted_token(z, best)[1][0] == 1
    assert divergences.argmax_rank(z, best)[0] == 1


# --- stage drafts ---------------------------------------------------------------------------------


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
        out.metadata |= {"k": K}

    publish(decoded, store, write)
    pair = used(root, label="T", batch=2), used(root, label="D", **of_drafter)
    tokenizer = SimpleNamespace(get_vocab=lambda: {"last": 89})
    monkeypatch.setattr(pairs, "pair_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(pairs, "load_pair", lambda *_: (target, neural(drafter)))
    return store.get(drafts_of(*pair, {"prompts": prompts, "distributions": decoded}))


def test_all_columns_equal_plain_forward_passes(tmp_path, monkeypatch):
    """And what is stored of both gives the KL again: all 64 tokens of q are there."""
    target, drafter = (random_model(60, seed=seed) for seed in (1, 2))
    found = made(tmp_path, monkeypatch, drafter, target)
    table = found.read().to_pandas()
    assert table["prompt_id"].tolist() == ["a"] * 4 + ["b"] * 2 + ["c"] * 3
    assert table["token_id"].tolist() == [*ANSWERS["a"], *ANSWERS["b"], *ANSWERS["c"]]
    assert not any(name.startswith(("sampled", "full")) for name in table)
    assert (found.metadata["k"], found.metadata["sampled_temperature"]) == (K, None)
    z, w = (np.concatenate([plain(model, name) for name in PROMPTS]) for model in (target, drafter))
    agree(table, divergences.compare_logits(z, w), **PASSES)
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


def test_rows_that_one_model_has_alone_are_left_out(tmp_path, monkeypatch):
    """Of answers that were sampled there are the laws of stochastic verification as well."""
    wider, drafter = random_model(VOCAB + 8, seed=1), random_model(VOCAB, seed=2)
    found = made(tmp_path, monkeypatch, drafter, wider, temperature=0.5)
    table = found.read().to_pandas()
    z = np.concatenate([plain(wider, name)[:, :VOCAB] for name in PROMPTS])
    w = np.concatenate([plain(drafter, name) for name in PROMPTS])
    agree(table, divergences.compare_logits(z, w), **PASSES)
    agree(table, divergences.compare_logits(z / 0.5, w / 0.5), LAWS, "sampled_", **PASSES)
    assert (found.metadata["vocab_size"], found.metadata["sampled_temperature"]) == (VOCAB, 0.5)
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
    logits, drafts, completed = read_pair(TARGET, neural(head), text[:, :-1], 2, depths=3)
    np.testing.assert_allclose(logits, plain(TARGET, "b"), atol=1e-5)
    assert [draft.shape for draft in drafts] == 3 * [(2, VOCAB)]
    assert (completed is not None) == reduced
    found = compare_logits(logits, drafts, 1.0, None, completed)
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
    found = compare_logits(z, [q], 1.0, completed=whole)
    same = wanted.argmax(1) == found["draft_token_id"].numpy()
    assert 0 < same.sum() < 200
    kl = divergences.kl(divergences.log_softmax(z.numpy()), divergences.log_softmax(wanted))
    np.testing.assert_allclose(found["full_kl"], np.where(same, kl, np.inf), rtol=1e-4)


def test_a_permuted_vocabulary_is_refused():
    target = {f"t{i}": i for i in range(10)}
    check_same_tokens(target, dict(target), "A and B")
    for other, named in (
        (target | {"t3": 7, "t7": 3}, "'t3' is 3 and 7"),
        ({}, "'t0' is 0 and miss"),
    ):
        with pytest.raises(PipelineError, match=f"A and B: .*{named}"):
            check_same_tokens(target, other, "A and B")


def test_padded_rows_are_left_out_where_both_models_have_all_tokens():
    for target, drafter, rows in ((100, 100, 100), (100, 96, 96), (90, 90, 90), (100, 90, 90)):
        assert common_rows(target, drafter, 90, "A and B") == rows
    with pytest.raises(PipelineError, match=r"A and B: .* 100 and 89 rows"):
        common_rows(100, 89, 90, "A and B")


@pytest.mark.parametrize("together", [2, 3])
@pytest.mark.parametrize("kind", ["model", "head", "reduced head"])
def test_texts_that_are_read_together_are_read_as_each_alone(tmp_path, monkeypatch, kind, together):
    """Padded before the prompt: answers of other lengths, and a head at every depth."""
    drafter = random_model(VOCAB, seed=2)
    if kind != "model":
        drafter = heads.random_head(TARGET, torch.arange(0, VOCAB, 2) if "red" in kind else None)
    alone = made(tmp_path / "alone", monkeypatch, drafter, temperature=0.5)
    monkeypatch.setitem(drafts_stage.BATCH_TEXTS, "cpu", together)
    with monkeypatch.context() as change:
        read = []
        plainly = pairs.read_pairs
        change.setattr(pairs, "read_pairs", lambda *x: read.append(len(x[2])) or plainly(*x))
        found = made(tmp_path / "together", change, drafter, temperature=0.5)
    assert read == [2, 1]  # of shards of two
    wanted, table = alone.read().to_pandas(), found.read().to_pandas()
    assert list(table) == list(wanted)
    for name in table:
        values = [np.stack(frame[name]) for frame in (table, wanted)]
        if values[0].dtype.kind == "f":
            np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(*values, err_msg=name)


@pytest.mark.parametrize("kind", ["model", "head"])
@torch.inference_mode()
def test_what_stands_in_the_padding_does_not_matter(kind):
    drafter = neural(heads.random_head(TARGET) if kind == "head" else TARGET)
    ids = torch.tensor([[3, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6]])
    padding = torch.tensor([2, 0])
    first, again = (
        pairs.read_pairs(TARGET, drafter, torch.where(ids == 3, token, ids), 3, 2, padding)
        for token in (3, 9)
    )
    alone = read_pair(TARGET, drafter, ids[:1, 2:], 3, 2)
    for found, wanted, single in zip(
        [first[0], *first[1]], [again[0], *again[1]], [alone[0], *alone[1]], strict=True
    ):
        torch.testing.assert_close(found[0], single, rtol=0, atol=1e-5)
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
        assert not torch.equal(found[1], wanted[1])
        assert found.isfinite().all()
