"""What a call costs by the number of tokens it drafts, measured apart from any method.

The costs belong to a machine and to this loop; how many of the drafted tokens are accepted belongs
to the models (`analysis.decoding.call_costs` brings the two together).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from analysis.decoding.call_costs import LONGEST
from pipeline.decoding.loop import Prefill, TargetCall, decode
from pipeline.decoding.proposers import Proposer, TextProposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.decoding.session import DecodingSession
from pipeline.decoding.tree_drafting import Draft
from pipeline.decoding.verification import ExactMatch, Verified


class _FallingLengths(Proposer):
    """Drafts of `LONGEST` tokens, then of one less from call to call, down to none."""

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
        """Propose as many as the turn asks for, where the answer's limit leaves as many."""
        wanted = LONGEST + 1 - position  # the first call is at position 1
        return self._proposer.propose(tokens, min(count, wanted), position)


class _KnownAnswer(ExactMatch):
    """Verifies as strict greedy does, then goes on with the next token of a known answer."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(GreedySampler())
        self._tokens = tokens

    def verify(self, logits: Tensor, draft: Draft, position: int) -> Verified:
        """Accept nothing, so that each call is one token further on."""
        _, _, drafted = super().verify(logits, draft, position)
        return (), self._tokens[position], drafted


def time_calls(
    session: DecodingSession, read: Prefill, answer: Sequence[int]
) -> Sequence[TargetCall]:
    """Return one call for each draft length from `LONGEST` to 0, at a prompt that was read.

    They are calls of `decode`, with the session's drafter, or with made-up drafts if it has none.
    They follow a known answer; one of n < LONGEST + 2 tokens gives drafts of n - 2 down to 0 alone.
    """
    device = session.target.device
    proposer: Proposer = TextProposer(lambda text, count: [text[-1]] * count, device)
    if session.neural is not None:
        proposer = session.neural.proposer(GreedySampler(), None, device)
    limit = min(len(answer), LONGEST + 2, read.limit)
    with torch.inference_mode():
        return decode(
            session.target, _FallingLengths(proposer), _KnownAnswer(answer), read, LONGEST, limit
        ).calls
