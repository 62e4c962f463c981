"""The steps of an engine's answers, in each of the formats that engines write, and their checks.

| format | who writes it | steps |
|---|---|---|
| chat | vLLM, SGLang, llama.cpp | choices[].logprobs.content[].top_logprobs |
| completions | vLLM, SGLang | choices[].logprobs: tokens, token_logprobs, top_logprobs |
| native | llama.cpp | completion_probabilities[].top_logprobs |

A token is an id where the engine gives one, else its bytes and which of the equal ones of its step
it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.errors import PipelineError, first_line
from pipeline.engines.kind import FormatError, Part, mapping
from pipeline.engines.llama_cpp import SAMPLED
from pipeline.engines.registry import ENGINES, engine_of

Token = int | tuple[bytes, int]
Top = list[tuple[Token, float]]
TOKEN_ID = re.compile(r"token_id:(\d+)")  # vLLM, with return_tokens_as_token_ids
MASKED = -9000.0  # at most this is a token that sampling took out: -9999 (vLLM), float32's least
FLOAT32 = 1e-6  # nats: rounding of log-probabilities of this size in float32
SUM_ROUNDING = 1e-6  # of sums of probabilities
OWN = 1e-3  # nats, between the emitted token's own value and that of the list
CUT_SHARE, CUT_STEPS = 0.5, 10  # of uncertain steps without a tail: their tails were cut off


class OddStepError(PipelineError):
    """A step contradicts itself, as where two tokens of one text share a place in its list."""


class UnreadableStepError(OddStepError):
    """A value of a step is missing, or is none: null, NaN, a token id below 0."""


class Step(NamedTuple):
    """A step as an engine logs it."""

    line: int  # where it stands
    emitted: Token
    own: float | None  # the log-probability given with it, None where there is none
    top: Top  # the most probable tokens and their log-probabilities, in the engine's order
    mass: float = 1.0  # of the whole list, once it is ranked
    wrong: str = ""  # why it can't be read; behind its file and line


StepList = list[Step | None]  # None where the engine logged nothing
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # of values of another form


def logged_steps(part: Part) -> tuple[StepList, int]:
    """Return the steps of an answer, and how many tokens of an echoed prompt it begins with.

    Raises:
        FormatError: it has no log-probabilities, or processed ones.
    """
    _check_settings(part)
    if not part.is_choice:
        entries = engine_of(part).logged_entries(part)
        return [_described(entry, part.line) for entry in entries], 0
    logprobs, steps = part.content.get("logprobs") or {}, StepList()
    if isinstance(logprobs.get("content"), list):
        steps = [_described(entry, part.line) for entry in logprobs["content"]]
    elif isinstance(logprobs.get("tokens"), list):
        steps = _completions(logprobs, part.line)
    elif not logprobs:
        raise FormatError(f"has no logprobs: {_remedy(part)}")
    echoed = _echoed(part, logprobs, len(steps))
    return steps[echoed:], echoed


def _check_settings(part: Part) -> None:
    """Check that neither the request nor the answer's settings ask for processed values."""
    request, verbose = part.request, mapping(part.body.get("__verbose"))  # of llama.cpp
    settings = [request, request.get("sampling_params"), request.get("extra_body")]
    settings += [body.get("generation_settings") for body in (part.body, verbose)]
    processed = {name: why for engine in ENGINES for name, why in engine.processed.items()}
    for one in map(mapping, settings):
        for name, why in processed.items():
            if one.get(name):
                raise FormatError(why)


def _remedy(part: Part) -> str:
    """Say what to ask the endpoint of an answer for."""
    if "message" in part.content or "delta" in part.content:
        return "ask for logprobs=true and top_logprobs=N"
    if "text" in part.content:
        return "ask for logprobs=N"
    return "ask for logprobs=true and top_logprobs=N (chat), logprobs=N (all others)"


def _echoed(part: Part, logprobs: Mapping[str, Any], steps: int) -> int:
    """Return how many tokens of the prompt stand before those of a choice (echo=true)."""
    usage, prompt = part.body.get("usage") or {}, part.request.get("prompt")
    size, answer = usage.get("prompt_tokens"), usage.get("completion_tokens")
    both = type(size) is int and type(answer) is int and steps == size + answer
    own, top = ((logprobs.get(name) or [0.0])[0] for name in ("token_logprobs", "top_logprobs"))
    unscored = own is None and not top  # a text's first token
    if not (both or unscored or part.request.get("echo") is True):
        return 0
    if type(size) is not int and isinstance(prompt, list):
        size = len(prompt)
    if type(size) is not int or not 0 <= size <= steps:
        raise FormatError("echoes its prompt, and does not say how long it is: ask for echo=false")
    return size


def _described(entry: Mapping[str, Any] | None, line: int) -> Step | None:
    """Read a token of the chat format; llama.cpp's own has ids besides."""
    if entry is None:  # of a chunk without log-probabilities
        return None
    try:
        if "top_probs" in entry or "prob" in entry:
            raise FormatError(SAMPLED)
        return _described_step(entry, line)
    except UNREADABLE as error:
        return _unreadable(line, error)


def _described_step(entry: Mapping[str, Any], line: int) -> Step | None:
    seen, top = Counter[Token](), []
    for item in entry["top_logprobs"] or ():  # tokens of the same bytes are told apart by order
        token = _token(item)
        seen[token] += 1
        named = (token[0], seen[token] - 1) if isinstance(token, tuple) else token
        top.append((named, item.get("logprob")))
    return _step(line, _token(entry), entry.get("logprob"), top)


def _completions(logprobs: Mapping[str, Any], line: int) -> StepList:
    tokens, tops = logprobs["tokens"], logprobs.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(tokens):
        size = len(tops) if isinstance(tops, list) else "no"
        raise FormatError(f"has {len(tokens)} tokens and {size} top_logprobs: ask for logprobs=N")
    owns = logprobs.get("token_logprobs") or [None] * len(tokens)
    steps = StepList()
    for token, own, top in zip(tokens, owns, tops, strict=True):
        try:
            listed = [(_text(name), value) for name, value in (top or {}).items()]
            steps.append(_step(line, _text(token), own, listed))
        except UNREADABLE as error:
            steps.append(_unreadable(line, error))
    return steps


def _step(line: int, emitted: Token, own: Any, top: Iterable[tuple[Token, Any]]) -> Step | None:
    listed = [(token, _number(value)) for token, value in top]
    if not listed:
        return None
    return Step(line, emitted, None if own is None else _number(own), listed)


def _unreadable(line: int, error: Exception) -> Step:
    why = first_line(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return Step(line, 0, None, [], wrong=f"holds {why:.80}")


def _token(entry: Mapping[str, Any]) -> Token:
    if "id" in entry:
        return _id(entry["id"])
    raw = entry.get("bytes")
    if TOKEN_ID.fullmatch(entry["token"]) or not isinstance(raw, list):
        return _text(entry["token"])
    return bytes(raw), 0


def _text(text: str) -> Token:
    match = TOKEN_ID.fullmatch(text)
    return int(match[1]) if match else (text.encode(errors="surrogatepass"), 0)


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a token id that is {value!r:.40}")
    return value


def _number(value: Any) -> float:
    number = type(value) in (int, float) and value <= 1e30  # not so of NaN
    if not number or (isinstance(value, int) and value < -1e30):
        raise ValueError(f"a log-probability that is {value!r:.40}")
    return value


def ranked_step(path: Path, step: Step, remedy: str) -> Step:
    """Return a step with its list by falling value, and the mass of the whole list.

    `remedy` says how to log raw values.

    vLLM puts the emitted token first, whatever its rank. If it is the least of the list, more
    probable tokens may be missing between it and the others, and it is taken out.
    """
    at, emitted, own, top = f"{path}, line {step.line}", step.emitted, step.own, step.top
    if step.wrong:
        raise UnreadableStepError(f"{at} {step.wrong}")
    values = [value for _, value in top]
    if min(values) <= MASKED:
        raise PipelineError(
            f"{at}: one of the {len(step.top)} tokens of a step has a probability of 0, as after "
            f"top-k, top-p or a grammar: {remedy}"
        )
    if max(values) > FLOAT32:
        raise PipelineError(f"{at}: a log-probability is {max(values)}, above 0")
    held = dict(top)
    if len(held) < len(top):
        ((twice, _),) = Counter(token for token, _ in top).most_common(1)
        raise OddStepError(
            f"{at}: the list of a step has token {twice} twice: give the engine's own answers"
        )
    alike = isinstance(emitted, tuple) and (emitted[0], 1) in held  # which of them was emitted?
    listed = held.get(emitted)
    if own is None or own <= MASKED or alike:
        agree = True
    else:
        agree = own <= min(values) + OWN if listed is None else abs(own - listed) <= OWN
    if not agree:
        of_list = f"at most {min(values):.7g}" if listed is None else f"{listed:.7g}"
        raise OddStepError(
            f"{at}: the emitted token has a log-probability of {own:.7g}, but in the list of its "
            f"step {of_list}: log raw values of one distribution"
        )
    mass = float(np.exp(values).sum())
    falling = [after <= before for before, after in pairwise(values)]
    if all(falling):
        return step._replace(mass=mass)
    if not all(falling[1:]) or top[0][0] != emitted:
        raise OddStepError(
            f"{at}: the log-probabilities of a step are not sorted: {values[:3]}, ..."
        )
    ranked = top[1:] if values[0] <= values[-1] else sorted(top, key=lambda item: -item[1])
    return step._replace(top=ranked, mass=mass)


def check_sums(
    path: Path, steps: Sequence[Step], error: float, vocab_size: int | None, remedy: str
) -> None:
    """Check that whole lists belong to distributions over the vocabulary, tails included.

    The tokens behind rank K are at most as probable as it: 1 - sum p <= (V - K) p_K. And a softmax
    over many tokens leaves some mass outside the list wherever its least token has some.
    """
    uncertain, cut = 0, list[int]()
    slack = 1e-5 + error
    for step in steps:
        if step.mass * np.exp(-error) > 1.0 + SUM_ROUNDING:
            raise PipelineError(
                f"{path}, line {step.line}: the {len(step.top)} probabilities of a step sum to "
                f"{step.mass:.7g}, more than their rounding ({error:g}) allows: log natural "
                "logarithms of one distribution, or give distributions.log.error"
            )
        if vocab_size is None:
            continue
        others, least = max(0, vocab_size - len(step.top)), np.exp(step.top[-1][1])
        rest = 1.0 - sum(np.exp(value + error) for _, value in step.top)
        if rest > others * least * np.exp(error) + SUM_ROUNDING:
            raise PipelineError(
                f"{path}, line {step.line}: the {len(step.top)} probabilities of a step leave "
                f"{rest:.4g} to the {others} other tokens, and each of them has at most the least "
                f"of the list, {least:.4g}: log natural logarithms of probabilities, not logits, "
                "and give the model's own distributions.log.vocab_size"
            )
        if least > max(1e-3, 4 * slack) and vocab_size >= 10 * len(step.top):
            uncertain += 1
            if 1.0 - step.mass < slack:
                cut.append(step.line)
    if len(cut) >= CUT_STEPS and len(cut) > CUT_SHARE * uncertain:
        raise PipelineError(
            f"{path}, line {cut[0]}: the {len(steps[0].top)} log-probabilities have all the mass, "
            f"there and at {len(cut)} of {uncertain} uncertain steps: after top-k or top-p; "
            f"{remedy}"
        )
