"""Holds a drafter's log against a target's: both engines' log-probabilities at the same steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from analysis.acceptance.logged import compare_logged
from analysis.topk import TopK
from pipeline.errors import PipelineError
from pipeline.formats.engine_logs import EngineLog, Trajectory, check_tails, counted, read_log
from pipeline.formats.engine_tokens import TokenIds
from pipeline.plan.stage import Node, pair_label
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.identity import local_path

ELSEWHERE = "trajectories whose tokens the drafter's log does not have"


def compare_logs(node: Node, distributions: Artifact, pending: Pending) -> None:
    """Write what is known of the pair at every step that both logs have.

    Raises:
        PipelineError: the drafter's log can't be read, or has no text of the target's.
    """
    config, settings = node.config, node.settings
    paths, logs = [], []
    slices = (distributions.record["config"]["log"], config["log"])
    for asked, model in zip(slices, ("target", "drafter"), strict=True):
        path = local_path(settings[model]["path"])
        assert path is not None
        log = read_log(path, asked["part"], config["k"], asked["error"])
        check_tails(path, log, config["vocab_size"])
        paths.append(path)
        logs.append(log)
    if logs[0].given_ids != logs[1].given_ids:
        raise PipelineError(
            f"{paths[1 if logs[0].given_ids else 0]} has no token ids, and the other log has: log "
            "both with token ids, or both without"
        )
    pairs = list(_matched(*logs))
    left_out = len(logs[0].trajectories) - len(pairs)
    if not pairs:
        raise PipelineError(
            f"{paths[1]} has none of the {len(logs[0].trajectories)} trajectories of {paths[0]}: "
            "let the drafter score prompt and answer again, as token ids "
            "(distributions.log.draft_part=prompt), in the same order or under the same custom_id"
        )
    known = TokenIds(paths[0], config["vocab_size"])
    excluded = {f"drafter: {why}": count for why, count in logs[1].excluded.items()}
    excluded |= {ELSEWHERE: left_out} if left_out else {}
    table = table_of(pairs, logs, known)
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


def _matched(target: EngineLog, draft: EngineLog) -> Iterator[tuple[Trajectory, list]]:
    """Yield each trajectory of the target that the drafter's same answer holds, with its lists.

    Answers are the same by name, where the drafter has all names of the target, else by order.
    """
    theirs: dict[str, list[Trajectory]] = {}
    for item in draft.trajectories:
        theirs.setdefault(item.answer, []).append(item)
    names = list(dict.fromkeys(item.answer for item in target.trajectories))
    order = dict(zip(names, names if set(names) <= set(theirs) else theirs, strict=False))
    for item in target.trajectories:
        for other in theirs.get(order.get(item.answer, ""), []):
            size, begin = len(item.emitted), None
            for at in range(len(other.emitted) - size, -1, -1):  # an answer ends its text
                if other.emitted[at : at + size] == item.emitted:
                    begin = at
                    break
            if begin is not None:
                yield item, other.tops[begin : begin + size]
                break


def table_of(
    pairs: list[tuple[Trajectory, list]], logs: list[EngineLog], known: TokenIds
) -> pa.Table:
    """Return the rows of logged.parquet."""
    sides = ([item.tops for item, _ in pairs], [tops for _, tops in pairs])
    dists = []
    for log, side in zip(logs, sides, strict=True):
        ids = np.array([[known(token) for token, _ in top] for tops in side for top in tops])
        values = np.array([[value for _, value in top] for tops in side for top in tops])
        dists.append(TopK.from_log_probs(ids, values, log.error, known.vocab_size))
    target, draft = dists
    pair = compare_logged(target, draft)
    lengths = [len(item.tops) for item, _ in pairs]
    schema = columns.schema("drafts", "logged", k=target.k)
    arrays = {
        "prompt_id": np.repeat([item.prompt_id for item, _ in pairs], lengths),
        "position": np.concatenate([np.arange(n) for n in lengths]),
        "token_id": np.array([known(token) for item, _ in pairs for token in item.emitted]),
        "top_ids": target.ids,
        "top_logits": target.log_probs.astype(np.float32),
        "top_surprisal": target.top_surprisal,
        "kl_low": pair.kl.low,
        "kl_high": pair.kl.high,
        "tv_low": pair.tv.low,
        "tv_high": pair.tv.high,
        "draft_token_id": draft.ids[:, 0],
        "draft_rank": pair.draft_rank,
        "draft_prob_low": pair.draft_prob.low,
        "draft_prob_high": pair.draft_prob.high,
        "argmax_rank": pair.argmax_rank,
    }
    return pa.table(
        [columns.array(arrays[name], schema.field(name).type) for name in schema.names],
        schema=schema,
    )
