"""Texts as the tokens that a model reads: by its tokenizer's chat template, or as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, first_line
from pipeline.hub import local_path

TOKENS_NAMED = 3  # differing tokens that are named
_tried: dict[str, bool] = {}  # whether a template's tokens change with the message


class FileTokenizer:
    """A tokenizer read from its files alone: transformers, which imports torch, takes seconds.

    Its counts may differ from those of transformers by a few tokens, where that patches a file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Read the files in `folder`; `name` is printed in errors.

        Raises:
            Exception: it has no tokenizer.json, or its template needs more than is here.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        self.name_or_path = name
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {}
        with suppress(OSError):
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        with suppress(OSError):
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self.chat_template = template
        made = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        special = {
            key: token["content"] if isinstance(token, dict) else token
            for key, token in settings.items()
            if key.endswith("_token")
        }
        self._template = made.from_string(template or "", globals=special)
        if template is not None:
            _listens(self, enable_thinking=False)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the `input_ids` of a text."""
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids}

    def get_vocab(self) -> dict[str, int]:
        """Return token to id, added tokens included."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, tokenize: bool, **options: Any
    ) -> Any:
        """Return the text of messages, or its tokens."""
        text = self._template.render(messages=messages, **options)
        return self(text, add_special_tokens=False)["input_ids"] if tokenize else text


def file_tokenizer(path: str) -> FileTokenizer | None:
    """Return the tokenizer of a local model; None where its files do not suffice."""
    folder = local_path(path)
    try:
        return None if folder is None else FileTokenizer(folder, path)
    except Exception:  # libraries raise many kinds: who loads the model says what is wrong
        return None


def encode(tokenizer: Any, text: str, template: str, *, enable_thinking: bool) -> list[int]:
    """Return the tokens of a user's message, up to where the answer begins.

    Args:
        tokenizer: a tokenizer of transformers.
        text: of the message.
        template: "chat", the tokenizer's own; or "none", plain text.
        enable_thinking: passed to the chat template.

    Raises:
        PipelineError: the tokenizer has no chat template, or it does not work.
    """
    if template == "none":
        return _plain(tokenizer, text)
    messages = [{"role": "user", "content": text}]
    return encode_chat(tokenizer, messages, enable_thinking=enable_thinking)


def encode_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, enable_thinking: bool
) -> list[int]:
    """Return the tokens of messages by the chat template, up to where the next answer begins.

    Raises:
        PipelineError: the tokenizer has no chat template, or it does not work.
    """
    if tokenizer.chat_template is None:
        raise PipelineError(no_template(tokenizer))
    try:
        if not _listens(tokenizer, enable_thinking):
            raise ValueError("it ignores the user's message")
        ids: list[int] = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=enable_thinking,
        )
        return ids
    except Exception as error:  # a template is a program: it can raise anything
        line = f" (line {error.lineno})" if hasattr(error, "lineno") else ""
        raise PipelineError(
            f"{tokenizer.name_or_path}: its chat template fails: {type(error).__name__}: "
            f"{first_line(error)}{line}. Correct its chat_template, or give prompts.template=none"
        ) from error


def no_template(tokenizer: Any) -> str:
    """Return the remedy for a tokenizer without a chat template."""
    return (
        f"{tokenizer.name_or_path}: its tokenizer has no chat template. Give "
        "prompts.template=none (plain text, for base models), take an instruction-tuned "
        "model, or add a chat_template.jinja to it"
    )


def _listens(tokenizer: Any, enable_thinking: bool) -> bool:
    """Whether the chat template contains the user's message; tried once a template."""
    template = str(tokenizer.chat_template)
    if template not in _tried:
        first, second = (
            tokenizer.apply_chat_template(
                [{"role": "user", "content": message}],
                add_generation_prompt=True,
                tokenize=False,  # a small vocabulary may have neither word
                enable_thinking=enable_thinking,
            )
            for message in ("1", "2 3")
        )
        _tried[template] = first != second
    return _tried[template]


def _plain(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, after the tokenizer's beginning of a text (BOS)."""
    ids, bare = tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]
    added = len(ids) - len(bare)
    for begin in range(added + 1):  # some end a text, too, after which no answer is to come
        if ids[begin : begin + len(bare)] == bare:
            return ids[: begin + len(bare)]
    return ids


def check_same_tokens(target: Mapping[str, int], drafter: Mapping[str, int], pair: str) -> None:
    """Check that two tokenizers give every token the same id.

    Args:
        target: token to id, added tokens included.
        drafter: the same of the drafter.
        pair: the two models, for the error.

    Raises:
        PipelineError: they do not; names a few of the tokens.
    """
    wrong = sorted(
        (
            token
            for token in target.keys() | drafter.keys()
            if target.get(token) != drafter.get(token)
        ),
        key=lambda token: (target.get(token, len(target)), token),
    )
    if wrong:
        named = "; ".join(
            f"{token!r} is {target.get(token, 'missing')} and {drafter.get(token, 'missing')}"
            for token in wrong[:TOKENS_NAMED]
        )
        raise PipelineError(
            f"{pair}: their tokenizers differ in {len(wrong)} tokens ({named}). A KL divergence "
            "and a rank compare probabilities of the same token: take a drafter with the "
            "target's tokenizer, or none at all: drafter=none"
        )


def common_rows(target: int, drafter: int, tokens: int, pair: str) -> int:
    """Return over how many rows of logits the two models are compared.

    Models pad their logits beyond the tokenizer. Rows that both have are compared like any
    other: either model may give them probability. Rows that one of two padded models has alone
    are left out of its softmax; the stage records how much probability they had. Tokens beyond the
    rows of both (Gemma 3 has one, for images) are given probability by neither.

    Args:
        target: length of a row of the target's logits.
        drafter: length of a row of the drafter's.
        tokens: one more than the largest id of the tokenizer.
        pair: the two models, for the error.

    Raises:
        PipelineError: the models have different numbers of rows, and one has fewer than the
            tokenizer, or only one is padded.
    """
    if target == drafter:
        return target
    if min(target, drafter) < tokens:
        raise PipelineError(
            f"{pair}: their logits have {target} and {drafter} rows and the "
            f"tokenizer {tokens} tokens: a model lacks some of its tokens"
        )
    if min(target, drafter) == tokens:
        raise PipelineError(
            f"{pair}: their logits have {target} and {drafter} rows; rows beyond the tokenizer's "
            f"{tokens} tokens are allowed when both models have them. Resize the embeddings of "
            f"the one without to {max(target, drafter)} rows, or take another drafter"
        )
    return min(target, drafter)
