"""Stage prompts: samples prompts of the configured length from a data set.

Run it with ``python -m pipeline stage=prompts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.columns import Column
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Json, Runtime, Stage, Task
from pipeline.engines.answers.logs import prompt_id, read_log
from pipeline.inputs.local_files import local_file
from pipeline.inputs.prompt_files import (
    ExcludedRowError,
    PromptRows,
    given_id,
    messages_of,
    read_row,
    source_files,
)
from pipeline.models.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conf.schema import Prompts
    from pipeline.core.columns import Row
    from pipeline.core.stage import Inputs, Out
    from pipeline.study import Study

NAMED = 5  # excluded rows that are listed, for each reason
REASONS = (
    *("no user message", "not a string", "empty", "id not a string or integer", "duplicate id"),
    *("too short", "too long"),
)
LIMITS = {"too short": "min_tokens", "too long": "max_tokens"}  # the key that sets the limit


@dataclass(frozen=True, kw_only=True)
class PromptsRuntime(Runtime):
    """The runtime of this stage."""

    revision: str | None  # of the tokenizer
    prompts: Prompts  # the configuration of the prompts


def plan(study: Study) -> list[Task]:
    """Return a task for each target: prompts for its tokenizer, or the answers of its log."""
    config = study.config
    identities = study.identities
    prompts = config.prompts
    source = config.distributions.source
    tasks: list[Task] = []
    for key, target in config.targets.items():
        if source == "logs":
            settings: Json = {"log": study.log_entries(key)}
        else:
            tokenizer = identities.tokenizer(target.path, target.revision, f"targets.{key}.path")
            rows = identities.source(prompts.source, prompts.revision, "prompts.source")
            settings = {"tokenizer": tokenizer.entries, "source": rows.entries}
            settings |= prompts.model_dump(exclude={"source", "revision"})
        runtime = PromptsRuntime(
            **vars(study.runtime(target)), revision=target.revision, prompts=prompts
        )
        tasks.append(Task(STAGE, config.study, settings, {}, runtime))
    return tasks


def compute(task: Task, _: Inputs, out: Out) -> None:
    """Sample prompts and write them, and note which rows were left out; or write those of a log."""
    if "log" in task.settings:
        write_log_rows(task, out)
        return
    from pipeline.models.loading import load_tokenizer

    runtime = task.runtime
    assert isinstance(runtime, PromptsRuntime)
    wanted = runtime.prompts
    identity = task.settings["source"]
    source = PromptRows(source_files(wanted.source, identity.get("commit"), wanted.split))
    name = identity.get("hub") or Path(wanted.source).name
    tokenizer = load_tokenizer(runtime.path, runtime.revision, "target")
    rows, excluded = sample(source, name, tokenizer, wanted)
    system = sum(bool(messages_of(source[row["source_row"]], "system")) for row in rows)
    notes = []
    if system:
        notes.append(f"the system messages of {system} rows are left out")
    if wanted.template == "chat" and "strftime_now" in str(tokenizer.chat_template):
        notes.append("the chat template writes today's date: another day gives other tokens")
    if excluded:
        visited = len(rows) + sum(entry["rows"] for entry in excluded.values())
        notes.append(f"of {visited} rows read, {excluded_rows(excluded, wanted)}")
    for note in notes:
        print(f"prompts {task.label}: {note}", flush=True)
    out.metadata |= {"source_rows": len(source), "excluded": excluded, "system_messages": system}
    out.write_rows(rows)


def write_log_rows(task: Task, out: Out) -> None:
    """Write a row for each answer in an engine's log; it has no prompt tokens or text."""
    path = local_file(task.runtime.path)
    log = read_log(path, 1)
    empty: Row = {"token_ids": [], "n_tokens": 0, "text": ""}
    rows: list[Row] = [
        {"prompt_id": prompt_id(key), "source": path.name, "source_row": steps[0].line, **empty}
        for key, steps in log.trajectories.items()
    ]
    out.metadata |= {"answers": log.answers, "excluded": log.excluded}
    out.write_rows(rows)


def sample(
    source: PromptRows, name: str, tokenizer: Any, wanted: Prompts
) -> tuple[list[Row], dict[str, Json]]:
    """Choose the first `count` usable rows of a source, in an order that the seed shuffles.

    A prompt's length includes the chat template.

    Returns:
        The chosen rows; and for each reason of exclusion, how many rows it excluded, and the first
        of these.

    Raises:
        PipelineError: the source has too few usable rows.
    """
    chosen: dict[str, Row] = {}
    excluded: dict[str, list[Row]] = {}
    lengths: list[int] = []
    for index in map(int, np.random.default_rng(wanted.seed).permutation(len(source))):
        if len(chosen) == wanted.count:
            break
        row = source[index]
        try:
            values: Row = {"source": name, "source_row": index} | read_row(row, index)
            if values["prompt_id"] in chosen:
                raise ExcludedRowError("duplicate id")
            thinking = wanted.enable_thinking
            ids = encode(tokenizer, values["text"], wanted.template, enable_thinking=thinking)
            lengths.append(len(ids))
            if len(ids) < wanted.min_tokens:
                raise ExcludedRowError("too short")
            if len(ids) > wanted.max_tokens:
                raise ExcludedRowError("too long")
        except ExcludedRowError as reason:
            prompt_id = given_id(row)
            excluded_row = {
                "source_row": index,
                "prompt_id": "" if prompt_id is None else str(prompt_id),
            }
            excluded.setdefault(str(reason), []).append(excluded_row)
            continue
        chosen[values["prompt_id"]] = values | {"token_ids": ids, "n_tokens": len(ids)}
    counted = {
        reason: {"rows": len(excluded[reason]), "first": excluded[reason][:NAMED]}
        for reason in REASONS
        if reason in excluded
    }
    if len(chosen) < wanted.count:
        have = f" (all that it has: {min(lengths)} to {max(lengths)})" if lengths else ""
        fewer = f"lower prompts.count to {len(chosen)}, or " if chosen else ""
        raise PipelineError(
            f"prompts.count={wanted.count}: prompts.source={wanted.source} has only {len(chosen)} "
            f"prompts of {wanted.min_tokens} to {wanted.max_tokens} tokens{have} (excluded, rows "
            f"counted from 0: {excluded_rows(counted, wanted) or 'none'}): {fewer}give more "
            "prompts, or other prompts.min_tokens or prompts.max_tokens"
        )
    return list(chosen.values()), counted


def excluded_rows(excluded: Mapping[str, Json], wanted: Prompts) -> str:
    """Say how many rows each reason excluded, and which were the first."""
    parts = []
    for reason, entry in excluded.items():
        rows = [str(row["source_row"]) for row in entry["first"]]
        more = ["..."] if entry["rows"] > len(rows) else []
        key = LIMITS.get(reason)
        limit = f" for prompts.{key}={getattr(wanted, key)}" if key else ""
        parts.append(f"{entry['rows']} {reason}{limit} (row {', '.join(rows + more)})")
    return ", ".join(parts)


STAGE = Stage(
    name="prompts",
    version=4,
    upstream=(),
    tables={
        "data": {
            "prompt_id": Column("string", "id of the source"),
            "source": Column("string", "the row's `category`, else its file or data set"),
            "source_row": Column("int64", "the row in it; of an engine's log, the line"),
            "text": Column("string", "the first user message; empty of an engine's log"),
            "token_ids": Column(
                "list<int32>",
                "the prompt as the model reads it, template applied; empty of an engine's log",
            ),
            "n_tokens": Column("int32", "its length"),
        }
    },
    plan=plan,
    compute=compute,
)
