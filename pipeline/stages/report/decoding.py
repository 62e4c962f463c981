"""The report's part on real decoding: what was accepted, and, apart from it, how fast it was.

What depends on the clock goes to timings/, which no content digest covers: two builds of a study
are equal in everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load, speed
from analysis.report.decoding_along import along_table
from analysis.report.decoding_break_even import batches_table, break_even_figure, break_even_table
from analysis.report.decoding_drafting import drafting_table
from analysis.report.decoding_figures import places_figure
from analysis.report.decoding_partings import partings_table
from analysis.report.decoding_ratios import histograms_figure, ratios_figure
from analysis.report.decoding_settings import length_table, temperature_table
from analysis.report.decoding_speed_figures import lengths_figure, thresholds_figure
from analysis.report.decoding_speed_tables import comparison_table, cost_table, latency_table
from analysis.report.decoding_tables import (
    acceptance_table,
    forced_table,
    histogram_table,
    places_table,
)
from analysis.report.decoding_tokens import tokens_table
from analysis.report.decoding_tree_figures import marginal_figure, trees_figure
from analysis.report.decoding_trees import (
    budgets_table,
    crossover_table,
    tree_certificates_table,
    trees_table,
)
from pipeline.plan.stage import Node
from pipeline.stages.report.shown import Part
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import read_decoded, thetas


class Measured(NamedTuple):
    """What was decoded, target by target, and how fast: `analysis.decoding.speed.speed`."""

    decoded: list[Decoded]
    speeds: list[pd.DataFrame]


def measure_decoding(node: Node, upstream: Mapping[str, list[Artifact]]) -> Measured:
    """Read what every target decoded; nothing in a study without decoding."""
    decoded = [
        read_decoded(node.config["targets"][at], node.config["drafter"], artifact)
        for at, artifact in enumerate(upstream.get("decoding", []))
    ]
    speeds = [speed(one, *_statistics(node)).assign(theta=thetas(one)) for one in decoded]
    return Measured(decoded, speeds)


def _statistics(node: Node) -> tuple[int, float, int]:
    config = node.config
    return config["resamples"], config["confidence"], config["statistics_seed"]


def decoding_parts(
    node: Node, upstream: Mapping[str, list[Artifact]], measured: Measured
) -> tuple[Part, Part] | None:
    """Return the part on acceptance and the one on speed; None in a study without decoding."""
    decoded, speeds = measured
    if not decoded:
        return None
    found, statistics = upstream["decoding"], _statistics(node)
    title = f"How it decodes with {node.config['drafter']}"
    content = Part.of(
        title,
        extent(decoded, found),
        [
            acceptance_table(decoded, *statistics),
            partings_table(decoded),
            forced_table(decoded),
            along_table(decoded, *statistics),
            places_table(decoded),
            histogram_table(decoded),
            tokens_table(decoded),
            trees_table(decoded, statistics),
            crossover_table(decoded, statistics),
            tree_certificates_table(decoded, judged(decoded, upstream)),
            drafting_table(decoded),
            trees_figure(decoded, *statistics),
            marginal_figure(decoded, *statistics),
            places_figure(decoded),
            ratios_figure(decoded),
            histograms_figure(decoded),
        ],
    )
    timed = Part.of(
        f"{title}: speed",
        [*decoding_setup(decoded, found), *warning(decoded, speeds)],
        [
            comparison_table(decoded, speeds),
            cost_table(decoded, speeds),
            latency_table(decoded, speeds),
            budgets_table(decoded, speeds, statistics),
            temperature_table(decoded, speeds),
            length_table(decoded, speeds),
            break_even_table(decoded, speeds),
            batches_table(decoded, speeds),
            thresholds_figure(decoded, speeds),
            lengths_figure(decoded, speeds),
            break_even_figure(decoded, speeds),
        ],
    )
    return content, timed


def judged(
    decoded: Sequence[Decoded], upstream: Mapping[str, list[Artifact]]
) -> list[dict[str, dict[str, float]]]:
    """Return of each target what stage acceptance found, by rule and statistic; or nothing."""
    found: list[dict[str, dict[str, float]]] = [{} for _ in decoded]
    for known, artifact in zip(found, upstream.get("acceptance", []), strict=False):
        for row in artifact.read("statistics").to_pylist():
            known.setdefault(row["rule"], {})[row["statistic"]] = row["value"]
    return found


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
