"""Drafters that stop: what is emitted stays, thresholds at their borders, what is refused."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from analysis.topk import TopK
from pipeline.decoding import reading
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import ModelDrafter, measured, stops
from pipeline.decoding.reading import Reader
from pipeline.errors import PipelineError
from pipeline.models.load import LanguageModel
from pipeline.plan.method import Drafting
from pipeline.plan.methods import build_methods
from pipeline.plan.slices import method_slice
from tests.pipeline.decoding.pair import LIMIT, PROMPTS, greedy, logits, plain_greedy

GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}


@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.6, 1.0])
def test_what_is_emitted_stays(
    target: LanguageModel, drafter: LanguageModel, threshold: float
) -> None:
    for prompt in PROMPTS:
        wanted = plain_greedy(target, prompt)
        stop = partial(stops, Drafting("max_q", threshold))
        answer = greedy(target, ModelDrafter(drafter, Greedy(), stop=stop), prompt, 4)
        assert answer.tokens == wanted
        sure = logits(drafter, prompt + wanted).softmax(1).max(1).values[len(prompt) :]
        for call in answer.calls:
            # as long as it is sure, as far as the text is that of the target
            along_text = sure[call.position - 1 : call.position - 1 + call.accepted]
            assert (along_text > threshold).all()
            if call.drafted == call.accepted < min(4, LIMIT - call.position - 1):
                assert sure[call.position - 1 + call.accepted] <= threshold
        if threshold == 1.0:
            assert all(call.drafted == 0 and call.emitted == 1 for call in answer.calls)


def test_a_drafter_stops_on_its_threshold_and_not_below() -> None:
    row = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
    for measure, sure in (("max_q", -math.inf), ("entropy", math.inf)):
        (value,) = measured(measure, row)
        assert partial(stops, Drafting(measure, value))(row)
        assert not partial(stops, Drafting(measure, float(np.nextafter(value, sure))))(row)
        assert partial(stops, Drafting(measure, float(np.nextafter(value, -sure))))(row)


def test_a_measure_sees_what_a_full_sort_sees() -> None:
    given = torch.randn((3, 9), generator=torch.Generator().manual_seed(0))
    given[0, 4:] = -torch.inf  # of a reduced vocabulary
    given[1] = torch.tensor([0.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0])  # ties
    given[2, 0] = 800.0  # the others underflow
    wanted = TopK.from_logits(given)
    assert measured("max_q", given) == pytest.approx(np.minimum(wanted.top_probability, 1.0))
    assert measured("entropy", given) == pytest.approx(wanted.entropy, 1e-12, 1e-15)


def test_methods_say_when_to_stop() -> None:
    one, other = build_methods([GOOD | {"drafting": "max_q", "threshold": [0.4, 0.75]}])
    assert (one.drafting, other.drafting) == (Drafting("max_q", 0.4), Drafting("max_q", 0.75))
    assert one.name == "greedy (drafting max_q threshold=0.4)"
    assert one.lossless
    assert method_slice(one)["drafting"] == {"drafting": "max_q", "threshold": 0.4}
    assert "drafting" not in method_slice(build_methods([GOOD])[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafting": "sure"}, r"methods\[0\].drafting=sure is not allowed: give one of max_q"),
        ({"drafting": "max_q"}, "threshold=None is not allowed: give a number: drafting: max_q"),
        ({"drafting": "max_q", "threshold": -1}, "threshold=-1 is not allowed"),
        ({"drafting": "max_q", "share": 0.5}, "the key 'share' is not known"),
        (
            {"drafting": "max_q", "threshold": 0.5, "drafter": "prompt_lookup"},
            "drafting: max_q: a model that drafts a chain can stop",
        ),
        (
            {"drafting": "max_q", "threshold": 0.5, "tree": "symmetric", "width": 2},
            "a model that drafts a chain can stop",
        ),
        (
            {"drafting": "max_q", "threshold": 0.5, "tree": "dynamic", "width": 2, "nodes": 4},
            "a model that drafts a chain can stop",
        ),
    ],
)
def test_what_cannot_stop_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods([GOOD | change])


def test_blocks_do_not_stop() -> None:
    block = {"drafter": "model", "sampling": "block", "draft_length": 3, "temperature": 1.0}
    with pytest.raises(PipelineError, match="sampling=block tests drafts of a length"):
        build_methods([block | {"drafting": "max_q", "threshold": 0.5}])


def test_an_answer_is_read_once_and_its_likelihood_is_that_of_a_pass_of_its_own(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = greedy(target, ModelDrafter(drafter, Greedy()), PROMPTS[0], 3).tokens
    alone = reading.log_likelihood(reading.read_again(target, PROMPTS[0], answer), answer)
    reader, read = Reader(target, drafter, PROMPTS[0]), reading.read_both
    passes: list[int] = []
    monkeypatch.setattr(reading, "read_both", lambda *given: passes.append(1) or read(*given))
    assert reader.log_likelihood(answer) == alone  # nothing was read by both yet
    assert reader.both(answer) is reader.both(list(answer))
    monkeypatch.setattr(reading, "read_again", None)
    assert reader.log_likelihood(answer) == alone
    assert len(passes) == 1
