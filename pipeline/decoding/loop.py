"""The decoding loop, one for all methods: draft, verify, accept, roll back, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.decoding.laws import leading
from analysis.trees.topology import ROOT, Topology
from pipeline.decoding.choices import BrokenLogitsError
from pipeline.decoding.drafters import Draft, Drafter, room
from pipeline.decoding.shapes import verification
from pipeline.decoding.verifiers import Verifier
from pipeline.errors import PipelineError
from pipeline.execution.stopwatch import Mark, mark, seconds_between
from pipeline.models.devices import send
from pipeline.models.fixed_passes import Passes, TreePass
from pipeline.models.load import LanguageModel
from pipeline.models.passes import Text


class Level(NamedTuple):
    """The tested children of one node of a tree."""

    children: int
    accepted: int  # the sibling index of the accepted one, from 1; 0 is none


@dataclass(frozen=True)
class TargetCall:
    """One call of the target: what was drafted, tested, accepted, emitted, and how long it took."""

    position: int  # of the first drafted token in the answer
    drafted: int
    depth: int  # drafted tokens in a row: of a chain all of them
    reach: int  # of these, those before one that would end the answer: emitted is at most one more
    tested: int  # of a tree, levels: as many as were accepted, and the one where none was
    accepted: int
    emitted: int
    levels: tuple[Level, ...]  # of a tree, those tested
    draft_seconds: float = 0.0  # these are known at the end of the answer
    verify_seconds: float = 0.0  # the target's pass
    other_seconds: float = 0.0  # the law, roll-back, bookkeeping


@dataclass
class Answer:
    """A decoded answer and the calls that made it; the first token comes from the prompt's pass."""

    tokens: list[int] = field(default_factory=list)
    calls: list[TargetCall] = field(default_factory=list)
    first_seconds: float = 0.0  # until the first token
    begin_seconds: float = 0.0  # the drafter's pass over the prompt
    ended: bool = False  # by the model, not by the limit

    @property
    def seconds(self) -> float:
        """All the time it took."""
        calls = (c.draft_seconds + c.verify_seconds + c.other_seconds for c in self.calls)
        return self.first_seconds + self.begin_seconds + sum(calls)


@dataclass
class Run:
    """The state of one decoding."""

    target: Text
    drafter: Drafter
    verifier: Verifier
    draft_length: int
    limit: int
    text: list[int]  # prompt and answer
    prompt: int  # tokens of the prompt
    marks: list[Mark] = field(default_factory=list)  # when parts of the work ended
    answer: Answer = field(default_factory=Answer)

    @property
    def position(self) -> int:
        """Position of the next token in the answer."""
        return len(self.text) - self.prompt

    def mark(self) -> None:
        """Note when the part of the work ends that began at the last mark."""
        self.marks.append(mark(self.target.model.device))

    def tree_pass(self, draft: Draft) -> TreePass | None:
        """Return how the target reads the last token of the text and a draft; None as a chain."""
        if draft.tree is None:
            return None
        model = self.target.model
        return verification(draft.tree, model.device, model.module.dtype)

    def emit(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the one that ends the answer; return how many."""
        ends = self.target.model.eos
        for at, token in enumerate(tokens, start=1):
            if token in ends:
                self.answer.ended = True
                tokens = tokens[:at]
                break
        self.text += tokens
        return len(tokens)


@torch.inference_mode()
def decode(
    target: LanguageModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    draft_length: int,
    limit: int,
    passes: Passes | None = None,
) -> Answer:
    """Decode an answer of at most `limit` tokens to `prompt`.

    With `passes` of the target, the shapes of its passes are fixed; else they grow.

    Raises:
        PipelineError: the prompt is empty, or does not fit into the target's context with the
            answer, or has tokens that the target lacks; logits of the target or of the drafter are
            NaN or +inf.
    """
    check_prompt(target, prompt, limit)
    capacity = len(prompt) + limit + room(drafter.tree)
    longest = 1 + max(draft_length, 0 if drafter.tree is None else len(drafter.tree))
    run = Run(
        Text(target, capacity, drafter.layers, longest, passes),
        drafter,
        verifier,
        draft_length,
        limit,
        list(prompt),
        len(prompt),
    )
    try:
        read_prompt(run)
        while not run.answer.ended and run.position < limit:
            step(run)
    except BrokenLogitsError as error:
        raise broken_logits(run, str(error)) from None
    run.answer.tokens = run.text[run.prompt :]
    note_seconds(run.answer, run.marks)
    return run.answer


def read_prompt(run: Run) -> None:
    """Let the target read the prompt and emit the first token; then the drafter reads it."""
    run.mark()
    ids = send(run.text, run.target.model.device)
    logits = run.target.read(ids)
    first = run.verifier.verify(logits, Draft(ids[:0], logits[:0]), run.position)
    run.emit([first.token])
    run.mark()
    run.drafter.begin(ids, run.prompt + run.limit, run.target.hidden)
    run.mark()


def step(run: Run) -> None:
    """Draft, verify in one pass of the target, accept a path, roll both caches back, emit."""
    position, known = run.position, len(run.text)
    count = min(run.draft_length, run.limit - position - 1)  # in a row; the call emits one more
    draft = run.drafter.propose(run.text, count, position)
    run.mark()

    last = send(run.text[-1:], draft.tokens.device)
    logits = run.target.extend(torch.cat([last, draft.ids]), run.tree_pass(draft))
    run.mark()

    verdict = run.verifier.verify(logits, draft, position)
    run.target.keep(known, verdict.path)
    tokens = verdict.drafted
    accepted = [tokens[at] for at in verdict.path]
    emitted = run.emit([*accepted, verdict.token])
    run.drafter.accept(known, verdict.path, run.target.hidden_after(verdict.path))
    # what follows the token that ends the answer was never tested
    run.answer.calls.append(
        TargetCall(
            position,
            len(tokens),
            len(tokens) if draft.tree is None else draft.tree.depth,
            reach(draft.tree, ~np.isin(tokens, run.target.model.eos)),
            min(verdict.tested, emitted),
            min(len(accepted), emitted),
            emitted,
            tested_levels(draft.tree, verdict.path)[:emitted],
        )
    )
    run.mark()


def note_seconds(answer: Answer, marks: Sequence[Mark]) -> None:
    """Set the seconds of an answer and of its calls, of which each has three marks."""
    answer.first_seconds, answer.begin_seconds, *of_calls = seconds_between(marks)
    answer.calls = [
        replace(call, draft_seconds=draft, verify_seconds=verification, other_seconds=other)
        for call, draft, verification, other in zip(
            answer.calls, of_calls[::3], of_calls[1::3], of_calls[2::3], strict=True
        )
    ]


def broken_logits(run: Run, model: str) -> PipelineError:
    """Return the error for logits of the target or the drafter from which nothing can be chosen."""
    label = run.target.model.label if model == "target" else "the drafter"
    return PipelineError(
        f"{label}: NaN or infinite logits at position {run.position} of the answer, or all tokens "
        f"masked: compute in float32 or bfloat16 ({'targets.*' if model == 'target' else model}"
        ".dtype), and check its weights"
    )


def reach(tree: Topology | None, goes_on: NDArray[np.bool_]) -> int:
    """Return the most drafted tokens in a row of which none ends the answer.

    Args:
        tree: its shape; None is a chain.
        goes_on: (n,) whether each drafted token leaves the answer open.
    """
    if tree is None:
        return leading(goes_on)
    reached = [0] * (len(tree) + 1)  # the last is the root
    for node, parent in enumerate(tree.parents):
        open_above = reached[parent] == (tree.depths[node] - 1)
        reached[node] = reached[parent] + bool(open_above and goes_on[node])
    return max(reached)


def tested_levels(tree: Topology | None, path: Sequence[int]) -> tuple[Level, ...]:
    """Return, along the accepted path of a tree, how many children there were, and which it took.

    A path that ends at a node with children ends with a level at which none was accepted.
    """
    if tree is None:
        return ()
    found = [Level(len(tree.children[tree.parents[node]]), tree.siblings[node]) for node in path]
    last = len(tree.children[path[-1] if path else ROOT])
    return (*found, *([Level(last, 0)] if last else []))


def check_prompt(model: LanguageModel, prompt: Sequence[int], limit: int) -> None:
    """Check that a target or drafter has the prompt's tokens, and room for prompt and answer."""
    if not len(prompt):
        raise PipelineError("the prompt is empty: give at least one token")
    model.check_tokens(prompt, "a prompt")
    if len(prompt) + limit > model.context:
        raise PipelineError(
            f"a prompt of {len(prompt)} tokens and an answer of {limit} exceed the context of "
            f"{model.label}, {model.context} tokens: lower prompts.max_tokens or decoding.steps"
        )
