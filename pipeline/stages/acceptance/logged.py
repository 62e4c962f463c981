"""Judges every rule on what two engines logged: shares with both ends of what is known."""

from __future__ import annotations

import pyarrow as pa

from analysis.acceptance.logged import judge_logged, logged_statistics, logged_violations
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories
from pipeline.errors import PipelineError
from pipeline.plan.slices import bootstrap_settings
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.distributions import read_logged
from pipeline.store.node import Node


def judge_logs(node: Node, drafts: Artifact, pending: Pending) -> None:
    """Write the statistics of every rule, and those of the pair.

    Raises:
        PipelineError: a rule needs more log-probabilities, or a step that is surely certified is
            surely rejected.
    """
    rules, facts = node.settings["rules"], drafts.record["facts"]
    for rule in rules:
        if rule.minimum_k > facts["k"]:
            raise PipelineError(
                f"the target's log has {facts['k']} log-probabilities a step, and {rule.label} "
                f"needs {rule.minimum_k}: ask the engine for more, or give other rules"
            )
    table = drafts.read("logged")
    column = {name: table[name].to_numpy() for name in table.column_names if "top_" not in name}
    judged = judge_logged(read_logged(drafts), column, facts["draft_k"], rules)
    for rule, found in judged.items():
        if len(wrong := logged_violations(found)):
            step = int(wrong[0])
            raise PipelineError(
                f"{len(wrong)} steps are certified and yet rejected; the first: rule "
                f"{rule}, prompt {table['prompt_id'][step]}, position {table['position'][step]}: "
                "are both logs of the same texts, with raw values?"
            )
    prompts = Trajectories.from_positions(column["position"]).prompts
    bootstrap = PromptBootstrap(prompts, *bootstrap_settings(node.config))
    frame = logged_statistics(column, judged, bootstrap).assign(**bootstrap.counted)
    schema = columns.schema("acceptance", "statistics")
    frame = frame.reindex(columns=schema.names)
    pending.write("statistics", pa.Table.from_pandas(frame, schema, preserve_index=False))
    pending.facts |= {
        "target": node.settings["target"],
        "drafter": node.settings["drafter"],
        "steps": len(table),
        "prompts": bootstrap.count,
        "excluded": facts["excluded"],
    }
    of_pair = frame[frame["rule"] == ""].set_index("statistic")[["value", "optimistic"]]
    ends = {str(name): f"{low:.4g} to {high:.4g}" for name, low, high in of_pair.itertuples()}
    print(
        f"{node.settings['drafter']} for {node.settings['target']}: mean KL {ends['kl']} nats, "
        f"mean total variation {ends['tv']}; speculative sampling accepts {ends['acceptance']}",
        flush=True,
    )
