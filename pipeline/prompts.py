"""Stage prompts: samples prompts of the wanted length from a chat data set.

Run it with ``python -m pipeline stage=prompts``. The source has UltraChat's schema (prompt,
prompt_id, messages): a .jsonl or .parquet file, a directory of them, or a data set of the hub.
The prompt is the first message of the user.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import columns, spec_bench
from pipeline.artifacts import Artifact, Draft
from pipeline.errors import PipelineError
from pipeline.identity import READERS, hub_files, local_path, split_patterns
from pipeline.models import load_tokenizer
from pipeline.stages import Node

NAMED = 5  # excluded rows that are named, for each reason
REASONS = ("no user message", "not a string", "empty", "duplicate id", "too short", "too long")


class ExcludedRowError(Exception):
    """A row that is no prompt; its one argument is one of REASONS."""


def compute(node: Node, _: dict[str, list[Artifact]], draft: Draft) -> None:
    """Visit the rows of the source in seeded order until enough prompts are found."""
    config, settings = node.config, node.settings
    path = settings["source"]
    tokenizer = load_tokenizer(settings["model"], settings["model_revision"], "target")
    if tokenizer.chat_template is None:
        raise PipelineError(
            f"{settings['model']}: its tokenizer has no chat template. Take an "
            "instruction-tuned model, or add a chat_template.jinja to it"
        )
    files = source_files(path, config["source"].get("commit"), config["split"])
    with tempfile.TemporaryDirectory(dir=draft.directory) as cache:
        rows = read(files, cache)
        table, excluded = sample(rows, tokenizer, config)
        draft.facts |= {"source_rows": len(rows), "excluded": excluded}
    if len(table["prompt_id"]) < config["count"]:
        raise PipelineError(
            f"prompts.count={config['count']}: prompts.source={path} has only "
            f"{len(table['prompt_id'])} prompts of {config['min_tokens']} to "
            f"{config['max_tokens']} tokens (excluded, rows counted from 0: "
            f"{counted(excluded) or 'none'}). Lower prompts.count or prompts.min_tokens, or "
            "raise prompts.max_tokens"
        )
    name = config["source"].get("hub") or Path(path).name
    table["source"] = [rows[at].get("category", name) for at in table["source_row"]]
    draft.write(
        "data",
        pa.table({"source": [name] * len(table["prompt_id"]), **table})
        .select(columns.schema("prompts").names)
        .cast(columns.schema("prompts")),
    )


def counted(excluded: Mapping[str, Any]) -> str:
    """Return how many rows were excluded for each reason, with the first ones."""
    parts = []
    for reason, entry in excluded.items():
        rows = [str(row["source_row"]) for row in entry["first"]]
        more = ["..."] if entry["rows"] > len(rows) else []
        parts.append(f"{entry['rows']} {reason} (row {', '.join(rows + more)})")
    return ", ".join(parts)


def source_files(path: str, commit: str | None, split: str | None) -> list[Path]:
    """Return the files of a source, fetched from the hub when it is not local.

    Args:
        path: a file, a directory or a hub id.
        commit: the commit of a hub data set.
        split: a part of it: files `<split>.*`, `<split>-*` or below `<split>/`; None is all.

    Raises:
        PipelineError: there is no such file, or the files are not all of one format.
    """
    root = local_path(path)
    if root is None:
        root = hub_files(path, commit, split_patterns(split), "prompts.source", "dataset")
    found = (
        [root]
        if root.is_file()
        else sorted(
            file
            for file in root.rglob("*")
            if file.suffix in READERS
            and (split is None or _in_split(file.relative_to(root), split))
        )
    )
    kinds = {file.suffix for file in found}
    if len(kinds) != 1 or not kinds <= READERS.keys():
        raise PipelineError(
            f"prompts.source={path}: expected .jsonl or .parquet files, all of one kind"
            + (f", of the split prompts.split={split}" if split else "")
            + f"; found {', '.join(sorted(kinds)) or 'none'}"
        )
    return found


def _in_split(file: Path, split: str) -> bool:
    return file.parent.name == split or re.match(rf"{re.escape(split)}[-.]", file.name) is not None


def read(files: list[Path], cache: str) -> Any:
    """Return the rows of `files` as a `datasets.Dataset`, memory-mapped below `cache`.

    Raises:
        PipelineError: a file can't be parsed, or lacks a column.
    """
    import datasets

    if not any(file.stat().st_size for file in files):
        raise PipelineError(f"prompts.source: {files[0]} holds no rows")
    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(
            READERS[files[0].suffix],
            split="train",
            cache_dir=cache,
            data_files=[glob.escape(str(file)) for file in files],  # read as patterns
        )
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        raise PipelineError(
            f"prompts.source: {files[0]}"
            + (f" and {len(files) - 1} more with it" if len(files) > 1 else "")
            + f" can't be read as one table: {error.__cause__ or error}"
        ) from error
    if {"question_id", "turns"} <= set(rows.column_names):
        return [spec_bench.as_chat(row) for row in rows]
    lacking = {"prompt", "prompt_id", "messages"} - set(rows.column_names)
    if lacking:
        raise PipelineError(
            f"prompts.source: {files[0]} has no column {', '.join(sorted(lacking))}"
            f"; it has {', '.join(rows.column_names)}. Expected is UltraChat's "
            "schema: prompt, prompt_id, messages (a list of role and content), or "
            "Spec-Bench's: question_id, category, turns"
        )
    return rows


def sample(
    rows: Any, tokenizer: Any, config: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the columns of the first `count` usable rows in seeded order, and what was excluded.

    Args:
        rows: a sequence of mappings in UltraChat's schema.
        tokenizer: the target's; lengths are counted after its chat template.
        config: count, min_tokens, max_tokens, seed, enable_thinking.
    """
    table: dict[str, list[Any]] = {
        name: [] for name in ("prompt_id", "source_row", "text", "token_ids", "n_tokens")
    }
    excluded: dict[str, Any] = {}
    seen: set[str] = set()
    for at in np.random.default_rng(config["seed"]).permutation(len(rows)):
        if len(table["text"]) == config["count"]:
            break
        row = rows[int(at)]
        try:
            text = first_message(row)
            if row["prompt_id"] in seen:
                raise ExcludedRowError("duplicate id")
            ids = encode_chat(tokenizer, text, config["enable_thinking"])
            if len(ids) < config["min_tokens"]:
                raise ExcludedRowError("too short")
            if len(ids) > config["max_tokens"]:
                raise ExcludedRowError("too long")
        except ExcludedRowError as reason:
            entry = excluded.setdefault(str(reason), {"rows": 0, "first": []})
            entry["rows"] += 1
            if len(entry["first"]) < NAMED:
                entry["first"].append({"source_row": int(at), "prompt_id": str(row["prompt_id"])})
            continue
        seen.add(row["prompt_id"])
        for name, value in zip(
            table, (row["prompt_id"], int(at), text, ids, len(ids)), strict=True
        ):
            table[name].append(value)
    return table, {reason: excluded[reason] for reason in REASONS if reason in excluded}


def encode_chat(tokenizer: Any, text: str, enable_thinking: bool) -> list[int]:
    """Return the tokens of `text` as a user's first message, up to where the answer begins."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        enable_thinking=enable_thinking,
    )


def first_message(row: Mapping[str, Any]) -> str:
    """Return the first user message of a row.

    Raises:
        ExcludedRowError: it is missing, no string or empty, or the id is no string.
    """
    name, messages = row["prompt_id"], row["messages"]
    turns = [turn for turn in messages or [] if isinstance(turn, Mapping)]
    users = [turn for turn in turns if turn.get("role") == "user"]
    if not users:
        raise ExcludedRowError("no user message")
    text = users[0].get("content")
    if not isinstance(text, str) or not isinstance(name, str):
        raise ExcludedRowError("not a string")
    if not text.strip():
        raise ExcludedRowError("empty")
    return text
