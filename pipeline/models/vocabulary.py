"""Whether a target and a drafter speak of the same tokens, and over which rows of logits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conf.schema import Model
from pipeline.errors import PipelineError, first_line
from pipeline.store.identity import TOKENIZER_FILES, Identities, hub_files, local_path

TOKENS_NAMED = 3  # differing tokens that are named


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


def check_pair(
    target: tuple[str, Model], drafter: tuple[str, Model], identities: Identities
) -> None:
    """Check, before anything is computed, that two models have the same tokens.

    Equal files need no look. Of unequal ones tokenizer.json is compared; a model without one is
    left to the stage drafts, which loads both tokenizers before any model.

    Args:
        target: configuration key and model.
        drafter: the same of the drafter.
        identities: of the files.

    Raises:
        PipelineError: the tokens differ, or a file can't be fetched.
    """
    both = [(key, model, f"{key}.path") for key, model in (target, drafter)]
    first, second = (
        identities.tokenizer(model.path, model.revision, key) for _, model, key in both
    )
    if first == second:
        return
    ours, theirs = (
        read_tokens(
            local_path(model.path)
            or hub_files(model.path, model.revision, list(TOKENIZER_FILES), key)
        )
        for _, model, key in both
    )
    if ours is not None and theirs is not None:
        check_same_tokens(
            ours, theirs, " and ".join(f"{key}={model.path}" for _, model, key in both)
        )


def read_tokens(folder: Path) -> dict[str, int] | None:
    """Return token to id of the tokenizer.json in `folder`, or None when there is none.

    Raises:
        PipelineError: it can't be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        vocab = read["model"]["vocab"]
        if isinstance(vocab, list):  # of a unigram model: token and score, in the order of the ids
            vocab = {token: index for index, (token, _) in enumerate(vocab)}
        return vocab | {added["content"]: added["id"] for added in read.get("added_tokens", [])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path} is no tokenizer that can be read: {type(error).__name__}: "
            f"{first_line(error)}. Fetch or export it again"
        ) from error


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
