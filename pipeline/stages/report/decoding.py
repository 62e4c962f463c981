"""The report's part on real decoding: what was accepted, and, apart from it, how fast it was.

What depends on the clock goes to timings/, which no content digest covers: two builds of a study
are equal in everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load, speed
from analysis.report.decoding_figures import TESTED, content_figures
from analysis.report.decoding_speed_figures import timing_figures
from analysis.report.decoding_speed_tables import timing_tables
from analysis.report.decoding_tables import content_tables
from analysis.report.table import Table
from analysis.report.text import markdown
from pipeline.plan.stage import Node
from pipeline.stages.report import shown
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import read_decoded, thetas

TITLES = {
    "decoding_acceptance": "What is accepted, and what is given up",
    "decoding_forced": "Teacher-forced and realised acceptance",
    "decoding_rates": "Acceptance by place in the draft",
    "decoding_histogram": "Acceptance lengths",
    "decoding_tokens": "Tokens a target call",
    "decoding_places": "Acceptance along a draft",
    "decoding_ratios": "Logit ratio and probability ratio",
    "decoding_ratio_histograms": "The two ratios over all steps",
    "decoding_comparison": "Methods compared",
    "decoding_costs": "Costs, and the speedups they predict",
    "decoding_latency": "Throughput, latency, memory",
    "decoding_temperature": "Temperature and draft length",
    "decoding_draft_length": "The best draft length",
    "decoding_thresholds": "The threshold of MARS",
    "decoding_lengths": "Speedup over draft length",
}
CAPTIONS = {
    "decoding_places": "Above: how often the token at each place of a draft is accepted, of those "
    f"tested there; places tested fewer than {TESTED} times are left out. Below: how many tokens "
    "calls accept.",
    "decoding_ratios": "The two most probable tokens at every step of the greedy answers. Orange: "
    "steps with a logit ratio above 0.9, where MARS accepts either token. "
    "Last row: those steps, by what the drafter proposes.",
    "decoding_ratio_histograms": "The largest logit and both ratios; dashed: 0 and the threshold "
    "0.9. MARS accepts the argmax only where the largest logit is "
    "not positive.",
    "decoding_thresholds": "Agreement with the baseline's tokens (left) and speedup (right, with "
    "its interval over prompts) over the threshold: a smaller one accepts more.",
    "decoding_lengths": "Measured with its interval over prompts; dotted: τ/(1 + dρ), d the "
    "tokens drafted a call; dashed: "
    "from the costs as measured.",
}


def decoding_part(
    node: Node, upstream: Mapping[str, list[Artifact]]
) -> tuple[dict[str, bytes], str]:
    """Return the files of the part and its text for the page; nothing in a study without it."""
    found = upstream.get("decoding", [])
    if not found:
        return {}, ""
    decoded = [
        read_decoded(target, node.config["drafter"], artifact)
        for target, artifact in zip(node.config["targets"], found, strict=True)
    ]
    statistics = [node.config[name] for name in ("resamples", "confidence", "statistics_seed")]
    speeds = [
        speed(one, *statistics).assign(theta=thetas(artifact))
        for one, artifact in zip(decoded, found, strict=True)
    ]
    title = f"How it decodes with {node.config['drafter']}"
    files, content = section(content_tables(decoded, *statistics), content_figures(decoded))
    timings, timed = section(timing_tables(decoded, speeds), timing_figures(decoded, speeds))
    opening = [shown.heading(f"{title}: speed"), setup(decoded, found), *warning(decoded, speeds)]
    text = "\n\n".join([*opening, *timed]) + "\n"
    files |= {f"timings/{name}": file for name, file in timings.items()}
    files["timings/decoding.md"] = text.encode()
    link = (
        "Speed was measured in the same runs: [speed](timings/decoding.md). It depends on the "
        "machine and the moment, so it stands apart from what two builds have in common."
    )
    parts = [shown.heading(title), extent(decoded, found), link, *content]
    return files, "\n" + "\n\n".join(parts) + "\n"


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
    return [f"**{markdown(said)}**"]


def section(
    tables: Sequence[Table], figures: Mapping[str, Figure]
) -> tuple[dict[str, bytes], list[str]]:
    """Return files and Markdown of tables and then figures."""
    order = [*(table.name for table in tables), *figures]
    return shown.files(tables, figures), shown.sections(
        order, tables, figures, TITLES.__getitem__, CAPTIONS
    )


def extent(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> str:
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
    return shown.listing(lines)


def _first_reason(artifact: Artifact) -> str:
    first = artifact.read("failures").slice(0, 1).to_pylist()[0]
    return f", the first, {first['prompt_id']}, with: {first['reason']}"


def setup(decoded: Sequence[Decoded], found: Sequence[Artifact]) -> str:
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
    return shown.listing(lines)
