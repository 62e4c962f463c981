"""Texts as the tokens that a model reads, by chat template or as they are; the texts of tokens."""

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

TOKENS_NAMED = 3  # differing tokens that are named
TOKENIZER = "tokenizer.json"
ENGINES_IDS = "the engine's"  # token ids of a log, else they number its texts


def encode(tokenizer: Any, text: str, template: str, *, enable_thinking: bool) -> list[int]:
    """Return a user's message as tokens: by the tokenizer's "chat" template, or "none", plain."""
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
    """Return messages by the chat template; without a generation prompt the last one goes on."""
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
    """Whether the chat template writes two messages alike: some read lists of parts alone."""
    asked = ([{"role": "user", "content": text}] for text in ("1", "2 3"))
    return len({tokenizer.apply_chat_template(each, tokenize=False) for each in asked}) == 1


def _plain(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, after the tokenizer's beginning of a text (BOS)."""
    ids = tokenizer(text)["input_ids"]
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    added = len(ids) - len(bare)
    for begin in range(added + 1):  # some end a text, too, after which no answer is to come
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
    """Return over how many rows of logits two models with so many are compared.

    Models pad their logits beyond the tokenizer, whose largest id is `tokens` - 1. Rows that both
    have are compared like any other; rows that one has alone are left out of its softmax. Tokens
    beyond the rows of both (Gemma 3 has one, for images) are given probability by neither.
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
    """Return the text of tokens by id, of those that are known.

    Without the target's tokenizer only the texts are known that a log has.
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
    """Return the file of the tokenizer of a target, or of a log's model; None if not at hand."""
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
