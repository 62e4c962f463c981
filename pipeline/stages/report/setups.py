"""How the numbers were made: settings and facts from the records of artifacts, and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load
from analysis.report.measured import Target
from analysis.report.published import PAPERS
from analysis.report.records import worded
from analysis.report.text import number_text, share_text
from analysis.statistics.trajectories import LENGTH
from pipeline.stages.report.inputs import Upstream, temperature_of
from pipeline.store.artifacts import Artifact

FACTS = {  # of each stage those that the clock and the device do not decide
    "prompts": ("excluded",),
    "distributions": (
        *("vocab_size", "k", "origin", "log", "answers", "excluded", "values", "token_ids"),
        "log_prob_error",
    ),
    "drafts": (
        *("vocab_size", "k", "drift", "largest_mass_left_out", "log", "excluded", "draft_k"),
        "draft_log_prob_error",
    ),
    "acceptance": (
        *("steps", "rules", "certified", "violations", "tightest_rejected", "tightest_certified"),
        *("mean_kl", "median_kl"),
    ),
}
CONFIGURED = ("prompts", "distributions", "drafts")  # the rules of stage acceptance are in tables


def introduction(targets: Sequence[str], statistics: Mapping[str, Any]) -> list[str]:
    """Return what a reader of any table must know, as paragraphs.

    Args:
        targets: printed names.
        statistics: resamples and confidence of the bootstrap, and the note of the study.
    """
    confidence, resamples = 100 * statistics["confidence"], statistics["resamples"]
    texts = worded("introduction", confidence=confidence, resamples=resamples)
    note = [statistics["note"]] if "note" in statistics else []
    paper = [texts["paper"]] if set(targets) & set(PAPERS) else []
    return [*note, texts["certificates"], texts["statistics"], *paper]


def setup(target: Target, sources: Upstream) -> dict[str, str]:
    """Return how a target's numbers were made: keys of the configuration and of the records.

    Args:
        target: its steps.
        sources: its artifacts by stage.
    """
    found = {
        "steps": str(len(target.tokens)),
        "prompts": str(target.bootstrap.count),
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        "certificates.temperature": as_text(temperature_of(sources)),
    }
    for stage, names in FACTS.items():
        for artifact in sources.get(stage, ()):
            record = artifact.record
            shown = {name: record["facts"][name] for name in names if name in record["facts"]}
            config = record["config"] if stage in CONFIGURED else {}
            found |= dict(flattened(stage, config | shown))
    return found


def flattened(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted names of nested settings, and each as text; hashes are cut.

    >>> dict(flattened("a", {"b": {"c": 40 * "0", "d": [1, 0.5]}, "e": None, "first": [7]}))
    {'a.b.c': '000000000000', 'a.b.d': '1, 0.5', 'a.e': '–'}
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key != "first":  # examples of what was excluded
                yield from flattened(f"{name}.{key}", part)
    else:
        yield name, as_text(value)


def as_text(value: Any) -> str:
    """Return a setting as printed."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else number_text(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    text = str(value)
    return text[:12] if len(text) in (40, 64) and set(text) <= set("0123456789abcdef") else text


def sampling_left_out(sampling: Mapping[str, Any]) -> str:
    """Say why table *sampling* is not there.

    Args:
        sampling: temperature, top_p and top_k of the answers.
    """
    asked = {name: sampling[name] for name in ("temperature", "top_p", "top_k")}
    return worded("left_out", **asked)["sampling"]


def warning(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> list[str]:
    """Return a paragraph that the speeds are of no use, if they were measured beside other work."""
    signs = [
        f"{one.target}, {sign}"
        for one, table in zip(decoded, speeds, strict=True)
        for sign in signs_of_load(table)
    ]
    return [
        f"The machine was busy while this was measured ({'; '.join(signs)}): do not use these "
        "speeds; run it again on an idle machine."
    ] * bool(signs)


def extent(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> list[str]:
    """Return how many prompts and tokens each method's numbers are from."""
    lines = []
    for one, artifact in zip(decoded, found, strict=True):
        tokens = one.data.groupby("run")["n_tokens"].sum()
        failed, more = artifact.record["facts"]["failed_prompts"], ""
        if failed:
            first = artifact.read("failures").slice(0, 1).to_pylist()[0]
            more = (
                f" ({failed} more failed, the first, {first['prompt_id']}, with: {first['reason']})"
            )
        least, most = (f"{of:,}" for of in (tokens.min(), tokens.max()))
        lines.append(
            f"{one.target} with {one.drafter}: every method decoded the same "
            f"{one.data['prompt_id'].nunique()} prompts{more}, up to "
            f"{artifact.record['config']['steps']} tokens each, batch size 1: "
            f"{least if least == most else f'{least} to {most}'} tokens a method and setting."
        )
    return lines


def machines(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> list[str]:
    """Return where each target's methods were timed."""
    facts = [artifact.record["facts"] for artifact in found]
    return [
        f"{one.target}: on {of['device']} with {of['torch_threads']} CPU threads."
        for one, of in zip(decoded, facts, strict=True)
    ]
