"""Certificates of several divergences against one drafter: soundness, borders, unions by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.realised import Verdict, judge, rounding
from analysis.acceptance.summary import coverage, finite_shares
from analysis.rules import Additive, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import Floats
from tests import divergences
from tests.analysis.cases import drafted_steps, noisy
from tests.divergences import Comparison

NAMES = ("kl", "tv", "hellinger", "reverse_kl")


def distances_of(found: Comparison) -> dict[str, Floats]:
    return {name: getattr(found, name) for name in NAMES}


@pytest.mark.parametrize("k", [12, 5])
@pytest.mark.parametrize("missing", [0, 4])  # tokens that the drafter lacks
def test_no_divergence_certifies_a_rejected_step(k: int, missing: int) -> None:
    z, w = noisy(300, 12, 3.0, 0.4, k + missing)
    if missing:
        np.put_along_axis(w, np.argsort(z, axis=1)[:, :missing], -np.inf, axis=1)
    steps, found = drafted_steps(z, w, k)
    distances = distances_of(found)
    shares = {}
    for name, distance in distances.items():
        for verdict in judge(steps, [StrictGreedy(), Additive(0.1), Tree(2)], name, distance):
            assert len(verdict.violations) == 0, (name, verdict.rule.label)
            shares[name, verdict.rule.label] = verdict.certified.mean()
    for name in ("tv", "hellinger", "reverse_kl"):
        assert shares[name, "greedy"] > 0.3, name
    assert np.isinf(distances["kl"]).all() == (missing > 0)
    assert (shares["kl", "greedy"] == 0) == (missing > 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_border_of_every_divergence(name: str) -> None:
    """A distance just below R is certified; R itself, or more, is not; 0 is, where R is above 0."""
    z = np.array([[2.0, 1.0, 0.0, -1.0]] * 4 + [[1.0, 1.0, 0.0, -1.0]], dtype=np.float32)
    steps, _ = drafted_steps(z, z.copy())
    least = judge(steps, [StrictGreedy()], name, np.zeros(5))[0].lower[0]
    assert 0 < least < 1
    far = least * np.array([1 - 1e-6, 1.0, 1 + 1e-6, 0.0, 0.0])
    verdict = judge(steps, [StrictGreedy()], name, far)[0]
    assert verdict.certified.tolist() == [True, False, False, True, False]  # the last is a tie
    error = rounding(name, np.array([0.0, 1e-20, 0.3]))
    assert error[0] == 0 < error[1] <= error[2] <= 1e-12


def test_hellinger_of_distributions_that_share_nothing_and_of_neighbours() -> None:
    with np.errstate(divide="ignore"):
        p, q = np.log([[1.0, 0.0], [0.5, 0.5]]), np.log([[0.0, 1.0], [0.5, 0.5]])
    assert divergences.hellinger(p, q).tolist() == [1.0, 0.0]
    near = np.log([[0.5 + 1e-9, 0.5 - 1e-9]])  # d^2 / 2 for p = (1/2 + d, 1/2 - d)
    assert divergences.hellinger(near, q[1:]) == pytest.approx(0.5e-18, rel=1e-6)


def test_the_union_by_hand() -> None:
    """Six accepted steps of two prompts and two rejected ones."""
    accepted = np.array([1, 1, 1, 0, 1, 1, 1, 0], dtype=bool)
    flags = {"kl": [1, 0, 0, 0, 1, 0, 0, 0], "tv": [0, 1, 0, 0, 1, 0, 0, 0]}
    ends = np.ones(8)
    found = {
        name: Verdict(StrictGreedy(), ends, ends, accepted, sure, sure.copy())
        for name, sure in ((name, np.array(bits, dtype=bool)) for name, bits in flags.items())
    }
    found["tv"].certifiable[2] = True
    bootstrap = PromptBootstrap(np.repeat([0, 1], 4), 50, 0.9, 0)
    frame = coverage(found, bootstrap).set_index(["divergence", "statistic"])
    values = frame[["value", "optimistic"]].apply(tuple, axis=1).to_dict()
    assert values["kl", "coverage"] == (2 / 6, 2 / 6)
    assert values["tv", "coverage"] == (2 / 6, 3 / 6)
    assert values["union", "coverage"] == (3 / 6, 4 / 6)
    assert values["union", "certified"] == (3 / 8, 4 / 8)
    assert frame.loc[("union", "coverage"), "ci_low"] == pytest.approx(1 / 3)  # prompt 2 alone
    alone = coverage({"kl": found["kl"]}, bootstrap)
    assert alone[alone["divergence"] == "union"]["value"].tolist() == [2 / 8, 2 / 6]
    none = replace(found["kl"], accepted=np.zeros(8, dtype=bool), certified=np.zeros(8, dtype=bool))
    empty = coverage({"kl": replace(none, certifiable=none.certified)}, bootstrap)
    assert pd.isna(empty[empty["statistic"] == "coverage"]["value"]).all()


def test_shares_of_finite_divergences() -> None:
    bootstrap = PromptBootstrap(np.repeat([0, 1], 2), 20, 0.9, 0)
    distances = {"kl": np.array([np.inf, 0.1, np.inf, np.inf]), "tv": np.full(4, 0.2)}
    frame = finite_shares(distances, bootstrap).set_index("divergence")
    assert frame["value"].to_dict() == {"kl": 0.25, "tv": 1.0}
