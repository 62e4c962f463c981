"""The models and prompts of the fixed study: weights are raw output of PCG64, equal everywhere."""

import json

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import logging as transformers_logging

from tests.pipeline.tiny import new_qwen3, save_model

SPECIAL = ["[unknown]", "[user]", "[end]", "[answer]"]  # ids 0 to 3; answers end with 2
WORDS = [*SPECIAL, *(a + b for a in "bdfgklmnprt" for b in "aeio")]  # 48
TEMPLATE = (
    "{%- for message in messages -%}[user] {{ message.content }}{%- endfor -%}"
    "{%- if add_generation_prompt %} [answer]{%- endif -%}"
)


def uniform(seed, shape):
    """Return float32 multiples of 2^-16 in [-1, 1)."""
    raw = np.random.PCG64(seed).random_raw(shape.numel()) >> np.uint64(47)
    return torch.from_numpy((raw.astype(np.float32) / 2**16 - 1).reshape(shape))


def write_model(directory, noise=0.0):
    """Write the model, its weights moved by a share `noise` of their size."""
    transformers_logging.disable_progress_bar()
    model = new_qwen3(len(WORDS), 32, 48, (2, 1))
    with torch.no_grad():
        for at, (name, weight) in enumerate(sorted(model.named_parameters())):
            if weight.dim() > 1:
                scale = 0.75 if "embed" in name else 0.5
                weight.copy_(uniform(at, weight.shape) + noise * uniform(100 + at, weight.shape))
                weight *= scale
        model.get_input_embeddings().weight[2] *= 0.3  # few answers end early
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    save_model(model, directory, tokenizer, TEMPLATE, "[end]", "[unknown]")
    return directory


def write_prompts(path):
    """Write prompts in UltraChat's schema, among them one of every kind that is excluded."""
    rows = []
    for at in range(9):
        text = " ".join(WORDS[4 + (7 * at + 3 * i * i) % 44] for i in range(2 + 5 * at % 9))
        rows.append({"prompt": text, "prompt_id": f"id-{at}",
                     "messages": [{"role": "user", "content": text}]})  # fmt: skip
    rows.append(rows[0] | {"prompt": "twice"})
    rows.append(rows[1] | {"prompt_id": "silent", "messages": []})
    rows.append(rows[1] | {"prompt_id": "blank", "messages": [{"role": "user", "content": " "}]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
