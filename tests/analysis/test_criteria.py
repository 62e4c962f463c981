"""Rules: their configuration, their counts by enumeration, and rules by users."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import yaml
from pydantic import Field
from scipy.special import xlogy

from analysis import RuleError
from analysis.acceptance import parameter_range
from analysis.acceptance.parameter_range import build_range
from analysis.certificates.certify import certify
from analysis.rule_base import check_k
from analysis.rule_config import build, expand, to_mapping
from analysis.rules import (
    BUILT_IN,
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    Threshold,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import TopK
from tests.analysis.cases import dirichlet

ROOT = Path(__file__).resolve().parents[2]

RANKED = [0.35, 0.25, 0.2, 0.1, 0.06, 0.04]


def test_accepts_by_rank_by_probability_and_for_trees():
    p = np.array([[*RANKED]] * 6)
    rank = np.arange(1, 7)
    log_p = np.log(RANKED)
    whole, cut = TopK.from_probabilities(p), TopK.from_probabilities(p, k=2)
    above = AbsoluteThreshold(0.4)  # its threshold is above p0: x0 stays accepted
    for rule in (Additive(0.2), Multiplicative(0.2), Typical(0.08, 5.0), StrictGreedy(), above):
        expected = rank <= certify(whole, rule).accepted_count[:, 0]
        assert rule.accepts(whole, rank, log_p).tolist() == expected.tolist()
        # beyond the stored ranks the probability of the token decides
        count = certify(cut, rule).accepted_count[:, 0]
        for known in (None, count):
            assert rule.accepts(cut, rank, log_p, count=known).tolist() == expected.tolist()
    # a tree asks for the rank of x0 under the drafter instead
    tree, first = Tree(2), np.ones(6, dtype=int)
    assert tree.accepts(whole, first, log_p, rank).tolist() == [True] * 2 + [False] * 4
    with pytest.raises(ValueError, match="argmax_rank"):
        tree.accepts(whole, first, log_p)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"rule": "additve"}, r"rule='additve' is not known \(did you mean additive\?\)"),
        ({"rule": "additive"}, "rule additive: the key 't' is missing"),
        ({"rule": "absolute", "thta": 0.1}, r"'thta' is not known \(did you mean theta\?\)"),
        ({"rule": "additive", "t": 1.5}, "t=1.5 is not allowed"),
        ("greedy", "'greedy' is not a rule"),
        ({"_target_": "no_such_module.Mine"}, "_target_=no_such_module.Mine cannot be imported"),
    ],
)
def test_errors_name_key_value_and_range(mapping, message):
    with pytest.raises(ValueError, match=message):
        build(mapping)


def test_configuration_round_trip_and_grids():
    rules = expand(yaml.safe_load((ROOT / "conf/criteria/paper.yaml").read_text())["paper"])
    assert len(rules) == len({rule.label for rule in rules}) == 40
    for rule in rules:
        assert build(json.loads(json.dumps(to_mapping(rule)))) == rule
    assert Typical(0.1, 0.09).label == "typical eps0=0.1 delta0=0.09"  # as published
    assert Additive(1).label == "additive t=1"


NEEDED = {StrictGreedy(): 2, Mars(0.9): 3, TopMAdditive(3, 0.1): 4, TopMMultiplicative(3, 0.5): 4}
NEEDED |= {Tree(3): 4}


@pytest.mark.parametrize(("rule", "needed"), NEEDED.items(), ids=str)
def test_a_rule_needs_its_first_rejected_token(rule, needed):
    check_k([rule], needed, 1000)
    with pytest.raises(ValueError, match=f"needs the {needed} most probable"):
        check_k([rule], needed - 1, 1000)
    check_k([rule], 2, 2)  # all that there are


def test_rules_of_the_documentation(tmp_path, monkeypatch):
    """docs/certify.md as a reader would follow it: its Python in a module, its YAML in files."""
    text = (ROOT / "docs/certify.md").read_text()
    source = "\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / "my_rules.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    confident, perplexity, context = (build(*yaml.safe_load(block).values()) for block in blocks)
    assert to_mapping(perplexity) == {"_target_": "my_rules.Perplexity", "share": 0.9}
    p = -np.sort(-dirichlet(0, 200, 30, 0.03))
    dist, cut = TopK.from_probabilities(p), TopK.from_probabilities(p, k=2)
    lenient = dist.entropy > 1.0
    found = certify(dist, [confident, perplexity, TopMMultiplicative(4, 0.3), StrictGreedy()])
    np.testing.assert_array_equal(
        found.lower[:, 0], np.where(lenient, found.lower[:, 2], found.lower[:, 3])
    )
    entropy = -np.sum(xlogy(p, p), axis=1)
    most = np.maximum(1, np.floor(0.9 * np.exp(entropy)))
    np.testing.assert_array_equal(found.accepted_count[:, 1], most)
    short = certify(cut, [perplexity])
    unknown = short.accepted_count[:, 0] == -1
    assert 0 < unknown.sum() < 200
    assert np.isposinf(short.upper[unknown]).all()
    assert (short.lower[:, 0] <= found.lower[:, 1] * (1 + 1e-11)).all()
    assert (short.upper[:, 0] >= found.lower[:, 1] * (1 - 1e-11)).all()
    logits = np.random.default_rng(3).normal(0, 6, (200, 30))
    dist = TopK.from_logits(logits)
    counts = certify(dist, [context, Mars(0.85), Mars(0.95)]).accepted_count
    by_context = np.where(dist.entropy > 1.0, counts[:, 1], counts[:, 2])
    np.testing.assert_array_equal(counts[:, 0], by_context)
    assert (counts[:, 0] != counts[:, 1]).any()
    assert (counts[:, 0] != counts[:, 2]).any()


class Own(Rule):
    """A rule whose test is what a test says, or raises it."""

    says: Any

    def cut(self, dist, /):
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says


class Counting(Own):
    def accepted_count(self, dist, /):
        return self.cut(dist)


class Accepting(Own):
    def accepts(self, *_):
        return self.cut(_[0])


class Writing(Rule):
    def cut(self, dist, /):
        dist.probs[:] = 0
        return Threshold(max_rank=1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Own(None), "None: give a Threshold, or accepted_count"),
        (Own(Threshold(max_rank=np.array([1, 2, 3]))), "max_rank=array"),
        (Own(Threshold(max_rank=9)), "minimum_k must be 10; K=3"),
        (Counting(np.array([1.9])), r"one integer per step, in \[1, 6\]"),
        (Accepting("x"), "accepts must give one boolean per step"),
        (Writing(), "raised ValueError: assignment destination is read-only"),
        (Counting(KeyError("x")), "raised KeyError: 'x'$"),
        (Accepting(SystemExit(0)), "raised SystemExit: 0"),
    ],
)
def test_a_rule_that_says_nonsense_or_fails_is_refused_and_named(rule, message):
    dist = TopK.from_probabilities([RANKED], k=3)
    judged = rule.accepts if isinstance(rule, Accepting) else lambda *_: certify(dist, rule)
    with pytest.raises(RuleError, match=f"^rule .*{message}"):
        judged(dist, np.ones(1, int), np.zeros(1))


def test_ranges_are_those_of_the_classes():
    """From strict to relaxed, in the direction that each class declares."""
    for name, kind in BUILT_IN.items():
        if name != "greedy":
            dial = build_range({"rule": name})
            strict, relaxed = dial.rules
            assert (dial.value(strict), dial.value(relaxed)) == kind.search_range[dial.parameter]
    assert build_range({"rule": "topm_additive", "m": 3}).name == "topm_additive m=3"
    with pytest.raises(ValueError, match="greedy has no range"):
        build_range({"rule": "greedy"})


class Worded(Rule):
    """Lenient where it is unsure: p > alpha p0, up to rank m."""

    alpha: Annotated[float, Field(gt=0, le=1)]
    m: Annotated[int, Field(ge=1)] = 3

    def cut(self, _):
        return Threshold(slope=self.alpha, offset=0.0, max_rank=self.m)


class Wordless(Rule):
    t: Annotated[float, Field(ge=0, lt=0.5)]
    m: Annotated[int, Field(ge=1, le=4)]

    def cut(self, _):
        return Threshold(slope=1.0, offset=-self.t, max_rank=self.m)


class Unordered(Rule):
    """Neither end is stricter everywhere in a title with so many words that not all fit."""

    low: Annotated[float, Field(ge=0, le=1)]

    def cut(self, _):
        return Threshold(offset=0.3 * (1 - self.low), slope=0.9 * self.low)


@pytest.mark.parametrize(
    ("rule", "title"),
    [
        (Worded(0.25), "Lenient where it is unsure (alpha = 0.25, m = 3)"),
        (Wordless(0.1, 2), "Wordless t=0.1 m=2"),
        (Unordered(0.5), "Neither end is stricter everywhere in a (low = 0.5)"),
    ],
)
def test_a_rule_of_the_users_is_named_by_its_docstring(rule, title):
    assert rule.title == title
    assert rule.label.startswith(type(rule).__name__)

    class Named(type(rule)):
        title_format: ClassVar[str] = "Mine"

    class Bare(type(rule)):
        pass

    assert Named(**rule.parameters).title == "Mine"
    assert Bare(**rule.parameters).title == title.replace("Wordless", "Bare")


def test_the_range_of_a_users_rule_is_that_of_its_bounds(monkeypatch):
    def ends(kind, **given):
        monkeypatch.setattr(parameter_range, "rule_class", lambda _: (kind, given))
        found = build_range({})
        return found.parameter, *map(found.value, found.rules)

    assert ends(Worded) == ("alpha", 1.0, 1e-4)  # it is stricter at 1
    assert ends(Worded, m=5) == ("alpha", 1.0, 1e-4)
    assert ends(Wordless, m=2) == ("t", 0.0, pytest.approx(0.5 - 1e-4))
    assert ends(Wordless, t=0.25) == ("m", 1, 4)
    for kind, given, message in (
        (Worded, {"alpha": 0.5}, "Worded has no range"),
        (Wordless, {}, "Wordless: .*m"),  # is missing
        (Unordered, {}, "Unordered: neither"),
    ):
        with pytest.raises(ValueError, match=message):
            ends(kind, **given)


def test_a_rule_of_a_user_may_keep_the_names_of_1_0():
    """`Cut` for `Threshold`, and the attributes of a class that were renamed."""
    from analysis.rules import Cut

    class Old(Additive):
        shown: ClassVar[str] = "Old ({t:g})"
        ends: ClassVar[dict[str, tuple[float, float]]] = {"t": (0.1, 0.2)}
        decided_by: ClassVar[tuple[str, ...]] = ("entropy",)

        def cut(self, _dist, /):
            return Cut(offset=self.t)

    class Heir(Old):
        pass

    for kind in (Old, Heir):
        assert kind(0.3).title == "Old (0.3)"
        assert (kind.search_range, kind.columns_read) == ({"t": (0.1, 0.2)}, ("entropy",))
    assert Additive.columns_read == ("top_surprisal",)
    assert isinstance(Old(0.3).acceptance_test(TopK.from_logits([1.0, 0.0])), Threshold)
