"""Conversations and texts of lm-evaluation-harness as text and as tokens of a model."""

from __future__ import annotations

from typing import Any


def chat_text(
    tokenizer: Any,
    chat_history: list[dict[str, str]],
    add_generation_prompt: bool = True,
    *,
    enable_thinking: bool,
) -> str:
    """Return a conversation as text, up to where the next answer begins."""
    return str(
        tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            enable_thinking=enable_thinking,
        )
    )


def text_tokens(tokenizer: Any, text: str, *, special: bool | None = None) -> list[int]:
    """Return the tokens of a text.

    Args:
        tokenizer: a tokenizer of transformers.
        text: what a chat template wrote, or plain text.
        special: whether tokens that begin a text are added; None: where there is no chat template,
            which writes those that it wants, and the text has none.
    """
    bos = tokenizer.bos_token
    if special is None:
        special = tokenizer.chat_template is None and not (bos and text.startswith(bos))
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])
