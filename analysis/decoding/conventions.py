"""Acceptance lengths and rates of the same calls by the conventions of each tool.

Lengths that disagree mostly follow different conventions. C calls, D of them with a draft, have d
drafted, a accepted and e emitted tokens, summed over all answers. An answer has one more token,
which the prompt's pass emits:

| tool | pools over | counts the token of the prompt's pass |
|---|---|---|
| vLLM | calls with a draft | no |
| SGLang | each answer (of a request), all calls (of the server) | of a request |
| specdec_bench | each answer | no |
| Spec-Bench | all calls | no |
| TensorRT-LLM | all passes, the prompt's too | yes |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..statistics.trajectories import place_shares

NEEDED = ["answer", "drafted", "accepted", "emitted"]  # columns of calls


def conventions(
    calls: pd.DataFrame, draft_length: int, drafted: float | None = None
) -> pd.DataFrame:
    """Return the lengths and rates printed by each tool.

    Args:
        calls: one row for each target call after the prompt's: `NEEDED`. Drafted and accepted
            tokens of a chain, and emitted ones including the target's own, fewer where the answer
            ended.
        draft_length: tokens of a full draft.
        drafted: total of drafted tokens, if calls do not have their own numbers; NaN if the total
            is unknown too. Rates conditional on reaching a place are then unknown.

    Returns:
        tool, number (the tool's name for it), value, formula, source (project and function).
    """
    drafts = calls[calls["drafted"] > 0]
    answers = calls.groupby("answer").agg(
        calls=("emitted", "size"), emitted=("emitted", "sum"), accepted=("accepted", "sum")
    )
    d, a, e = (float(calls[name].sum()) for name in ("drafted", "accepted", "emitted"))
    by_place = place_rows(calls, draft_length)
    products = np.cumprod([place["conditional"] for place in by_place])
    d = d if drafted is None else drafted
    rate = a / d if d else np.nan
    proposed = answers["calls"] * (draft_length if d == d else np.nan)
    eal = 1 + float(np.nansum(products)) if drafted is None else np.nan
    v = "vllm/v1/spec_decode/metrics.py: SpecDecodingLogging.log"
    s = "sglang managers/tokenizer_manager.py: _calculate_spec_decoding_metrics"
    t = "TensorRT-LLM llmRequest.h: getAvgDecodedTokensPerIter; bench/dataclasses/reporting.py"
    n = "specdec_bench "
    rows: list[tuple[str, str, float, str, str]] = [
        ("vLLM", "Mean acceptance length", 1 + a / len(drafts) if len(drafts) else np.nan,
         "1 + a / D", v),
        ("vLLM", "Avg Draft acceptance rate", rate, "a / d", v),
        *(("vLLM", f"Per-position acceptance rate {place['place']}", place["of_all"],
           "calls that accept this many or more / D", v) for place in by_place),
        ("SGLang", "spec_accept_length, mean of requests",
         float(((1 + answers["emitted"]) / answers["calls"]).mean()), "mean of (1 + e) / C", s),
        ("SGLang", "spec_accept_rate, mean of requests",
         float((answers["accepted"] / proposed).mean()), "mean of a / (C gamma)", s),
        ("SGLang", "avg_spec_accept_length", e / len(calls), "e / C",
         "sglang scheduler.py: get_internal_state"),
        ("specdec_bench", "Average_AL",
         float((answers["emitted"] / answers["calls"]).mean()), "mean over answers of e / C",
         n + "metrics/acceptance_rate.py: AcceptanceRate.process_final"),
        ("specdec_bench", "mean_accept_length of the profile", e / len(calls), "e / C",
         n + "speculation_profile.py: per_step_mean_accept_length"),
        ("Spec-Bench", "#Mean accepted tokens", e / len(calls), "mean of e over calls",
         "Spec-Bench evaluation/speed.py: speed"),
        ("TensorRT-LLM", "avg_decoded_tokens_per_iter",
         float((1 + answers["emitted"]).sum() / (1 + answers["calls"]).sum()),
         "sum of (1 + e) / sum of (1 + C)", t),
        ("TensorRT-LLM", "acceptanceRate", rate, "a / d", "TensorRT-LLM llmRequest.cpp"),
        ("EAL", "1 + sum of products of conditional rates", eal,
         "1 + sum over k of c_1 ... c_k, c_i accepted / reached", ""),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["tool", "number", "value", "formula", "source"])


def place_rows(calls: pd.DataFrame, draft_length: int) -> list[dict[str, float]]:
    """Return `place_shares` of calls with a draft, in which a drafted place counts as reached."""
    drafts = calls[calls["drafted"] > 0]
    drafted, accepted = drafts["drafted"].to_numpy(), drafts["accepted"].to_numpy()
    place = np.arange(1, draft_length + 1)
    reached = ((accepted[:, None] >= place - 1) & (drafted[:, None] >= place)).sum(axis=0)
    passed = (accepted[:, None] >= place).sum(axis=0)
    return place_shares(len(drafts), reached.tolist(), passed.tolist())


def speculation_profile(calls: pd.DataFrame, draft_length: int) -> dict[str, Any]:
    """Return NVIDIA's speculation_profile.json (specdec_bench speculation_profile.build_profile).

    Marginal rate i is the share of calls that emit more than i tokens, conditional rate i is its
    ratio to the marginal rate before, and mean_accept_length is 1 + the sum of marginal rates.
    """
    lengths = calls["emitted"].to_numpy()
    marginal = [float((lengths > i).mean()) for i in range(1, draft_length + 1)]
    conditional = [m / before if before else 0.0
                   for m, before in zip(marginal, [1.0, *marginal], strict=False)]  # fmt: skip
    per_request = calls.groupby("answer")["emitted"].mean().mean()
    mean = float(lengths.mean())
    histogram = dict(zip(*map(np.ndarray.tolist, np.unique(lengths, return_counts=True)),
                         strict=True))  # fmt: skip
    implied = 1 + sum(marginal)
    return {
        "schema_version": "1.0",
        "measured": True,
        "num_speculative_tokens": draft_length,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(x, 6) for x in conditional],
        "marginal_accept_rates": [round(x, 6) for x in marginal],
        "mean_accept_length": round(mean, 6),
        "mean_accept_length_per_request": round(float(per_request), 6),
        "accept_length_by_k": {str(draft_length): round(mean, 6)},
        "acceptance_length_histogram": histogram,
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(implied, 6),
                "reported_mean_accept_length": round(mean, 6),
                "passed": abs(implied - mean) <= 0.02,
            }
        },
    }


def synthetic_settings(calls: pd.DataFrame, draft_length: int) -> dict[str, Any]:
    """Return settings with which engines accept at the measured rates, regardless of the models.

    vLLM takes, for each i, the share of drafts whose first i tokens are all accepted
    (SpeculativeConfig.synthetic_acceptance_rates), SGLang the mean tokens a call
    (srt/environ.py: SGLANG_SIMULATE_ACC_LEN). vLLM still runs a drafter: replace DRAFTER by its
    path or hub id, and for a head the method by eagle3.
    """
    return {
        "vllm": {
            "method": "draft_model",
            "model": "DRAFTER",
            "num_speculative_tokens": draft_length,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [
                round(place["of_all"], 6) for place in place_rows(calls, draft_length)
            ],
        },
        "sglang": {
            "SGLANG_SIMULATE_ACC_LEN": round(float(calls["emitted"].mean()), 6),
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        },
    }
