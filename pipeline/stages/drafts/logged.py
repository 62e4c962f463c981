"""Compares a drafter's log with a target's: log-probabilities of both at the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from analysis.acceptance.logged import compare_logged
from analysis.topk import TopK
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import counted
from pipeline.formats.engine_logs import EngineLog, read_log, stacked
from pipeline.formats.engine_steps import Step
from pipeline.plan.stage import pair_label
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.identity import local_path
from pipeline.store.node import Node

Pairs = Mapping[tuple[str, int], tuple[Sequence[Step], Sequence[Step]]]  # of target and drafter
ELSEWHERE = "trajectories whose tokens the drafter's log does not have"


def compare_logs(node: Node, distributions: Artifact, pending: Pending) -> None:
    """Write what is known of the pair at every step that both logs have.

    Raises:
        PipelineError: the drafter's log can't be read, or has no text of the target's.
    """
    config, settings, known = node.config, node.settings, dict[tuple[bytes, int], int]()
    paths, logs = [], []
    slices = (distributions.record["config"]["log"], config["log"])
    for asked, model in zip(slices, ("target", "drafter"), strict=True):
        path = local_path(settings[model]["path"])
        assert path is not None
        paths.append(path)
        logs.append(read_log(path, asked, config["k"], config["vocab_size"], known))
    if logs[0].given_ids != logs[1].given_ids:
        raise PipelineError(
            f"{paths[1 if logs[0].given_ids else 0]} has no token ids, and the other log has: log "
            "both with token ids, or both without"
        )
    pairs = _matched(*logs)
    left_out = len(logs[0].trajectories) - len(pairs)
    if not pairs:
        raise PipelineError(
            f"{paths[1]} has none of the {len(logs[0].trajectories)} trajectories of {paths[0]}: "
            "let the drafter score prompt and answer again, as token ids "
            "(distributions.log.draft_part=prompt), in the same order or under the same custom_id"
        )
    excluded = {f"drafter: {why}": count for why, count in logs[1].excluded.items()}
    excluded |= {ELSEWHERE: left_out} if left_out else {}
    table = drafts_table(pairs, logs, config["vocab_size"])
    pending.write("logged", table)
    pending.facts |= {
        "log": paths[1].name,
        "vocab_size": config["vocab_size"],
        "k": logs[0].k,
        "draft_k": logs[1].k,
        "log_prob_error": logs[0].error,
        "draft_log_prob_error": logs[1].error,
        "drafter": logs[1].model or settings["drafter"]["label"],
        "excluded": excluded,
    }
    print(
        f"{pair_label(node)}: {len(table)} steps of {len(pairs)} trajectories, {logs[0].k} and "
        f"{logs[1].k} log-probabilities; left out: {counted(excluded)}",
        flush=True,
    )


def _matched(target: EngineLog, draft: EngineLog) -> Pairs:
    """Return each trajectory of the target that the drafter's same answer holds, with its steps.

    Answers are the same by name, where the drafter has all names of the target, else by order.
    """
    theirs: dict[str, list[Sequence[Step]]] = {}
    for (answer, _), steps in draft.trajectories.items():
        theirs.setdefault(answer, []).append(steps)
    names = list(dict.fromkeys(answer for answer, _ in target.trajectories))
    order = dict(zip(names, names if set(names) <= set(theirs) else theirs, strict=False))
    pairs = {}
    for key, mine in target.trajectories.items():
        emitted = [step.emitted for step in mine]
        for steps in theirs.get(order.get(key[0], ""), []):
            tokens = [step.emitted for step in steps]
            begins = range(len(tokens) - len(emitted), -1, -1)  # an answer ends its text
            begin = next((at for at in begins if tokens[at : at + len(emitted)] == emitted), None)
            if begin is not None:
                pairs[key] = (mine, steps[begin : begin + len(emitted)])
                break
    return pairs


def drafts_table(pairs: Pairs, logs: Sequence[EngineLog], vocab_size: int) -> pa.Table:
    """Return the rows of logged.parquet."""
    sides = [stacked({key: pair[side] for key, pair in pairs.items()}) for side in (0, 1)]
    target, draft = (
        TopK.from_log_probs(side["top_ids"], side["log_probs"], log.error, vocab_size)
        for log, side in zip(logs, sides, strict=True)
    )
    schema = columns.schema("drafts", "logged", k=target.k)
    found = sides[0] | {
        "top_logits": target.log_probs.astype(np.float32),
        "top_surprisal": target.top_surprisal,
        "draft_token_id": draft.ids[:, 0],
        **compare_logged(target, draft),
    }
    return columns.table(found, schema)
