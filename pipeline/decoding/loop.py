"""The decoding loop, one for all methods: draft, verify, accept, roll back, emit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.trees.topology import ROOT, Topology
from pipeline.core.errors import PipelineError
from pipeline.decoding.drafters import Drafter, cache_columns_beyond_text, empty_draft
from pipeline.decoding.sampling import BrokenLogitsError
from pipeline.decoding.tree_drafting import Draft, readable, verification_pass
from pipeline.decoding.verification import Verifier
from pipeline.models.devices import Mark, mark, seconds_between, send
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import LanguageModel


@dataclass(kw_only=True)
class TargetCall:
    """One call of the target: tokens drafted, tested, accepted and emitted, and its time."""

    position: int  # of the first drafted token in the answer
    drafted: int
    depth: int  # drafted tokens in a row: of a chain all of them
    reach: int  # of these, those before one that would end the answer: emitted is at most one more
    tested: int  # levels: as many as were accepted, and the one where none was
    accepted: int
    emitted: int
    levels: tuple[tuple[int, int], ...]  # those tested, as of `tested_levels`
    draft_seconds: float = 0.0  # these are known at the end of the answer
    verify_seconds: float = 0.0  # the target's pass
    other_seconds: float = 0.0  # verification, roll-back, bookkeeping


@dataclass
class Answer:
    """A decoded answer and the calls that made it; the first token comes from the prompt's pass."""

    tokens: list[int] = field(default_factory=list)
    calls: list[TargetCall] = field(default_factory=list)
    first_seconds: float = 0.0  # until the first token
    begin_seconds: float = 0.0  # the drafter's pass over the prompt
    processor_seconds: float = 0.0  # of all of it, the time of this thread on a processor
    ended: bool = False  # by the model, not by the limit

    @property
    def seconds(self) -> float:
        """All the time it took."""
        calls = (c.draft_seconds + c.verify_seconds + c.other_seconds for c in self.calls)
        return self.first_seconds + self.begin_seconds + sum(calls)


@dataclass(frozen=True)
class Prefill:
    """The target's pass over a prompt, which is the same for every method."""

    prompt: Sequence[int]
    limit: int  # the most tokens of an answer that the cache has room for
    cache: KVSession
    logits: Tensor  # (1, V) after the last token
    seconds: float
    processor_seconds: float


@torch.inference_mode()
def prefill(
    target: LanguageModel,
    prompt: Sequence[int],
    limit: int,
    layers: Sequence[int] = (),
    drafted: int = 0,
) -> Prefill:
    """Read a prompt, with room for an answer of `limit` tokens and trees of `drafted` ones.

    `layers` are those of which a drafter reads hidden states.

    Raises:
        PipelineError: the prompt is empty, too long or has tokens that the target lacks.
    """
    check_prompt(target, prompt, limit)
    cache = KVSession(target, len(prompt) + limit + drafted, layers, drafts=True)
    ids = send(prompt, target.device)[None]
    marks, processor_begin = [mark(target.device)], time.thread_time()
    logits = cache.prefill(ids)[0]
    marks.append(mark(target.device))
    (seconds,) = seconds_between(marks)
    return Prefill(prompt, limit, cache, logits, seconds, time.thread_time() - processor_begin)


@torch.inference_mode()
def decode(
    target: LanguageModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int] | Prefill,
    draft_length: int,
    limit: int,
) -> Answer:
    """Decode an answer of at most `limit` tokens to `prompt`, which may have been read before.

    Raises:
        PipelineError: the prompt is empty, too long or has tokens that the target lacks; logits of
            the target or of the drafter are NaN or +inf.
    """
    device, dtype = target.device, target.dtype
    if isinstance(prompt, Prefill):
        read, cache = prompt, prompt.cache.copy(drafter.layers)
    else:
        read = prefill(
            target, prompt, limit, drafter.layers, cache_columns_beyond_text(drafter.tree)
        )
        cache = read.cache
    prompt, answer, position = read.prompt, Answer(), 0
    marks, processor_begin = [mark(device)], time.thread_time()
    try:
        # the prompt's pass gives the first token, then the drafter reads the prompt
        _, token, _ = verifier.verify(read.logits, empty_draft(device), position)
        emit(answer, [token], target.eos)
        marks.append(mark(device))
        drafter.begin(send(prompt, device)[None], len(prompt) + limit, cache.hidden)
        marks.append(mark(device))

        while not answer.ended and (position := len(answer.tokens)) < limit:
            text = [*prompt, *answer.tokens]
            count = min(draft_length, limit - position - 1)  # in a row; the call emits one more
            draft = drafter.propose(text, count, position)
            marks.append(mark(device))

            ids = torch.cat([send(text[-1:], device), readable(draft.tokens)])[None]
            logits = cache.append(ids, verification_pass(draft.tree, device, dtype))[0]
            marks.append(mark(device))

            path, token, drafted = verifier.verify(logits, draft, position)
            cache.commit_path(len(text), path)
            drafter.accept(len(text), path, cache.hidden_after(path))
            emitted = emit(answer, [*(drafted[at] for at in path), token], target.eos)
            answer.calls.append(call_of(draft, path, drafted, position, emitted, target.eos))
            marks.append(mark(device))
    except BrokenLogitsError as error:
        raise broken_logits(target, str(error), position) from None
    note_seconds(answer, marks)
    answer.first_seconds += read.seconds
    answer.processor_seconds = read.processor_seconds + time.thread_time() - processor_begin
    return answer


def emit(answer: Answer, tokens: Sequence[int], eos: Sequence[int]) -> int:
    """Append tokens up to the one that ends the answer; return how many."""
    ends = [at for at, token in enumerate(tokens, start=1) if token in eos]
    tokens = tokens[: ends[0]] if ends else tokens
    answer.tokens += tokens
    answer.ended = bool(ends)
    return len(tokens)


def call_of(
    draft: Draft, path: Sequence[int], drafted: list[int], position: int, emitted: int,
    eos: Sequence[int],
) -> TargetCall:  # fmt: skip
    """Return the record of a call; tokens after one that ends the answer were never tested."""
    tree = draft.tree
    levels = tested_levels(tree, path)[:emitted]
    return TargetCall(
        position=position,
        drafted=len(drafted),
        depth=tree.depth,
        reach=tokens_before_eos(tree, ~np.isin(drafted, eos)),
        tested=len(levels),
        accepted=min(len(path), emitted),
        emitted=emitted,
        levels=levels,
    )


def note_seconds(answer: Answer, marks: Sequence[Mark]) -> None:
    """Set the seconds of an answer and of its calls, of which each has three marks."""
    answer.first_seconds, answer.begin_seconds, *of_calls = seconds_between(marks)
    for at, call in enumerate(answer.calls):
        call.draft_seconds, call.verify_seconds, call.other_seconds = of_calls[3 * at : 3 * at + 3]


def broken_logits(target: LanguageModel, model: str, position: int) -> PipelineError:
    """Return the error for logits of the target or the drafter from which nothing can be chosen."""
    label = target.label if model == "target" else "the drafter"
    return PipelineError(
        f"{label}: NaN or infinite logits at position {position} of the answer, or all tokens "
        f"masked: compute in float32 or bfloat16 ({'targets.*' if model == 'target' else model}"
        ".dtype), and check its weights"
    )


def tokens_before_eos(tree: Topology, goes_on: NDArray[np.bool_]) -> int:
    """Return the most drafted tokens in a row that all leave the answer open, `goes_on` (n,)."""
    reached = [0] * (len(tree) + 1)  # the last is the root
    for node, parent in enumerate(tree.parents):
        open_above = reached[parent] == (tree.depths[node] - 1)
        reached[node] = reached[parent] + bool(open_above and goes_on[node])
    return max(reached)


def tested_levels(tree: Topology, path: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return, along the accepted path, how many children there were, and which it took, from 1.

    A path that ends at a node with children ends with a level at which none was accepted, 0.
    """
    tested = [(len(tree.children[tree.parents[node]]), tree.siblings[node]) for node in path]
    last = len(tree.children[path[-1] if path else ROOT])
    return (*tested, *([(last, 0)] if last else []))


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
