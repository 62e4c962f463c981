"""Two rows of logits compared on a device: against NumPy, exact sums and the compiled loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pipeline.models import compare
from pipeline.models import divergences as sums
from tests import divergences

LAWS = ("tv", "erss_acceptance", "harmonic_mean")


@pytest.mark.parametrize(
    ("temperature", "sampled"), [(1.0, None), (1.0, 0.5), (2.0, 0.5), (0.5, 0.5)]
)
def test_device_formulas_equal_the_numpy_ones(temperature: float, sampled: float | None) -> None:
    """Rows of more than one chunk, with ties of logits and of p/q, equal and masked tokens."""
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((50, 9000))).astype(np.float32)
    w = (z + rng.standard_normal((50, 1)) ** 3 * rng.standard_normal(z.shape)).astype(np.float32)
    z[:10], w[:20] = z[:10].round(), w[:20].round()
    w[39] = z[39]
    z[40:, 3:6] = w[40:, 5:9] = -np.inf
    found = compare.compare_logits(torch.from_numpy(z), [torch.from_numpy(w)], temperature, sampled)
    for prefix, at in (("", temperature), ("sampled_", sampled)):
        if at is None:
            assert all(found[f"sampled_{name}"].isnan().all() for name in LAWS)
            continue
        wanted = vars(divergences.compare_logits(z / at, w / at))
        for name in LAWS if prefix else wanted.keys() - {*divergences.STOCHASTIC}:
            # sums of 9000 float64 terms in another order
            np.testing.assert_allclose(
                found[prefix + name], wanted[name], rtol=1e-11, atol=1e-15, err_msg=name
            )


def test_masked_tokens_on_the_device() -> None:
    """-inf in both, in the target's or in the drafter's logits alone; all of it at 1e4 as well."""
    rng = np.random.default_rng(1)
    z, w = (rng.integers(-4000, 1, (30, 20)).astype(np.float32) / 1024 for _ in range(2))
    z[:, 3:6] = w[:, 5:9] = -np.inf
    w[20:, 9:] = z[20:, 9:] = -np.inf
    w[:10, 5:9] = 0.5  # the rest have a drafter that masks what the target has: KL is infinite
    wanted = vars(divergences.compare_logits(z, w))
    assert np.isposinf(wanted["kl"]).tolist() == [False] * 10 + [True] * 20
    for shift in (np.float32(0), np.float32(10_000)):
        found = compare.compare_logits(
            torch.from_numpy(z + shift), [torch.from_numpy(w + shift)], 1.0
        )
        for field in wanted.keys() - {*divergences.STOCHASTIC}:
            values = wanted[field]
            np.testing.assert_allclose(found[field], values, rtol=1e-12, atol=1e-15, err_msg=field)


def test_equal_models_accept_everything_and_disjoint_ones_nothing() -> None:
    """1 - TV and the first draft of races; Lemma C.1 of arXiv 2504.15475 between the two ends."""
    rng = np.random.default_rng(4)
    z, w = (torch.from_numpy(rng.standard_normal((20, 30)).astype(np.float32)) for _ in range(2))

    def laws(w: torch.Tensor) -> list[torch.Tensor]:
        found = compare.compare_logits(z, [w], 1.0, 0.5)
        return [1 - found["sampled_tv"], *(found[f"sampled_{name}"] for name in LAWS[1:])]

    speculative, races, harmonic = laws(z.clone())
    for value, wanted in ((speculative, 1.0), (races, 1.0), (harmonic, 0.5)):
        torch.testing.assert_close(value, torch.full_like(value, wanted), rtol=1e-14, atol=0)
    speculative, races, harmonic = laws(w)
    assert ((harmonic < races) & (races < speculative) & (speculative < 1)).all()
    z[:, :15] = w[:, 15:] = -torch.inf
    assert all((value.abs() < 1e-15).all() for value in laws(w))


def test_long_sums_keep_their_digits() -> None:
    """Against exact sums of the same terms: far below the rounding that a certificate allows."""
    rng = np.random.default_rng(5)
    z = torch.from_numpy(2 * rng.standard_normal((2, 50_001)))
    logs = [torch.log_softmax(x, 1) for x in (z, z + torch.from_numpy(rng.random(z.shape)))]
    log_p, log_q = logs
    (p, q), d = (x.exp() for x in logs), log_p - log_q
    assert int((d.abs() < 0.05).sum()) > 1000
    found = sums.divergence_sums(log_p, p, log_q, q)
    exact = [math.fsum((abs(row)).tolist()) / 2 for row in p - q]
    np.testing.assert_allclose(found["tv"], exact, rtol=1e-14)


def test_sums_on_a_device_are_those_of_the_compiled_loops() -> None:
    """With near and equal distributions, and tokens that one or both mask."""
    rng = np.random.default_rng(2)
    z = torch.from_numpy(3 * rng.standard_normal((40, 700)))
    w = z + torch.from_numpy(rng.standard_normal((40, 1)) ** 5 * rng.standard_normal(z.shape))
    w[3] = z[3]
    z[10:20, 3:6] = w[10:30, 5:9] = -torch.inf
    logs = [torch.log_softmax(one, 1) for one in (z, w)]
    log_p, log_q = logs
    p, q = (one.exp() for one in logs)
    small = ((log_p - log_q).abs() < sums.SERIES_BELOW).sum(1)
    assert small.min() < 50 < 700 - 10 < small.max()
    found = sums.torch_sums(log_p, p, log_q, q)
    wanted = sums.divergence_sums(log_p, p, log_q, q)
    assert wanted["kl"].isinf().tolist() == [False] * 10 + [True] * 20 + [False] * 10
    assert not found["kl"][3]
    for name in sums.SUMS:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-16)


def test_depth_statistics_are_those_of_the_pair() -> None:
    rng = np.random.default_rng(3)
    z, w = (torch.from_numpy((3 * rng.standard_normal((30, 96))).round(1).astype(np.float32))
            for _ in range(2))  # fmt: skip
    w[:20, ::3] = -torch.inf  # a reduced vocabulary
    found = compare.compare_logits(z, [w, z, w], 0.7)
    for name in compare.AT_DEPTH:
        columns_of = found[f"depth_{name}"]
        assert columns_of.shape == (30, 3)
        torch.testing.assert_close(columns_of[:, 0], found[name], rtol=0, atol=0)
        torch.testing.assert_close(columns_of[:, 2], found[name], rtol=1e-12, atol=1e-14)
    assert not found["depth_kl"][:, 1].any()
    assert found["kl"].isinf().tolist() == [True] * 20 + [False] * 10
