"""Random models of many architectures: stored logits equal a plain pass, or they are refused."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import Draft, ModelDrafter, PromptLookup
from pipeline.decoding.loop import prefill
from pipeline.errors import PipelineError
from pipeline.models.load import load_model
from pipeline.study import check_models
from tests.pipeline import tiny
from tests.pipeline.decoding.pair import CPU, greedy, plain_greedy

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
    "opt": ("OPTConfig", SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32}, "sdpa"),
    "bloom": ("BloomConfig", SHAPE, "eager"),
    "phi": ("PhiConfig", SHAPE, "sdpa"),
    "qwen2": ("Qwen2Config", SHAPE | {"num_key_value_heads": 1}, "sdpa"),
    "qwen3": ("Qwen3Config", GROUPED, "sdpa"),
    "llama": ("LlamaConfig", GROUPED, "sdpa"),
    "mamba": ("MambaConfig", SHAPE | {"state_size": 4}, "eager"),
}
LINEAR = ("Qwen3NextConfig", GROUPED | {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
    "linear_num_value_heads": 1, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16}, "eager")  # fmt: skip
LIMIT = 24


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


class Faulty(ModelDrafter):
    """Drafts what the target would say but, in some calls, for the second token."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        draft = super().propose(tokens, count, position)
        if position % 3 == 1 and count > 1:
            draft.tokens[1] = (draft.tokens[1] + 1) % tiny.VOCABULARY
        return draft


def plain_logits(plain, prompt, answer):
    """The logits (n, V) of the answer's steps, in one pass without padding or cache."""
    with torch.inference_mode():
        found = plain(torch.tensor([prompt + answer]), use_cache=False).logits[0]
    return found[len(prompt) - 1 : -1].numpy()


def check_dump(directory, root, attention, atol):
    """Check that the logits stored for three padded prompts are plain ones; return both texts."""
    prompts = tiny.prompts_node(directory, tiny.write_prompts(root / "p.jsonl", 3), count=3)
    task = tiny.dump_node(directory, prompts, attention=attention, steps=LIMIT)
    table = tiny.built(task, root).read().to_pandas()
    texts = tiny.built(prompts, root).read().to_pandas().set_index("prompt_id")["token_ids"]
    plain = AutoModelForCausalLM.from_pretrained(directory, attn_implementation=attention)
    found = {}
    assert len({len(prompt) for prompt in texts}) == 3
    for name, rows in table.groupby("prompt_id"):
        prompt, answer = list(texts[name]), list(rows["token_id"])
        logits = plain_logits(plain, prompt, answer)
        ids, stored = (np.stack(rows[column]) for column in ("top_ids", "top_logits"))
        np.testing.assert_allclose(stored, np.take_along_axis(logits, ids, 1), atol=atol)
        found[name] = (prompt, answer, logits)
    return found


@pytest.mark.parametrize("name", sorted(set(MADE) - {"mamba", "llama", "qwen3"}))
def test_stored_logits_and_decoded_answers_are_those_of_plain_passes(name, tmp_path):
    """Answers of 24 tokens: windows of 4 are passed many times."""
    attention = MADE[name][2]
    directory = write(tmp_path / "model", *MADE[name])
    texts = check_dump(directory, tmp_path, attention, 1e-4)
    made = load_model(tiny.used(directory, "targets.made", attention=attention))
    model = replace(made, eos=())
    refused = name in {"mistral", "gemma2", "gemma3", "bloom"}
    with pytest.raises(PipelineError, match="trees") if refused else nullcontext():
        model.check_trees()
    for prompt, _, _ in texts.values():
        wanted = plain_greedy(model, prompt)
        read = prefill(model, prompt, LIMIT)  # once for both
        assert greedy(model, PromptLookup(2, CPU), read, 4).tokens == wanted
        answer = greedy(model, Faulty(model, Greedy()), read, 4)
        assert answer.tokens == wanted
        for call in answer.calls:  # after a fault both caches are rolled back, and right again
            assert call.accepted == (
                min(1, call.drafted) if call.position % 3 == 1 else call.drafted
            )


def test_a_model_without_key_value_cache_is_refused_from_its_config(tmp_path):
    directory = write(tmp_path / "model", *MADE["mamba"])
    (directory / "model.safetensors").unlink()
    used = tiny.used(directory, "targets.made")
    task = tiny.dump_of(used)
    with pytest.raises(PipelineError, match="MambaForCausalLM takes no key-value cache"):
        check_models([task])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gemma3", "mistral", "qwen3", "llama"])
def test_a_cache_that_works_passes_in_every_dtype_and_a_broken_one_in_none(
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

    monkeypatch.setattr(kind, "forward", forgets_one)
    with pytest.raises(PipelineError, match=r"^targets.made: tiny gives other logits a token at"):
        load_model(used)


def test_an_attention_that_a_model_lacks_is_named(tmp_path):
    directory = write(tmp_path / "model", *MADE["bloom"])
    with pytest.raises(PipelineError, match=r"targets.made.attention=sdpa .*attention=eager$"):
        load_model(tiny.used(directory, "targets.made"))


def test_linear_attention_is_dumped_but_refused_for_drafts(tmp_path):
    directory = write(tmp_path / "model", *LINEAR)
    used = tiny.used(directory, "targets.made", attention="eager")
    with pytest.raises(
        PipelineError, match=r"^targets.made: tiny can't be used with drafts: .*\(LinearAttention"
    ):
        check_models([tiny.decoding_node(used, used)])
    check_models([tiny.dump_of(used)])
    check_dump(directory, tmp_path, "eager", 1e-3)
