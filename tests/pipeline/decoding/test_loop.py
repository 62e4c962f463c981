"""The loop, its drafters and its cache against plain passes of the models."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from analysis.decoding import laws as verification
from analysis.rules import Additive, Mars, Typical
from analysis.trees.topology import Growth, Topology
from pipeline.decoding import loop
from pipeline.decoding.choices import (
    DRAFT,
    DrawnRace,
    FreshInversion,
    Greedy,
    Inversion,
    Noise,
    Race,
    Truncation,
)
from pipeline.decoding.drafters import ModelDrafter, Nothing, model_drafter, nothing
from pipeline.decoding.lookup import LookupFirst, PromptLookup, continuation
from pipeline.decoding.loop import decode
from pipeline.decoding.shapes import verification_pass
from pipeline.decoding.verifiers import (
    BlockVerification,
    Match,
    Relaxed,
    SpeculativeSampling,
    TreeSampling,
)
from pipeline.errors import PipelineError
from pipeline.execution import stopwatch
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.forced import Batch
from pipeline.models.load import LanguageModel
from pipeline.models.passes import Text
from pipeline.stages.drafts.forced import ComparedPair, teacher_force
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, V, greedy, logits, plain_greedy
from tests.pipeline.heads import random_head


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_strict_greedy_is_the_plain_loop_and_its_history_the_walk(
    target: LanguageModel, drafter: LanguageModel, prompt: list[int], gamma: int
) -> None:
    wanted = plain_greedy(target, prompt)
    answer = greedy(target, ModelDrafter(drafter, Greedy()), prompt, gamma)
    assert answer.tokens == wanted
    assert greedy(target, Nothing(CPU), prompt, 0).tokens == wanted
    assert greedy(target, PromptLookup(3, CPU), prompt, gamma).tokens == wanted
    drafted = logits(drafter, prompt + wanted)[len(prompt) : -1].argmax(1).tolist()
    right = [a == b for a, b in zip(drafted, wanted[1:], strict=True)]
    walk = verification.history(right, gamma)
    assert [(c.position - 1, c.drafted, c.accepted) for c in answer.calls] == walk
    assert sum(c.emitted for c in answer.calls) == LIMIT - 1


@pytest.mark.parametrize("gamma", [1, 3])
def test_the_history_is_the_walk_over_the_indicators_of_stage_drafts(
    target: LanguageModel, drafter: LanguageModel, gamma: int
) -> None:
    answers = [plain_greedy(target, prompt) for prompt in PROMPTS]
    batch = Batch.make(PROMPTS, answers, CPU)
    pair = ComparedPair(target, drafter, V, 4, 4, 1.0, 1 << 20)
    rank = teacher_force(pair, batch, Stopwatch(CPU), lambda _: None)["draft_rank"]
    for row, prompt in enumerate(PROMPTS):
        answer = greedy(target, ModelDrafter(drafter, Greedy()), prompt, gamma)
        walk = verification.history((rank[row, 1:LIMIT] == 1).tolist(), gamma)
        assert [(c.position - 1, c.drafted, c.accepted) for c in answer.calls] == walk


def test_the_walk_meets_both_outcomes(target: LanguageModel, drafter: LanguageModel) -> None:
    calls = [
        call
        for prompt in PROMPTS
        for call in greedy(target, ModelDrafter(drafter, Greedy()), prompt, 3).calls
    ]
    accepted, tested = sum(c.accepted for c in calls), sum(c.tested for c in calls)
    assert 0.2 < accepted / tested < 0.95
    assert any(c.accepted == 3 for c in calls)


def test_a_relaxed_rule_accepts_what_it_says(target: LanguageModel, drafter: LanguageModel) -> None:
    prompt, rule = PROMPTS[1], Additive(0.3)
    answer = decode(target, ModelDrafter(drafter, Greedy()), Relaxed(rule), prompt, 4, LIMIT)
    p = logits(target, prompt + answer.tokens).softmax(1)[len(prompt) - 1 :]
    relaxed = 0
    for call in answer.calls:
        at = range(call.position, call.position + call.accepted)
        for i in at:
            assert p[i, answer.tokens[i]] > p[i].max() - 0.3
            relaxed += int(p[i].argmax()) != answer.tokens[i]
        if not answer.ended:
            follow = call.position + call.accepted
            assert answer.tokens[follow] == int(p[follow].argmax())
    assert relaxed > 0


def test_races_decode_what_the_target_alone_decodes_with_the_same_noise(
    target: LanguageModel, drafter: LanguageModel
) -> None:
    for prompt in PROMPTS:
        race = Race(0.8, Noise(3, "a", LIMIT, CPU, 4))
        alone = decode(target, Nothing(CPU), Match(race), prompt, 0, LIMIT)
        both = decode(target, ModelDrafter(drafter, race), Match(race), prompt, 4, LIMIT)
        assert both.tokens == alone.tokens
        assert any(call.accepted for call in both.calls)


def test_drafter_and_target_share_the_arrival_times_of_a_race(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = Noise._arrivals

    def counted(self: Noise, position: int, vocab_size: int) -> torch.Tensor:
        made.append(position)
        return real(self, position, vocab_size)

    monkeypatch.setattr(Noise, "_arrivals", counted)
    noise = Noise(3, "a", LIMIT, CPU, 4)
    race = Race(0.8, noise)
    answer = decode(target, ModelDrafter(drafter, race), Match(race), PROMPTS[1], 4, LIMIT)
    assert any(call.accepted < call.tested for call in answer.calls)  # some are asked for again
    assert made == list(range(LIMIT))
    assert len(noise._times) <= 5


def test_an_answer_stops_at_its_end_token(target: LanguageModel, drafter: LanguageModel) -> None:
    free = plain_greedy(target, PROMPTS[1])
    end = free[6]
    ended = replace(target, eos=(end,))
    for gamma in (1, 5):
        answer = greedy(ended, ModelDrafter(drafter, Greedy()), PROMPTS[1], gamma)
        assert answer.tokens == free[: free.index(end) + 1]
        assert answer.ended
        assert 1 + sum(c.emitted for c in answer.calls) == len(answer.tokens)
        assert all(c.accepted <= c.tested <= c.drafted for c in answer.calls)


def test_a_call_reaches_no_further_than_a_drafted_token_that_ends_the_answer(
    target: LanguageModel,
) -> None:
    """The target drafts for itself: every draft is accepted, and a call emits its reach and one."""
    tokens = plain_greedy(target, PROMPTS[1])
    end = tokens[4]
    at = tokens.index(end)  # the call at position 1 meets it `at - 1` tokens into its draft
    ended = replace(target, eos=(end,))
    for gamma in (1, 2, 5, 8):
        calls = greedy(ended, ModelDrafter(target, Greedy()), PROMPTS[1], gamma).calls
        assert [call.drafted for call in calls] == [gamma] * len(calls)
        assert [call.reach for call in calls[:-1]] == [gamma] * (len(calls) - 1)
        assert calls[-1].reach == min(gamma, at - calls[-1].position)
        assert [call.emitted for call in calls] == [call.reach + 1 for call in calls]


@pytest.mark.thorough
def test_the_history_of_an_answer_that_a_token_ended_is_the_walk(
    target: LanguageModel, drafter: LanguageModel
) -> None:
    inside = 0  # answers whose last token was drafted and accepted
    for prompt in PROMPTS:
        free = plain_greedy(target, prompt)
        for end in set(free[1:]) - {free[0]}:
            ended = replace(target, eos=(end,))
            wanted = free[: free.index(end) + 1]
            drafted = logits(drafter, prompt + wanted)[len(prompt) : -1].argmax(1).tolist()
            right = [a == b for a, b in zip(drafted, wanted[1:], strict=True)]
            for gamma in (1, 2, 5):
                answer = greedy(ended, ModelDrafter(drafter, Greedy()), prompt, gamma)
                walk = verification.history(right, gamma, LIMIT - 1)
                assert [(c.position - 1, c.drafted, c.accepted) for c in answer.calls] == walk
                inside += walk[-1][0] + walk[-1][2] == len(right)
    assert inside > 0


def test_lookup_takes_the_latest_occurrence_of_the_longest_match() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert continuation(text, 3, 2) == [9, 2]  # 1 2 3 occurs once before
    assert continuation(text, 2, 2) == [8, 1]  # 2 3 occurs twice, the later counts
    assert continuation([4, 5], 3, 2) == []
    assert continuation([7, 7], 3, 4) == [7, 7, 7, 7]
    assert continuation([5, 1, 2, 1, 2], 2, 5) == [1, 2, 1, 2, 1]
    assert continuation(text, 9, 1) == [9]  # no more than the text has
    assert continuation([3, 1, 2, 5, 2], 3, 2, shortest=2) == []
    assert continuation([3, 1, 2, 5, 2], 3, 2, shortest=1) == [5, 2]
    assert continuation([], 3, 2) == continuation([1], 3, 2) == []


def test_lookup_finds_what_a_scan_from_the_end_finds() -> None:
    def scanned(text: list[int], longest: int, count: int, shortest: int) -> list[int]:
        for n in range(min(longest, len(text) - 1), shortest - 1, -1):
            for end in range(len(text) - 2, n - 2, -1):
                if text[end - n + 1 : end + 1] == text[-n:]:
                    grown = list(text)
                    for at in range(end + 1, end + 1 + count):
                        grown.append(grown[at])
                    return grown[len(text) :]
        return []

    generator = np.random.default_rng(0)
    for _ in range(300):
        text = generator.integers(3, size=generator.integers(1, 12)).tolist()
        for longest, shortest in ((1, 1), (3, 1), (3, 2), (4, 4)):
            asked = (text, longest, 5, shortest)
            assert continuation(*asked) == scanned(*asked), asked


def test_prompts_that_cannot_be_decoded_say_why(target: LanguageModel) -> None:
    with pytest.raises(PipelineError, match="prompt is empty"):
        greedy(target, Nothing(CPU), [], 0)
    with pytest.raises(PipelineError, match="1020 tokens and an answer of 24 exceed the context"):
        greedy(target, Nothing(CPU), [5] * 1020, 0)


@torch.inference_mode()
def test_hidden_states_after_a_path_are_those_of_its_nodes(target: LanguageModel) -> None:
    sequence = Text(target, 12, (1, 2))
    sequence.read(torch.tensor(PROMPTS[0]))
    tree = Topology((-1, -1, 1))
    shape = verification_pass(tree, CPU, torch.float32)
    sequence.extend(torch.tensor([9, 3, 4, 5]), shape)
    found = sequence.hidden_after((1, 2))
    assert sequence.hidden is not None
    assert found is not None
    assert found.equal(sequence.hidden[[0, 2, 3]])
    assert Text(target, 4).hidden_after((0,)) is None


class Event:
    """A CUDA event of a device on which a second passes from one record to the next."""

    recorded: ClassVar[list[Event]] = []
    waited: ClassVar[list[Event]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.recorded.append(self)

    def synchronize(self) -> None:
        self.waited.append(self)

    def elapsed_time(self, end: Event) -> float:
        assert self.waited, "its time is not known before it is waited for"
        return 1000.0 * (self.recorded.index(end) - self.recorded.index(self))


def test_on_cuda_parts_are_timed_by_events_and_an_answer_is_waited_for_once(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.waited.clear()
    real = stopwatch.mark
    monkeypatch.setattr(loop, "mark", lambda _: real(torch.device("cuda")))
    for turn, prompt in enumerate(PROMPTS, start=1):
        Event.recorded.clear()
        answer = greedy(target, ModelDrafter(drafter, Greedy()), prompt, 3)
        assert Event.waited[turn - 1 :] == Event.recorded[-1:]
        seconds = [(c.draft_seconds, c.verify_seconds, c.other_seconds) for c in answer.calls]
        assert seconds == [(1.0, 1.0, 1.0)] * len(answer.calls)
        assert answer.first_seconds == answer.begin_seconds == 1.0
        assert answer.seconds == len(Event.recorded) - 1 == 2 + 3 * len(answer.calls)


def test_a_stopwatch_on_cuda_waits_before_it_asks_for_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.recorded.clear()
    Event.waited.clear()
    watch = Stopwatch(torch.device("cuda"))
    assert watch.seconds() == {}
    for name in ("decode", "statistics", "decode"):
        with watch(name):
            pass
    assert not Event.waited
    assert watch.seconds() == {"decode": 2.0, "statistics": 1.0}
    assert Event.waited[0] is Event.recorded[-1]


def test_parts_of_an_answer_add_up_to_what_it_took(
    target: LanguageModel, drafter: LanguageModel
) -> None:
    begun = time.perf_counter()
    answer = greedy(target, ModelDrafter(drafter, Greedy()), PROMPTS[1], 3)
    taken = time.perf_counter() - begun
    assert 0.5 * taken < answer.seconds < taken
    for call in answer.calls:
        assert min(call.draft_seconds, call.verify_seconds, call.other_seconds) > 0


def hooked(model: LanguageModel, ids: list[int], value: float) -> LanguageModel:
    """A copy of a model whose logits of some tokens have this value."""
    module = copy.deepcopy(model.module)
    module.lm_head.register_forward_hook(
        lambda _, __, out: out.index_fill(-1, torch.tensor(ids), value)
    )
    return replace(model, module=module)


UNEVEN = Topology((-1, -1, 0, 0, 1))
WAYS: dict[str, Any] = {  # what drafts and what verifies, from the noise
    "greedy": lambda n: (Greedy(), Match(Greedy()), None),
    "MARS": lambda n: (Greedy(), Relaxed(Mars(0.5)), None),
    "typical": lambda n: (Greedy(), Relaxed(Typical(0.3, 0.3)), None),
    "sampling": lambda n: (Inversion(0.8, n, DRAFT), SpeculativeSampling(0.8, n), None),
    "MARS, sampling": lambda n: (
        Inversion(0.8, n, DRAFT), SpeculativeSampling(0.8, n, Mars(0.5)), None,
    ),
    "blocks": lambda n: (FreshInversion(0.8, n), BlockVerification(0.8, n), None),
    "races": lambda n: (Race(0.8, n), Match(Race(0.8, n)), None),
    "truncated": lambda n: (
        Inversion(0.8, n, DRAFT, Truncation(0.9, 9)),
        SpeculativeSampling(0.8, n, None, Truncation(0.9, 9)), None,
    ),
    "tree": lambda n: (Greedy(), Match(Greedy()), UNEVEN),
    "sampled tree": lambda n: (DrawnRace(0.8, n), TreeSampling(0.8, n), UNEVEN),
    "raced tree": lambda n: (Race(0.8, n), Match(Race(0.8, n)), UNEVEN),
    "grown tree": lambda n: (Race(0.8, n), Match(Race(0.8, n)), Growth(3, 7, 3)),
}  # fmt: skip


def answer_of(target: LanguageModel, drafter: Any, way: str, prompt: list[int]) -> list[int]:
    choice, verifier, tree = WAYS[way](Noise(0, "a", LIMIT, CPU, 3))
    return decode(target, model_drafter(drafter, choice, tree), verifier, prompt, 3, LIMIT).tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["model", "head"])
def test_broken_logits_of_a_drafter_are_an_error(
    way: str, broken: float, kind: str, target: LanguageModel, drafter: LanguageModel
) -> None:
    """A draw from them would be the last token, which no test of the target corrects."""
    source: Any = hooked(drafter, [7], broken)
    if kind == "head":
        source = replace(random_head(target), projection=source.module.lm_head)
    with pytest.raises(PipelineError, match=r"the drafter: NaN or infinite .*\(drafter.dtype\)"):
        answer_of(target, source, way, PROMPTS[1])


@pytest.mark.parametrize("way", WAYS)
def test_masked_tokens_of_a_target_have_no_probability(
    way: str, target: LanguageModel, drafter: LanguageModel
) -> None:
    plain = plain_greedy(target, PROMPTS[1])
    masked = sorted({*plain[::2]})
    found = answer_of(hooked(target, masked, -torch.inf), drafter, way, PROMPTS[1])
    assert found == answer_of(hooked(target, masked, -1e4), drafter, way, PROMPTS[1])
    assert not {*masked} & {*found}


@pytest.mark.parametrize("ids", [[7], list(range(V))], ids=["one", "all"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_broken_logits_of_the_target_are_an_error(
    broken: float, ids: list[int], target: LanguageModel
) -> None:
    model = hooked(target, ids, broken)
    if broken == -torch.inf and len(ids) == 1:
        assert 7 not in greedy(model, PromptLookup(1, CPU), [5] * 9, 3).tokens
        return
    with pytest.raises(PipelineError, match=r"tiny: NaN or infinite logits at position 0 of the"):
        greedy(model, PromptLookup(1, CPU), [5] * 9, 3)


@pytest.mark.parametrize("found", [True, False])
def test_what_look_up_found_is_no_path_of_the_other_drafter(found: bool) -> None:
    told: list[Any] = []
    other: Any = SimpleNamespace(
        layers=(), tree=None,
        propose=lambda *_: nothing(CPU), accept=lambda *given: told.append(given),
    )  # fmt: skip
    first = LookupFirst(PromptLookup(2, CPU), other)
    first.propose([5, 6, 7, 5, 6] if found else [1, 2, 3], 2, 0)
    first.accept(3, (0, 1), None)
    assert told == [(3, () if found else (0, 1), None)]
