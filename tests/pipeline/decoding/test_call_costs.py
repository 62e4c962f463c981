"""The loop's own calls, timed at every draft length along a known answer."""

import pytest
import torch

from analysis.decoding.predicted_speed import MAX_DRAFT_LENGTH
from pipeline.decoding.call_costs import time_calls
from pipeline.decoding.loop import prefill
from pipeline.decoding.session import DecodingSession
from pipeline.drafters import NeuralDrafter
from pipeline.models.kv_session import KVSession
from tests.pipeline import heads
from tests.pipeline.decoding.pair import CPU, LIMIT, PROMPTS, plain_greedy


@pytest.fixture(params=["none", "model", "head"])
def session(request, target, drafter):
    model = heads.random_head(target, torch.arange(0, target.vocab_size, 2))
    drafts = {"none": None, "model": drafter, "head": model}[request.param]
    drafters = {} if drafts is None else {NeuralDrafter.name: heads.neural(drafts)}
    return DecodingSession(target, drafters, [], LIMIT, 0)


def layers(session):
    return () if session.neural is None else session.neural.layers


@pytest.mark.parametrize(
    "size", [MAX_DRAFT_LENGTH + 3, MAX_DRAFT_LENGTH + 2, MAX_DRAFT_LENGTH + 1, 3, 1]
)
def test_one_call_of_each_length_that_the_answer_has_room_for(session, size):
    answer = plain_greedy(session.target, PROMPTS[0])[:size]
    read = prefill(session.target, PROMPTS[0], LIMIT, layers(session))
    timed = time_calls(session, read, answer)
    calls = timed.calls
    assert timed.begin_seconds > 0
    longest = min(MAX_DRAFT_LENGTH, max(size - 2, -1))
    assert [call.drafted for call in calls] == [*range(longest, -1, -1)]
    assert [call.position for call in calls] == [*range(1, len(calls) + 1)]
    assert {call.emitted for call in calls} <= {1}
    assert all(call.verify_seconds > 0 for call in calls)


def test_the_target_reads_the_text_and_the_draft(session, monkeypatch):
    """So each pass is one of the loop: the last token and the draft, behind the text so far."""
    read = prefill(session.target, PROMPTS[0], LIMIT, layers(session))
    seen = []
    append = KVSession.append

    def spy(self, ids, *args, **options):
        if self.model is session.target:
            seen.append((self.length, ids[0].tolist()))
        return append(self, ids, *args, **options)

    monkeypatch.setattr(KVSession, "append", spy)
    answer = plain_greedy(session.target, PROMPTS[0])
    time_calls(session, read, answer)
    prompt = len(PROMPTS[0])
    assert [length for length, _ in seen] == [prompt + at for at in range(MAX_DRAFT_LENGTH + 1)]
    assert [len(ids) for _, ids in seen] == [*range(MAX_DRAFT_LENGTH + 1, 0, -1)]
    assert [ids[0] for _, ids in seen] == answer[: MAX_DRAFT_LENGTH + 1]


def test_what_was_read_stays_as_it_was(session):
    read = prefill(session.target, PROMPTS[1], LIMIT, layers(session))
    before = [layer.keys.clone() for layer in read.cache.cache.layers]
    time_calls(session, read, plain_greedy(session.target, PROMPTS[1]))
    assert read.cache.length == len(PROMPTS[1])
    after = [layer.keys for layer in read.cache.cache.layers]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert read.logits.device == CPU
