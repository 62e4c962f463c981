"""A published GGUF file: what is known of its model."""

from __future__ import annotations

import pytest
import torch

from pipeline.hub import SMOLLM2
from pipeline.models.load import load_model, load_tokenizer
from tests.pipeline import tiny


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs python -m tools.smollm2")
def test_real_model() -> None:
    """What is known of SmolLM2: its digits, its template, and that it continues a known text."""
    tokenizer = load_tokenizer(str(SMOLLM2), None, "k")
    assert tokenizer.tokenize("  12") == ["ĠĠ", "1", "2"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    model = load_model(tiny.used(SMOLLM2, "k"))
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.inference_mode():
        assert tokenizer.decode(model.module(input_ids=ids).logits[0, -1].argmax()) == " Paris"
