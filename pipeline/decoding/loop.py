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
from pipeline.decoding.proposers import Proposer, empty_draft, extra_columns
from pipeline.decoding.sampling import BrokenLogitsError
from pipeline.decoding.tree_drafting import Draft, readable, verification_pass
from pipeline.decoding.verification import Verifier
from pipeline.models.devices import Mark, mark, seconds_between, to_device
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import LanguageModel


@dataclass(kw_only=True)
class TargetCall:
    """One call of the target after prefill: counts of tokens, and its time."""

    position: int  # of the first drafted token in the answer
    drafted: int  # nodes of the draft
    depth: int  # drafted tokens in a row; in a chain all of them
    reach: int  # the most of these before an end-of-text token; at most one more can be emitted
    tested: int  # levels: the accepted ones, and the one where all children were rejected
    accepted: int
    emitted: int
    levels: tuple[tuple[int, int], ...]  # see `tested_levels`
    draft_seconds: float = 0.0  # all seconds are set at the end of the answer
    verify_seconds: float = 0.0  # the target's pass
    other_seconds: float = 0.0  # verification, roll-back, bookkeeping


@dataclass
class Answer:
    """A decoded answer and the calls that gave its tokens but the first, which prefill gives."""

    tokens: list[int] = field(default_factory=list)
    calls: list[TargetCall] = field(default_factory=list)
    first_seconds: float = 0.0  # until the first token
    begin_seconds: float = 0.0  # the drafter's pass over the prompt
    processor_seconds: float = 0.0  # CPU time of this thread for the whole answer
    ended: bool = False  # with an end-of-text token, not at the limit

    @property
    def seconds(self) -> float:
        """The time of the whole answer."""
        calls = (c.draft_seconds + c.verify_seconds + c.other_seconds for c in self.calls)
        return self.first_seconds + self.begin_seconds + sum(calls)


@dataclass(frozen=True)
class Prefill:
    """The target's pass over a prompt, which all methods share."""

    prompt: Sequence[int]
    limit: int  # the most answer tokens that the cache has room for
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
    """Read a prompt; the cache has room for `limit` answer tokens and trees of `drafted` nodes.

    `layers` are those after which a drafter reads hidden states.

    Raises:
        PipelineError: the prompt is empty, too long or has tokens that the target lacks.
    """
    check_prompt(target, prompt, limit)
    cache = KVSession(target, len(prompt) + limit + drafted, layers, rolls_back=True)
    ids = to_device(prompt, target.device)[None]
    marks = [mark(target.device)]
    processor_begin = time.thread_time()
    logits = cache.prefill(ids)[0]
    marks.append(mark(target.device))
    (seconds,) = seconds_between(marks)
    return Prefill(prompt, limit, cache, logits, seconds, time.thread_time() - processor_begin)


@torch.inference_mode()
def decode(
    target: LanguageModel,
    proposer: Proposer,
    verifier: Verifier,
    prompt: Sequence[int] | Prefill,
    draft_length: int,
    limit: int,
) -> Answer:
    """Decode an answer of at most `limit` tokens; `prompt` may have been read before (`prefill`).

    Raises:
        PipelineError: the prompt is empty, too long or has tokens that the target lacks; logits of
            the target or of the drafter are NaN or +inf.
    """
    device = target.device
    if isinstance(prompt, Prefill):
        read = prompt
        cache = read.cache.copy(proposer.layers)
    else:
        read = prefill(target, prompt, limit, proposer.layers, extra_columns(proposer.tree))
        cache = read.cache
    prompt = read.prompt
    answer = Answer()
    position = 0
    marks = [mark(device)]
    processor_begin = time.thread_time()
    try:
        # the prompt's pass gives the first token, then the drafter reads the prompt
        _, token, _ = verifier.verify(read.logits, empty_draft(device), position)
        emit(answer, [token], target.eos)
        marks.append(mark(device))
        proposer.begin(to_device(prompt, device)[None], len(prompt) + limit, cache.hidden)
        marks.append(mark(device))

        while not answer.ended and (position := len(answer.tokens)) < limit:
            text = [*prompt, *answer.tokens]
            count = min(draft_length, limit - position - 1)  # the call emits one token more
            draft = proposer.propose(text, count, position)
            marks.append(mark(device))

            ids = torch.cat([to_device(text[-1:], device), readable(draft.tokens)])[None]
            logits = cache.append(ids, verification_pass(draft.tree, device, target.dtype))[0]
            marks.append(mark(device))

            path, token, drafted = verifier.verify(logits, draft, position)
            cache.commit_path(len(text), path)
            proposer.accept(len(text), path, cache.hidden_after(path))
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
    """Append tokens up to and including an end-of-text token; return how many."""
    ends = [at for at, token in enumerate(tokens, start=1) if token in eos]
    tokens = tokens[: ends[0]] if ends else tokens
    answer.tokens += tokens
    answer.ended = bool(ends)
    return len(tokens)


def call_of(
    draft: Draft, path: Sequence[int], drafted: list[int], position: int, emitted: int,
    eos: Sequence[int],
) -> TargetCall:  # fmt: skip
    """Return the record of a call; what comes after an end-of-text token does not count."""
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
    """Set the seconds of an answer and of its calls; each call has three marks."""
    answer.first_seconds, answer.begin_seconds, *of_calls = seconds_between(marks)
    for at, call in enumerate(answer.calls):
        call.draft_seconds, call.verify_seconds, call.other_seconds = of_calls[3 * at : 3 * at + 3]


def broken_logits(target: LanguageModel, model: str, position: int) -> PipelineError:
    """Return the error for broken logits of the target or the drafter."""
    label = target.label if model == "target" else "the drafter"
    return PipelineError(
        f"{label}: NaN or infinite logits at position {position} of the answer, or all tokens "
        f"masked: compute in float32 or bfloat16 ({'targets.*' if model == 'target' else model}"
        ".dtype), and check its weights"
    )


def tokens_before_eos(tree: Topology, goes_on: NDArray[np.bool_]) -> int:
    """Return the most drafted tokens in a row that do not end the text, as `goes_on` (n,) says."""
    reached = [0] * (len(tree) + 1)  # by node; the last entry is the root's, index -1
    for node, parent in enumerate(tree.parents):
        open_above = reached[parent] == (tree.depths[node] - 1)
        reached[node] = reached[parent] + bool(open_above and goes_on[node])
    return max(reached)


def tested_levels(tree: Topology, path: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (children, accepted sibling, from 1) of each level that was tested.

    If the path ends at a node with children, the last level has accepted none: 0.
    """
    tested = [(len(tree.children[tree.parents[node]]), tree.siblings[node]) for node in path]
    last = len(tree.children[path[-1] if path else ROOT])
    return (*tested, *([(last, 0)] if last else []))


def check_prompt(model: LanguageModel, prompt: Sequence[int], limit: int) -> None:
    """Check that a model knows the prompt's tokens, and that prompt and answer fit its context."""
    if not len(prompt):
        raise PipelineError("the prompt is empty: give at least one token")
    model.check_tokens(prompt, "a prompt")
    if len(prompt) + limit > model.context:
        raise PipelineError(
            f"a prompt of {len(prompt)} tokens and an answer of {limit} exceed the context of "
            f"{model.label}, {model.context} tokens: lower prompts.max_tokens or decoding.steps"
        )
