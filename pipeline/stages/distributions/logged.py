"""Reads the log of an inference engine as distributions that are known up to rounding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.engines.written.answers import counted
from pipeline.engines.written.logs import EngineLog, read_log, stacked
from pipeline.hub import local_path
from pipeline.models.token_texts import ENGINES_IDS
from pipeline.plan.specs import LoggedDistributions
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.node import Node

NOT_TOLD = (
    "taken as raw: a log does not tell them from values after a temperature, a penalty or sampling "
    "in the backend (docs/answers.md has the requests)"
)


def write_log(node: Node[LoggedDistributions], pending: Pending) -> None:
    """Write the distributions of a log, and the list of rows that were left out.

    Raises:
        PipelineError: the log can't be read, or its token ids exceed the vocabulary.
    """
    spec = node.spec
    path = local_path(spec.log.path)
    assert path is not None
    log = read_log(path, spec.log, spec.k, spec.vocab_size)
    table = distributions_table(log, spec.vocab_size)
    pending.write("data", table)
    if not log.given_ids:
        texts = [raw.decode(errors="replace") for raw, _ in log.texts]
        tokens = {"token_id": list(log.texts.values()), "text": texts}
        pending.write("tokens", pa.table(tokens, schema=columns.schema("distributions", "tokens")))
    pending.facts |= {
        "model": log.model or spec.label,
        "log": path.name,
        "vocab_size": spec.vocab_size,
        "k": log.k,
        "log_prob_error": log.error,
        "certified_temperature": 1.0,
        "answers": log.answers,
        "trajectories": len(log.trajectories),
        "excluded": log.excluded,
        "token_ids": ENGINES_IDS if log.given_ids else "of this file, by their bytes",
        "values": NOT_TOLD,
    }
    print(
        f"distributions {node.label}: {len(table)} steps of {log.answers} answers, {log.k} "
        f"log-probabilities each, off by at most {log.error:.2g}; left out: "
        f"{counted(log.excluded)}; values {NOT_TOLD}",
        flush=True,
    )


def distributions_table(log: EngineLog, vocab_size: int) -> pa.Table:
    """Return the rows of data.parquet; entropy is NaN, for it is not known."""
    schema = columns.schema("distributions", k=log.k)
    steps = stacked(log.trajectories)
    values, rows = steps["log_probs"], len(steps["log_probs"])
    with np.errstate(divide="ignore"):
        tail = np.log(np.clip(1.0 - np.exp(values).sum(axis=1), 0.0, None))
    steps |= {
        "top_logits": values.astype(np.float32),
        "logsumexp": np.zeros(rows),
        "top_surprisal": -values[:, 0],
        "log_tail": np.where(log.k == vocab_size, -np.inf, tail),
        "entropy": np.full(rows, np.nan),
    }
    return columns.table(steps, schema)
