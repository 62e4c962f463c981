"""Whether a target and a drafter speak of the same tokens, and over which rows of logits."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import PipelineError

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
