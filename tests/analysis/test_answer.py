"""The answer that the page colours, against the arrays it stands for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.judgement import Judgement
from analysis.report.answer import EPS, FATES, in_order, median_answer
from analysis.report.measured import Target
from analysis.report.text import share_text
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap

GREEDY, SIZE = StrictGreedy(), 40


def made(rules: tuple[Rule, ...] = (Additive(0.3), GREEDY), drafter: bool = True) -> Target:
    """Four answers of ten steps; the certificates of answer n are near n / 10 nats."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(4), SIZE // 4)
    base = prompts / 10 + rng.uniform(0.001, 0.05, SIZE)
    kept = {rule.label: rng.uniform(size=SIZE) < 0.2 + 0.2 * prompts for rule in rules}
    tokens = np.arange(SIZE, dtype=np.int32)
    return Target(
        "target",
        {rule: (base * (1 + at),) * 2 for at, rule in enumerate(rules)},
        PromptBootstrap(prompts, 30, 0.9, 0),
        tokens,
        [(f"id-{at}", f"prompt {at}", "made up") for at in range(4)],
        words={20: "<b>", 21: "word"},
        judged={
            rule.label: Judgement(rule, base, base, *fates(kept[rule.label], tokens))
            for rule in rules
            if drafter
        },
    )


def fates(kept: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accepted, certified and certifiable steps."""
    sure = kept & (tokens % 2 == 0)
    return kept, sure, sure


def test_rules_are_ordered_by_family_from_strict_to_relaxed() -> None:
    given = [Tree(4), Multiplicative(0.1), Additive(0.3), Tree(2), Multiplicative(0.5), GREEDY]
    found = in_order([*given, Additive(0.1)])
    assert found == [
        *(GREEDY, Additive(0.1), Additive(0.3)),
        *(Multiplicative(0.5), Multiplicative(0.1), Tree(2), Tree(4)),
    ]


@pytest.mark.parametrize("drafter", [True, False])
def test_the_median_answer_is_shown_with_the_fate_of_every_step(drafter: bool) -> None:
    target = made(drafter=drafter)
    found = median_answer(target)
    greedy = target.judged[GREEDY.label].accepted if drafter else target.certificates[GREEDY][0]
    shares = greedy.reshape(4, 10).mean(axis=1)
    place = int(np.argsort(shares)[2])
    assert found.prompt == f"prompt {place}"
    assert found.words == [
        target.words.get(at, f"#{at}") for at in range(10 * place, 10 * place + 10)
    ]
    assert [title for title, _, _ in found.rules] == [GREEDY.title, Additive(0.3).title]
    for rule, (_, said, shown) in zip((GREEDY, Additive(0.3)), found.rules, strict=True):
        for step, fate in zip(range(10 * place, 10 * place + 10), shown, strict=True):
            sure = target.certificates[rule][0][step] > EPS
            if drafter:
                judged = target.judged[rule.label]
                wanted = "accepted" if judged.accepted[step] else "rejected"
                wanted = "certified" if judged.certified[step] else wanted
            else:
                wanted = "certified" if sure else "open"
            assert FATES[int(fate)] == wanted
        kept = sum(FATES[int(fate)] in ("accepted", "certified") for fate in shown) / 10
        word = "accepted" if drafter else "certified"
        assert said.startswith(f"{share_text(kept)} {word}")


def test_a_long_prompt_ends_at_a_word() -> None:
    prompts = [(f"id-{at}", 30 * "word " + str(at), "made up") for at in range(4)]
    assert median_answer(replace(made(), prompts=prompts)).prompt == f"{19 * 'word '}word …"
