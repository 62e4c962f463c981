"""The repositories of the paper's study, small: Qwen3 models of 151,936 tokens, and UltraChat."""

import hashlib
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.hub import Repository

VOCABULARY = 151_936
MODELS = {"Qwen/Qwen3-0.6B": 0, "Qwen/Qwen3-1.7B": 1, "Qwen/Qwen3-4B": 2}  # and their seeds
SHARDED = "Qwen/Qwen3-4B"
ULTRACHAT = "HuggingFaceH4/ultrachat_200k"
SPLITS = {"train_sft": (3, 40), "test_sft": (1, 12), "train_gen": (2, 12), "test_gen": (1, 12)}
CHAT = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and not enable_thinking -%}<think>\n\n</think>\n\n"
    "{%- endif -%}{%- endif -%}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
PROSE = (
    "the river town keeps its old bridge open for carts and people who walk to market each day "
    "while children learn letters from a teacher that writes short songs about weather and bread"
)
WORDS = PROSE.split()


def paper() -> list[Repository]:
    """Return the repositories of the paper's study; a token is a character or two."""
    return [*map(model, MODELS), ultrachat()]


def ultrachat() -> Repository:
    """Return a data set in the layout of UltraChat 200k: four splits, below data/, and a card."""
    files = {"README.md": b"---\nlicense: mit\n---\n# UltraChat, small\n"}
    for split, (count, rows) in SPLITS.items():
        for part in range(count):
            path = f"data/{split}-{part:05}-of-{count:05}-0123456789abcdef.parquet"
            table = pa.Table.from_pylist([_row(split, part * rows + at) for at in range(rows)])
            buffer = io.BytesIO()
            pq.write_table(table, buffer, row_group_size=16)
            files[path] = buffer.getvalue()
    return Repository("datasets", ULTRACHAT, files)


def _row(split: str, at: int) -> dict[str, Any]:
    words = [WORDS[(at * 7 + step * (1 + at % 5)) % len(WORDS)] for step in range(80 + at % 40)]
    text = f"Question {at} of {split}: {' '.join(words)}?"
    turns = [(text, "user"), ("An answer.", "assistant"), ("Go on.", "user"), ("So.", "assistant")]
    return {
        "prompt": text,
        "prompt_id": hashlib.sha256(text.encode()).hexdigest(),
        "messages": [{"content": content, "role": role} for content, role in turns],
    }


def model(name: str) -> Repository:
    """Return a random Qwen3 of 151,936 tokens; Qwen3-4B's weights lie in shards.

    The drafter is the 1.7B with noise, so that some of what it drafts is accepted.
    """
    import torch
    from transformers import PreTrainedTokenizerFast

    from tests.pipeline.tiny import byte_tokenizer

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        module = _module(seed=max(MODELS[name], 1))
        if MODELS[name] == 0:
            torch.manual_seed(0)
            with torch.no_grad():
                for weight in module.parameters():
                    weight += 0.1 * weight.std() * torch.randn_like(weight)
        module.to(torch.bfloat16)
        module.save_pretrained(folder, max_shard_size="1MB" if name == SHARDED else "1GB")
        made = byte_tokenizer(PROSE, 400, SPECIAL)
        fast = PreTrainedTokenizerFast(
            tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0],
            clean_up_tokenization_spaces=False,
        )  # fmt: skip
        fast.chat_template = CHAT
        fast.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Repository("models", name, files)


def _module(seed: int) -> Any:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    module = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, intermediate_size=16,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True,
        max_position_embeddings=2048, bos_token_id=None, eos_token_id=2, pad_token_id=0,
        dtype="bfloat16",
    ))  # fmt: skip
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=2.0 if "embed" in name else 0.7)
    module.generation_config = GenerationConfig(
        eos_token_id=[2, 0], pad_token_id=0, do_sample=True, temperature=0.6, top_k=20, top_p=0.95
    )
    return module
