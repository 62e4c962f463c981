"""The loop, its drafters and its cache against plain passes of the models."""

import copy
from dataclasses import replace

import pytest
import torch

from analysis.decoding.lookup import lookup_calls
from analysis.rules import Additive
from pipeline.core.errors import PipelineError
from pipeline.decoding.drafters import Drafter, ModelDrafter, PromptLookup, model_drafter
from pipeline.decoding.loop import decode
from pipeline.decoding.sampling import GreedySampler, GumbelSampler, Noise
from pipeline.decoding.verification import ExactMatch, RuleVerifier
from tests.pipeline.decoding.pair import (
    CPU,
    LIMIT,
    PROMPTS,
    WAYS,
    Markov,
    V,
    greedy,
    history,
    logits,
    plain_greedy,
)
from tests.pipeline.heads import random_head


def walked(answer):
    """The calls of an answer as `history` gives them."""
    return [(c.position - 1, c.drafted, c.accepted) for c in answer.calls]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_strict_greedy_is_the_plain_loop_and_its_history_the_walk(target, drafter, prompt, gamma):
    wanted = plain_greedy(target, prompt)
    answer = greedy(target, ModelDrafter(drafter, GreedySampler()), prompt, gamma)
    assert answer.tokens == wanted
    assert greedy(target, Drafter(CPU), prompt, 0).tokens == wanted
    assert greedy(target, PromptLookup(3, CPU), prompt, gamma).tokens == wanted
    drafted = logits(drafter, prompt + wanted)[len(prompt) : -1].argmax(1).tolist()
    right = [a == b for a, b in zip(drafted, wanted[1:], strict=True)]
    assert walked(answer) == history(right, gamma)
    assert sum(c.emitted for c in answer.calls) == LIMIT - 1


def test_a_relaxed_rule_accepts_what_it_says(target, drafter):
    prompt, rule = PROMPTS[1], Additive(0.3)
    answer = decode(
        target, ModelDrafter(drafter, GreedySampler()), RuleVerifier(rule), prompt, 4, LIMIT
    )
    p = logits(target, prompt + answer.tokens).softmax(1)[len(prompt) - 1 :]
    relaxed = 0
    for call in answer.calls:
        follow = call.position + call.accepted
        for i in range(call.position, follow):
            assert p[i, answer.tokens[i]] > p[i].max() - 0.3
            relaxed += int(p[i].argmax()) != answer.tokens[i]
        if not answer.ended:
            assert answer.tokens[follow] == int(p[follow].argmax())
    assert relaxed > 0


@pytest.mark.parametrize("prompt", PROMPTS)
def test_races_decode_what_the_target_alone_decodes(target, drafter, prompt):
    race = GumbelSampler(0.8, Noise(3, "a", LIMIT, CPU, 4))
    alone = decode(target, Drafter(CPU), ExactMatch(race), prompt, 0, LIMIT)
    race = GumbelSampler(0.8, Noise(3, "a", LIMIT, CPU, 4))
    both = decode(target, ModelDrafter(drafter, race), ExactMatch(race), prompt, 4, LIMIT)
    assert both.tokens == alone.tokens
    assert any(call.accepted for call in both.calls)


@pytest.mark.parametrize("gamma", [1, 2, 5, 8])
def test_a_call_ends_with_the_answer_and_reaches_no_further(target, drafter, gamma):
    """Where the target drafts for itself all is accepted: a call emits its reach and one."""
    free = plain_greedy(target, PROMPTS[1])
    for at in (4, 6):
        ended = replace(target, eos=(free[at],))
        answer = greedy(ended, ModelDrafter(drafter, GreedySampler()), PROMPTS[1], gamma)
        assert answer.ended
        assert answer.tokens == free[: free.index(free[at]) + 1]
        assert 1 + sum(c.emitted for c in answer.calls) == len(answer.tokens)
        assert all(c.accepted <= c.tested <= c.drafted for c in answer.calls)
        calls = greedy(ended, ModelDrafter(target, GreedySampler()), PROMPTS[1], gamma).calls
        assert [call.drafted for call in calls] == [gamma] * len(calls)
        assert [call.reach for call in calls[:-1]] == [gamma] * (len(calls) - 1)
        assert calls[-1].reach == min(gamma, free.index(free[at]) - calls[-1].position)
        assert [call.emitted for call in calls] == [call.reach + 1 for call in calls]


def hooked(model, ids, value):
    """A copy of a model whose logits of some tokens have this value."""
    module = copy.deepcopy(model.module)
    module.lm_head.register_forward_hook(
        lambda _, __, out: out.index_fill(-1, torch.tensor(ids), value)
    )
    return replace(model, module=module)


def answer_of(target, drafter, way, prompt):
    choice, verifier, tree = WAYS[way](Noise(0, "a", LIMIT, CPU, 3))
    return decode(target, model_drafter(drafter, choice, tree), verifier, prompt, 3, LIMIT).tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["model", "head"])
def test_broken_logits_of_a_drafter_are_an_error(way, kind, target, drafter):
    """A draw from them would be the last token, which no test of the target corrects."""
    for broken in (torch.nan, torch.inf):
        source = hooked(drafter, [7], broken)
        if kind == "head":
            source = replace(random_head(target), projection=source.module.lm_head)
        with pytest.raises(PipelineError, match=r"the drafter: NaN or infinite .*\(drafter.dtype"):
            answer_of(target, source, way, PROMPTS[1])


@pytest.mark.parametrize("way", WAYS)
def test_masked_tokens_of_a_target_have_no_probability(way, target, drafter):
    masked = sorted({*plain_greedy(target, PROMPTS[1])[::2]})
    found = answer_of(hooked(target, masked, -torch.inf), drafter, way, PROMPTS[1])
    assert found == answer_of(hooked(target, masked, -1e4), drafter, way, PROMPTS[1])
    # additive accepts all tokens where p0 < t
    assert way == "additive" or not {*masked} & {*found}


@pytest.mark.parametrize("match", ["latest", "earliest"])
@pytest.mark.parametrize("limit", [17, 18, 19, 20])
def test_look_up_decodes_as_it_is_replayed_up_to_the_end(match, limit):
    """Near the largest length of an answer drafts are cut, to less than the n of a match too."""
    table = torch.full((9, 9), -9.0)
    table[torch.arange(9), (torch.arange(9) + 1) % 9] = 9.0  # 0 to 8, again and again
    model = Markov(table)
    prompt = list(range(9))
    answer = decode(
        model, PromptLookup(3, CPU, match), ExactMatch(GreedySampler()), prompt, 8, limit
    )
    replayed = lookup_calls(prompt, answer.tokens, 8, 3, match, limit)
    assert [(c.drafted, c.accepted, c.emitted) for c in answer.calls] == replayed
    assert any(drafted for drafted, *_ in replayed)


@pytest.mark.parametrize("ids", [[7], list(range(V))], ids=["one", "all"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_broken_logits_of_the_target_are_an_error(broken, ids, target):
    model = hooked(target, ids, broken)
    if broken == -torch.inf and len(ids) == 1:
        assert 7 not in greedy(model, PromptLookup(1, CPU), [5] * 9, 3).tokens
        return
    with pytest.raises(PipelineError, match=r"tiny: NaN or infinite logits at position 0 of the"):
        greedy(model, PromptLookup(1, CPU), [5] * 9, 3)
