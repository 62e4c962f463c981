"""Stage run_lengths: certifiable run lengths of one target under all rules.

Run it with ``python -m pipeline stage=run_lengths``.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.run_lengths import Trajectories, run_lengths
from pipeline.errors import PipelineError
from pipeline.plan.graph import Node
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Draft


def compute(node: Node, upstream: dict[str, list[Artifact]], draft: Draft) -> None:
    """Estimate the run lengths under each rule's certificates; the rows follow the rules."""
    config = node.config
    steps = upstream["certificates"][0].read(columns=["prompt_id", "position"])
    trajectories = Trajectories.from_positions(steps["position"].to_numpy())
    bootstrap = PromptBootstrap(
        trajectories.prompts, config["resamples"], config["confidence"], config["statistics_seed"]
    )
    frames = []
    for artifact in upstream["certificates"]:
        table = artifact.read(columns=["prompt_id", "position", "lo", "hi"])
        if not table.select(["prompt_id", "position"]).equals(steps):
            raise PipelineError(
                f"{artifact.directory} and {upstream['certificates'][0].directory} "
                "certify different steps"
            )
        frame = run_lengths(
            table["lo"].to_numpy(),
            table["hi"].to_numpy(),
            config["eps"],
            trajectories,
            bootstrap,
            config["window"],
        )
        frames.append(frame.assign(rule=artifact.record["label"]))
    draft.facts |= {"prompts": bootstrap.count, "steps": len(steps)}
    schema = columns.schema("run_lengths")
    everything = pd.concat(frames, ignore_index=True)[schema.names]
    draft.write(
        "data",
        pa.Table.from_pandas(everything, schema, preserve_index=False).replace_schema_metadata(
            None
        ),
    )
