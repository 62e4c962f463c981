"""Turns texts into tokens, with or without a chat template; checks vocabularies; token texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.stage import Artifact, Task
from pipeline.inputs.hub import hub_files
from pipeline.inputs.hub_commits import cached_commit
from pipeline.inputs.local_files import HUB_ID, local_path

TOKENS_NAMED = 3  # differing tokens that an error names
TOKENIZER = "tokenizer.json"
ENGINES_IDS = "the engine's"  # a log has the engine's token ids; else ids number its token texts


def encode(tokenizer: Any, text: str, template: str, *, enable_thinking: bool) -> list[int]:
    """Tokenize a user's message, with the "chat" template or, for "none", as plain text."""
    if template == "none":
        return _plain(tokenizer, text)
    messages = [{"role": "user", "content": text}]
    written = chat_text(tokenizer, messages, enable_thinking=enable_thinking)
    ids: list[int] = tokenizer(written, add_special_tokens=False)["input_ids"]
    return ids


def chat_text(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    *,
    enable_thinking: bool,
) -> str:
    """Apply the chat template; without a generation prompt the last message can be continued."""
    name = tokenizer.name_or_path
    if tokenizer.chat_template is None:
        raise PipelineError(
            f"{name}: its tokenizer has no chat template. Give prompts.template=none (plain text, "
            "for base models), take an instruction-tuned model, or add a chat_template.jinja to it"
        )
    try:
        if _ignores_messages(tokenizer):
            raise ValueError("it ignores the user's message")
        return str(
            tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                tokenize=False,
                enable_thinking=enable_thinking,
            )
        )
    except Exception as error:  # a template is a program: it can raise anything
        line = f" (line {error.lineno})" if hasattr(error, "lineno") else ""
        raise PipelineError(
            f"{name}: its chat template fails: {type(error).__name__}: {first_line(error)}{line}. "
            "Correct its chat_template, or give prompts.template=none"
        ) from error


@lru_cache(1)
def _ignores_messages(tokenizer: Any) -> bool:
    """Whether the chat template ignores messages that are strings: some read only lists."""
    chats = ([{"role": "user", "content": text}] for text in ("1", "2 3"))
    return len({tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats}) == 1


def _plain(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text with what the tokenizer puts before it (BOS), but nothing after it."""
    ids = tokenizer(text)["input_ids"]
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    added = len(ids) - len(bare)
    for begin in range(added + 1):  # some also add an end token, after which no answer would come
        if ids[begin : begin + len(bare)] == bare:
            return ids[: begin + len(bare)]
    return ids


def check_same_tokens(target: Mapping[str, int], drafter: Mapping[str, int], pair: str) -> None:
    """Check that two vocabularies, added tokens included, give every token the same id."""
    differing = {token for token, _ in target.items() ^ drafter.items()}
    wrong = sorted(differing, key=lambda token: (target.get(token, len(target)), token))
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
    """Return how many logits per position two models are compared over.

    Models pad their logits beyond the tokenizer, whose largest id is `tokens` - 1. Padding that
    both models have is compared like any token; padding that only one has is left out of its
    softmax. A token beyond the logits of both (Gemma 3 has one, for images) has no probability.

    Raises:
        PipelineError: the sizes differ, and one model has fewer logits than there are tokens.
    """
    rows = min(target, drafter)
    if target != drafter and rows < tokens:
        raise PipelineError(
            f"{pair}: their logits have {target} and {drafter} rows, and the tokenizer {tokens} "
            "tokens. Rows may differ where both models have all tokens: resize the embeddings "
            f"of one to {max(target, drafter)} rows, or take another drafter"
        )
    return rows


def token_texts(task: Task, dump: Artifact, ids: Iterable[int]) -> dict[int, str]:
    """Return the texts of tokens by id; tokens without a known text are left out.

    They come from the log if there is one that has texts, else from the target's tokenizer.
    """
    wanted = sorted(set(ids))
    if "tokens.parquet" in dump.record["files"]:
        columns = dump.read("tokens").to_pydict()
        stored = dict(zip(columns["token_id"], columns["text"], strict=True))
        return {token: stored[token] for token in wanted if token in stored}
    file = _tokenizer(task, dump)
    if file is None:
        return {}
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    texts = tokenizer.decode_batch([[token] for token in wanted], skip_special_tokens=False)
    return dict(zip(wanted, texts, strict=True))


def _tokenizer(task: Task, dump: Artifact) -> Path | None:
    """Return the tokenizer file of a target, or of a log's model; None if it is not here."""
    if task.runtime.models:
        (model,) = task.runtime.models
        path = model.settings.path
        commit = model.identity.commit
    elif dump.metadata.get("token_ids") == ENGINES_IDS:
        path = str(dump.metadata["model"])
        commit = cached_commit(path, None, "model") if HUB_ID.fullmatch(path) else None
    else:
        return None
    try:
        folder = local_path(path)
        if folder is None and commit is not None:
            folder = hub_files(path, commit, [TOKENIZER], "target")
    except PipelineError:
        return None
    file = None if folder is None else folder / TOKENIZER
    return file if file is not None and file.is_file() else None
