"""The repositories of the paper's study, small: Qwen3 models of 151,936 tokens, and UltraChat."""

from __future__ import annotations

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


def paper(tokenizer: Path | None = None) -> list[Repository]:
    """Return the repositories of the paper's study.

    Args:
        tokenizer: a directory with tokenizer.json and tokenizer_config.json of Qwen3; without it
            the models have a small one, which counts a token a character or two.
    """
    return [*(model(name, tokenizer) for name in MODELS), ultrachat()]


def ultrachat() -> Repository:
    """Return a data set in the layout of UltraChat 200k: four splits, below data/, and a card."""
    lines = ["---", "language:", "- en", "configs:", "- config_name: default", "  data_files:"]
    for split in SPLITS:
        lines += [f"  - split: {split}", f"    path: data/{split}-*"]
    lines += ["dataset_info:", "  features:", "  - name: prompt", "    dtype: string",
              "  - name: prompt_id", "    dtype: string", "  - name: messages", "    list:",
              "    - name: content", "      dtype: string", "    - name: role",
              "      dtype: string", "  splits:"]  # fmt: skip
    for split, (count, rows) in SPLITS.items():
        lines += [f"  - name: {split}", "    num_bytes: 1", f"    num_examples: {count * rows}"]
    files = {"README.md": "\n".join([*lines, "---", "# UltraChat, small", ""]).encode()}
    for split, (count, rows) in SPLITS.items():
        for part in range(count):
            path = f"data/{split}-{part:05}-of-{count:05}-0123456789abcdef.parquet"
            files[path] = _parquet([_row(split, part * rows + at) for at in range(rows)])
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


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, row_group_size=16)
    return buffer.getvalue()


def model(name: str, tokenizer: Path | None = None) -> Repository:
    """Return a random Qwen3 of 151,936 tokens; Qwen3-4B's weights lie in shards.

    The drafter is the 1.7B with noise, so that some of what it drafts is accepted.
    """
    import torch

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
        _write_tokenizer(folder, tokenizer)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Repository("models", name, {"README.md": f"# {name}, small\n".encode(), **files})


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


def _write_tokenizer(folder: Path, tokenizer: Path | None) -> None:
    if tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tokenizer / name).read_bytes())
        return
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([PROSE], trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0],
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
