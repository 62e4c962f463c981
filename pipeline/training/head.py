"""The loss of a head on its target's hidden states, its first weights, and how well it drafts.

Training-time test, after EAGLE-3 (arXiv 2503.01840): beyond depth 1 the head reads its own output
for the tokens before, as it will when it drafts. The loss of a depth is the cross-entropy to the
target's distribution, and the distance of the normed output to the target's last hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.heads.feature_head import FeatureHead, GivenText
from pipeline.models.language_model import LanguageModel
from pipeline.training.features import Example

FIRST = 40, 128  # tokens of an answer
DRAFT_LENGTH = 2
BEST = "tokens a call"  # on average of both


def drafted_tokens(examples: Sequence[Example], size: int, always: Sequence[int]) -> Tensor:
    """Return the ids of the `size` most frequent tokens, `always` among them, in their order."""
    tokens = torch.cat([example.tokens for example in examples])
    counts = torch.bincount(tokens, minlength=1 + max(always, default=0))
    counts[list(always)] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def embedding_and_projection(target: LanguageModel) -> tuple[Tensor, Tensor]:
    """Return the weights (V, d) of the target's embedding and of its output projection."""
    module = target.module
    return module.get_input_embeddings().weight, module.get_output_embeddings().weight


def final_norm(target: LanguageModel) -> Tensor:
    """Return the weight (d,) of the target's final norm."""
    weight: Tensor = target.module.model.norm.weight
    return weight


def initial(head: FeatureHead, target: LanguageModel) -> None:
    """Let `head` begin as the target's own last layer would go on: its features, its norm.

    Args:
        head: it norms each state (`fc_norm`), and the last of them is after all layers.
        target: that it drafts for.
    """
    norm = final_norm(target)
    with torch.no_grad():
        head.fc.weight.normal_(std=0.02 / head.fc.in_features**0.5)
        head.fc.weight[:, -len(norm) :] += torch.eye(len(norm))
        head.norm.weight.copy_(norm)
        for small in (head.midlayer.self_attn.o_proj, head.midlayer.mlp.down_proj):
            small.weight.mul_(0.1)


class HeldOut:
    """Conversations to measure a head on: its agreement, and its tokens a call when it drafts."""

    def __init__(self, examples: Sequence[Example], target: LanguageModel, drafted: Tensor) -> None:
        """Compute the argmax of `target` after every token; heads draft the tokens `drafted`."""
        self._examples, self._drafted = examples, drafted
        self._embedding, self._projection = embedding_and_projection(target)
        self._norm = final_norm(target)
        self._choices = [
            _argmax(example.hidden[:, -1].float(), self._projection) for example in examples
        ]

    @torch.no_grad()
    def measured(self, head: FeatureHead, depth: int) -> dict[str, float]:
        """Return statistics of the first 40 and the first 128 tokens of the answers, by name.

        `share D of first N`: at depth D of a draft the head's argmax is the target's.
        `tokens a call, first N`: with drafts of two, as in decoding the answers: a
        drafted token is read as the text's where it is accepted, so one pass over the given text
        tells which drafts would have been. The first token of an answer is the prompt's.
        """
        rows = self._projection[self._drafted]
        agreed = []  # by answer: (depth, tokens but the first)
        for begin in range(0, len(self._examples), 8):
            some = self._examples[begin : begin + 8]
            ids, hidden = _padded(some)
            outputs = _outputs(head, self._embedding[ids], hidden, self._norm, depth)
            drafts = [
                self._drafted[_argmax(head.before_projection(output), rows)] for output in outputs
            ]
            for row, example in enumerate(some):
                part = slice(example.answer_at, len(example.tokens) - 1)
                choices = self._choices[begin + row][part]
                agreed.append(torch.stack([draft[row, part] == choices for draft in drafts]))
        statistics = {}
        for first in FIRST:
            for d in range(depth):
                there = torch.cat([agreement[d, d : first - 1] for agreement in agreed])
                statistics[f"share {d + 1} of first {first}"] = float(there.float().mean())
            calls = [
                tokens_and_calls(agreement[:DRAFT_LENGTH, : first - 1]) for agreement in agreed
            ]
            tokens, made = (sum(column) for column in zip(*calls, strict=True))
            statistics[f"tokens a call, first {first}"] = tokens / max(made, 1)
        statistics[BEST] = sum(
            statistics[f"tokens a call, first {first}"] for first in FIRST
        ) / len(FIRST)
        return statistics


def tokens_and_calls(agreed: Tensor) -> tuple[int, int]:
    """Return the tokens and calls of decoding an answer after its first token.

    Args:
        agreed: (depth, n) whether the draft of token j is the target's at each depth.

    Examples:
        >>> tokens_and_calls(torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1]]))
        (4, 2)
    """
    depth, n = agreed.shape
    at = calls = 0
    while at < n:
        accepted = 0
        while accepted < depth and at + accepted < n and agreed[accepted, at + accepted]:
            accepted += 1
        at += accepted + 1
        calls += 1
    return n, calls


def _argmax(states: Tensor, rows: Tensor) -> Tensor:
    """Return the row of (m, d) with the largest product with each state (..., d)."""
    return (states @ rows.T).argmax(-1)


def loss(
    head: FeatureHead,
    target: LanguageModel,
    drafted: Tensor,
    examples: Sequence[Example],
    *,
    depth: int,
    step: int,
    recipe: Any,
) -> Tensor:
    """Return cross-entropy to the target's distribution and distance to its hidden states.

    Depth 1 learns from all tokens, the others from those of answers. Of the tokens that can't be
    drafted some are drawn, and stand for all of them.
    """
    ids, hidden = _padded(examples)
    following, lengths = hidden[:, :, -1], [len(example.tokens) for example in examples]
    # the hidden state of the first token is an attention sink: the second learns nothing from it
    real = _between([2] * len(lengths), lengths, ids.shape[1])
    embedding, projection = embedding_and_projection(target)
    others = torch.ones(len(projection)).index_fill(0, drafted, 0).nonzero()[:, 0]
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    some = others[torch.randint(len(others), (recipe.others,), generator=generator)]
    rows = projection[torch.cat([drafted, some])]
    stand_for = torch.zeros(len(rows))
    stand_for[len(drafted) :] = np.log(len(others) / recipe.others)
    with torch.no_grad():
        p = (following[real] @ rows.T + stand_for).softmax(-1)
    scale = following[real].std()
    begins, ends = ([example.answer_at - 1 for example in examples], [n - 1 for n in lengths])
    in_answer = _between(begins, ends, ids.shape[1])  # what follows is a token of the answer
    total = torch.zeros(())
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
        outputs = _outputs(head, embedding[ids], hidden, final_norm(target), depth)
    for d, features in enumerate(outputs):
        learned = real if d == 0 else real & in_answer
        made = head.before_projection(features.float())[learned]
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            logits = made @ rows.T
        log_q = (logits.float() + stand_for).log_softmax(-1)
        soft = -((p if d == 0 else p[learned[real]]) * log_q).sum(-1)
        near = functional.smooth_l1_loss(made / scale, following[learned] / scale)
        total = total + 0.8**d * (soft.mean() + recipe.feature_weight * near)
    return total


def _outputs(
    head: FeatureHead, embedded: Tensor, hidden: Tensor, norm: Tensor, depth: int
) -> list[Tensor]:
    """Return the outputs of all depths; padding comes last, and no real token attends to it.

    The last of the hidden states is after the target's final norm of weight `norm`. The head reads
    it before that norm, and norms it itself: norm(norm(h) / weight) = norm(h).
    """
    last = hidden[:, :, -1:] / norm
    hidden = torch.cat([hidden[:, :, :-1], last], 2)
    at = torch.arange(embedded.shape[1]).expand(embedded.shape[:2])
    return GivenText(head, depth).read(embedded, hidden, at, at >= 0)


def _padded(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Return tokens (B, n) and the hidden states after them."""
    pad = nn.utils.rnn.pad_sequence
    tokens = pad([example.tokens for example in examples], batch_first=True)
    return tokens, pad([example.hidden.float() for example in examples], batch_first=True)


def _between(firsts: Sequence[int], lasts: Sequence[int], width: int) -> Tensor:
    """Return (B, width) true from the first to before the last column of each row."""
    at = torch.arange(width)
    return (at >= torch.tensor(firsts)[:, None]) & (at < torch.tensor(lasts)[:, None])
