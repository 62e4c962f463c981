"""How well the usual drafter predicts the acceptance of real ones (docs/method.md).

``python -m benchmarks.usual_drafter study=mini`` reads what ``python -m pipeline study=mini
stage=acceptance`` stored, and prints a table (CSV): for each drafter and rule the shares of steps
that are certified, predicted at the KLs of the steps, and measured. Nothing is fitted. Beside them
the prediction with other tails of the directions, with fewer tokens that have one, and with the
mean KL in the place of the steps'. Then, for strict greedy, ten bins of equally many steps by what
is predicted. It takes half a minute a drafter on one core.

``python -m benchmarks.usual_drafter tokens`` prints what depends on the number of tokens that have
a direction: the share for strict greedy at several KLs, with 64 tokens, 256, and all 2,048, at 200
steps of the embedded target mini-large on its prompts.

``python -m benchmarks.usual_drafter brute`` compares the shares with drafters that are drawn, put
at exactly a KL by bisection on s, and looked at: eight rules at 200 random steps of 10 tokens,
100,000 drafters each. It takes some minutes on one core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from analysis.acceptance.judgement import Judgement, Steps, judge
from analysis.acceptance.usual_drafter import typical_acceptance
from analysis.certificates.certify import certify
from analysis.certificates.kernel import Certificates
from analysis.report.table import csv_text
from analysis.rule_text import rules_from
from analysis.rules import AbsoluteThreshold, StrictGreedy, Tree
from analysis.topk import TopK
from pipeline.core.paths import ROOT
from pipeline.inputs.artifact_readers import read_distributions, read_steps
from pipeline.study import Study

RULES = rules_from([
    "greedy", "additive:0.1", "additive:0.3", "multiplicative:0.3", "topm_additive:4,0.1",
    "typical:0.1,0.09", "mars:0.9", "tree:2", "tree:4", "tree:8",
])  # fmt: skip
EIGHT = [*RULES[:6], AbsoluteThreshold(0.05), Tree(2)]  # judged by brute force
DRAWS = 50
BINS = 10
KLS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
STEPS = 200
DRAFTERS = 100_000  # by brute force, at each step
TOKENS = 10  # of such a step
VARIANTS: dict[str, dict[str, Any]] = {
    "laplace": {"law": "laplace"},
    "uniform": {"law": "uniform"},
    "tokens_64": {"tokens": 64},
    "tokens_128": {"tokens": 128},
}


def main(overrides: Sequence[str]) -> None:
    """Print the table."""
    if overrides == ["tokens"]:
        print(csv_text(by_tokens(), "%.3f"), end="")
        return
    if overrides == ["brute"]:
        print(csv_text(by_brute_force(), "%.4f"), end="")
        return
    study = Study(*overrides)
    tables = []
    for task in study.tasks["drafts"]:
        artifact = study.store.find(task)
        if artifact is None:
            sys.exit(f"{task.label}: run python -m pipeline {' '.join(overrides)} stage=acceptance")
        labels = (model.settings.label for model in task.runtime.models)
        names = dict(zip(("target", "drafter"), labels, strict=True))
        rows = rows_of(read_steps(artifact), read_distributions(artifact))
        table = pd.DataFrame(list(rows)).assign(**names)
        tables.append(table[[*names, *table.columns.drop(list(names))]])
    print(csv_text(pd.concat(tables), "%.3f"), end="")


def by_brute_force(count: int = STEPS, drafters: int = DRAFTERS) -> pd.DataFrame:
    """Compare the model with drafters that are put at exactly a KL, a row a rule.

    Each of `count` random steps has a KL of its own, up to 1 nat, and as many other drafters as the
    model draws.

    Returns:
        rule; usual_drafter and accepted: mean shares of the model and of the drafters; most_below
        and most_above: the largest differences at a step, model less drafters, in shares;
        standard_errors: the largest in standard errors of the difference, of rules for which the
        model is exact; rising: steps at which the share rises with the KL; rejected: drafters that
        are rejected just below the certificate.
    """
    generator = np.random.default_rng(0)
    p = np.maximum(generator.dirichlet(np.full(TOKENS, 0.5), count), 1e-9)
    p = -np.sort(-p / p.sum(axis=1, keepdims=True))
    dist = TopK.from_probabilities(p)
    found = certify(dist, EIGHT)
    eps = generator.uniform(0.01, 1.0, count)
    usual = typical_acceptance(dist, EIGHT, eps, draws=drafters)
    curve = [typical_acceptance(dist, EIGHT, factor * eps) for factor in (0.25, 0.5, 1, 2, 4)]
    accepted = np.empty_like(usual)
    rejected = np.zeros(usual.shape, dtype=int)
    for step, row in enumerate(p):
        xi = generator.standard_normal((drafters, TOKENS))
        accepted[step] = _accepts(found, step, _first_choice(row, xi, eps[step])).mean(axis=1)
        for at, lower in enumerate(found.lower[step]):
            if np.isfinite(lower):
                few = _first_choice(row, xi[: drafters // 100], lower * (1 - 1e-9))
                rejected[step, at] = np.sum(~_accepts(found, step, few)[at])
    difference = usual - accepted
    likely = np.clip((usual + accepted) / 2, 1 / drafters, 1 - 1 / drafters)
    errors = np.abs(difference) / np.sqrt(2 * likely * (1 - likely) / drafters)
    exact = [isinstance(rule, StrictGreedy | Tree) for rule in EIGHT]
    return pd.DataFrame(
        {
            "rule": [rule.label for rule in EIGHT],
            "steps": count,
            "drafters": drafters,
            "usual_drafter": usual.mean(axis=0),
            "accepted": accepted.mean(axis=0),
            "most_below": np.maximum(-difference, 0).max(axis=0),
            "most_above": np.maximum(difference, 0).max(axis=0),
            "standard_errors": np.where(exact, errors.max(axis=0), np.nan),
            "rising": (np.diff(curve, axis=0) > 0).any(axis=0).sum(axis=0),
            "rejected": rejected.sum(axis=0),
        }
    )


def _first_choice(p: NDArray[Any], xi: NDArray[Any], eps: float) -> NDArray[Any]:
    """Return the logits (D, V) of drafters in directions (D, V) at a KL of exactly `eps`."""

    def kl(s: NDArray[Any]) -> Any:
        return np.log(np.exp(s[:, None] * xi) @ p) - s * (xi @ p)

    xi = xi - xi.max(axis=1, keepdims=True)  # the same drafters; no number grows beyond 1
    low = np.zeros(len(xi))
    high = np.full(len(xi), 64.0)
    for _ in range(40):
        middle = (low + high) / 2
        below = kl(middle) < eps
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return np.asarray(np.log(p) + low[:, None] * xi)


def _accepts(found: Certificates, step: int, logits: NDArray[Any]) -> NDArray[Any]:
    """Return (R, D) whether rules accept what drafters with logits (D, V) choose at a step."""
    first = logits.argmax(axis=1)
    rank = (logits >= logits[:, :1]).sum(axis=1)  # of the target's first choice
    return np.stack(
        [
            rank <= rule.m if isinstance(rule, Tree) else first < found.accepted_count[step, at]
            for at, rule in enumerate(EIGHT)
        ]
    )


def by_tokens() -> pd.DataFrame:
    """Return the share of strict greedy by KL and number of tokens with a direction."""
    dist = TopK.from_logits(embedded_logits())
    kls = [{"kl": kl, "steps": len(dist)} for kl in KLS]
    shares = [
        {
            f"tokens_{tokens}": typical_acceptance(dist, "greedy", kl, tokens=tokens).mean()
            for tokens in (64, 256, dist.k)
        }
        for kl in KLS
    ]
    return pd.DataFrame(kls).join(pd.DataFrame(shares))


@torch.inference_mode()
def embedded_logits() -> NDArray[Any]:
    """Return the raw logits of mini-large at `STEPS` places of its prompts."""
    path = ROOT / "assets" / "mini"
    tokenizer = AutoTokenizer.from_pretrained(path / "large")
    model = AutoModelForCausalLM.from_pretrained(path / "large", dtype=torch.float32)
    parts: list[Any] = []
    for line in (path / "prompts.jsonl").read_text().splitlines():
        ids = tokenizer(json.loads(line)["prompt"], return_tensors="pt").input_ids
        parts.append(model(ids).logits[0, 1:].numpy())
        if sum(map(len, parts)) >= STEPS:
            break
    return np.concatenate(parts)[:STEPS]


def rows_of(steps: Steps, target: TopK) -> Iterator[dict[str, Any]]:
    """Yield the rows of one drafter: all steps under every rule, and the bins of strict greedy."""
    judgements = judge(steps, RULES)
    usual = typical_acceptance(target, RULES, steps.kl, draws=DRAWS)
    mean = np.full(len(steps), steps.kl[np.isfinite(steps.kl)].mean())
    variants = {
        name: typical_acceptance(target, RULES, steps.kl, draws=DRAWS, **given)
        for name, given in VARIANTS.items()
    }
    variants["mean_kl"] = typical_acceptance(target, RULES, mean, draws=DRAWS)
    for at, judgement in enumerate(judgements):
        others = {name: shares[:, at].mean() for name, shares in variants.items()}
        yield _row(judgement, "all", usual[:, at], np.arange(len(steps))) | others
    for place, part in enumerate(np.array_split(np.argsort(usual[:, 0], kind="stable"), BINS)):
        yield _row(judgements[0], f"{place + 1} of {BINS}", usual[:, 0], part)


def _row(judgement: Judgement, bin_: str, usual: Any, part: Any) -> dict[str, Any]:
    shares = {"certified": judgement.certified, "predicted": usual, "measured": judgement.accepted}
    means = {name: values[part].mean() for name, values in shares.items()}
    return {"rule": judgement.rule.label, "bin": bin_, "steps": len(part), **means}


if __name__ == "__main__":
    main(sys.argv[1:])
