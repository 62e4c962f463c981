"""What a reader must know of how the numbers were made, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load
from analysis.report.published import CERTIFICATES
from analysis.report.records import Results
from analysis.report.render import PUBLISHED
from analysis.report.text import UNDEFINED, number_text, share_text
from analysis.statistics.trajectories import LENGTH
from pipeline.stages.report.inputs import Target
from pipeline.store.artifacts import Artifact

INTRODUCTION = (
    "The certificate R of a decoding step is the least KL(p‖q) at which the acceptance criterion "
    "can reject the drafter's most probable token: a drafter with KL(p‖q) < R is accepted. A step "
    'is certified at ε when R > ε, strictly. Natural logarithms; "exact" means exact for the '
    "stored logits.",
    "Every statistic is over decoding steps. Intervals (ci_low and ci_high in the CSV files) are "
    "{confidence:g} % bootstrap intervals over prompts, {resamples} resamples: the steps of one "
    "prompt are correlated. Quantiles are observed values. In the CSV files, inf is an empty "
    "rejection region. A certificate may be known only as an interval. A statistic is then "
    "computed twice: value from the lower ends, which is sure, and optimistic from the upper ends. "
    "Elsewhere the two are equal.",
)
PAPER = (
    f'Rows "{PUBLISHED}" repeat the paper\'s printed values (arXiv 2606.30265v1) where the printed '
    "name of a target is that of a target of the paper. They describe the paper's prompts and "
    "set-up, parts of which the paper does not state, and no number here is tuned to them."
)


def introduction(targets: Sequence[str], statistics: Mapping[str, Any]) -> list[str]:
    """Return what a reader of any table must know, as paragraphs.

    Args:
        targets: printed names.
        statistics: resamples and confidence of the bootstrap, and the note of the study.
    """
    note = [statistics["note"]] if "note" in statistics else []
    facts = {"confidence": 100 * statistics["confidence"], "resamples": statistics["resamples"]}
    paper = [PAPER] if set(targets) & set(CERTIFICATES) else []
    return [*note, *(text.format(**facts) for text in INTRODUCTION), *paper]


def all_setups(
    targets: Sequence[Target], results: Results, upstream: Mapping[str, list[Artifact]]
) -> list[dict[str, dict[str, Any]]]:
    """Return the facts of the set-up, by part of the report and by target."""
    found = [{target.label: target_setup(target) for target in targets}]
    if "logged" in results:
        found.append(logged_drafter_setup(results.targets, upstream["drafts"]))
    elif "acceptance" in results:
        found.append(drafter_setup(results, upstream["drafts"], upstream["acceptance"]))
    return found


def target_setup(target: Target) -> dict[str, Any]:
    """Return what a reader must know of how a target's numbers were made, by printed name."""
    config, facts = target.dump.record["config"], target.dump.record["facts"]
    if "log" in config:
        return logged_setup(target, facts)
    prompts = target.prompts.record
    lengths, model = target.lengths, config["model"]
    excluded = [
        f"{entry['rows']} {reason}"
        for reason, entry in prompts["facts"].get("excluded", {}).items()
    ]
    decoding = (
        "greedy"
        if config["temperature"] == 0
        else (
            f"sampled at temperature {config['temperature']:g}, top_p {config['top_p']:g}, "
            f"top_k {config['top_k'] or 'all'}, seed {config['seed']}"
        )
    )
    chosen = target.prompts.read(columns=["source", "n_tokens"]).to_pandas()
    return {
        "prompts": f"{len(lengths)} of {', '.join(chosen['source'].unique())}",
        "prompt tokens, as the model reads them": (
            f"{chosen['n_tokens'].min()} to {chosen['n_tokens'].max()} "
            f"(allowed: {prompts['config']['min_tokens']} to {prompts['config']['max_tokens']})"
        ),
        "rows excluded while choosing them": ", ".join(excluded) or "none",
        "steps": int(lengths.sum()),
        "steps a prompt": f"at most {config['steps']}; {np.sum(lengths < config['steps'])} prompts "
        "end earlier",
        "decoding": decoding,
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        "chat template": "used" if prompts["config"]["template"] == "chat" else "none: plain text",
        "enable_thinking": str(prompts["config"]["enable_thinking"]).lower(),
        "temperature of the certified distribution": f"{target.temperature:g}",
        "stored top tokens": f"{facts['k']} of {facts['vocab_size']}",
        "weights": model["dtype"],
        "final projection": model["head_dtype"],
        "attention": model["attention"],
        "model": named(model, facts.get("origin")),
    }


def logged_setup(target: Target, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of what an engine logged."""
    excluded = [f"{count} {reason}" for reason, count in facts["excluded"].items()]
    return {
        "log": f"{facts['log']}, {facts['answers']} answers",
        "left out of it": ", ".join(excluded) or "none",
        "model": facts["model"],
        "steps": int(target.lengths.sum()),
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        "log-probabilities a step": f"{facts['k']}, of {facts['vocab_size']} tokens",
        "each is off by at most": f"{facts['log_prob_error']:.2g} nats",
        "log-probabilities": facts["values"],
        "token ids": facts["token_ids"],
    }


def named(model: Mapping[str, Any], origin: Mapping[str, str] | None) -> str:
    """Return which model it is, from its configuration slice, and where a GGUF file is from.

    Example:
        >>> named({"hub": "owner/name", "commit": 40 * "0"}, None)
        'owner/name at 000000000000'
    """
    if "hub" in model:
        return f"{model['hub']} at {model['commit'][:12]}"
    if "content" in model:
        return f"local, content {model['content'][:12]}"
    origin = origin or {}
    told = {"model": "made from", "package": "from the package", "license": "licence"}
    more = [f"{word} {origin[key]}" for key, word in told.items() if key in origin]
    return ", ".join([f"{origin.get('file', 'GGUF file')}, SHA-256 {model['gguf'][:12]}", *more])


def left_out(sampling: Mapping[str, Any]) -> str:
    """Say why table *sampling* is not there.

    Args:
        sampling: temperature, top_p and top_k of the answers.
    """
    why = (
        "decoded greedily (distributions.temperature=0), and acceptance at a temperature belongs "
        "to text sampled at it"
        if sampling["temperature"] == 0
        else f"sampled from a part of the distribution (distributions.top_p={sampling['top_p']:g}, "
        f"top_k={sampling['top_k']}), and acceptance is known for the whole one"
    )
    return f"Stochastic verification is left out: these answers were {why}."


def logged_drafter_setup(
    targets: Sequence[str], drafts: Sequence[Artifact]
) -> dict[str, dict[str, Any]]:
    """Return what is known of both logs, by printed name of the target."""
    setups = {}
    for target, pair in zip(targets, drafts, strict=True):
        facts = pair.record["facts"]
        left_out = [f"{count} {reason}" for reason, count in facts["excluded"].items()]
        setups[target] = {
            "log of the drafter": facts["log"],
            "model": facts["drafter"],
            "steps": pair.record["rows"]["logged"],
            "log-probabilities a step": f"{facts['k']} of the target, {facts['draft_k']} of it",
            "each of it is off by at most": f"{facts['draft_log_prob_error']:.2g} nats",
            "left out": ", ".join(left_out) or "none",
        }
    return setups


def drafter_setup(
    results: Results, drafts: Sequence[Artifact], found: Sequence[Artifact]
) -> dict[str, dict[str, Any]]:
    """Return what was compared, whether it was sound, and how far the passes drifted."""
    setups = {}
    for target, draft, artifact in zip(results.targets, drafts, found, strict=True):
        pair, sound = draft.record["facts"], artifact.record["facts"]
        drift = pair["drift"]
        rows_of = [pair[model]["vocab_size"] for model in ("target", "drafter")]
        changed = share_text(drift["changed_argmax"] / drift["steps"])
        setups[target] = {
            "steps and rules": f"{sound['steps']} and {sound['rules']}",
            "certified decisions": sound["certified"],
            "of them rejected": sound["violations"],
            "KL − R at rejected steps, least": near(sound["tightest_rejected"], results.names),
            "R − KL at certified steps, least": near(sound["tightest_certified"], results.names),
            "KL(p‖q), mean and median": " and ".join(
                f"{kl:.4g}" if np.isfinite(kl) else number_text(kl)
                for kl in (sound["mean_kl"], sound["median_kl"])
            )
            + " nats",
            "temperature of both distributions": f"{pair['temperature']:g}",
            "rows compared, of target and drafter": (
                f"{pair['vocab_size']}, of {rows_of[0]} and {rows_of[1]}"
            ),
            "drift against the decoding pass": (
                f"logits by at most {drift['max_logit_difference']:.1e}, the argmax of "
                f"{changed} of steps"
            ),
        }
    return setups


def near(found: Mapping[str, Any] | None, names: Mapping[str, str]) -> str:
    """Return a slack and its rule as printed."""
    return UNDEFINED if found is None else f"{found['nats']:.2e} nats ({names[found['rule']]})"


def warning(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> list[str]:
    """Return a paragraph that the speeds are of no use, if they were measured beside other work."""
    signs = [
        f"{one.target}, {sign}"
        for one, table in zip(decoded, speeds, strict=True)
        for sign in signs_of_load(table)
    ]
    if not signs:
        return []
    said = (
        f"The machine was busy while this was measured ({'; '.join(signs)}): do not use these "
        "speeds; run it again on an idle machine."
    )
    return [said]


def extent(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> list[str]:
    """Return how many prompts and tokens each method's numbers are from."""
    lines = []
    for one, artifact in zip(decoded, found, strict=True):
        tokens = one.data.groupby("run")["n_tokens"].sum()
        count = one.data["prompt_id"].nunique()
        failed = artifact.record["facts"]["failed_prompts"]
        least, most = (f"{of:,}" for of in (tokens.min(), tokens.max()))
        lines.append(
            f"{one.target}: every method decoded the same {count} prompts"
            + (f" ({failed} more failed{_first_reason(artifact)})" if failed else "")
            + f", up to {artifact.record['config']['steps']} tokens each: "
            f"{least if least == most else f'{least} to {most}'} tokens a method and setting."
        )
    return lines


def _first_reason(artifact: Artifact) -> str:
    first = artifact.read("failures").slice(0, 1).to_pylist()[0]
    return f", the first, {first['prompt_id']}, with: {first['reason']}"


def decoding_setup(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> list[str]:
    """Return what was decoded, on what."""
    lines = []
    for one, artifact in zip(decoded, found, strict=True):
        facts, config = artifact.record["facts"], artifact.record["config"]
        failed = f", {facts['failed_prompts']} failed" if facts["failed_prompts"] else ""
        lines.append(
            f"{one.target} with {one.drafter}: {config['prompts']} prompts{failed}, up to "
            f"{config['steps']} tokens each, batch size 1, on {facts['device']} with "
            f"{facts['torch_threads']} CPU threads."
        )
    return lines
