"""The first tables of the page, against the numbers that they are made from."""

import numpy as np
import pandas as pd
import pytest

from analysis import certify
from analysis.acceptance.judgement import Judgement
from analysis.acceptance.verdict import Advice
from analysis.report.first_screen import (
    EPSILONS,
    SHARE,
    costs,
    methods_table,
    relax_table,
    settings_table,
    verdict_text,
)
from analysis.report.results import EPS, FATES, Results, Target, median_answer
from analysis.report.text import percent_text
from analysis.rules import Additive, Mars, Multiplicative, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import count_calls
from analysis.topk import TopK

GREEDY = StrictGreedy()
RULES = (GREEDY, Additive(0.1), Additive(0.2), Additive(0.3), Mars(0.9), Tree(2))
STATISTICS = {"acceptance": 0.6, "certified": 0.2, "measured_per_call": 2.5, "departure": 0.1}


def results(targets=("A", "B")):
    rows = [
        {"target": target, "rule": rule.label, "statistic": name, "value": value}
        | {"ci_low": value - 0.05, "ci_high": value + 0.05}
        for target in targets
        for rule in RULES
        for name, value in {**STATISTICS, "probability_given_up": 0.01}.items()
    ]
    rules = {rule.label: rule for rule in RULES}
    return Results(targets, rules, {"acceptance": pd.DataFrame(rows)}, "D")


def run(drafter, **given):
    ends = {"rate": 0.5, "rate_ci_low": 0.4, "rate_ci_high": 0.6, "tokens_per_call": 1.8}
    ends |= {"tokens_per_call_ci_low": 1.7, "tokens_per_call_ci_high": 1.9}
    ends |= {"speedup": 1.2, "ci_low": 1.1, "ci_high": 1.3}
    row = {"drafter": drafter, "rule": "greedy", "scheme": "strict greedy", "draft_length": 4}
    return {**row, "answer": "yes", "engine": "vLLM", **ends, **given}


def test_methods_stand_with_their_engine_and_one_number_is_called_accepted():
    """Of the study's drafter that of stage acceptance, of look-up the share of tested tokens."""
    advice = Advice("A", "draft", "Draft.", ["Beside."], [run("model"), run("prompt_lookup")])
    table = methods_table([advice], results(("A",)))
    assert table.shown["accepted"].tolist() == ["60.0 % [55.0, 65.0]", "50.0 % [40.0, 60.0]"]
    assert table.shown["speed"].unique().tolist() == ["1.20× [1.10, 1.30]"]
    assert table.data["accepted"].tolist() == [0.6, 0.5]
    assert verdict_text([advice], table).splitlines() == [
        "Draft.",
        "- Beside.",
        "",
        "| method | engine that runs it | faster? | speed | tokens per call | accepted |",
        "| --- | --- | --- | --- | --- | --- |",
        "| D under strict greedy (γ = 4) | vLLM | yes | 1.20× [1.10, 1.30] | 1.80 [1.70, 1.90] | "
        "60.0 % [55.0, 65.0] |",
        "| prompt look-up under strict greedy (γ = 4) | vLLM | yes | 1.20× [1.10, 1.30] | "
        "1.80 [1.70, 1.90] | 50.0 % [40.0, 60.0] |",
    ]
    odd = Advice("A", "draft", "Draft <b> [x](y).", [], [run("model", engine="a|<i>")])
    text = verdict_text([odd], methods_table([odd], results(("A",))))
    assert text.startswith(r"Draft \<b> [x]\(y).")
    assert r"| a\|\<i> | yes |" in text
    assert methods_table([Advice("A", "not measured", "", [])], results()) is None
    untested = {"rate": np.nan, "rate_ci_low": np.nan, "rate_ci_high": np.nan}
    never = Advice("A", "draft", "", [], [run("prompt_lookup", **untested)])
    table = methods_table([never], results())
    assert table.shown["accepted"].tolist() == ["–"]


def test_a_family_shows_the_rules_that_were_tried_and_else_one_in_the_middle():
    scores = {"B": pd.DataFrame([{"rule": "mars theta=0.9", "right": 7, "items": 9, "alone": 8}])}
    table = relax_table(results(), [], scores)
    titles = [GREEDY.title, Additive(0.2).title, Mars(0.9).title]  # no tree: it gives up nothing
    assert table.shown.loc["A"].index.tolist() == titles
    assert table.shown["right answers"].tolist() == ["–"] * 5 + ["7 of 9, 8 without"]
    tried = relax_table(results(), ["additive t=0.1", "additive t=0.3"], {})
    assert tried.shown.loc["B"].index.tolist()[1:3] == [Additive(0.1).title, Additive(0.3).title]
    assert relax_table(Results(["A"], {}, {}), [], {}) is None


@pytest.mark.parametrize("drafter", [True, False])
def test_settings_certify_what_is_claimed(drafter):
    rng = np.random.default_rng(0)
    dist = TopK.from_probabilities(rng.dirichlet(np.full(40, 0.3), 200))
    prompts = np.repeat(np.arange(10), 20)
    rules = (GREEDY, Additive(0.1), Multiplicative(0.5), Tree(2))
    found = certify(dist, rules)
    ends = {rule: (found.lower[:, at],) * 2 for at, rule in enumerate(rules)}
    target = Target(
        *("A", ends, PromptBootstrap(prompts, 30, 0.9, 0), np.zeros(200, np.int32), []),
        dist=dist,
        kl=rng.exponential(0.1, 200) if drafter else None,
    )
    study = results(("A",)) if drafter else Results(["A"], {}, {})
    table = settings_table(study, [target])
    data = table.data.set_index(["eps", "quantity"])["value"]
    for eps in EPSILONS:
        certified = found.lower[:, 0] > eps
        assert data[eps, "Strict greedy certifies"] == certified.mean()
        calls = count_calls(certified, target.trajectories, None)
        assert data[eps, "and guarantees"] == calls.tokens.sum() / calls.calls.sum()
        t = data[eps, "Additive: t at least"]
        reached = [np.mean(certify(dist, Additive(x)).lower > eps) for x in (t - 1e-4, t)]
        assert reached[0] < SHARE <= reached[1]
        m = data[eps, "Tree: m at least"]
        assert np.isnan(m) or np.mean(certify(dist, Tree(int(m))).lower > eps) >= SHARE
        if target.kl is not None:
            assert data[eps, "D is within that KL at"] == np.mean(target.kl <= eps)
            assert data[eps, "and reaches"] == STATISTICS["measured_per_call"]
    assert drafter == any("reaches" in name for _, name in data.index)


def test_answers_of_one_token_guarantee_nothing():
    """No call is made: the guarantee is undefined, and printed as a dash."""
    dist = TopK.from_probabilities([[0.9, 0.1], [0.8, 0.2]])
    bootstrap = PromptBootstrap(np.arange(2), 20, 0.9, 0)
    lower = certify(dist, GREEDY).lower[:, 0]
    target = Target("A", {GREEDY: (lower, lower)}, bootstrap, np.zeros(2, np.int32), [], dist)
    table = settings_table(Results(["A"], {}, {}), [target])
    said = "– tokens per call, drafts of any length"
    assert table.shown.loc["and guarantees"].tolist() == [said] * 2


def test_costs_are_of_the_target_alone_and_of_a_drafted_token():
    speeds = pd.DataFrame(
        {
            "drafter": ["none", "prompt_lookup", "model"],
            "tokens_per_second": [50.0, 60.0, 70.0],
            "per_token": [0.02, 0.01, 0.01],
            "c_q": [np.nan, 1e-6, 0.003],
        }
    )
    pair = type("Pair", (), {"target": "T", "drafter": "D"})
    said = "T alone: 50 tokens per second, 20 ms per token"
    assert costs(pair, speeds) == f"{said}; D: 3 ms per drafted token."
    assert costs(pair, speeds[:2]) == f"{said}."


def made(drafter):
    """Four answers of ten steps; the certificates of answer n are near n / 10 nats."""
    rng, size = np.random.default_rng(0), 40
    prompts, tokens = np.repeat(np.arange(4), size // 4), np.arange(size, dtype=np.int32)
    base = prompts / 10 + rng.uniform(0.001, 0.05, size)
    judged = {}
    for rule in (GREEDY, Additive(0.3)) if drafter else ():
        kept = rng.uniform(size=size) < 0.2 + 0.2 * prompts
        judged[rule.label] = Judgement(rule, base, base, kept, kept & (tokens % 2 == 0))
    return Target(
        "target",
        {GREEDY: (base, base), Additive(0.3): (2 * base, 2 * base)},
        PromptBootstrap(prompts, 30, 0.9, 0),
        tokens,
        [30 * "word " + str(at) for at in range(4)],
        words={20: "<b>", 21: "word"},
        judged=judged,
    )


@pytest.mark.parametrize("drafter", [True, False])
def test_the_median_answer_is_shown_with_the_fate_of_every_step(drafter):
    target = made(drafter)
    found = median_answer(target)
    greedy = target.judged[GREEDY.label].accepted if drafter else target.certificates[GREEDY][0]
    place = int(np.argsort(greedy.reshape(4, 10).mean(axis=1))[2])
    steps = range(10 * place, 10 * place + 10)
    assert found.prompt == f"{19 * 'word '}word …"  # a long prompt ends at a word
    assert found.words == [target.words.get(at, f"#{at}") for at in steps]
    assert [title for title, _, _ in found.rules] == [GREEDY.title, Additive(0.3).title]
    for rule, (_, said, shown) in zip(target.certificates, found.rules, strict=True):
        for step, fate in zip(steps, shown, strict=True):
            if drafter:
                judged = target.judged[rule.label]
                wanted = "accepted" if judged.accepted[step] else "rejected"
                wanted = "certified" if judged.certified[step] else wanted
            else:
                wanted = "certified" if target.certificates[rule][0][step] > EPS else "open"
            assert FATES[int(fate)] == wanted
        kept = sum(FATES[int(fate)] in ("accepted", "certified") for fate in shown) / 10
        assert said.startswith(f"{percent_text(kept)} {'accepted' if drafter else 'certified'}")
