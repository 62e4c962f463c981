"""The log of an inference engine as trajectories of steps: their most probable tokens, in order.

`read_log` ranks each list, checks that its values are log-probabilities of the whole vocabulary,
and counts the steps that are left out. What can't be left out is an error that names the file and,
where it is known, the line.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from pipeline.core.errors import PipelineError
from pipeline.engines.answers.files import read_answers
from pipeline.engines.answers.step_checks import (
    CUT_STEPS,
    FLOAT32,
    OddStepError,
    UnreadableStepError,
    check_sums,
    ranked_step,
)
from pipeline.engines.answers.steps import Step, StepList, Token, Top, logged_steps
from pipeline.engines.engine_base import AnswerPart, Engine
from pipeline.engines.printed_text import counted
from pipeline.engines.registry import UNKNOWN, engine_of, raw_remedy

TWO_PASSES = 9e-5  # nats: largest measured between two float32 passes of a model (docs/log.md)
MIN_ERROR = 1e-4  # nats
ODD_SHARE = 0.1  # of steps that contradict themselves; one alone is left out
NEVER = -20.0  # log of the probability at which steps can't all have missed their argmax

ECHOED = "tokens of echoed prompts"
WITHOUT = "steps without log-probabilities"
SHORTER = "steps with fewer log-probabilities than the others"
ODD = "steps that contradict themselves"
UNREADABLE = "steps with a value that can't be read"
PROMPTS = ("prompt", "messages", "token_ids", "input")  # in a request
Logged = Mapping[tuple[str, int], Sequence[Step]]


@dataclass(frozen=True, kw_only=True)
class EngineLog:
    """The steps of a log, and its description.

    `trajectories` maps (answer's name, index of the first step) to an unbroken run of steps. An
    answer is split wherever a step is left out. They are in the order of the file, none empty.
    """

    trajectories: Logged
    k: int  # log-probabilities of every step
    error: float  # how far each value may be from another float32 pass of the same model, nats
    model: str | None  # its name, where it is said
    engine: str  # that wrote it; empty where nothing tells it
    answers: int  # how many there were
    excluded: dict[str, int]  # what was left out, and how often
    given_ids: bool  # whether tokens are the engine's ids
    texts: dict[tuple[bytes, int], int]  # else the ids that they were given here


def read_log(
    path: Path, k: int, vocab_size: int | None = None, error: float | None = None
) -> EngineLog:
    """Read a log: of each step at most k log-probabilities.

    Without `vocab_size` the checks that need it are left out. `error` is how far each value may be
    off, nats; None takes it from how they are printed.
    """
    echoed = 0

    def read(answer: AnswerPart) -> tuple[StepList, Engine, str]:
        nonlocal echoed
        asked = [answer.request[key] for key in PROMPTS if answer.request.get(key)]
        prompt = json.dumps(asked[0]) if asked else ""
        steps, prompt_tokens = logged_steps(answer)
        echoed += prompt_tokens
        return steps, engine_of(answer), prompt

    answers, model, excluded = read_answers(path, read)
    excluded[ECHOED] += echoed
    names = _renamed_by_prompt({name: prompt for name, (*_, prompt) in answers.items()})
    steps_of = {names[name]: steps for name, (steps, *_) in answers.items()}
    engines = [engine for _, engine, _ in answers.values()]
    engine = max(
        engines, key=lambda one: one.softmax_error_per_token, default=UNKNOWN
    )  # the least exact
    remedy = raw_remedy(engine)
    logged = _trajectories(path, steps_of, excluded, remedy)
    if not logged:
        raise PipelineError(
            f"{path} has no step with log-probabilities; left out: {counted(excluded)}: "
            "ask for log-probabilities of each token"
        )
    steps = [step for trajectory in logged.values() for step in trajectory]
    rounding = error or 0.0
    if error is None:
        rounding, error = _errors(steps, (vocab_size or 0) * engine.softmax_error_per_token)
    size = min(k, min(len(step.top) for step in steps))
    trajectories, texts = _numbered(path, logged, vocab_size, size)
    if vocab_size is not None or not engine.softmax_error_per_token:
        check_sums(path, steps, rounding, vocab_size, remedy)
    _check_emitted(path, steps)
    return EngineLog(
        trajectories=trajectories,
        k=size,
        error=error,
        model=model,
        engine=engine.name,
        answers=len(answers),
        excluded=+excluded,
        given_ids=isinstance(steps[0].emitted, int),
        texts=texts,
    )


def stacked(trajectories: Logged) -> dict[str, np.ndarray]:
    """Return the columns of all steps, of top_ids and log_probs (N, K)."""
    lengths = [len(steps) for steps in trajectories.values()]
    every = [step for steps in trajectories.values() for step in steps]
    return {
        "prompt_id": np.repeat([prompt_id(key) for key in trajectories], lengths),
        "position": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        "token_id": np.array([step.emitted for step in every], dtype=np.int32),
        "top_ids": np.array([[t for t, _ in step.top] for step in every], dtype=np.int32),
        "log_probs": np.array([[v for _, v in step.top] for step in every], dtype=np.float64),
    }


def prompt_id(key: tuple[str, int]) -> str:
    """Return the name of a trajectory: its answer, and its first step where that is not 0."""
    answer, first = key
    return f"{answer}+{first}" if first else answer


def prompts_of(ids: Sequence[str]) -> list[str]:
    """Return the name of the prompt of each trajectory: pieces and choices of one have the same.

    >>> prompts_of(["a", "a+7", "a#1", "a#1+3", "b#12"])
    ['a', 'a', 'a', 'a', 'b#12']
    """
    answers = [re.sub(r"\+\d+$", "", name) for name in ids]
    known = set(answers)
    prompts = [re.sub(r"#\d+$", "", name) for name in answers]
    return [
        prompt if prompt in known else name for prompt, name in zip(prompts, answers, strict=True)
    ]


def _renamed_by_prompt(prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the new name of each answer: further ones to one prompt are numbered after the first.

    >>> _renamed_by_prompt({"a": "p", "b": "q", "c": "p", "d": "", "e": ""})
    {'a': 'a', 'b': 'b', 'c': 'a#1', 'd': 'd', 'e': 'e'}
    """
    first: dict[str, str] = {}
    names: dict[str, str] = {}
    numbers = defaultdict[str, Iterator[int]](partial(count, 1))
    for name, prompt in prompts.items():
        answer_name = re.sub(r"#\d+$", "", name)
        base = first.setdefault(prompt or name, answer_name)
        names[name] = name
        if base != answer_name:
            free = (f"{base}#{number}" for number in numbers[base])
            names[name] = next(one for one in free if one not in prompts)
    return names


def _decimals(value: float) -> int:
    """Return the number of digits behind the point: 2 of -0.25, 6 of 1.5e-05."""
    mantissa, _, exponent = repr(value).partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


def _errors(steps: Sequence[Step], one_pass: float) -> tuple[float, float]:
    """Return the rounding of one softmax, and how far values may be from another pass, nats."""
    printed = 0.5 * 10.0 ** -max(_decimals(value) for step in steps for _, value in step.top)
    error = max(MIN_ERROR, printed + max(TWO_PASSES, one_pass))
    return max(printed, FLOAT32, one_pass), error


def _check_emitted(path: Path, steps: Sequence[Step]) -> None:
    """Check that some step emits its argmax; N sampled ones miss it with prod (1 - p0)."""
    missed = [step.top[0][1] for step in steps if step.top[0][0] != step.emitted]
    all_missed = np.log1p(-np.exp(np.minimum(missed, -1e-12))).sum()
    if len(missed) == len(steps) and all_missed < NEVER:
        raise PipelineError(
            f"{path}: no step emits the most probable token of its list: lists of other steps"
        )


def _trajectories(
    path: Path, answers: Mapping[str, StepList], excluded: Counter[str], remedy: str
) -> dict[tuple[str, int], list[Step]]:
    every = [step for steps in answers.values() for step in steps if step and not step.wrong]
    sizes = Counter(len(step.top) for step in every)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    steps_of: dict[tuple[str, int], list[Step]] = {}
    problems = list[OddStepError]()
    cut = list[int]()
    for name, all_steps in answers.items():
        begin = 0
        for index, step in enumerate(all_steps):
            reason = WITHOUT
            try:
                ranked = ranked_step(path, step, remedy) if step else None
            except OddStepError as problem:
                problems.append(problem)
                ranked = None
                reason = UNREADABLE if isinstance(problem, UnreadableStepError) else ODD
            if step and ranked:
                reason = SHORTER
                size = len(step.top)
                least = usual - isinstance(step.emitted, int)  # texts may be joined
                if size >= least and len(ranked.top) >= usual - 1:
                    steps_of.setdefault((name, begin), []).append(ranked)
                    continue
                if 1 < size < least and 1.0 - ranked.mass < FLOAT32:
                    cut.append(step.line)
            excluded[reason] += 1
            begin = index + 1
    kept = sum(map(len, steps_of.values()))
    if problems and len(problems) > max(kept > 0, ODD_SHARE * (kept + len(problems))):
        raise problems[0]
    if len(cut) >= CUT_STEPS:
        raise PipelineError(
            f"{path}, line {cut[0]}: a list that is shorter than the others has all the mass, as "
            f"do {len(cut) - 1} more: after top-k or top-p; {remedy}"
        )
    return steps_of


def _numbered(
    path: Path, logged: Logged, vocab_size: int | None, size: int
) -> tuple[dict[tuple[str, int], list[Step]], dict[tuple[bytes, int], int]]:
    """Return the steps cut to their first `size` tokens, all tokens as ids; and the ids given here.

    A token keeps the engine's id. One that is logged as text gets the next free id.
    """
    kinds = {isinstance(step.emitted, int) for steps in logged.values() for step in steps}
    if len(kinds) > 1:
        raise PipelineError(f"{path} has answers with token ids and answers without: give one kind")
    texts: dict[tuple[bytes, int], int] = {}

    def number(token: Token) -> int:
        token_id = token if isinstance(token, int) else texts.setdefault(token, len(texts))
        if vocab_size is not None and token_id >= vocab_size:
            what = "token id" if isinstance(token, int) else "more tokens than"
            raise PipelineError(
                f"{path} has {what} {token_id}, and distributions.log.vocab_size={vocab_size}: "
                "give the size of the logged model's vocabulary"
            )
        return token_id

    def numbered(step: Step) -> Step:
        top: Top = [(number(token), value) for token, value in step.top]
        return step._replace(top=top[:size], emitted=number(step.emitted))

    return {key: list(map(numbered, steps)) for key, steps in logged.items()}, texts
