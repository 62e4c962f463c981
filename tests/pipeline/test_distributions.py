"""Stage distributions on a random tiny Qwen3, against plain forward passes and `generate`."""

import mpmath
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from analysis.topk import TopK
from pipeline.core.errors import PipelineError
from pipeline.core.workers import out_of_memory
from pipeline.inputs import artifact_readers as stored
from pipeline.models import loading as models
from pipeline.models.batch_decoding import choose, uniforms
from pipeline.models.logit_statistics import (
    STATISTICS,
    _top_k_by_counting,
    argmax,
    logit_statistics,
    top_k,
)
from tests.pipeline import tiny


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return tiny.write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", 6)


def dump(model, source, root, **changes):
    artifact = tiny.built(tiny.dump_node(model, tiny.prompts_node(model, source), **changes), root)
    return artifact, artifact.read().to_pandas()


def prompt_ids(root):
    table = pq.read_table(next((root / "prompts").glob("*/data.parquet")))
    return dict(zip(table["prompt_id"].to_pylist(), table["token_ids"].to_pylist(), strict=True))


@pytest.mark.usefixtures("buffers")
@pytest.mark.parametrize(("changes", "tolerance"), [
    ({"attention": "sdpa"}, 2e-5),
    ({"attention": "sdpa", "dtype": "bfloat16"}, 0.25),
    ({"attention": "eager", "dtype": "bfloat16"}, 2e-5),
])  # fmt: skip
def test_trajectory_rescored_without_cache_or_padding(model, source, tmp_path, changes, tolerance):
    """Logits of magnitude 6. Float32 sums of 32 terms differ by about 1e-6 of that. With eager
    attention, bf16 gives the same hidden states whatever the padding. With sdpa the order of the
    sums depends on the columns: bf16 hidden states differ by a few of their spacings (2^-8 of the
    value), logits by 0.08 as measured here."""
    artifact, table = dump(model, source, tmp_path, **changes)
    plain = AutoModelForCausalLM.from_pretrained(
        model,
        dtype=getattr(torch, artifact.record["settings"]["model"]["dtype"]),
        attn_implementation="eager",
    )
    for name, ids in prompt_ids(tmp_path).items():
        rows = table[table["prompt_id"] == name]
        with torch.inference_mode():
            hidden = plain.model(torch.tensor([ids + list(rows["token_id"])])).last_hidden_state
            exact = (hidden.double() @ plain.lm_head.weight.double().T)[0, len(ids) - 1 : -1]
        for position, (row, logits) in enumerate(zip(rows.itertuples(), exact, strict=True)):
            assert row.position == position
            np.testing.assert_allclose(row.top_logits, logits[row.top_ids.copy()], atol=tolerance)
            # the stored tokens are the K largest, up to what the passes differ by
            outside = np.delete(logits.numpy(), row.top_ids)
            assert outside.max() <= row.top_logits[-1] + tolerance
            order = np.lexsort((row.top_ids, -row.top_logits))
            assert list(order) == list(range(20))  # by decreasing logit, ties by id
            total = torch.logsumexp(logits, 0).item()
            assert row.logsumexp == pytest.approx(total, abs=tolerance)
            tail = torch.logsumexp(torch.from_numpy(outside), 0).item()
            assert row.log_tail == pytest.approx(tail - total, abs=2 * tolerance)
            assert row.entropy == pytest.approx(stats.entropy(logits.softmax(0)), abs=tolerance * 4)


@pytest.mark.usefixtures("buffers")
def test_greedy_tokens_equal_generate(model, source, tmp_path):
    _, table = dump(model, source, tmp_path, batch=6)
    plain = AutoModelForCausalLM.from_pretrained(model)
    for name, ids in prompt_ids(tmp_path).items():
        prompt = torch.tensor([ids])
        out = plain.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12,
                             do_sample=False)  # fmt: skip
        found = table.loc[table["prompt_id"] == name, "token_id"]
        assert found.tolist() == out[0, len(ids) :].tolist()


@pytest.mark.usefixtures("buffers")
def test_answers_stop_with_an_end_token_and_leave_the_batch(source, tmp_path):
    """In float32: the step that emits it is the last row; those that go on are as without it."""
    model = tiny.write_model(tmp_path / "model")
    sampled = {"temperature": 1.5, "steps": 40}
    _, before = dump(model, source, tmp_path / "before", **sampled)
    config, ends = model / "generation_config.json", list(range(2, 14))
    config.write_text(config.read_text().replace('"eos_token_id": 2', f'"eos_token_id": {ends}'))
    artifact, after = dump(model, source, tmp_path / "after", batch=6, **sampled)
    assert artifact.metadata["eos"] == ends
    assert after["prompt_id"].unique().tolist() == list(prompt_ids(tmp_path / "after"))
    lengths = []
    for name, rows in before.groupby("prompt_id"):
        end = rows["token_id"].isin(ends).to_numpy()
        lengths.append(int(end.argmax()) + 1 if end.any() else 40)
        found = after[after["prompt_id"] == name]
        assert found["token_id"].tolist() == rows["token_id"].tolist()[: lengths[-1]]
        np.testing.assert_allclose(found["entropy"], rows["entropy"][: lengths[-1]], atol=1e-4)
    assert sum(length <= 24 for length in lengths) >= 3  # the batch was made smaller
    assert max(lengths) > 24


@pytest.mark.usefixtures("buffers")
def test_sampling_does_not_depend_on_the_batch(model, source, tmp_path):
    sampled = {"temperature": 1.5, "seed": 3}
    (_, one), (_, six) = (
        dump(model, source, tmp_path / str(batch), batch=batch, **sampled) for batch in (1, 6)
    )
    assert one["token_id"].tolist() == six["token_id"].tolist()


def test_sampled_frequencies():
    """One row at many positions: a chi-square test against the distribution."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 3.0])
    n = 20_000
    uniform = torch.from_numpy(uniforms(7, "a", n))
    for temperature in (1.0, 0.7, 1.3):
        p = torch.softmax(logits.double() / temperature, 0).numpy()
        tokens = choose(logits.expand(n, -1), uniform, temperature)
        counts = np.bincount(tokens.numpy(), minlength=6)
        assert stats.chisquare(counts, n * p).pvalue > 0.01


def test_noise_belongs_to_the_prompt_and_position():
    np.testing.assert_array_equal(uniforms(0, "a", 8), uniforms(0, "a", 128)[:8])
    assert not np.intersect1d(uniforms(0, "a", 99), uniforms(0, "b", 99)).size
    assert not np.intersect1d(uniforms(0, "a", 99), uniforms(1, "a", 99)).size


def test_errors_that_mean_out_of_memory():
    assert all(map(out_of_memory, (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"))))
    assert out_of_memory(RuntimeError("[...] . DefaultCPUAllocator: can't allocate memory"))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access"))


def test_broken_weights_are_named(source, tmp_path, monkeypatch):
    model = tiny.write_model(tmp_path / "model")
    plain = AutoModelForCausalLM.from_pretrained(model)
    plain.model.norm.weight.data[0] = float("nan")
    plain.save_pretrained(model)
    with pytest.raises(PipelineError, match=r"^targets.tiny: tiny gives NaN or infinite logits: "):
        dump(model, source, tmp_path / "store")
    monkeypatch.setattr(models, "check_cached_steps", lambda *_: None)  # and if they come later
    with pytest.raises(PipelineError, match=r"tiny: NaN or infinite logits for prompt id\d at st"):
        dump(model, source, tmp_path / "store")


def test_too_long_for_the_model(model, source, tmp_path):
    with pytest.raises(PipelineError, match=r"takes 1024 tokens, .*distributions.steps"):
        dump(model, source, tmp_path, steps=1020)


def test_top_k_orders_ties_by_id():
    logits = torch.randint(0, 4, (50, 40), generator=torch.Generator().manual_seed(0)).float()
    values, ids = top_k(logits, 7)
    for row, (found, at) in zip(logits, zip(values, ids, strict=True), strict=True):
        expected = np.lexsort((np.arange(40), -row.numpy()))[:7]
        assert at.tolist() == expected.tolist()
        assert found.tolist() == row[expected.copy()].tolist()
    for rows in (logits, logits.double(), logits.bfloat16(), logits.T.contiguous().T):
        assert argmax(rows).tolist() == ids[:, 0].tolist() == top_k(rows, 1)[1][:, 0].tolist()


@pytest.mark.parametrize("k", [2, 7, 39, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_top_k_by_counting_is_the_same(dtype, k):
    logits = torch.randint(0, 4, (50, 40), generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[:10, ::2] = logits[20:22, 1:] = -torch.inf
    logits[30:] = torch.randn((20, 40), generator=torch.Generator().manual_seed(1)).to(dtype)
    for found, wanted in zip(_top_k_by_counting(logits, k), top_k(logits, k), strict=True):
        assert found.tolist() == wanted.tolist()
    logits[3] = torch.nan  # which its entropy tells
    assert ((ids := _top_k_by_counting(logits, k)[1]) >= 0).all()
    assert (ids < 40).all()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_statistics_against_sixty_digits(temperature):
    """A flat row, a sharp one (entropy 1e-15), and a tail of e^-2000 that float64 underflows."""
    rows = np.array([[1.0, 0.5, 0.25, 0.0, -1.0], [40.0, 2.0, 1.0, 0.5, -3.0],
                     [5.0, 4.0, -2000.0, -2001.0, -2002.0]], dtype=np.float32)  # fmt: skip
    found = logit_statistics(torch.from_numpy(rows), 2, temperature)
    mpmath.mp.dps = 60
    for i, row in enumerate(rows):
        z = [mpmath.mpf(float(value)) / mpmath.mpf(temperature) for value in row]
        total = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in z))
        p = [mpmath.exp(value - total) for value in z]
        entropy = -mpmath.fsum(q * mpmath.log(q) for q in p)
        tail = mpmath.log(mpmath.fsum(p[2:]))
        assert found["logsumexp"][i].item() == pytest.approx(float(total), rel=1e-14)
        surprisal = float(-mpmath.log(p[0]))
        assert found["top_surprisal"][i].item() == pytest.approx(surprisal, rel=1e-14)
        assert found["entropy"][i].item() == pytest.approx(float(entropy), rel=1e-13)
        assert found["log_tail"][i].item() == pytest.approx(float(tail), rel=1e-13)
    assert found["top_logits"].tolist() == rows[:, :2].tolist()  # raw at any temperature


@pytest.mark.parametrize("k", [1, 4, 9])
def test_statistics_of_masked_and_of_large_logits(k):
    """As `TopK.from_logits` has them: some, most and all but one token masked; logits of 1e4."""
    rng = np.random.default_rng(k)
    z = rng.normal(size=(40, 9)).astype(np.float32)
    z[:10, :3] = z[10:20, 2:] = z[20:30, 1:] = -np.inf
    z[30:] += 10_000
    found, wanted = logit_statistics(torch.from_numpy(z), k, 0.7), TopK.from_logits(z, k, 0.7)
    np.testing.assert_array_equal(found["top_ids"], wanted.ids)
    np.testing.assert_array_equal(found["top_logits"], wanted.logits)
    for name in STATISTICS:
        np.testing.assert_allclose(found[name], getattr(wanted, name), rtol=1e-14)
    assert (found["entropy"][20:30] == 0).all()
    for broken in (np.nan, np.inf, -np.inf):
        z[3, slice(None) if broken < 0 else 1] = broken
        entropy = logit_statistics(torch.from_numpy(z), k)["entropy"]
        assert entropy.isnan().nonzero().tolist() == [[3]]


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_distributions_are_stored_at_the_temperature_of_the_certificates(
    model, source, tmp_path, temperature
):
    """Those of the whole rows; the logits stay raw, and the answers what they were."""
    whole, _ = dump(model, source, tmp_path, k=1000)
    assert whole.metadata["k"] == tiny.VOCABULARY
    part, table = dump(model, source, tmp_path, certified_temperature=temperature)
    logits, order = (
        np.stack(whole.read(columns=[name])[name].to_numpy()) for name in ("top_logits", "top_ids")
    )
    raw = np.take_along_axis(logits, order.argsort(axis=1), axis=1)
    wanted, found = TopK.from_logits(raw, 20, temperature), stored.read_distributions(part)
    assert found.temperature == temperature
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.logits, wanted.logits)
    for name in STATISTICS:
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=1e-12, err_msg=name
        )
    assert table["token_id"].tolist() == whole.read()["token_id"].to_pylist()
    in_chunks = [dist.top_probability for _, dist in stored.chunks(part, rows=50)]
    assert len(in_chunks) > 1
    np.testing.assert_array_equal(np.concatenate(in_chunks), found.top_probability)
