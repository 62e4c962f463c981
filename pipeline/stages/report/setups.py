"""Describes how the numbers were made, from the records of artifacts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load
from analysis.report.measured import Target
from analysis.report.published import PAPERS
from analysis.report.text import few_notes, number_text, share_text
from analysis.statistics.trajectories import LENGTH
from pipeline.stages.report.sources import ReportSpec, Source, Sources

WORDS = {  # what a reader must know of records, by stage and key; the rest is in record.json
    "distributions.model.hub": "model",
    "distributions.model.commit": "its commit",
    "distributions.model.content": "model, digest of its files",
    "distributions.model.dtype": "weights",
    "distributions.model.head_dtype": "final projection",
    "distributions.log": "log of the target",
    "distributions.values": "values of the log",
    "distributions.log_prob_error": "largest error of its log-probabilities, nats",
    "prompts.source.hub": "source of the prompts",
    "prompts.source.commit": "commit of that source",
    "prompts.source.content": "source of the prompts, digest of its files",
    "prompts.split": "split of that source",
    "prompts.count": "prompts drawn",
    "prompts.seed": "seed of the draw",
    "prompts.min_tokens": "tokens of a prompt, at least",
    "prompts.max_tokens": "tokens of a prompt, at most",
    "prompts.template": "template of the prompts",
    "prompts.enable_thinking": "thinking enabled",
    "distributions.steps": "tokens of an answer, at most",
    "distributions.temperature": "temperature of the answers (0: greedy)",
    "distributions.model.attention": "attention",
    "distributions.certified_temperature": "temperature of the certified distributions",
    "distributions.k": "stored tokens a step, the most probable",
    "distributions.vocab_size": "tokens of the vocabulary",
    "drafts.drafter.hub": "drafter",
    "drafts.drafter.commit": "commit of the drafter",
    "drafts.drafter.content": "drafter, digest of its files",
    "drafts.drafter.dtype": "weights of the drafter",
    "drafts.drafter.head_dtype": "final projection of the drafter",
    "drafts.drift.max_logit_difference": "logits of decoding and of scoring differ by at most",
    "acceptance.mean_kl": "KL(p‖q) of the drafter, mean, nats",
    "acceptance.certified": "decisions certified at the drafter's own KL(p‖q)",
    "acceptance.violations": "certified decisions that were rejected",
}
MESSAGE = "prompt of a conversation"
OPEN = (  # settings that the paper does not state
    MESSAGE,
    *(
        WORDS[key]
        for key in (
            *("prompts.split", "prompts.max_tokens", "prompts.seed", "prompts.template"),
            *("prompts.enable_thinking", "distributions.temperature"),
            *("distributions.model.dtype", "distributions.model.head_dtype"),
        )
    ),
)


def introduction(setups: Mapping[str, Mapping[str, str]], spec: ReportSpec) -> list[str]:
    """Return the paragraphs that a reader of any table must know.

    Args:
        setups: `setup` of each target, by its printed name.
        spec: of the report.
    """
    statistics = spec.statistics
    texts = [
        *few_notes(int(facts["prompts"]) for facts in setups.values()),
        "The certificate R of a step is the least KL(p‖q), in nats, at which the rule can reject "
        "the drafter's most probable token; a step is certified at ε when R > ε. Where R is an "
        "interval, its lower end counts; in the CSV files inf means that nothing can be rejected.",
        f"Statistics are over decoding steps, with {100 * statistics.confidence:g} % bootstrap "
        f"intervals over prompts ({statistics.resamples} resamples): docs/method.md.",
    ]
    of_paper = next((facts for name, facts in setups.items() if name in PAPERS), None)
    if of_paper is None:
        return texts
    ours = "; ".join(f"{name}: {of_paper[name]}" for name in OPEN if name in of_paper)
    return [*texts, f"The paper does not state these settings, which are ours: {ours}."]


def setup(target: Target, sources: Sources) -> dict[str, str]:
    """Return the settings behind a target's numbers, in words."""
    details = {
        f"{stage}.{key}": value
        for stage, source in vars(sources).items()
        if isinstance(source, Source)
        for key, value in flattened(source).items()
    }
    prompts = sources.prompts
    drawn = "log" not in prompts.task.settings
    rows = prompts.artifact.facts["excluded"]
    if drawn:
        rows = {reason: entry["rows"] for reason, entry in rows.items()}
    return {
        "decoding steps": str(len(target.tokens)),
        "prompts": str(target.bootstrap.count),
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        **{
            words: as_text(details[key])
            for key, words in WORDS.items()
            if details.get(key) is not None
        },
        **({MESSAGE: "its first user message"} if drawn else {}),
        **({"excluded rows": ", ".join(f"{n} {why}" for why, n in rows.items())} if rows else {}),
    }


def flattened(source: Source) -> Mapping[str, Any]:
    """Return the specification and the facts of an artifact by dotted keys; facts decide.

    Each is flattened by itself: a fact may have the name of a part of the specification.
    """
    flat = dict[str, Any]()
    for entries in (source.task.settings, source.artifact.facts):
        (row,) = pd.json_normalize(dict(entries)).to_dict("records")
        flat |= {str(key): value for key, value in row.items()}
    return flat


def as_text(value: Any) -> str:
    """Return a setting as printed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else number_text(value)
    text = str(value)
    digest = len(text) == 64 and set(text) <= set("0123456789abcdef")  # a commit is printed whole
    return text[:12] if digest else text


def warning(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> list[str]:
    """Return a paragraph that the speeds are of no use, if they were measured beside other work."""
    signs = [
        f"{run.target}, {sign}"
        for run, table in zip(decoded, speeds, strict=True)
        for sign in signs_of_load(table)
    ]
    return [
        f"The machine was busy while this was measured ({'; '.join(signs)}): do not use these "
        "speeds; run it again on an idle machine."
    ] * bool(signs)


def extent(decoded: Sequence[Decoded], sources: Sequence[Source]) -> list[str]:
    """Return the number of prompts and tokens behind each method's numbers."""
    lines = []
    for answers, source in zip(decoded, sources, strict=True):
        tokens = answers.data.groupby("run")["n_tokens"].sum()
        failed, more = source.artifact.facts["failed_prompts"], ""
        if failed:
            first = source.artifact.read("failures").slice(0, 1).to_pylist()[0]
            more = (
                f" ({failed} more failed, the first, {first['prompt_id']}, with: {first['reason']})"
            )
        least, most = (f"{of:,}" for of in (tokens.min(), tokens.max()))
        lines.append(
            f"{answers.target} with {answers.drafter}: every method decoded the same "
            f"{answers.data['prompt_id'].nunique()} prompts{more}, up to "
            f"{source.task.settings['steps']} tokens each, batch size 1: "
            f"{least if least == most else f'{least} to {most}'} tokens a method and setting."
        )
    return lines


def machines(decoded: Sequence[Decoded], sources: Sequence[Source]) -> list[str]:
    """Return where each target's methods were timed."""
    facts = [source.artifact.facts for source in sources]
    return [
        f"{run.target}: on {timed['device']}, CPU threads: {timed['torch_threads']}."
        for run, timed in zip(decoded, facts, strict=True)
    ]
