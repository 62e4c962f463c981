"""Logits compared on a device, against plain formulas; those against 50 digits and by hand."""

import math

import mpmath
import numpy as np
import pytest
import torch

from analysis.acceptance.judgement import rounding
from pipeline.models import compare
from tests import divergences
from tests import divergences as d
from tests.analysis.cases import noisy

LAWS = ("tv", "erss_acceptance", "harmonic_mean")
PAIR = ("kl", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank")


@pytest.mark.parametrize(("temperature", "sampled"), [(1.0, None), (2.0, 0.5), (0.5, 0.5)])
def test_device_formulas_equal_the_numpy_ones(temperature, sampled):
    """Rows of more than one chunk, with ties of logits and of p/q, equal and masked tokens."""
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((50, 9000))).astype(np.float32)
    w = (z + rng.standard_normal((50, 1)) ** 3 * rng.standard_normal(z.shape)).astype(np.float32)
    z[:10], w[:20] = z[:10].round(), w[:20].round()
    w[39] = z[39]
    z[40:, 3:6] = w[40:, 5:9] = -np.inf
    found = compare.compare_logits(torch.from_numpy(z), [torch.from_numpy(w)], temperature, sampled)
    assert not found["kl"][39]
    for names, prefix, at in ((PAIR, "", temperature), (LAWS, "sampled_", sampled)):
        if at is None:
            assert not any(name.startswith("sampled_") for name in found)
            continue
        wanted = divergences.compare_logits(z / at, w / at)
        for name in names:  # sums of 9000 float64 terms in another order
            np.testing.assert_allclose(
                found[prefix + name], getattr(wanted, name), rtol=1e-11, atol=1e-15, err_msg=name
            )


def test_masked_tokens_on_the_device():
    """-inf in both, in the target's or in the drafter's logits alone; all of it at 1e4 as well."""
    rng = np.random.default_rng(1)
    z, w = (rng.integers(-4000, 1, (30, 20)).astype(np.float32) / 1024 for _ in range(2))
    z[:, 3:6] = w[:, 5:9] = -np.inf
    w[20:, 9:] = z[20:, 9:] = -np.inf
    w[:10, 5:9] = 0.5  # the rest have a drafter that masks what the target has: KL is infinite
    wanted = divergences.compare_logits(z, w)
    assert np.isposinf(wanted.kl).tolist() == [False] * 10 + [True] * 20
    for shift in (np.float32(0), np.float32(10_000)):
        target, draft = torch.from_numpy(z + shift), torch.from_numpy(w + shift)
        for rows in (slice(None), slice(10, None)):  # some, or all are infinite
            found = compare.compare_logits(target[rows], [draft[rows]], 1.0)
            for name in PAIR:
                np.testing.assert_allclose(
                    found[name], getattr(wanted, name)[rows], rtol=1e-12, atol=1e-15, err_msg=name
                )


def test_equal_models_accept_everything_and_disjoint_ones_nothing():
    """1 - TV and the first draft of races; Lemma C.1 of arXiv 2504.15475 between the two ends."""
    rng = np.random.default_rng(4)
    z, w = (torch.from_numpy(rng.standard_normal((20, 30)).astype(np.float32)) for _ in range(2))

    def laws(w):
        found = compare.compare_logits(z, [w], 1.0, 0.5)
        return [1 - found["sampled_tv"], *(found[f"sampled_{name}"] for name in LAWS[1:])]

    speculative, races, harmonic = laws(z.clone())
    for value, wanted in ((speculative, 1.0), (races, 1.0), (harmonic, 0.5)):
        torch.testing.assert_close(value, torch.full_like(value, wanted), rtol=1e-14, atol=0)
    speculative, races, harmonic = laws(w)
    assert ((harmonic < races) & (races < speculative) & (speculative < 1)).all()
    z[:, :15] = w[:, 15:] = -torch.inf
    assert all((value.abs() < 1e-15).all() for value in laws(w))


@pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-7])
def test_long_sums_keep_their_digits(apart):
    """KL against exact sums: within the rounding that a certificate allows, 1e-13 sqrt(2 KL)."""
    rng = np.random.default_rng(5)
    z = torch.from_numpy(2 * rng.standard_normal((1, 50_001)))
    w = z + apart * torch.from_numpy(rng.random(z.shape))
    kl = compare.compare_logits(z, [w], 1.0)["kl"].item()
    log_p, log_q = (torch.log_softmax(x, 1)[0].tolist() for x in (z, w))
    pairs = zip(log_p, log_q, strict=True)
    exact = math.fsum(math.exp(a) * (a - b + math.expm1(b - a)) for a, b in pairs)
    assert abs(kl - exact) < 1e-13 * (kl + math.sqrt(2 * kl))
    assert kl > 0


def test_depths_are_compared_as_the_pair_is():
    rng = np.random.default_rng(3)
    z, w = (torch.from_numpy((3 * rng.standard_normal((30, 96))).round(1).astype(np.float32))
            for _ in range(2))  # fmt: skip
    w[:20, ::3] = -torch.inf  # a reduced vocabulary
    found = compare.compare_logits(z, [w, z, w], 0.7)
    for name in compare.AT_DEPTH:
        by_depth = found[f"depth_{name}"]
        assert by_depth.shape == (30, 3)
        torch.testing.assert_close(by_depth[:, 0], found[name], rtol=0, atol=0)
        torch.testing.assert_close(by_depth[:, 2], found[name], rtol=0, atol=0)
    assert not found["depth_kl"][:, 1].any()
    assert found["kl"].isinf().tolist() == [True] * 20 + [False] * 10


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03, 0.2, 10.0])
def test_kl_agrees_with_fifty_digits_within_its_stated_rounding(noise):
    z, w = noisy(6, 40, 3.0, noise)
    with mpmath.workdps(50):
        for value, *logits in zip(d.kl(d.log_softmax(z), d.log_softmax(w)), z, w, strict=True):
            p, q = ([mpmath.exp(mpmath.mpf(float(x))) for x in row] for row in logits)
            p, q = [x / mpmath.fsum(p) for x in p], [x / mpmath.fsum(q) for x in q]
            true = float(mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)))
            assert abs(value - true) <= rounding(np.array([true]))[0]
            # the textbook form loses all digits at 1e-6, where the KL is about 1e-12
            assert abs(value - true) <= 1e-6 * true


def test_by_hand_with_zeros():
    with np.errstate(divide="ignore"):
        p, q = np.log([[0.5, 0.5, 0.0]]), np.log([[0.25, 0.5, 0.25]])
    assert d.kl(p, q)[0] == pytest.approx(0.5 * math.log(2), rel=1e-14)
    assert (d.kl(q, p)[0], d.kl(p, p)[0]) == (math.inf, 0)
    assert (d.total_variation(p, q)[0], d.total_variation(p, p)[0]) == (0.25, 0)
    assert d.harmonic_mean(p, q)[0] == pytest.approx(0.125 / 0.75 + 0.25, rel=1e-14)


def test_erss_acceptance_is_its_definition():
    p, q = np.exp(np.array(noisy(30, 25, 3.0, 2.0), dtype=np.float64))
    p[:10, 3:9] = q[:20, 5:12] = 0
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    wanted = [
        sum(1 / np.maximum(a / a[i], b / b[i]).sum() for i in np.flatnonzero((a > 0) & (b > 0)))
        for a, b in zip(p, q, strict=True)
    ]
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(d.erss_acceptance(np.log(p), np.log(q)), wanted, rtol=1e-12)


def test_ties_go_against_the_drafter():
    # target ranks: token 2 first, then 0 and 3 (tied, by id), then 1
    z = np.array([[1.0, 0.0, 2.0, 1.0]], dtype=np.float32)
    tied = np.array([[5.0, 1.0, 5.0, 5.0]], dtype=np.float32)
    token, rank = d.drafted_token(z, tied)
    assert (token[0], rank[0]) == (3, 3)
    assert d.argmax_rank(z, tied)[0] == 3  # tokens 0 and 3 rank before token 2
    best = np.array([[0.0, 1.0, 5.0, 5.0 - 1e-6]], dtype=np.float32)
    assert d.drafted_token(z, best)[1][0] == 1
    assert d.argmax_rank(z, best)[0] == 1
