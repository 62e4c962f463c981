"""An engine's answers beside the study's predictions along them: the lines of `check_engine`.

Three runs of an engine answer the same prompts: with drafts, without, and without once more, as a
control. Answers are scored by the target (stage distributions), and drafted along (stage drafts, or
look-up).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.acceptance.judgement import judge
from analysis.decoding.lookup import lookup_calls
from analysis.decoding.replay import Replayed, rates_by_place
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Flags
from analysis.statistics.drift import TIE
from analysis.statistics.trajectories import Trajectories, drafts_made
from pipeline.engines.costs import has_pages, measure_costs, read_run
from pipeline.engines.written.counts import EngineCounts, draft_length, read_counts
from pipeline.errors import PipelineError
from pipeline.execution.runner import check_models, ensure
from pipeline.loader import Study
from pipeline.plan.facts import DistributionsFacts
from pipeline.store.columns import numbers
from pipeline.store.distributions import read_answers, read_steps

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


class CheckedRuns:
    """The answers of an engine's runs, scored and drafted along."""

    def __init__(self, study: Study, drafted: Path, alone: Path | None) -> None:
        """Bring the artifacts of a study with these answers up to date, and read them.

        Args:
            study: with `distributions.answers`, of one target.
            drafted: the run with drafts.
            alone: without; None: predictions are made along the answers with drafts.

        Raises:
            PipelineError: a file is missing what is compared, or a model can't be run.
        """
        config = study.config
        if len(study.targets) != 1:
            raise PipelineError(f"targets: {', '.join(study.targets)}: give one, target=NAME")
        self.config, self.drafted, self.alone = config, drafted, alone
        self.by_model = config.engine.drafter == "model"
        if self.by_model and config.drafter is None:
            raise PipelineError(
                "the study has no drafter: add the engine's, for instance drafter=mini, or "
                "engine.drafter=prompt_lookup for look-up"
            )
        self.counts = read_counts(drafted)
        self.length = draft_length([len(self.counts.by_place)], config.engine.draft_length)
        stage = "drafts" if self.by_model else "distributions"
        (artifact,) = ensure(study.nodes[stage], study.store, check_models)
        dump, prompts = (study.artifact(name) for name in ("distributions", "prompts"))
        self.drift = dump.facts(DistributionsFacts).drift or {}
        self._read(artifact, prompts)

    def _read(self, artifact: Any, prompts: Any) -> None:
        self._answers = read_answers(artifact, prompts)
        table = prompts.read(columns=["prompt_id", "source"]).to_pylist()
        self._source = {row["prompt_id"]: row["source"] for row in table}
        if self.by_model:
            columns = artifact.read(columns=["depth_draft_token_id"])
            drafted = numbers(columns["depth_draft_token_id"])  # (N, D)
            tokens = np.concatenate([answer.tokens for answer in self._answers.values()])
            self._right: Flags = (drafted == tokens[:, None]).T
            (judged,) = judge(read_steps(artifact), [StrictGreedy()])
            self._certified = np.stack([depth.certified for depth in judged.by_depth])

    def names(self, path: Path) -> list[str]:
        """Return the names of a file's answers in the artifacts."""
        return [name for name, source in self._source.items() if source == path.name]

    def predict(self, name: str) -> list[tuple[int, int, int]]:
        """Return drafted, accepted and emitted tokens of the passes along an answer."""
        (place, prompt, answer), length = self._answers[name], self.length
        if self.by_model:
            steps = Trajectories.from_positions(np.arange(place.stop - place.start))
            _, kept, emitted = drafts_made(self._right[:, place], steps, length)
            return [(length, int(k), int(e)) for k, e in zip(kept, emitted, strict=True)]
        lookup = self.config.decoding
        limit = self.config.distributions.steps if self.counts.engine == "llama.cpp" else None
        return lookup_calls(prompt, answer, length, lookup.lookup, lookup.lookup_match, limit)

    def replay(self) -> Replayed:
        """Compare every answer that was drafted with the prediction along it."""
        replayed = Replayed()
        for name in self.names(self.drafted):
            own = name if name in self.counts.answers else name.rpartition("@")[0]  # NAME@FILE
            counts = self.counts.answers.get(own)
            if counts is None:
                continue
            predicted = [call[:2] for call in self.predict(name) if call[0]]
            if counts.per_step is None:
                beyond = min(counts.last_accepted, self.length)
                replayed.add_sums(name, predicted, int(counts.accepted), beyond)
                continue
            calls = [(drafted, kept) for kept, drafted in counts.per_step]
            if self.by_model:
                replayed.certify(calls, self._certified[:, self._answers[name].place])
                calls = [(self.length, kept) for _, kept in calls]  # shorter at an answer's end
            replayed.add(name, predicted, calls)
        return replayed


def lines_of(runs: CheckedRuns, control: Path | None) -> list[Line]:
    """Return the lines of the screen."""
    replayed = runs.replay()
    return [
        _texts(runs, control),
        _calls(replayed, runs.counts),
        *_certified(replayed),
        _tokens(runs),
        *_places(runs),
        *_speed(runs),
    ]


def _texts(runs: CheckedRuns, control: Path | None) -> Line:
    """Hold the texts with drafts against those without, and two runs without against each other."""
    if runs.alone is None:
        drift = runs.drift[runs.drafted.name]
        text = (
            f"{drift['off']} of {drift['steps']} greedy tokens are not the argmax here, by a gap "
            f"of {drift['largest_gap']:.3g} at most (no run without drafts was given)"
        )
        if drift["unstored"]:
            text += f"; {drift['unstored']} are not even stored: raise distributions.k"
        return Line(drift["largest_gap"] <= TIE and not drift["unstored"], "texts", text)
    pair = runs.drift[f"{runs.alone.name} and {runs.drafted.name}"]
    far = pair["parted"] - pair["shorter"] - pair["near_ties"]
    text = (
        f"{pair['prompts'] - pair['parted']} of {pair['prompts']} equal those without drafts; "
        f"{far} part where logits differ by more than {TIE:g}"
    )
    if pair["parted"]:
        text += f" (largest gap {pair['largest_gap']:.3g})"
    if pair["shorter"]:
        text += f"; {pair['shorter']} end where the other goes on"
    if control is not None:
        noise = runs.drift[f"{runs.alone.name} and {control.name}"]
        text += f"; control: {noise['parted']} of {noise['prompts']} part without any drafts"
    return Line(bool(pair["prompts"]) and pair["parted"] == pair["near_ties"], "texts", text)


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
    along = runs.alone or runs.drafted
    calls = [call for name in runs.names(along) for call in runs.predict(name)]
    if not calls:
        return Line(False, "tokens", "nothing was compared: no answer has a second token")
    predicted = sum(emitted for *_, emitted in calls) / len(calls)
    least, most = runs.counts.tokens_per_pass
    answers = len(runs.names(runs.drafted))
    if has_pages(runs.drafted, answers):  # which count all passes
        page = read_run(runs.drafted)
        least = most = page.emitted / page.passes
    counted = f"{least:.3f}" if most - least < 0.0005 else f"{least:.3f} to {most:.3f}"
    near = least * (1 - ODD_TOKENS) <= predicted <= most * (1 + ODD_TOKENS)
    text = f"{predicted:.3f} a pass predicted along {along.name}, {counted} counted"
    return Line(bool(near), "tokens", text)


def _places(runs: CheckedRuns) -> list[Line]:
    """Return the rates at each place, the last call of each answer aside."""
    along, counted = runs.alone or runs.drafted, list(runs.counts.answers.values())
    if any(answer.per_step is None for answer in counted):
        return []
    predicted = [runs.predict(name) for name in runs.names(along)]
    ours, theirs = (
        rates_by_place([call for calls in of_answers for call in calls[:-1]], runs.length)
        for of_answers in (
            [[call[:2] for call in calls if call[0]] for calls in predicted],
            [[(drafted, kept) for kept, drafted in counts.per_step or ()] for counts in counted],
        )
    )
    shown = ", ".join(
        f"{place}: {a:.3f} and {b:.3f}"
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1)
    )
    return [Line(None, "by place", f"accepted of tested, predicted and counted: {shown}")]


def _speed(runs: CheckedRuns) -> list[Line]:
    """Give the speed by the engine's clock, where both runs have pages."""
    paths: Sequence[Path] = [] if runs.alone is None else [runs.alone, runs.drafted]
    if not paths or not all(map(has_pages, paths)):
        return []
    try:
        rows, _, costs = measure_costs(paths, runs.config.engine.drafter)
    except PipelineError as error:  # of a busy machine; what is accepted does not depend on it
        return [Line(None, "speed", f"not measured: {error}")]
    text = (
        f"{rows[1]['speedup']:.2f} times the target alone by the engine's clock; a step with "
        f"{costs.drafted[1]:.2g} drafted tokens costs {costs.costs[1]:.2f} passes"
    )
    return [Line(None, "speed", text)]
