"""Measures what a target call costs at each draft length, without any method.

Costs depend on the machine and on this loop, acceptance on the models.
`analysis.decoding.predicted_speed` predicts speeds from both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from analysis.decoding.predicted_speed import MAX_DRAFT_LENGTH
from pipeline.decoding.loop import Answer, Prefill, decode
from pipeline.decoding.proposers import Proposer, TextProposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.decoding.session import DecodingSession
from pipeline.decoding.tree_drafting import Draft
from pipeline.decoding.verification import ExactMatch, Verified


class _FallingLengths(Proposer):
    """Drafts `MAX_DRAFT_LENGTH` tokens in the first call, then one less in each call, down to 0."""

    def __init__(self, proposer: Proposer) -> None:
        super().__init__(proposer.device)
        self.layers = proposer.layers
        self._proposer = proposer

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt."""
        self._proposer.begin(prompt, capacity, hidden)

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Roll back."""
        self._proposer.accept(length, path, hidden)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Draft as many tokens as it is this call's turn for, or as the answer has room for."""
        wanted = MAX_DRAFT_LENGTH + 1 - position  # the first call is at position 1
        return self._proposer.propose(tokens, min(count, wanted), position)


class _KnownAnswer(ExactMatch):
    """Does the work of strict greedy verification, but emits the next token of a known answer."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(GreedySampler())
        self._tokens = tokens

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept nothing, so that each call is one token further on."""
        _, _, drafted = super().verify(logits, draft, position)
        return (), self._tokens[position], drafted


def time_calls(session: DecodingSession, prefill: Prefill, answer: Sequence[int]) -> Answer:
    """Time one call at each draft length, from `MAX_DRAFT_LENGTH` down to 0, after a prefill.

    The answer that is returned has these calls, and the drafter's pass over the prompt.
    `decode` makes the calls, with the session's drafter, or with made-up drafts if it has none.
    They follow a known answer; if it has n < MAX_DRAFT_LENGTH + 2 tokens, lengths start at n - 2.
    """
    device = session.target.device
    proposer: Proposer = TextProposer(lambda text, count: [text[-1]] * count, device)
    if session.neural is not None:
        proposer = session.neural.proposer(GreedySampler(), None, device)
    limit = min(len(answer), MAX_DRAFT_LENGTH + 2, prefill.limit)
    with torch.inference_mode():
        return decode(
            session.target,
            _FallingLengths(proposer),
            _KnownAnswer(answer),
            prefill,
            MAX_DRAFT_LENGTH,
            limit,
        )
