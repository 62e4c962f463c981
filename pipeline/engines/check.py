"""An engine's answers beside the study's predictions along them: the checks of `engine`.

Two runs of an engine answer the same prompts: with drafts, and without. The target reads the
answers, and its drafter (or look-up) drafts along them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np

from analysis.decoding.lookup import lookup_calls
from analysis.decoding.replay import Replayed
from analysis.statistics.trajectories import Trajectories, acceptance_by_position, calls_along
from pipeline.engines.along import Along, Models
from pipeline.engines.answers import Asked, read_asked
from pipeline.engines.clock import has_pages, read_run
from pipeline.engines.counts import read_counts
from pipeline.engines.pages import EngineCounts
from pipeline.errors import PipelineError
from pipeline.study import Study

TIE = 0.25  # logits: two steps of bfloat16 between 16 and 32
LEAST_EQUAL = 0.99  # of calls; a near-tie of the drafter's logits may part a few
ODD_TOKENS = 0.05  # of tokens a pass, predicted and counted


@dataclass(frozen=True)
class Line:
    """A line of the screen.

    Attributes:
        passed: None where nothing is decided.
        name: of the check.
        text: what was counted.
    """

    passed: bool | None
    name: str
    text: str


@dataclass(frozen=True)
class Parted:
    """Two runs' answers to the same prompts.

    Attributes:
        prompts: answered in both.
        parted: whose answers differ.
        shorter: those of them of which one answer is the beginning of the other.
        gaps: of logits at the first difference of the others: that of the token farther from the
            argmax.
    """

    prompts: int
    parted: int
    shorter: int
    gaps: Sequence[float]

    @property
    def near_ties(self) -> int:
        """The answers that part where rounding may decide."""
        return sum(gap <= TIE for gap in self.gaps)


class CheckedRuns:
    """The answers of an engine's runs, and what the models of a study give along them."""

    def __init__(self, study: Study, drafted: Path, alone: Path) -> None:
        """Read the answers, and load the models.

        Args:
            study: of one target, and the engine's drafter; without one, look-up drafts.
            drafted: the run with drafts.
            alone: without.

        Raises:
            PipelineError: a file is missing what is compared, or a model can't be loaded.
        """
        config = study.config
        if len(study.targets) != 1:
            raise PipelineError(f"targets: {', '.join(study.targets)}: give one, target=NAME")
        if config.distributions.source != "model":
            raise PipelineError(
                f"distributions.source={config.distributions.source} has no model to predict with: "
                "give the study that was asked"
            )
        self.config, self.drafted, self.alone = config, drafted, alone
        self.by_model = config.drafter is not None
        self.counts = read_counts(drafted)
        self.length = _draft_length(self.counts, config.decoding.draft_length)
        self._answers: dict[Path, dict[str, Asked]] = {}
        self._along: dict[tuple[Path, str], Along] = {}
        self._study = study
        for path in (drafted, alone):
            self.answers(path)

    @cached_property
    def _models(self) -> Models:
        return Models(self._study)

    def answers(self, path: Path) -> dict[str, Asked]:
        """Return the answers of a file by name, of at most `distributions.steps` tokens.

        Raises:
            PipelineError: the file can't be read, or an answer was sampled.
        """
        if path not in self._answers:
            steps = self.config.distributions.steps
            found = read_asked(path)
            hot = next((answer for answer in found if answer.temperature > 0), None)
            if hot is not None:
                raise PipelineError(
                    f"{path}: answer {hot.name} was sampled at temperature {hot.temperature:g}: "
                    "ask again with distributions.temperature=0"
                )
            self._answers[path] = {
                answer.name: answer._replace(tokens=answer.tokens[:steps]) for answer in found
            }
        return self._answers[path]

    def along(self, path: Path, name: str) -> Along:
        """Return what the models give along an answer of a file."""
        if (path, name) not in self._along:
            self._along[path, name] = self._models.along(self.answers(path)[name])
        return self._along[path, name]

    def predict(self, path: Path, name: str) -> list[tuple[int, int, int]]:
        """Return drafted, accepted and emitted tokens of the passes along an answer."""
        answer, length = self.answers(path)[name], self.length
        if self.by_model:
            steps = Trajectories.from_positions(np.arange(len(answer.tokens)))
            calls = calls_along(self.along(path, name).right, steps, length)
            return [(length, int(k), int(e)) for k, e in zip(*calls[2:], strict=True)]
        lookup = self.config.decoding
        limit = self.config.distributions.steps if self.counts.engine == "llama.cpp" else None
        return lookup_calls(
            answer.prompt, answer.tokens, length, lookup.lookup, lookup.lookup_match, limit
        )

    def replay(self) -> Replayed:
        """Compare every answer that was drafted with the prediction along it."""
        replayed = Replayed()
        for name in self.answers(self.drafted):
            counts = self.counts.answers.get(name)
            if counts is None:
                continue
            predicted = [call[:2] for call in self.predict(self.drafted, name) if call[0]]
            if counts.per_step is None:
                beyond = min(counts.last_accepted, self.length)
                replayed.add_sums(name, predicted, int(counts.accepted), beyond)
                continue
            calls = [(drafted, kept) for kept, drafted in counts.per_step]
            if self.by_model:
                replayed.certify(calls, self.along(self.drafted, name).certified)
                calls = [(self.length, kept) for _, kept in calls]  # shorter at an answer's end
            replayed.add(name, predicted, calls)
        return replayed

    def compare(self, path: Path, other: Path) -> Parted:
        """Compare the texts of two runs, answer by answer to the same prompt."""
        theirs = {tuple(answer.prompt): answer for answer in self.answers(other).values()}
        gaps, prompts, shorter = [], 0, 0
        for one in self.answers(path).values():
            if (two := theirs.get(tuple(one.prompt))) is None:
                continue
            prompts += 1
            both = zip(one.tokens, two.tokens, strict=False)
            step = next((at for at, (a, b) in enumerate(both) if a != b), None)
            if step is not None:  # both tokens follow the same text
                places = (path, one.name), (other, two.name)
                gaps.append(max(0.0, *(float(self.along(*at).gap[step]) for at in places)))
            elif len(one.tokens) != len(two.tokens):
                shorter += 1
        return Parted(prompts, len(gaps) + shorter, shorter, gaps)


def _draft_length(counts: EngineCounts, given: int | None) -> int:
    """Return the tokens of a full draft: those that the engine tells, else `given`.

    Raises:
        PipelineError: neither tells it.
    """
    if not counts.by_place and given is None:
        raise PipelineError(
            f"decoding.draft_length must be given: {counts.engine}'s answers do not say how many "
            "tokens a draft has"
        )
    return len(counts.by_place) or int(given or 0)


def lines_of(runs: CheckedRuns) -> list[Line]:
    """Return the lines of the screen."""
    replayed = runs.replay()
    return [
        _texts(runs),
        _calls(replayed, runs.counts),
        *_certified(replayed),
        _tokens(runs),
        *_places(runs),
    ]


def _texts(runs: CheckedRuns) -> Line:
    """Hold the texts with drafts against those without."""
    pair = runs.compare(runs.alone, runs.drafted)
    far = len(pair.gaps) - pair.near_ties
    text = (
        f"{pair.prompts - pair.parted} of {pair.prompts} equal those without drafts; "
        f"{far} part where logits differ by more than {TIE:g}"
    )
    if pair.parted:
        text += f" (largest gap {max(pair.gaps, default=0.0):.3g})"
    if pair.shorter:
        text += f"; {pair.shorter} end where the other goes on"
    return Line(bool(pair.prompts) and pair.parted == pair.near_ties, "texts", text)


def _calls(replayed: Replayed, counts: EngineCounts) -> Line:
    if not replayed.answers:
        text = "nothing was compared: no answer reports a draft before its last, which may go "
        return Line(False, "calls", text + "beyond the answer's end: ask for longer answers")
    ours, theirs = replayed.accepted
    text = f"{replayed.equal_answers} of {replayed.answers} answers as predicted"
    share = replayed.equal_answers / replayed.answers
    if replayed.calls:
        text = f"{replayed.equal_calls} of {replayed.calls} equal, last ones aside; {text}"
        share = replayed.equal_calls / replayed.calls
    else:
        text += f" by their sums ({counts.engine} does not tell calls apart)"
    text += f"; {ours} tokens accepted, {counts.engine} counts {theirs}"
    if replayed.different:
        text += f"; the first other answer is {replayed.different}"
    return Line(share >= LEAST_EQUAL, "calls", text)


def _certified(replayed: Replayed) -> list[Line]:
    if not replayed.tested:
        return []
    text = f"{replayed.rejected} of {replayed.tested} certified tokens were rejected"
    return [Line(not replayed.rejected, "certified", text)]


def _tokens(runs: CheckedRuns) -> Line:
    """Hold the tokens a pass that are predicted without the engine's drafts against its own."""
    along = runs.alone
    calls = [call for name in runs.answers(along) for call in runs.predict(along, name)]
    if not calls:
        return Line(False, "tokens", "nothing was compared: no answer has a second token")
    predicted = sum(emitted for *_, emitted in calls) / len(calls)
    least, most = runs.counts.tokens_per_pass
    answers = len(runs.answers(runs.drafted))
    if has_pages(runs.drafted, answers):  # which count all passes
        page = read_run(runs.drafted)
        least = most = page.emitted / page.passes
    counted = f"{least:.3f}" if most - least < 0.0005 else f"{least:.3f} to {most:.3f}"
    near = least * (1 - ODD_TOKENS) <= predicted <= most * (1 + ODD_TOKENS)
    text = f"{predicted:.3f} a pass predicted along {along.name}, {counted} counted"
    return Line(bool(near), "tokens", text)


def _places(runs: CheckedRuns) -> list[Line]:
    """Return the rates at each place, the last call of each answer aside."""
    along, counted = runs.alone, list(runs.counts.answers.values())
    if any(answer.per_step is None for answer in counted):
        return []
    predicted = [runs.predict(along, name) for name in runs.answers(along)]
    ours = [[call[:2] for call in calls if call[0]] for calls in predicted]
    theirs = [[(drafted, kept) for kept, drafted in counts.per_step or ()] for counts in counted]
    shown = ", ".join(
        f"{place}: {a:.3f} and {b:.3f}"
        for place, (a, b) in enumerate(
            zip_longest(_rates(ours), _rates(theirs), fillvalue=math.nan), start=1
        )
    )
    return [Line(None, "by place", f"accepted of tested, predicted and counted: {shown}")]


def _rates(of_answers: Sequence[Sequence[tuple[int, int]]]) -> list[float]:
    """Return the acceptance rates by draft position, from drafted and accepted of every call."""
    calls = [call for calls in of_answers for call in calls[:-1]]
    drafted, accepted = np.array(calls, dtype=np.intp).reshape(-1, 2).T
    tested, passed = acceptance_by_position(np.minimum(accepted + 1, drafted), accepted)
    rates: list[float] = (passed / tested).tolist()
    return rates
