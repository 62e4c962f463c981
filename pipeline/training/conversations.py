"""Lets a model write questions and answer them: both in one pass, so nothing is read twice.

After the user's tag the model samples a question; where it ends one, the tokens of the chat
template follow, then its answer. The conversations of a batch begin together and leave it when
they end. All begin with the same tokens, which are run once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.models.load import LanguageModel
from pipeline.models.passes import Texts

CROWDED = 7 / 8  # of a batch: with fewer going on, the cache is worth copying without the others


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen; temperature 0 is greedy."""

    temperature: float
    top_p: float


@dataclass(frozen=True)
class Turns:
    """The tokens around a question and an answer, and how long both may be."""

    before: list[int]  # up to where the question begins
    between: list[int]  # from the end of the question to the beginning of the answer
    end: int  # ends a question and an answer
    max_question: int
    max_answer: int
    question: Sampler


@dataclass
class Conversation:
    """One question and its answer, growing."""

    tokens: list[int]
    forced: deque[int]  # tokens to come that the model does not choose
    answer: Sampler
    answer_at: int | None = None  # where the answer begins
    dropped: str | None = None  # why it is of no use
    ended: bool = False  # by the model, not for its length
    chosen: int = field(default=0)  # tokens of the turn, the forced beginning included

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return self.dropped is not None or self.ended

    def add(self, token: int, turns: Turns, refusal: Callable[[list[int]], str | None]) -> None:
        """Append a token, chosen or forced, and go to the next turn where one ends."""
        self.tokens.append(token)
        self.chosen += 1
        if self.answer_at is not None:
            self.ended = token == turns.end or self.chosen >= turns.max_answer
        elif token == turns.end and not self.forced:
            self.dropped = refusal(self.tokens[len(turns.before) : -1])
            self.forced = deque(turns.between)
            self.answer_at = len(self.tokens) + len(turns.between)
            self.chosen = -len(turns.between)
        elif self.chosen >= turns.max_question:
            self.dropped = "too long"


@torch.inference_mode()
def converse(
    model: LanguageModel,
    beginnings: Sequence[list[int]],
    answers: Sequence[Sampler],
    turns: Turns,
    refusal: Callable[[list[int]], str | None],
    generator: torch.Generator,
) -> list[Conversation]:
    """Return one conversation for each of `beginnings`, the tokens that begin its question.

    Args:
        model: writes both sides.
        beginnings: may be empty lists.
        answers: how each answer is chosen.
        turns: what is around the turns.
        refusal: says of the tokens of a finished question why it is not wanted, or None.
        generator: of the sampled tokens.
    """
    rows = [
        Conversation(list(turns.before), deque(begin), answer)
        for begin, answer in zip(beginnings, answers, strict=True)
    ]
    at = len(turns.before)
    texts = Texts(model, at + turns.max_question + len(turns.between) + turns.max_answer)
    logits = texts.read(torch.tensor([turns.before]))[:, -1].expand(len(rows), -1)
    texts.select(torch.zeros(len(rows), dtype=torch.long))
    running = list(rows)
    while True:
        for row, token in zip(running, _next(logits, running, turns, generator), strict=True):
            if not row.done:
                row.add(token, turns, refusal)
        going = [i for i, row in enumerate(running) if not row.done]
        if not going:
            return rows
        if len(going) < CROWDED * len(running):
            texts.select(torch.tensor(going))
            running = [running[i] for i in going]
        ids = torch.tensor([[row.tokens[-1]] for row in running])
        logits = texts.extend(ids)[:, -1]  # without a mask: all are equally long


def _next(
    logits: Tensor, rows: list[Conversation], turns: Turns, generator: torch.Generator
) -> list[int]:
    """Return the next token of every row, chosen from its logits (B, V) unless it is forced."""
    tokens = logits.argmax(-1)
    groups: dict[Sampler, list[int]] = {}
    for i, row in enumerate(rows):
        if not row.forced and not row.done:
            choice = turns.question if row.answer_at is None else row.answer
            groups.setdefault(choice, []).append(i)
    for choice, members in groups.items():
        if choice.temperature > 0:
            tokens[members] = draw_nucleus(logits[members], choice, generator)
    return [
        row.forced.popleft() if row.forced and not row.done else token
        for row, token in zip(rows, tokens.tolist(), strict=True)
    ]


def draw_nucleus(logits: Tensor, choice: Sampler, generator: torch.Generator) -> Tensor:
    """Return a token (B,) of each row of `logits` (B, V), from its nucleus of mass top_p."""
    p = torch.softmax(logits.double() / choice.temperature, -1)
    p, ids = p.topk(min(2048, p.shape[-1]), -1)  # ample: what lies beyond is never drawn
    p = p.masked_fill(p.cumsum(-1) - p >= choice.top_p, 0)
    drawn = torch.multinomial(p, 1, generator=generator)
    return ids.gather(-1, drawn)[:, 0]
