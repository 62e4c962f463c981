"""Reads the log of an inference engine: its steps become distributions known up to a rounding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.formats.engine_logs import EngineLog, check_tails, counted, read_log
from pipeline.formats.engine_tokens import TokenIds
from pipeline.plan.stage import Node
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.identity import local_path

NOT_TOLD = (
    "taken as raw: a log does not tell them from values after a temperature or a penalty "
    "(docs/engine_logs.md has the requests)"
)


def write_log(node: Node, pending: Pending) -> None:
    """Write the distributions of a log, and what was left out of it.

    Raises:
        PipelineError: the log can't be read, or its token ids exceed the vocabulary.
    """
    config, asked = node.config, node.config["log"]
    path = local_path(node.settings["path"])
    assert path is not None
    log = read_log(path, asked["part"], config["k"], asked["error"])
    check_tails(path, log, config["vocab_size"])
    known = TokenIds(path, config["vocab_size"])
    pending.write("data", table_of(log, known))
    if known.texts:
        pending.write("tokens", tokens_table(known))
    pending.facts |= {
        "model": log.model or node.settings["label"],
        "log": path.name,
        "vocab_size": config["vocab_size"],
        "k": log.k,
        "log_prob_error": log.error,
        "temperatures": [],
        "answers": log.answers,
        "trajectories": len(log.trajectories),
        "excluded": log.excluded,
        "token_ids": "the engine's" if log.given_ids else "of this file, by their bytes",
        "values": NOT_TOLD,
    }
    print(
        f"distributions {node.label}: {len(log.lines)} steps of {log.answers} answers, {log.k} "
        f"log-probabilities each, off by at most {log.error:.2g}; left out: "
        f"{counted(log.excluded)}; values {NOT_TOLD}",
        flush=True,
    )


def tokens_table(known: TokenIds) -> pa.Table:
    """Return the ids that are of this file only, with their texts."""
    texts = [raw.decode(errors="replace") for raw, _ in known.texts]
    return pa.table(
        {"token_id": list(known.texts.values()), "text": texts},
        schema=columns.schema("distributions", "tokens"),
    )


def table_of(log: EngineLog, known: TokenIds) -> pa.Table:
    """Return the rows of data.parquet; entropy is NaN, for it is not known."""
    schema = columns.schema("distributions", k=log.k)
    lengths = [len(item.tops) for item in log.trajectories]
    values, rows = log.log_probs, sum(lengths)
    with np.errstate(divide="ignore"):
        tail = np.log(np.clip(1.0 - np.exp(values).sum(axis=1), 0.0, None))
    ids = [[known(token) for token, _ in top] for item in log.trajectories for top in item.tops]
    none = np.empty((rows, 0))
    arrays = {
        "prompt_id": pa.array(np.repeat([item.prompt_id for item in log.trajectories], lengths)),
        "position": pa.array(np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])),
        "token_id": pa.array(
            [known(token) for item in log.trajectories for token in item.emitted], pa.int32()
        ),
    }
    numbers: dict[str, np.ndarray] = {
        "top_ids": np.array(ids, dtype=np.int32),
        "top_logits": values.astype(np.float32),
        "logsumexp": np.zeros(rows),
        "top_surprisal": -values[:, 0],
        "log_tail": np.where(log.k == known.vocab_size, -np.inf, tail),
        "entropy": np.full(rows, np.nan),
        **dict.fromkeys(columns.TEMPERED, none),
    }
    arrays |= {name: columns.array(part, schema.field(name).type) for name, part in numbers.items()}
    return pa.table([arrays[name] for name in schema.names], schema=schema)
