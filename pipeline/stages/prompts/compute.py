"""Samples prompts of the wanted length from a data set.

A row of the source has a text (`text` or `prompt`), UltraChat's `messages`, of which the first of
the user is the prompt, or Spec-Bench's `turns`. See `pipeline.formats.prompt_files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.engines.written.logs import prompt_id, read_log
from pipeline.formats.prompt_files import ExcludedRowError, Source, read_row, source_files
from pipeline.models.prompt_tokens import encode, file_tokenizer, no_template
from pipeline.plan.explain import say
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.identity import local_path
from pipeline.store.node import Node

NAMED = 5  # excluded rows that are named, for each reason
REASONS = ("no user message", "not a string", "empty", "duplicate id", "too short", "too long")
MOST = 5000  # rows of a source that are tokenized before the stage runs
SLACK = 8  # tokens by which a length that is counted then may be off
LIMITS = {"too short": "min_tokens", "too long": "max_tokens"}  # the key behind a reason


def compute(node: Node, _: dict[str, list[Artifact]], pending: Pending) -> None:
    """Visit the rows of the source in seeded order until enough prompts are found."""
    config, settings = node.config, node.settings
    if "log" in config:
        write_log_rows(node, pending)
        return
    if "answers" in config:
        from pipeline.stages.prompts.served import write_served

        write_served(node, pending)
        return
    from pipeline.models.load import load_tokenizer

    path = settings["source"]
    rows = Source(source_files(path, config["source"].get("commit"), config["split"]))
    tokenizer = load_tokenizer(settings["model"], settings["model_revision"], "target")
    chosen, excluded, problems = sample(rows, tokenizer, config, path)
    say(problems)
    pending.facts |= {"source_rows": len(rows), "excluded": excluded}
    found, told = len(chosen), excluded_rows(excluded, config)
    if excluded:
        visited = found + sum(entry["rows"] for entry in excluded.values())
        print(f"prompts {node.label}: of {visited} rows read, {told}", flush=True)
    pending.write("data", pa.Table.from_pylist(chosen, schema=columns.schema("prompts")))


def foreseen(node: Node) -> list[str]:
    """Return what `compute` will refuse, of a local source and model; transformers is not loaded.

    For sources of more than `MOST` rows, only problems that need no row are reported.
    """
    config, path, model = node.config, node.settings["source"], node.settings["model"]
    tokenizer = file_tokenizer(model)
    if tokenizer is None or local_path(path) is None:
        return []
    rows = Source(source_files(path, None, config["split"]))
    if len(rows) > MOST:
        config = {**config, "count": 0}
    longest = config["max_tokens"] + SLACK
    near = {**config, "min_tokens": config["min_tokens"] - SLACK, "max_tokens": longest}
    return sample(
        rows, tokenizer, config if sample(rows, tokenizer, near, path)[2] else near, path
    )[2]


def write_log_rows(node: Node, pending: Pending) -> None:
    """Write a row for each trajectory of an engine's log, which has neither texts nor tokens."""
    path = local_path(node.settings["source"])
    assert path is not None
    log = read_log(path, node.config["log"], 1)
    nothing = {"text": "", "later_turns": [], "token_ids": [], "n_tokens": 0}
    rows = [
        {"prompt_id": prompt_id(key), "source": path.name, "source_row": steps[0].line, **nothing}
        for key, steps in log.trajectories.items()
    ]
    pending.facts |= {"answers": log.answers, "excluded": log.excluded}
    pending.write("data", pa.Table.from_pylist(rows, schema=columns.schema("prompts")))


def excluded_rows(excluded: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return how many rows were excluded for each reason, with the first ones."""
    parts = []
    for reason, entry in excluded.items():
        rows = [str(row["source_row"]) for row in entry["first"]]
        more = ["..."] if entry["rows"] > len(rows) else []
        key = LIMITS.get(reason)
        limit = f" for prompts.{key}={config[key]}" if key else ""
        parts.append(f"{entry['rows']} {reason}{limit} (row {', '.join(rows + more)})")
    return ", ".join(parts)


def sample(
    rows: Source, tokenizer: Any, config: Mapping[str, Any], path: str
) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    """Choose the first `count` usable rows in seeded order.

    Args:
        rows: of the source.
        tokenizer: the target's; lengths are counted after its chat template, where it is used.
        config: source, count, min_tokens, max_tokens, seed, template, enable_thinking.
        path: of the source.

    Returns:
        These rows, those that were excluded by reason, and the problems that stop the run.
    """
    problems, template = [], config["template"]
    if template == "chat" and tokenizer.chat_template is None:
        problems.append(no_template(tokenizer))
        template = "none"  # lengths are near: what else is wrong is said, too
    source = config["source"].get("hub") or Path(path).name
    chosen: list[dict[str, Any]] = []
    excluded: dict[str, Any] = {}
    seen, lengths = set[str](), list[int]()
    for at in map(int, np.random.default_rng(config["seed"]).permutation(len(rows))):
        if len(seen) == config["count"]:
            break
        row = rows[at]
        try:
            values: dict[str, Any] = {"source": source, "source_row": at} | read_row(row, at)
            if values["prompt_id"] in seen:
                raise ExcludedRowError("duplicate id")
            thinking = config["enable_thinking"]
            ids = encode(tokenizer, [values["text"]], template, enable_thinking=thinking)
            lengths.append(len(ids))
            if len(ids) < config["min_tokens"]:
                raise ExcludedRowError("too short")
            if len(ids) > config["max_tokens"]:
                raise ExcludedRowError("too long")
        except ExcludedRowError as reason:
            entry = excluded.setdefault(str(reason), {"rows": 0, "first": []})
            entry["rows"] += 1
            if len(entry["first"]) < NAMED:
                entry["first"].append({"source_row": at, "prompt_id": str(row.get("prompt_id"))})
            continue
        seen.add(values["prompt_id"])
        chosen.append(values | {"token_ids": ids, "n_tokens": len(ids)})
    excluded = {reason: excluded[reason] for reason in REASONS if reason in excluded}
    if len(seen) < config["count"]:
        problems.append(_too_few(rows, len(seen), excluded, lengths, config, path))
    return chosen, excluded, problems


def _too_few(
    rows: Source,
    found: int,
    excluded: Mapping[str, Any],
    lengths: Sequence[int],
    config: Mapping[str, Any],
    path: str,
) -> str:
    """Return the error of a source with `found` usable rows: the keys to change, and how."""
    change = [f"lower prompts.count to {found}"] if found else []
    whole = [
        f"raise prompts.{key} to {max(lengths)}"
        if key == "max_tokens"
        else f"lower prompts.{key} to {min(lengths)}"
        for reason, key in LIMITS.items()
        if reason in excluded
    ]
    if whole and len(lengths) < config["count"]:
        whole.append(f"lower prompts.count to {len(lengths)}")
    if whole:
        change.append(" and ".join(whole))
    if rows.text is not None:
        lines = str(rows[0]["text"]).count("\n") + 1
        change.append(
            'give .jsonl rows {"text": "..."} for a prompt a line: a .txt file is one prompt, all '
            f"of its text ({rows.text.name}: {lines} lines)"
        )
    have = f" (all that it has: {min(lengths)} to {max(lengths)})" if lengths else ""
    return (
        f"prompts.count={config['count']}: prompts.source={path} has only {found} prompts of "
        f"{config['min_tokens']} to {config['max_tokens']} tokens{have} (excluded, rows counted "
        f"from 0: {excluded_rows(excluded, config) or 'none'}): "
        + (", or ".join(change) or "give other prompts")
    )
