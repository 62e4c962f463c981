"""Passes over buffers of fixed size, as they are recorded on a GPU: here without recording."""

import copy
import gc
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, MixtralConfig, Qwen3Config

from pipeline.models import recorded_passes
from pipeline.models.batch_decoding import decode_batch
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import wrap
from pipeline.models.recorded_passes import COLUMNS, MAX_TOKENS, can_record
from tests.pipeline.tiny import random_model

V = 40
CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip


WINDOW = {"sliding_window": 8}
LAYERS = ["sliding_attention", "full_attention"]


@pytest.fixture(autouse=True)
def fixed(monkeypatch):
    monkeypatch.setattr(recorded_passes, "FIXED_ON_CPU", True)


@pytest.fixture(scope="module")
def model():
    return random_model(V)


def growing(monkeypatch, work):
    """What `work` gives with a cache that grows."""
    with monkeypatch.context() as patch:
        patch.setattr(recorded_passes, "FIXED_ON_CPU", False)
        return work()


def steps(model, prompt, more):
    """Logits after a prompt and then after passes over the tokens of `more`."""
    session = KVSession(model, len(prompt) + sum(map(len, more)), rolls_back=True)
    logits = [session.prefill(torch.tensor([prompt]))]
    return [*logits, *(session.append(torch.tensor([ids])) for ids in more)]


@pytest.mark.parametrize("size", [1, MAX_TOKENS, MAX_TOKENS + 1])
@torch.inference_mode()
def test_passes_equal_those_of_a_growing_cache(size, model, monkeypatch):
    more = [[3] * size, [5, 7], [9] * size, [1]]
    work = lambda: steps(model, [4, 8, 15], more)  # noqa: E731
    for found, wanted in zip(work(), growing(monkeypatch, work), strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("used", [COLUMNS - 1, COLUMNS, COLUMNS + 1])
@torch.inference_mode()
def test_buffers_end_where_texts_may(used, model, monkeypatch):
    """A text that fills its buffers, and one on either side of where they are rounded to."""
    prompt = [at % V for at in range(used - 2)]
    work = lambda: steps(model, prompt, [[3], [5]])  # noqa: E731
    for found, wanted in zip(work(), growing(monkeypatch, work), strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)


@torch.inference_mode()
def test_the_next_text_has_the_buffers_of_the_last(model):
    first = KVSession(model, 20, rolls_back=True)
    first.prefill(torch.tensor([[1, 2, 3]]))
    wanted = first.append(torch.tensor([[4]]))
    buffers = [layer.keys.data_ptr() for layer in first.cache.layers]
    first.cache.layers[0]._buffers[0].fill_(math.nan)  # as of a text whose states overflowed
    del first
    gc.collect()
    second = KVSession(model, 30, rolls_back=True)
    second.prefill(torch.tensor([[1, 2, 3]]))
    torch.testing.assert_close(second.append(torch.tensor([[4]])), wanted, rtol=0, atol=0)
    assert [layer.keys.data_ptr() for layer in second.cache.layers] == buffers


@torch.inference_mode()
def test_a_shorter_text_takes_larger_buffers_and_a_longer_one_replaces_them(model):
    def pointers(capacity):
        session = KVSession(model, capacity, rolls_back=True)
        session.prefill(torch.tensor([[1, 2, 3]]))
        return [layer.keys.data_ptr() for layer in session.cache.layers], session._recorder

    long, recorder = pointers(COLUMNS + 1)
    assert recorder.capacity == 2 * COLUMNS
    del recorder
    gc.collect()
    assert pointers(10)[0] == long
    gc.collect()
    assert pointers(2 * COLUMNS + 1)[1].capacity == 3 * COLUMNS


@torch.inference_mode()
def test_buffers_for_which_memory_did_not_suffice_are_not_used_again(model, monkeypatch):
    monkeypatch.setattr(model.module, "free_pass_recorders", {}, raising=False)
    real = torch.Tensor.new_empty
    left = [3]  # of the four buffers of two layers

    def short(tensor, *size, **options):
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(tensor, *size, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", short)
        with pytest.raises(torch.OutOfMemoryError):
            KVSession(model, 20, rolls_back=True).prefill(torch.tensor([[1, 2, 3]]))
    gc.collect()
    session = KVSession(model, 20, rolls_back=True)
    session.prefill(torch.tensor([[1, 2, 3]]))
    assert session.append(torch.tensor([[4]])).isfinite().all()


@torch.inference_mode()
def test_a_copy_of_nothing_read_is_empty(model):
    copied = KVSession(model, 20, rolls_back=True).copy(())
    assert copied.prefill(torch.tensor([[1, 2, 3]])).isfinite().all()


@torch.inference_mode()
def test_two_texts_at_once_have_buffers_of_their_own(model):
    one = KVSession(model, 20, rolls_back=True)
    other = KVSession(model, 20, rolls_back=True)
    one.prefill(torch.tensor([[1, 2, 3]]))
    wanted = one.copy(()).append(torch.tensor([[4]]))
    other.prefill(torch.tensor([[9, 8, 7]]))
    other.append(torch.tensor([[6]]))
    torch.testing.assert_close(one.append(torch.tensor([[4]])), wanted, rtol=0, atol=0)


@torch.inference_mode()
def test_a_copy_goes_its_own_way(model):
    read = KVSession(model, 20, rolls_back=True)
    read.prefill(torch.tensor([[1, 2, 3]]))
    read.append(torch.tensor([[4]]))
    copied = read.copy(())
    copied.append(torch.tensor([[5]]))
    other = read.copy(())
    torch.testing.assert_close(
        other.append(torch.tensor([[6]])), read.append(torch.tensor([[6]])), rtol=0, atol=0
    )


@pytest.mark.parametrize("ended", [(), (0, 7, 11)])
def test_batches_that_shrink_decode_as_with_a_growing_cache(ended, model, monkeypatch):
    """Prompts of several lengths; with frequent ends, so that texts leave the batch."""
    ending = replace(model, eos=ended or (V - 1,))
    prompts = {str(n): [(7 * at + n) % V for at in range(n)] for n in (9, 6, 5, 2, 1)}
    settings = {
        "steps": 24, "k": 8, "temperature": 1.0, "seed": 0, "certified_temperature": 1.0,
    }  # fmt: skip
    work = lambda: decode_batch(ending, prompts, settings, lambda _: None)  # noqa: E731
    found, wanted = work(), growing(monkeypatch, work)
    assert torch.equal(found["lengths"], wanted["lengths"])
    for row, length in enumerate(wanted["lengths"].tolist()):
        assert torch.equal(found["token_id"][row, :length], wanted["token_id"][row, :length])
        torch.testing.assert_close(
            found["top_logits"][row, :length], wanted["top_logits"][row, :length], **CLOSE
        )


def of(config, **options):
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config, **options).eval()
    return wrap(made, "made", torch.device("cpu"))


@pytest.mark.parametrize(
    ("config", "recorded"),
    [
        (Qwen3Config(**SMALL), True),
        (Qwen3Config(**SMALL, use_sliding_window=True, **WINDOW, max_window_layers=1), False),
        (Gemma3TextConfig(**SMALL, **WINDOW, layer_types=LAYERS), False),
        (MixtralConfig(**SMALL, num_local_experts=2), False),
    ],
)  # fmt: skip
def test_windows_and_experts_run_eagerly(config, recorded):
    model = of(config)
    assert can_record(model) == recorded
    with torch.inference_mode():
        session = KVSession(model, 12, rolls_back=True)
        session.prefill(torch.tensor([[1, 2, 3]]))
        assert session.append(torch.tensor([[4]])).isfinite().all()
    assert (session._recorder is not None) == recorded


def test_a_cpu_keeps_its_growing_cache(model, monkeypatch):
    monkeypatch.setattr(recorded_passes, "FIXED_ON_CPU", False)
    assert not can_record(model)


@torch.inference_mode()
def test_a_copy_of_a_model_has_recordings_of_its_own(model):
    session = KVSession(model, 20, rolls_back=True)
    session.prefill(torch.tensor([[1, 2, 3]]))
    wanted = session.append(torch.tensor([[4]]))
    del session
    gc.collect()
    changed = replace(model, module=copy.deepcopy(model.module))
    changed.module.lm_head.register_forward_hook(lambda _, __, out: out + 1)
    session = KVSession(changed, 20, rolls_back=True)
    session.prefill(torch.tensor([[1, 2, 3]]))
    torch.testing.assert_close(session.append(torch.tensor([[4]])), wanted + 1, **CLOSE)
