"""Loading: what is refused, precision, caches; random models of many architectures."""

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

from pipeline.core.errors import PipelineError
from pipeline.core.files import file_digest
from pipeline.core.stage import Identity
from pipeline.decoding.loop import prefill
from pipeline.decoding.proposers import ModelProposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.inputs import identity
from pipeline.inputs.identity import Identities
from pipeline.models.devices import check_threads
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import load_model, load_tokenizer, relative_error
from pipeline.study import check_models
from tests.pipeline import tiny
from tests.pipeline.decoding.pair import LIMIT, greedy, plain_greedy
from tests.pipeline.heads import lookup_proposer

pytestmark = pytest.mark.usefixtures("buffers")


@pytest.fixture
def directory(tmp_path):
    return tiny.write_model(tmp_path / "model")


def load(directory, device="cpu", **changes):
    return load_model(tiny.used(directory, device=device, **changes))


def last_logits(model, ids):
    with torch.inference_mode():
        return KVSession(model, ids.shape[1]).prefill(ids)[:, -1]


def test_float32_head_of_a_bfloat16_model(directory):
    """Equals projecting the bf16 hidden state in float64 to float32's rounding, and so is finer
    than the bf16 head, whose spacing is 2^-8 of the value; tied embeddings stay bf16."""
    ids = torch.arange(4, 24)[None]
    model = load(directory, dtype="bfloat16")
    assert model.module.get_input_embeddings().weight.dtype == torch.bfloat16
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    with torch.inference_mode():
        hidden = plain.model(ids).last_hidden_state[:, -1].double()
        exact = hidden @ plain.lm_head.weight.double().T
    fine, coarse = last_logits(model, ids), last_logits(
        load(directory, dtype="bfloat16", head_dtype="bfloat16"), ids)  # fmt: skip
    assert fine.dtype == torch.float32
    assert (fine - exact).abs().max() < 1e-6 * exact.abs().max()
    assert coarse.dtype == torch.bfloat16
    assert (coarse - exact).abs().max() > 1e-4 * exact.abs().max()


@pytest.mark.parametrize(("name", "lengths", "early"), [
    ("qwen3", [40, 38, 12, 11, 10], 2), ("gemma3", [10, 40, 11, 38, 12], 4),
    ("bloom", [10, 11, 12, 38, 40], 5),
])  # fmt: skip
def test_a_batch_is_read_as_its_prompts_are_and_padding_by_few(name, lengths, early, tmp_path):
    directory = write(tmp_path / "model", *MADE[name])
    model = load_model(tiny.used(directory, "targets.made", attention=MADE[name][2]))
    width, read, cells = max(lengths), model.module.forward, []
    prompts = [torch.randint(4, tiny.VOCABULARY, (1, n)) for n in lengths]
    padded = [torch.nn.functional.pad(ids, (width - ids.shape[1], 0)) for ids in prompts]
    model.module.forward = lambda input_ids, **rest: (
        cells.append(input_ids.numel()), read(input_ids=input_ids, **rest))[1]  # fmt: skip
    texts = KVSession(model, width + 1, padding=torch.tensor([width - n for n in lengths]))
    with torch.inference_mode():
        batch = [texts.prefill(torch.cat(padded))[:, 0], texts.append(torch.full((5, 1), 7))[:, 0]]
    assert sum(cells[:-1]) == early * 28 + 5 * 12
    for ids, *logits in zip(prompts, *batch, strict=True):
        plain = read(input_ids=torch.cat([ids, torch.tensor([[7]])], 1)).logits[0, -2:]
        torch.testing.assert_close(torch.stack(logits), plain, atol=2e-5, rtol=0)


def test_preallocated_cache_equals_transformers(directory):
    """Bit for bit, also after rows have left the batch."""
    model = load(directory)
    torch.manual_seed(0)
    ids = torch.randint(4, tiny.VOCABULARY, (3, 9))
    keep = torch.tensor([True, False, True])
    results = []
    for cache in (model.new_cache(9), DynamicCache(config=model.module.config)):
        with torch.inference_mode():
            model.forward(ids[:, :7], cache)
            cache.reorder_cache(keep.nonzero()[:, 0])
            steps = [model.forward(ids[keep, i : i + 1], cache)[0] for i in (7, 8)]
        results.append(torch.stack(steps))
    assert torch.equal(*results)
    assert model.cache_bytes() == 2 * 2 * 1 * 32 * 4  # k and v, layers, heads, head_dim, float32


def test_refusals(directory, tmp_path):
    if not torch.cuda.is_available():
        with pytest.raises(PipelineError, match=r"device.name=cuda: .* give device.name=cpu"):
            load(directory, device="cuda")
    weights = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    integers = weights | {name: weights[name].to(torch.int8)}
    save_file(integers, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PipelineError, match=r"targets.tiny.path=.* are stored as I8, and"):
        load(directory)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PipelineError, match=r"lack or misshape 1 weights .*layers\.1\.mlp\.up"):
        load(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(PipelineError, match=r"targets.tiny.path=.* no file named .*safetensors"):
        load(directory)
    with pytest.raises(PipelineError, match="is no hub id"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"not weights at all", "SafetensorError: .*[Hh]eader"),
        ("config.json", b"{", "config file .* is not a valid JSON file"),
        ("config.json", b'{"model_type": "clip"}', "model of type clip is no causal language"),
        ("config.json", b'{"model_type": "qwen3", "hidden_size": "wide"}', "hidden_size"),
        ("tokenizer.json", b"{", "tokenizer can't be loaded"),
    ],
)
def test_damaged_files_are_named_in_one_line(directory, name, content, message):
    (directory / name).write_bytes(content)
    read = partial(load_tokenizer, str(directory), None, "targets.tiny")
    with pytest.raises(PipelineError, match=rf"^targets.tiny.path=.*{message}") as error:
        read() if name == "tokenizer.json" else load(directory)
    assert "\n" not in str(error.value)


def test_how_far_passes_differ_is_measured_in_spreads():
    plain = torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(0)).double()
    plain[..., 7] = -torch.inf  # masked in both
    assert relative_error(plain, plain) == 0
    assert relative_error(plain + 100, plain + 100.1) == pytest.approx(0.1, rel=0.2)
    assert relative_error(plain, plain.where(plain.isfinite(), 0)) == float("inf")
    plain[0, 1] = 0  # a token routed otherwise: the median of steps counts
    other = plain.clone()
    other[0, 1] = 9
    assert relative_error(plain, other) == 0


def test_more_threads_than_processors_are_refused():
    cores = os.cpu_count() or 1
    check_threads(cores)
    check_threads(None)
    with pytest.raises(PipelineError, match=rf"device.threads={cores + 1} exceeds the {cores} pro"):
        check_threads(cores + 1)


def test_digests_are_remembered_only_where_that_is_safe(tmp_path, monkeypatch):
    """Not of a file written just now, nor of one whose size and time alone stayed."""
    source, memo = tmp_path / "p.jsonl", tmp_path / "memo.json"

    def checked():
        wanted = Identity(content=file_digest(source))
        assert Identities(memo).source(str(source), None, "key") == wanted

    source.write_text("one")
    checked()
    assert not memo.exists()
    monkeypatch.setattr(identity, "SETTLED", -1)  # all files count as old
    checked()
    state = source.stat()
    source.write_text("two")
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))  # as rsync and cp -p do
    checked()
    digest = file_digest(source)
    memo.write_text(memo.read_text().replace(digest, digest[::-1]))  # damaged: made anew
    checked()


SHAPE = {
    "vocab_size": tiny.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = SHAPE | {"num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": False}
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
MADE = {  # class of the configuration, and attention
    "gpt2": ("GPT2Config", SHAPE, "sdpa"),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 4}, "sdpa"),
    "gemma2": ("Gemma2Config", GROUPED | WINDOWS, "eager"),
    "gemma3": ("Gemma3TextConfig", GROUPED | WINDOWS, "sdpa"),
    "neox": ("GPTNeoXConfig", SHAPE, "sdpa"),
    "bloom": ("BloomConfig", SHAPE, "eager"),
    "qwen3": ("Qwen3Config", GROUPED, "sdpa"),
    "mamba": ("MambaConfig", SHAPE | {"state_size": 4}, "eager"),
}
LINEAR = ("Qwen3NextConfig", GROUPED | {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
    "linear_num_value_heads": 1, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16}, "eager")  # fmt: skip
QWEN35 = ("Qwen3_5TextConfig", GROUPED | {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "sdpa")  # fmt: skip
LFM2 = ("Lfm2Config", SHAPE | {"num_key_value_heads": 1, "block_ff_dim": 40,
                               "layer_types": ["conv", "full_attention"]}, "sdpa")  # fmt: skip


def write(directory, kind, shape, attention):
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**shape)
    module = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
    tiny.save_model(module, directory, tiny.byte_tokenizer(), tiny.TEMPLATE, "<|end|>", "<|pad|>")
    return directory


class Faulty(ModelProposer):
    """Drafts what the target would say but, in some calls, for the second token."""

    def propose(self, tokens, count, position):
        draft = super().propose(tokens, count, position)
        if position % 3 == 1 and count > 1:
            draft.tokens[1] = (draft.tokens[1] + 1) % tiny.VOCABULARY
        return draft


def check_dump(directory, root, attention, atol):
    """Check that the logits stored for three padded prompts are plain ones; return the prompts."""
    prompts = tiny.prompts_node(directory, tiny.write_prompts(root / "p.jsonl", 3), count=3)
    task = tiny.dump_node(directory, prompts, attention=attention, steps=LIMIT)
    table = tiny.built(task, root).read().to_pandas()
    texts = tiny.built(prompts, root).read().to_pandas().set_index("prompt_id")["token_ids"]
    plain = AutoModelForCausalLM.from_pretrained(directory, attn_implementation=attention)
    assert len({len(prompt) for prompt in texts}) == 3
    for name, rows in table.groupby("prompt_id"):
        text = torch.tensor([[*texts[name], *rows["token_id"]]])
        with torch.inference_mode():
            logits = plain(text, use_cache=False).logits[0, len(texts[name]) - 1 : -1].numpy()
        ids, stored = (np.stack(rows[column]) for column in ("top_ids", "top_logits"))
        np.testing.assert_allclose(stored, np.take_along_axis(logits, ids, 1), atol=atol)
    return [list(prompt) for prompt in texts]


@pytest.mark.parametrize("name", sorted(set(MADE) - {"mamba", "qwen3"}))
def test_stored_logits_and_decoded_answers_are_those_of_plain_passes(name, tmp_path):
    """Answers of 24 tokens: windows of 4 are passed many times."""
    attention = MADE[name][2]
    directory = write(tmp_path / "model", *MADE[name])
    prompts = check_dump(directory, tmp_path, attention, 1e-4)
    made = load_model(tiny.used(directory, "targets.made", attention=attention))
    model = replace(made, eos=())
    refused = name in {"mistral", "gemma2", "gemma3", "bloom"}
    with pytest.raises(PipelineError, match="trees") if refused else nullcontext():
        model.check_trees()
    for prompt in prompts:
        wanted = plain_greedy(model, prompt)
        read = prefill(model, prompt, LIMIT)  # once for both
        assert greedy(model, lookup_proposer(2), read, 4).tokens == wanted
        answer = greedy(model, Faulty(model, GreedySampler()), read, 4)
        assert answer.tokens == wanted
        for call in answer.calls:  # after a fault both caches are rolled back, and right again
            assert call.accepted == (
                min(1, call.drafted) if call.position % 3 == 1 else call.drafted
            )


def test_a_model_without_key_value_cache_is_refused_from_its_config(tmp_path):
    directory = write(tmp_path / "model", *MADE["mamba"])
    (directory / "model.safetensors").unlink()
    with pytest.raises(PipelineError, match="MambaForCausalLM takes no key-value cache"):
        check_models([tiny.dump_of(tiny.used(directory, "targets.made"))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gemma3", "mistral", "qwen3"])
def test_a_cache_that_works_passes_in_every_dtype_and_a_broken_one_in_none(  # noqa: C901
    name, dtype, tmp_path, monkeypatch
):
    directory = write(tmp_path / "model", *MADE[name])
    used = tiny.used(directory, "targets.made", attention=MADE[name][2], dtype=dtype)
    kind = type(load_model(used).module)
    real = kind.forward

    def forgets_one(self, past_key_values=None, **rest):
        out = real(self, past_key_values=past_key_values, **rest)
        if past_key_values is not None:  # the token read last is no longer there
            for layer in past_key_values.layers:
                layer.values[:, :, -1] = 0
        return out

    def forgets(self, past_key_values=None, **rest):
        if past_key_values is None:
            return real(self, **rest)
        rest["attention_mask"] = rest["attention_mask"][:, -rest["input_ids"].shape[1] :]
        return real(self, **rest | {"use_cache": False})

    def counts_padding(self, past_key_values=None, **rest):
        if past_key_values is not None:
            rest["attention_mask"] = torch.ones_like(rest["attention_mask"])
        return real(self, past_key_values=past_key_values, **rest)

    def misreads_chunks(self, past_key_values=None, **rest):
        if past_key_values is not None and 1 < rest["input_ids"].shape[1] < 8:
            rest["input_ids"] = rest["input_ids"].flip(1)
        return real(self, past_key_values=past_key_values, **rest)

    others = (forgets, counts_padding, misreads_chunks) if name == "qwen3" else ()
    for wrong in (forgets_one, *others):
        monkeypatch.setattr(kind, "forward", wrong)
        with pytest.raises(PipelineError, match=r"^targets.made: tiny gives other logits a token"):
            load_model(used)


@pytest.mark.parametrize("made", [LINEAR, QWEN35, LFM2], ids=lambda made: made[0])
def test_linear_attention_is_read_but_refused_for_decoding(made, tmp_path):
    directory = write(tmp_path / "model", *made)
    used = tiny.used(directory, "targets.made", attention=made[2])
    with pytest.raises(
        PipelineError, match=r"^targets.made: tiny can't decode with drafts: .*\(LinearAttention"
    ):
        check_models([tiny.decoding_node(used, used)])
    check_models([tiny.dump_of(used)])
    check_models([tiny.drafts_of(used, used, {})])
    check_dump(directory, tmp_path, made[2], 1e-3)
