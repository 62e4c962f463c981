"""What the report shows of real decoding: what was accepted, and, apart from it, how fast it was.

What depends on the clock goes to timings/, which no content digest covers: two builds of a study
are equal in everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load, speed
from analysis.report.records import Part
from analysis.report.sections.decoding import decoding_part
from analysis.report.sections.decoding_speed import speed_part
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import read_decoded, thetas
from pipeline.store.node import Node


def measure_decoding(
    node: Node, upstream: Mapping[str, list[Artifact]]
) -> tuple[list[Decoded], list[pd.DataFrame]]:
    """Return what every target decoded and its speeds; nothing in a study without decoding."""
    decoded = [
        read_decoded(node.config["targets"][at], node.config["drafter"], artifact)
        for at, artifact in enumerate(upstream.get("decoding", []))
    ]
    speeds = [speed(one, *_statistics(node)).assign(theta=thetas(one)) for one in decoded]
    return decoded, speeds


def _statistics(node: Node) -> tuple[int, float, int]:
    config = node.config
    return config["resamples"], config["confidence"], config["statistics_seed"]


def decoding_shown(
    node: Node,
    upstream: Mapping[str, list[Artifact]],
    decoded: Sequence[Decoded],
    speeds: Sequence[pd.DataFrame],
) -> list[Part]:
    """Return the part on acceptance and the one on speed; none in a study without decoding."""
    if not decoded:
        return []
    found, title = upstream["decoding"], f"How it decodes with {node.config['drafter']}"
    timed_says = [*decoding_setup(decoded, found), *warning(decoded, speeds)]
    return [
        decoding_part(title, decoded, _statistics(node), extent(decoded, found)),
        speed_part(title, decoded, speeds, timed_says),
    ]


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
