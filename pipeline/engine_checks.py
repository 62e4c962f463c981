"""The checks of `pipeline.engine`: an engine's answers beside what the study predicts along them.

Two runs of an engine answer the same prompts: with drafts, and without. The target reads the
answers, and its drafter (or look-up) drafts along them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from analysis import TopK, certify
from analysis.decoding.lookup import lookup_calls
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Flags
from analysis.statistics.trajectories import Trajectories, calls_along
from pipeline.core.errors import PipelineError
from pipeline.drafters.pairs import load_pair, read_pair
from pipeline.engines.counts import EngineAnswer
from pipeline.engines.registry import counts_remedy, engine_named
from pipeline.engines.speed.runs import Run
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import load_model
from pipeline.models.logit_comparison import compare_logits
from pipeline.study import Study

ROWS = 64  # of logits that are ranked at once, in float64
TIE = 0.25  # logits: two steps of bfloat16 between 16 and 32
MIN_EQUAL = 0.99  # of calls; a near-tie of the drafter's logits may part a few
ODD_TOKENS = 0.05  # of tokens per pass, predicted and counted
Call = tuple[int, int]  # drafted, accepted


class Check(NamedTuple):
    """A line of the screen: whether a check passed, its name, what was counted."""

    passed: bool
    name: str
    text: str


class PromptAnswer(NamedTuple):
    """A prompt, and the answer to it, as token ids; and what the answer counts."""

    prompt: list[int]
    tokens: list[int]
    counts: EngineAnswer


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """What the models give along an answer of n tokens, at depths 1 to D; 0 without a drafter."""

    gap: NDArray[np.float32]  # (n,) how far each token's logit is below the largest; -1: the argmax
    right: Flags  # (D, n) whether the drafter's argmax is the token of the answer
    certified: Flags  # (D, n) whether strict greedy certifies the drafter's step


@dataclass
class CallComparison:
    """Calls of an engine beside those predicted along its answers, counted over all answers.

    Prefill emits the first token of an answer; a call that begins at step s is followed by one at
    s + accepted + 1. If an engine reports only sums over calls, the sums are compared.
    """

    answers: int = 0  # those of which anything is compared
    equal_answers: int = 0  # those whose calls, or sums, are all equal
    calls: int = 0  # the engine's calls without each answer's last one; 0 if it reports only sums
    equal_calls: int = 0  # those of these calls that were predicted
    predicted: int = 0  # accepted tokens
    counted: int = 0  # likewise, by the engine
    tested: int = 0  # certified tokens that the engine tested
    rejected: int = 0  # those of these that it rejected
    different: str = ""  # name of the first answer that is not equal

    def add(self, name: str, predicted: Sequence[Call], counted: Sequence[Call]) -> None:
        """Compare the calls with a draft of an answer; the last may go beyond its end.

        Of an answer with a single one nothing is compared.
        """
        engine_calls = _begins(counted)[:-1]
        own_calls = set(_begins(predicted))
        if not engine_calls:
            return
        equal = sum(call in own_calls for call in engine_calls)
        self.calls += len(engine_calls)
        self.equal_calls += equal
        accepted = (sum(kept for _, kept in calls) for calls in (predicted, counted))
        self._count(name, equal == len(engine_calls), *accepted)

    def add_sums(self, name: str, predicted: Sequence[Call], accepted: int, beyond: int) -> None:
        """Compare the accepted tokens of an answer; up to `beyond` may be after its end.

        Where all of them may be, nothing is compared.
        """
        if 0 < accepted <= beyond:
            return
        total = sum(kept for _, kept in predicted)
        self._count(name, total <= accepted <= total + beyond, total, accepted)

    def _count(self, name: str, equal: bool, predicted: int, counted: int) -> None:
        self.answers += 1
        self.equal_answers += equal
        self.different = self.different or ("" if equal else name)
        self.predicted += predicted
        self.counted += counted

    def certify(self, counted: Sequence[Call], certified: Flags) -> None:
        """Count the certified tokens (D, n), by depth, that drafting calls tested and rejected."""
        depths, size = certified.shape
        for begin, drafted, accepted in _begins(counted):
            for place in range(min(accepted + 1, drafted, size - begin)):
                if certified[min(place, depths - 1), begin + place]:
                    self.tested += 1
                    self.rejected += place == accepted


def _begins(calls: Sequence[Call]) -> list[tuple[int, int, int]]:
    """Return consecutive calls with the step at which each begins."""
    step = 1
    rows = []
    for drafted, accepted in calls:
        rows.append((step, drafted, accepted))
        step += accepted + 1
    return rows


class StudyChecker:
    """The models of a study, that check an engine's runs; without a drafter, look-up drafts."""

    def __init__(self, study: Study) -> None:
        config = self._config = study.config
        if len(study.targets) != 1:
            raise PipelineError(f"targets: {', '.join(study.targets)}: give one, target=NAME")
        if config.distributions.source != "model":
            raise PipelineError(
                f"distributions.source={config.distributions.source} has no model to predict "
                "with: give the study that was asked"
            )
        self._drafter = None
        self._depths = 1
        self._temperature = config.certificates.temperature
        self._known: dict[tuple[tuple[int, ...], int], AnswerScores] = {}
        if config.drafter is None:
            self._target = load_model(study.task("distributions").runtime.models[0])
            return
        pair = study.task("drafts").runtime.models
        self._target, self._drafter = load_pair(*pair)
        if pair[1].head is not None:
            self._depths = pair[1].head.depths

    def checks(self, base: Run, run: Run) -> list[Check]:
        """Check a run with drafts beside one without."""
        if run.counts.drafting is None:
            remedy = counts_remedy(engine_named(run.engine))
            raise PipelineError(f"{run.path} counts no drafts: {remedy}")
        if not run.length:
            raise PipelineError(f"decoding.draft_length must be given: {run.path} does not tell it")
        alone = self._asked(base)
        drafted = self._asked(run)
        replayed = self._replay(run, drafted)
        checks = [self._texts(alone, drafted), _calls(replayed, run.counts.engine)]
        if replayed.tested:
            text = f"{replayed.rejected} of {replayed.tested} certified tokens were rejected"
            checks.append(Check(not replayed.rejected, "certified", text))
        return [*checks, self._tokens(base, run, alone)]

    def _asked(self, run: Run) -> dict[str, PromptAnswer]:
        """Return the answers of a run, of at most `distributions.steps` tokens."""
        asked = {}
        for name, answer in run.counts.answers.items():
            if answer.prompt is None or answer.tokens is None:
                raise PipelineError(
                    f"{run.path}: answer {name} lacks the token ids of its prompt or its own: give "
                    "a file that `python -m pipeline.ask URL` saved"
                )
            if not answer.temperature <= 0:
                raise PipelineError(
                    f"{run.path}: answer {name} was sampled at temperature {answer.temperature:g}: "
                    "ask again with distributions.temperature=0"
                )
            if answer.tokens:
                steps = self._config.distributions.steps
                asked[name] = PromptAnswer(answer.prompt, answer.tokens[:steps], answer)
        if not asked:
            raise PipelineError(f"{run.path} has no answers to check: give those of pipeline.ask")
        return asked

    @torch.inference_mode()
    def _along(self, asked: PromptAnswer) -> AnswerScores:
        """Read an answer behind its prompt, once."""
        answer = asked.tokens
        tokens = [*asked.prompt, *answer]
        n = len(answer)
        if (key := (tuple(tokens), n)) in self._known:
            return self._known[key]
        self._target.check_tokens(tokens, "an answer of the engine")
        self._target.check_context(len(tokens), "distributions.steps")
        ids = torch.tensor([tokens[:-1]], device=self._target.device)
        answer_ids = torch.tensor(answer, device=ids.device)
        right = certified = np.zeros((0, n), dtype=bool)
        if self._drafter is None:
            logits = KVSession(self._target, len(tokens)).prefill(ids, n)[0]
        else:
            logits, drafts, completed = read_pair(self._target, self._drafter, ids, n, self._depths)
            right = torch.stack([draft.argmax(1) == answer_ids for draft in drafts]).cpu().numpy()
            size = min(logits.shape[1], drafts[0].shape[1])
            whole = None if completed is None else completed[:, :size]
            qs = [draft[:, :size] for draft in drafts]
            columns = compare_logits(logits[:, :size], qs, self._temperature, completed=whole)
            kl = columns["depth_kl"].cpu().numpy().T.copy()
            if whole is not None:  # what certifies the completed q certifies the head
                kl[0] = columns["full_kl"].cpu().numpy()
            certified = kl < _certificates(logits[:, :size], self._temperature)
        below = logits.amax(1) - logits.gather(1, answer_ids[:, None])[:, 0]
        gap = torch.where(logits.argmax(1) == answer_ids, -1.0, below.float())
        self._known[key] = AnswerScores(gap.cpu().numpy(), right, certified)
        return self._known[key]

    def _predict(self, run: Run, asked: PromptAnswer) -> list[tuple[int, int, int]]:
        """Return drafted, accepted and emitted tokens of the passes of a run along an answer."""
        length = run.length or 0
        lookup = self._config.decoding
        if self._config.drafter is not None:
            steps = Trajectories.from_positions(np.arange(len(asked.tokens)))
            calls = calls_along(self._along(asked).right, steps, length)
            return [(length, int(k), int(e)) for k, e in zip(*calls[2:], strict=True)]
        cuts_drafts_at_limit = engine_named(run.counts.engine).cuts_drafts_at_limit
        limit = self._config.distributions.steps if cuts_drafts_at_limit else None
        return lookup_calls(
            asked.prompt, asked.tokens, length, lookup.lookup, lookup.lookup_match, limit
        )

    def _replay(self, run: Run, drafted: dict[str, PromptAnswer]) -> CallComparison:
        replayed = CallComparison()
        length = run.length or 0
        for name, asked in drafted.items():
            predicted = [call[:2] for call in self._predict(run, asked) if call[0]]
            counts = asked.counts
            if counts.per_call is None:
                beyond = min(counts.last_accepted, length)
                replayed.add_sums(name, predicted, int(counts.accepted), beyond)
                continue
            calls = [(drafted, kept) for kept, drafted in counts.per_call]
            if self._config.drafter is not None:
                replayed.certify(calls, self._along(asked).certified)
                calls = [(length, kept) for _, kept in calls]  # shorter at an answer's end
            replayed.add(name, predicted, calls)
        return replayed

    def _texts(self, alone: dict[str, PromptAnswer], drafted: dict[str, PromptAnswer]) -> Check:
        theirs = {tuple(asked.prompt): asked for asked in drafted.values()}
        gaps: list[float] = []  # of logits where texts part: that of the token farther from the top
        prompts = shorter = 0
        for one in alone.values():
            if (two := theirs.get(tuple(one.prompt))) is None:
                continue
            prompts += 1
            both = zip(one.tokens, two.tokens, strict=False)
            step = next((index for index, (a, b) in enumerate(both) if a != b), None)
            if step is not None:  # both tokens follow the same text
                gaps.append(max(0.0, *(float(self._along(of).gap[step]) for of in (one, two))))
            elif len(one.tokens) != len(two.tokens):
                shorter += 1
        far = sum(gap > TIE for gap in gaps)
        text = (
            f"{prompts - len(gaps) - shorter} of {prompts} equal those without drafts; "
            f"{far} part where logits differ by more than {TIE:g}"
        )
        if gaps:
            text += f" (largest gap {max(gaps):.3g})"
        if shorter:
            text += f"; {shorter} end where the other goes on"
        return Check(bool(prompts) and not far and not shorter, "texts", text)

    def _tokens(self, base: Run, run: Run, alone: dict[str, PromptAnswer]) -> Check:
        """Hold the tokens per pass predicted without the engine's drafts against its own."""
        calls = [call for asked in alone.values() for call in self._predict(run, asked)]
        if not calls:
            return Check(False, "tokens", "nothing was compared: no answer has a second token")
        predicted = sum(emitted for *_, emitted in calls) / len(calls)
        least, most = run.counts.tokens_per_pass
        counted = f"{least:.3f}" if most - least < 0.0005 else f"{least:.3f} to {most:.3f}"
        near = least * (1 - ODD_TOKENS) <= predicted <= most * (1 + ODD_TOKENS)
        text = f"{predicted:.3f} per pass predicted along {base.path.name}, {counted} counted"
        return Check(bool(near), "tokens", text)


def _calls(replayed: CallComparison, engine: str) -> Check:
    if not replayed.answers:
        text = "nothing was compared: no answer reports a draft before its last, which may go "
        return Check(False, "calls", text + "beyond the answer's end: ask for longer answers")
    text = f"{replayed.equal_answers} of {replayed.answers} answers as predicted"
    share = replayed.equal_answers / replayed.answers
    if replayed.calls:
        text = f"{replayed.equal_calls} of {replayed.calls} equal, last ones aside; {text}"
        share = replayed.equal_calls / replayed.calls
    else:
        text += f" by their sums ({engine} does not tell calls apart)"
    text += f"; {replayed.predicted} tokens accepted, {engine} counts {replayed.counted}"
    if replayed.different:
        text += f"; the first other answer is {replayed.different}"
    return Check(share >= MIN_EQUAL, "calls", text)


def _certificates(logits: torch.Tensor, temperature: float) -> NDArray[np.float64]:
    """Return strict greedy's certificates of (n, V) logits, a few rows at a time."""
    dists = (
        TopK.from_logits(rows.cpu().numpy(), k=2, temperature=temperature)
        for rows in logits.split(ROWS)
    )
    return np.concatenate([certify(dist, StrictGreedy()).lower[:, 0] for dist in dists])
