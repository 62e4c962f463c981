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
from analysis.acceptance.typical import typical_acceptance
from analysis.report.table import csv_text
from analysis.rule_text import rules_from
from analysis.topk import TopK
from pipeline.core.paths import ROOT
from pipeline.inputs.artifact_readers import read_distributions, read_steps
from pipeline.study import Study

RULES = rules_from([
    "greedy", "additive:0.1", "additive:0.3", "multiplicative:0.3", "topm_additive:4,0.1",
    "typical:0.1,0.09", "mars:0.9", "tree:2", "tree:4", "tree:8",
])  # fmt: skip
DRAWS = 50
BINS = 10
KLS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
STEPS = 200
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
