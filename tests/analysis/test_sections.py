"""The first tables of the page and the section on a drafter, against what they are made from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import certify, typical_acceptance
from analysis.acceptance.drafter import margins
from analysis.acceptance.guarantees import expected_per_call
from analysis.acceptance.judgement import Judgement
from analysis.acceptance.target import Target
from analysis.acceptance.target_statistics import part_statistics
from analysis.acceptance.usual_drafter import DRAWS_OF_MEANS, LAWS
from analysis.report.acceptance_tables import acceptance_by_source, acceptance_table, depth_table
from analysis.report.drafter_figures import margin_figure
from analysis.report.gap_and_half_table import gap_and_half_table
from analysis.report.headline_tables import (
    engine_lines,
    methods_table,
    relax_speed_table,
    relax_table,
)
from analysis.report.median_answer import STEP_OUTCOMES, median_answer
from analysis.report.results import ASSUMED_KL, Results
from analysis.report.settings_table import EPSILONS, PER_CALL, SHARE, settings_table
from analysis.report.speed_by_length_figure import missed_predictions
from analysis.report.table import concat_targets
from analysis.report.text import number_text, percent_text
from analysis.report.verdict_markdown import verdict_markdown
from analysis.report.verdict_sentences import Advice, log_advice
from analysis.rules import AbsoluteThreshold, Additive, Mars, Multiplicative, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories, count_calls
from analysis.topk import TopK
from pipeline.cli import verdict_of
from pipeline.core.store import VERDICT
from pipeline.drafters.prompt_lookup import PromptLookup
from pipeline.stages.report.inputs import ACCEPTANCE
from tests.pipeline.test_acceptance import drafts, logits, run

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


def timed(drafter, **given):
    ends = {"rate": 0.5, "rate_ci_low": 0.4, "rate_ci_high": 0.6, "tokens_per_call": 1.8}
    ends |= {"tokens_per_call_ci_low": 1.7, "tokens_per_call_ci_high": 1.9}
    ends |= {"speedup": 1.2, "ci_low": 1.1, "ci_high": 1.3}
    row = {
        "drafter": drafter,
        "drafter_title": "D",
        "rule": "greedy",
        "scheme": "strict greedy",
        "draft_length": 4,
    }
    return {**row, "answer": "yes", "engine": "vLLM", **ends, **given}


def test_methods_stand_with_their_engine_and_one_number_is_called_accepted():
    """Of the study's drafter that of stage acceptance, of look-up the share of tested tokens."""
    advice = Advice("A", "draft", "Draft.", ["Beside."], [timed("model"), timed("prompt_lookup")])
    table = methods_table([advice], results(("A",)), {})
    assert table.data["accepted"].tolist() == [0.6, 0.5]
    lines = verdict_markdown([advice], table).splitlines()
    assert lines[:2] == ["Draft.", "- Beside."]
    odd = Advice("A", "draft", "Draft <b> [x](y).", [], [timed("model", engine="a|<i>")])
    text = verdict_markdown([odd], methods_table([odd], results(("A",)), {}))
    assert text.startswith(r"Draft \<b> [x]\(y).")
    assert r"| a\|\<i> | 1.80 [1.70, 1.90] | yes |" in text  # no cost is known, so no column
    assert "costs" not in table.caption
    assert methods_table([Advice("A", "not measured", "", [])], results(), {}) is None


def test_a_family_shows_one_rule_in_the_middle_with_its_right_answers():
    scores = {"B": pd.DataFrame([{"rule": "mars theta=0.9", "right": 7, "items": 9, "alone": 8}])}
    table = relax_table(results(), [], scores)
    titles = [GREEDY.title, Additive(0.2).title, Mars(0.9).title]  # no tree: it gives up nothing
    assert table.cells.loc["A"].index.tolist() == titles
    assert table.cells["right answers"].tolist() == ["–"] * 5 + ["7 of 9, 8 without"]


def predicted(speeds, rule="greedy", drafter="model"):
    """Speeds by draft length from 0; a call costs 1, 1.5, 2, ..., and one token is best if free."""
    lengths = np.arange(len(speeds))
    table = pd.DataFrame({"draft_length": lengths, "speed": speeds, "cost": 1 + 0.5 * lengths})
    table["memory_bound"] = 2.0 - (lengths - 1.0) ** 2 / 100
    for name in ("speed", "cost"):
        table[f"{name}_ci_low"], table[f"{name}_ci_high"] = table[name] - 0.1, table[name] + 0.1
    return table.assign(rule=rule, drafter=drafter)


def test_methods_stand_with_what_a_call_costs_and_the_best_length():
    advice = Advice("A", "draft", "", [], [timed("model", draft_length=2), timed("prompt_lookup")])
    of_target = {"A": predicted([1.0, 1.1, 1.3, 0.9])}
    table = methods_table([advice], results(("A",)), of_target)
    cells = table.cells.iloc[0]
    assert cells["a call costs"] == "2.00 passes [1.90, 2.10]"
    assert cells["best length, predicted"] == "2 tokens: 1.30×"
    assert cells["if longer passes cost nothing"] == "1 token: 2.00×"
    unknown = table.cells.iloc[1][["a call costs", "best length, predicted"]]
    assert unknown.tolist() == ["–", "–"]  # nothing was predicted for look-up
    of_target = {"A": predicted([1.0, 0.9, 0.8])}
    none = methods_table([advice], results(("A",)), of_target).cells.iloc[0]
    assert none["best length, predicted"] == "none pays"


def test_relaxed_rules_are_predicted_at_the_length_of_the_lossless_method():
    advice = Advice("A", "draft", "", [], [timed("model", draft_length=2)])
    frames = [predicted([1.0, 1.1, 1.2]), predicted([1.0, 1.3, 1.4], rule=Mars(0.9).label)]
    of_target = {"A": pd.concat(frames)}
    relax = relax_table(results(("A",)), [], {})
    table = relax_speed_table(relax, of_target, [advice])
    cells = table.cells["speed here, predicted"]
    assert cells[GREEDY.title] == "1.20× [1.10, 1.30]"
    assert cells[Mars(0.9).title] == "1.40× [1.30, 1.50]"
    assert cells[Additive(0.2).title] == "–"
    assert "speed" not in relax.data  # what depends on the clock stays apart
    none_timed = relax_speed_table(relax, of_target, [])
    assert none_timed.cells["speed here, predicted"].tolist() == ["–"] * len(relax.data)


@pytest.mark.parametrize(
    ("timed_at", "named"), [((1.0, 1.2), False), ((1.21, 1.4), True), ((0.9, 1.19), True)]
)
def test_a_timed_interval_that_misses_the_prediction_is_named(timed_at, named):
    low, high = timed_at
    run = timed("model", draft_length=2, temperature=0.0, lossless=True, drafter_title="D")
    run |= {"tpot_speedup": (low + high) / 2, "tpot_ci_low": low, "tpot_ci_high": high}
    run |= {"tokens_per_call": 1.25}
    table = predicted([1.0, 1.1, 1.2]).assign(tokens_per_call=1.75)
    unknown = missed_predictions(pd.DataFrame([run | {"of_timed_calls": np.nan}]), table)
    known = missed_predictions(pd.DataFrame([run | {"of_timed_calls": 0.87}]), table)
    assert bool(unknown) == bool(known) == named
    lines = unknown + known
    assert all("D, drafts of 2," in line and "1.20 is predicted" in line for line in lines)
    assert not any("1.25" in line for line in unknown)
    words = ["1.25 tokens per call", "1.75", "0.87 is predicted"]
    assert all(word in line for line in known for word in words)


def test_settings_certify_what_is_claimed():
    rng = np.random.default_rng(0)
    dist = TopK.from_probabilities(rng.dirichlet(np.full(40, 0.3), 200))
    prompts = np.repeat(np.arange(10), 20)
    rules = (GREEDY, Additive(0.1), Multiplicative(0.5), Tree(2))
    found = certify(dist, rules)
    ends = {rule: (found.lower[:, at],) * 2 for at, rule in enumerate(rules)}
    target = Target(
        *("A", ends, PromptBootstrap(prompts, 30, 0.9, 0), np.zeros(200, np.int32), []),
        dist=dist,
        kl=rng.exponential(0.1, 200),
    )
    table = settings_table(results(("A",)), [target])
    data = table.data.set_index(["eps", "quantity"])["value"]
    for eps in EPSILONS:
        certified = found.lower[:, 0] > eps
        assert data[eps, "Strict greedy certifies, of the steps"] == certified.mean()
        calls = count_calls(certified, target.trajectories, None)
        per_call = calls.tokens.sum() / calls.calls.sum()
        assert data[eps, "Strict greedy guarantees, tokens per call"] == per_call
        t = data[eps, "Additive: t at least"]
        reached = [np.mean(certify(dist, Additive(x)).lower > eps) for x in (t - 1e-4, t)]
        assert reached[0] < SHARE <= reached[1]
        m = data[eps, "Tree: m at least"]
        assert np.isnan(m) or np.mean(certify(dist, Tree(int(m))).lower > eps) >= SHARE
        assert data[eps, "D is within that KL, of the steps"] == np.mean(target.kl <= eps)
        assert data[eps, "D reaches, tokens per call"] == STATISTICS["measured_per_call"]
        usual = table.data.set_index(["eps", "quantity"])["usual_drafter"]
        settings = {"Strict greedy certifies, of the steps": GREEDY}
        settings |= {"Additive: t at least": Additive(t)}
        for quantity, rule in settings.items():
            shares = typical_acceptance(dist, rule, eps, draws=DRAWS_OF_MEANS)
            assert usual[eps, quantity] == shares.mean() > np.mean(certify(dist, rule).lower > eps)
        assert usual[eps, PER_CALL] > data[eps, PER_CALL]
        cells = table.cells[f"usual drafter at {eps:g} nats"]
        assert cells[PER_CALL].startswith(f"{usual[eps, PER_CALL]:.2f} (")
        assert cells["D reaches, tokens per call"] == "–"


def test_the_figure_over_slacks_has_the_line_of_usual_drafters_where_it_is_known():
    slack = np.array([-0.2, -0.05, -0.05, 0.3])
    accepted = np.array([False, True, False, True])
    known = margins(slack, accepted, {law: np.linspace(0.1, 1, 4) for law in LAWS})
    line, _ = margin_figure({"A": known}, "greedy").draw().axes[0].get_lines()  # and that at 0
    bins = {x: y for x, y in line.get_xydata() if not np.isnan(y)}
    assert list(bins.values()) == pytest.approx([0.1, (0.4 + 0.7) / 2, 1.0])
    assert "model" in margin_figure({"A": known}, "greedy").caption
    unknown = margin_figure({"A": margins(slack, accepted)}, "greedy")
    assert len(unknown.draw().axes[0].get_lines()) == 1
    assert "model" not in unknown.caption


def test_expected_tokens_per_call_are_the_mean_of_many_trials():
    rng = np.random.default_rng(0)
    steps = Trajectories.from_positions(np.array([*range(9), *range(30), 0, 0, 1]))
    share = rng.uniform(size=42)
    counted = [count_calls(rng.uniform(size=42) < share, steps, None) for _ in range(1000)]
    calls = np.mean([counts.calls.sum() for counts in counted])
    tokens = counted[0].tokens.sum()
    assert expected_per_call(share, steps) == pytest.approx(tokens / calls, rel=0.02)
    for certain in rng.uniform(size=(20, 42)) < 0.7:
        counts = count_calls(certain, steps, None)
        per_call = counts.tokens.sum() / counts.calls.sum()
        assert expected_per_call(certain * 1.0, steps) == pytest.approx(per_call, rel=1e-12)
    assert np.isnan(expected_per_call(np.ones(1), Trajectories.from_positions(np.zeros(1, int))))


@pytest.mark.parametrize(
    ("dist", "searched"),
    [
        (None, set()),  # not stored
        (TopK.from_logits(np.random.default_rng(0).normal(size=(200, 40)), k=8), {"Additive"}),
        (TopK.from_logits(np.random.default_rng(0).normal(size=(200, 40)), k=33),
         {"Additive", "Tree"}),  # as many as the widest tree takes
    ],
)  # fmt: skip
def test_no_setting_is_searched_without_the_tokens_that_it_takes(dist, searched):
    rules = (GREEDY, Additive(0.1), Tree(2))
    ends = {rule: (np.linspace(0, 0.5, 200),) * 2 for rule in rules}
    bootstrap = PromptBootstrap(np.repeat(np.arange(10), 20), 30, 0.9, 0)
    target = Target("A", ends, bootstrap, np.zeros(200, np.int32), [], dist=dist)
    table = settings_table(Results(["A"], {}, {}), [target])
    names = {name.partition(":")[0] for name in table.cells.index if ":" in name}
    assert names == searched


def test_the_terminal_shows_the_verdict_without_escapes_of_markdown(tmp_path):
    """A page's Markdown has them, so that no name makes a tag or a link."""
    few = timed("prompt_lookup", rate=0.0001, rate_ci_low=0.0, rate_ci_high=0.0002)
    advice = Advice("A", "draft", "Draft <b> [x](y).", ["Beside."], [few])
    text = verdict_markdown([advice], methods_table([advice], results(("A",)), {}))
    assert r"\< 0.1 %" in text
    (tmp_path / VERDICT).parent.mkdir()
    (tmp_path / VERDICT).write_text(text)
    (sentence,), (table,) = verdict_of(SimpleNamespace(directory=tmp_path))
    assert sentence == "Draft <b> [x](y)."
    assert "| < 0.1 % [0.0, 0.0] |" in table


@pytest.mark.parametrize(("match", "noted"), [("latest", True), ("earliest", False), (None, False)])
def test_that_matches_differ_is_said_where_look_up_copies_otherwise(match, noted):
    runs = [timed("model")]
    if match is not None:
        runs.append(timed("prompt_lookup", engine=PromptLookup.engines({"lookup_match": match})))
    lines = engine_lines(methods_table([Advice("A", "draft", "", [], runs)], results(("A",)), {}))
    assert any("docs/engine.md" in line for line in lines)
    assert any(line.startswith("Matches differ") for line in lines) == noted
    assert engine_lines(None) == []


def test_a_share_of_one_prompt_has_no_interval():
    one = timed("prompt_lookup", rate_ci_low=np.nan, rate_ci_high=np.nan)
    advice = Advice("A", "draft", "Draft.", [], [one])
    assert methods_table([advice], results(("A",)), {}).cells["accepted"].tolist() == ["50.0 %"]


def test_answers_of_one_token_guarantee_nothing():
    ends, bootstrap = (np.ones(2),) * 2, PromptBootstrap(np.arange(2), 20, 0.9, 0)
    target = Target("A", {GREEDY: ends}, bootstrap, np.zeros(2, np.int32), [])
    table = settings_table(Results(["A"], {}, {}), [target])
    assert (table.cells.loc["Strict greedy guarantees, tokens per call"] == "–").all()
    long = log_advice(target).beside[1]
    assert "no tokens per call are guaranteed" in long
    assert "nan" not in long


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
    assert found.words == [target.words.get(at, f"#{at}") for at in steps]
    for rule, (_, said, shown) in zip(target.certificates, found.rules, strict=True):
        fates = [STEP_OUTCOMES[int(fate)] for fate in shown]
        if drafter:
            judged = target.judged[rule.label]
            pairs = zip(judged.accepted[steps], judged.certified[steps], strict=True)
            assert fates == [
                "certified" if sure else "accepted" if kept else "rejected" for kept, sure in pairs
            ]
        else:
            sure = target.certificates[rule][0][steps] > ASSUMED_KL
            assert fates == ["certified" if one else "open" for one in sure]
        kept = sum(fate in ("accepted", "certified") for fate in fates) / 10
        assert said.startswith(f"{percent_text(kept)} {'accepted' if drafter else 'certified'}")


JUDGED = [StrictGreedy(), Additive(0.1), AbsoluteThreshold(0.05), Tree(4), Multiplicative(0.5)]
T = "target A"


def measured(folder, missing=False):
    """A drafter, which lacks a token or not, of which 8 of 20 target tokens are stored."""
    z, w = logits(0.3)
    if missing:
        w[:, 3] = -np.inf
    pair = drafts(folder, z, w, deeper=(logits(1.0)[1],))
    found, _ = run(folder, pair, rules=JUDGED)
    frames = {
        name: concat_targets([(T, found.read(file).to_pandas())])
        for name, file in ACCEPTANCE.items()
    }
    rules = {rule.label: rule for rule in JUDGED}
    return Results([T], rules, frames, "D")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("full"))


def test_what_an_infinite_kl_cannot_say_is_left_out(full, tmp_path):
    """A drafter that lacks a token, whose KL is infinite at every step of depth 1."""
    found = measured(tmp_path, missing=True)
    assert not {"certified", "coverage"} & set(acceptance_table(found).cells[T])
    assert {"certified", "coverage"} < set(acceptance_table(full).cells[T])
    shown = depth_table(found).cells
    assert shown.loc["finite KL"].to_numpy().ravel().tolist() == ["0.0 %", "100.0 %"]
    for name in ("KL(p‖q), median, nats", "certified"):
        assert shown.loc[name, (T, "depth 1")].isna().all()
        assert shown.loc[name, (T, "depth 2")].notna().all()
    steps = found["breakdown"].set_index(["rule", "depth", "statistic"])["value"].sort_index()
    wanted = [steps.loc[("greedy", depth, "acceptance")].item() for depth in (1, 2)]
    assert shown.loc[("accepted", "Strict greedy")].tolist() == [*map(percent_text, wanted)]


def test_the_sources_of_prompts_have_a_table_where_there_are_several(full):
    shown = acceptance_by_source(full).cells
    assert list(shown.columns) == [(T, "creation"), (T, "world")]
    assert list(shown.index) == [rule.title for rule in JUDGED]
    values = full["sources"].set_index(["rule", "source", "statistic"])["value"].sort_index()
    single = values.loc[("greedy", "creation", "acceptance")]
    assert shown.loc["Strict greedy", (T, "creation")] == percent_text(single)  # one prompt
    assert "[" in shown.loc["Strict greedy", (T, "world")]
    one = full["sources"].assign(source="world")
    assert acceptance_by_source(replace(full, frames={**full.frames, "sources": one})) is None
    assert acceptance_by_source(replace(full, frames={})) is None


def test_parts_are_by_margin_and_by_half_of_the_answer():
    """Two answers of 4 and of 3 steps, by hand; the middle one of three is in the first half."""
    rules, gap = [StrictGreedy(), Additive(0.1)], np.array([0.1, 0.6, 3, 9, 0.2, 0.4, 1.5])
    lower = np.array([0.1, 0.2, 0.3, np.inf, 0.05, 0.15, 0.25])
    accepted = np.array([1, 0, 1, 1, 0, 0, 1], dtype=bool)
    certified = accepted & (lower > 0.2)
    target = Target(
        T,
        dict.fromkeys(rules, (lower, lower)),
        PromptBootstrap(np.repeat([0, 1], [4, 3]), 20, 0.9, 0),
        np.zeros(7, dtype=np.int32),
        [],
        logit_gap=gap,
        judged={r.label: Judgement(r, lower, lower, accepted, certified) for r in rules},
    )
    frame = part_statistics(target)
    value = frame.set_index(["part", "rule", "statistic"])["value"].sort_index()
    assert value["0 to 0.5", "", "share"] == 3 / 7
    assert value["0 to 0.5", "greedy", "acceptance"] == 1 / 3
    assert value["above 4", "greedy", "certified"] == 1
    assert value["first", "", "share"] == 4 / 7
    assert value["first", "greedy", "acceptance"] == 1 / 4
    assert value["second", "greedy", "acceptance"] == 1
    named = {rule.label: rule for rule in rules}
    shown = gap_and_half_table(Results([T], named, {"parts": frame}, "D")).cells
    assert shown.loc[("accepted", "Strict greedy")].tolist() == [
        *("33.3 %", "0.0 %", "100.0 %", "100.0 %", "100.0 %", "25.0 %", "100.0 %")
    ]
    alone = part_statistics(replace(target, judged={}))
    shown = gap_and_half_table(Results([T], named, {"parts": alone})).cells
    medians = [0.1, 0.2, 0.25, 0.3, StrictGreedy().ceiling, 0.1, 0.3]
    printed = [number_text(value, 3) for value in medians]
    assert shown.loc[("median R, nats", "Strict greedy")].tolist() == printed
