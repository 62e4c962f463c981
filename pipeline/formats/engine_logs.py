"""The log of an inference engine as trajectories of steps: their most probable tokens, in order.

`read_log` joins streamed pieces, ranks each list, and says what was left out. What can't be is an
error of one line that names the file and the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import FormatError, Step, Token, model_of, pieces
from pipeline.formats.engine_lines import decimals, read_records

ZERO = -1e30  # a log-probability at most this is llama.cpp's print of a probability of 0
MASKED = -9000.0  # and between them vLLM's print of a token that sampling took out
FLOAT32 = 1e-6  # nats: engines compute log-probabilities of this size in float32
SUM_ROUNDING = 1e-7
CUT_SHARE, CUT_STEPS = 0.5, 10  # of uncertain steps without a tail: their tails were cut off


@dataclass
class Trajectory:
    """Steps one behind the other: an answer, or what lies between two that are left out."""

    prompt_id: str
    line: int
    answer: str
    emitted: list[Token] = field(default_factory=list)
    tops: list[list[tuple[Token, float]]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class EngineLog:
    """What an engine logged.

    Attributes:
        trajectories: in the order of the file, none of them empty.
        k: log-probabilities that every step has at least.
        error: how far each may be off, nats: half a unit of the last printed digit, and the
            rounding of float32.
        model: its name, where it is said.
        answers: how many there were.
        excluded: what was left out, and how often.
    """

    trajectories: list[Trajectory]
    k: int
    error: float
    model: str | None
    answers: int
    excluded: dict[str, int]

    @cached_property
    def log_probs(self) -> np.ndarray:
        """(N, K) float64, those of all trajectories."""
        return np.array([[v for _, v in top] for item in self.trajectories for top in item.tops])

    @cached_property
    def lines(self) -> list[int]:
        """(N,) where each step stands in the file."""
        return [line for item in self.trajectories for line in item.lines]

    @property
    def given_ids(self) -> bool:
        """Whether tokens are the engine's ids."""
        return isinstance(self.trajectories[0].emitted[0], int)


@dataclass
class _Answer:
    line: int
    steps: list[Step | None] = field(default_factory=list)
    finished: bool = False


def read_log(path: Path, part: str, k: int, error: float | None) -> EngineLog:
    """Read a log.

    Args:
        path: of the file.
        part: generated, or prompt for the texts that were re-scored.
        k: log-probabilities that are taken of a step at most.
        error: how far each may be off, nats; None takes it from how they are printed.

    Raises:
        PipelineError: a line is no answer; answers have no log-probabilities, or processed ones;
            two models are mixed; or nothing is left. Names the file and the line.
    """
    excluded: dict[str, int] = {}
    answers, model = _answers(path, part, excluded)
    counts = Counter(
        len(step.top) for answer in answers.values() for step in answer.steps if step is not None
    )
    if not counts:
        raise PipelineError(f"{path} has no step with log-probabilities (part {part})")
    usual = max(counts, key=lambda size: (counts[size], size))
    found, digits = [], 0
    for name, answer in answers.items():
        for trajectory in _trajectories(path, name, answer, usual, excluded):
            found.append(trajectory)
            digits = max(
                digits, max(decimals(value) for top in trajectory.tops for _, value in top)
            )
    if not found:
        raise PipelineError(f"{path}: nothing is left: {counted(excluded)}")
    kinds = {isinstance(token, int) for item in found for token in item.emitted}
    if len(kinds) > 1:
        raise PipelineError(f"{path} has answers with token ids and answers without: give one kind")
    size = min(k, min(len(top) for item in found for top in item.tops))
    for item in found:
        item.tops = [top[:size] for top in item.tops]
    told = max(0.5 * 10.0**-digits, FLOAT32) if error is None else error
    log = EngineLog(found, size, told, model, len(answers), excluded)
    total = np.exp(log.log_probs - told).sum(axis=1)
    if np.any(total > 1.0 + SUM_ROUNDING):
        step = int(np.argmax(total > 1.0 + SUM_ROUNDING))
        raise PipelineError(
            f"{path}, line {log.lines[step]}: the {size} probabilities of a step sum to "
            f"{np.exp(log.log_probs[step]).sum():.7g}, more than their rounding ({told:g}) allows: "
            "log natural logarithms of one distribution, or give distributions.log.error"
        )
    return log


def counted(excluded: dict[str, int]) -> str:
    """Return what was left out as printed."""
    return ", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "none"


def _answers(
    path: Path, part: str, excluded: dict[str, int]
) -> tuple[dict[str, _Answer], str | None]:
    """Join the pieces of every answer, by id; a stream without ids goes on until it ends."""
    answers: dict[str, _Answer] = {}
    open_: str | None = None
    first: tuple[str, int] | None = None
    for record in read_records(path, excluded):
        model = model_of(record.value)
        if model is not None:
            first = first or (model, record.line)
            if model != first[0]:
                raise PipelineError(
                    f"{path} mixes two models: {first[0]} in line {first[1]} and {model} in line "
                    f"{record.line}: give each its own file"
                )
        try:
            found = pieces(record.value, record.line, record.streamed, part)
        except FormatError as error:
            raise PipelineError(f"{path}, line {record.line} {error}") from error
        if isinstance(found, str):
            excluded[found] = excluded.get(found, 0) + 1
            continue
        for piece in found:
            name = piece.answer or open_ or f"line-{record.line}"
            answer = answers.setdefault(name, _Answer(record.line))
            if answer.finished and piece.steps:
                raise PipelineError(
                    f"{path}, line {record.line} has answer {name} again, which began in line "
                    f"{answer.line} and had ended: give each answer once"
                )
            answer.steps += piece.steps
            answer.finished |= piece.finished
            open_ = name if piece.answer is None and not piece.finished else None
    cut = sum(not answer.finished for answer in answers.values())
    if cut:
        excluded["ends of answers that were cut off"] = cut
    return answers, None if first is None else first[0]


def _trajectories(
    path: Path, name: str, answer: _Answer, usual: int, excluded: dict[str, int]
) -> Iterator[Trajectory]:
    """Yield the parts of an answer between steps that are left out."""
    current = Trajectory(name, answer.line, name)
    for at, step in enumerate(answer.steps):
        reason = "steps without log-probabilities" if step is None else None
        ranked: list[tuple[Token, float]] = []
        if step is not None:
            ranked = _ranked(path, step)
            by_text = not isinstance(step.emitted, int)
            if len(ranked) < usual - 1 or (by_text and len(step.top) < usual):
                reason = "steps with fewer log-probabilities than the others"
        if reason is not None:
            excluded[reason] = excluded.get(reason, 0) + 1
            if current.tops:
                yield current
            current = Trajectory(f"{name}+{at + 1}", answer.line, name)
            continue
        assert step is not None
        current.emitted.append(step.emitted)
        current.tops.append(ranked)
        current.lines.append(step.line)
    if current.tops:
        yield current


def _ranked(path: Path, step: Step) -> list[tuple[Token, float]]:
    """Return a list by falling value, without the emitted token where its rank can't be told.

    vLLM puts the emitted token first, whatever its rank. If it is the least of the list, more
    probable tokens may be missing between it and the others.
    """
    top = [(token, -np.inf if value <= ZERO else value) for token, value in step.top]
    values = [value for _, value in top]
    at = f"{path}, line {step.line}"
    if any(value == -np.inf or ZERO < value < MASKED for _, value in step.top):
        raise PipelineError(
            f"{at}: one of the {len(top)} tokens of a step has a probability of 0, as top-k, top-p "
            "or a grammar leave it: log raw values (vLLM: --logprobs-mode raw_logprobs)"
        )
    if max(values) > FLOAT32:
        raise PipelineError(f"{at}: a log-probability is {max(values)}, above 0")
    if _falls(values):
        return top
    if not _falls(values[1:]) or top[0][0] != step.emitted:
        raise PipelineError(
            f"{at}: the log-probabilities of a step are not sorted: {values[:3]}, ..."
        )
    if values[0] <= values[-1]:
        return top[1:]
    return sorted(top, key=lambda item: -item[1])


def _falls(values: Sequence[float]) -> bool:
    return all(after <= before for before, after in pairwise(values))


def check_tails(path: Path, log: EngineLog, vocab_size: int) -> None:
    """Check that tails were not cut off before the values were logged.

    A softmax over many tokens leaves some mass outside the top K wherever rank K has some.

    Raises:
        PipelineError: at most of the steps where rank K has a probability of 0.001 at least, the
            K tokens have all the mass: values after top-k or top-p, renormalised.
    """
    if vocab_size < 10 * log.k:
        return
    values = log.log_probs
    uncertain = values[:, -1] > np.log(1e-3)
    rest = 1.0 - np.exp(values).sum(axis=1)
    slack = 1e-5 + log.k * log.error
    cut = uncertain & (rest < slack)
    if slack < 1e-3 and cut.sum() >= CUT_STEPS and cut.sum() > CUT_SHARE * uncertain.sum():
        share = f"{int(cut.sum())} of {int(uncertain.sum())} uncertain steps"
        raise PipelineError(
            f"{path}, line {log.lines[int(np.argmax(cut))]}: the {log.k} log-probabilities have "
            f"all the mass, there and at {share}, as top-k or top-p leave it: log raw values "
            "(vLLM: --logprobs-mode raw_logprobs)"
        )
