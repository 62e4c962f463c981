"""Stage prompts: samples prompts of the wanted length from a data set.

Run it with ``python -m pipeline stage=prompts``. A row of the source has a text (`text` or
`prompt`), or UltraChat's `messages`, of which the first of the user is the prompt
(`pipeline.prompt_files`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.columns import Column
from pipeline.engines.written.logs import prompt_id, read_log
from pipeline.errors import PipelineError
from pipeline.hub import local_path
from pipeline.models.prompt_tokens import encode
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import LoggedPrompts, SampledPrompts
from pipeline.prompt_files import ExcludedRowError, Source, messages_of, read_row, source_files
from pipeline.stage import Stage, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conf.schema import Prompts
    from pipeline.columns import Row
    from pipeline.stage import Inputs, Json
    from pipeline.store import Out
    from pipeline.study import Study

NAMED = 5  # excluded rows that are named, for each reason
REASONS = (
    *("no user message", "not a string", "empty", "id not a string or integer", "duplicate id"),
    *("too short", "too long"),
)
LIMITS = {"too short": "min_tokens", "too long": "max_tokens"}  # the key behind a reason


def check(study: Study) -> None:
    """Check that a prompt can have a length that is allowed.

    Raises:
        PipelineError: none can.
    """
    prompts = study.config.prompts
    if prompts.min_tokens > prompts.max_tokens:
        raise PipelineError(
            f"prompts.min_tokens={prompts.min_tokens} exceeds "
            f"prompts.max_tokens={prompts.max_tokens}: no prompt has such a length"
        )


def plan(study: Study) -> list[Task]:
    """Return the planned prompts of each target: the same for targets that share a tokenizer.

    Of an engine's log they are its answers.
    """
    config, identities = study.config, study.identities
    prompts, source = config.prompts, config.distributions.source
    made: list[Task] = []
    for key, target in config.targets.items():
        spec: LoggedPrompts | SampledPrompts
        if source == "logs":
            spec = LoggedPrompts(study.log_spec(f"targets.{key}", target.path))
        else:
            tokenizer = identities.tokenizer(target.path, target.revision, f"targets.{key}.path")
            rows = identities.source(prompts.source, prompts.revision, "prompts.source")
            spec = SampledPrompts(tokenizer, rows, prompts, target)
        made.append(Task(STAGE, config.study, to_plain(spec), {}, spec))
    return made


def compute(task: Task, _: Inputs, out: Out) -> None:
    """Write the prompts of a source, or of an engine's log."""
    spec = task.spec
    if isinstance(spec, LoggedPrompts):
        write_log_rows(spec, out)
    else:
        write_sample(task.label, spec, out)


def write_sample(label: str, spec: SampledPrompts, out: Out) -> None:
    """Write a sample of a source, and note which rows it left out."""
    from pipeline.models.load import load_tokenizer

    settings = spec.settings
    source = Source(source_files(settings.source, spec.source.commit, settings.split))
    tokenizer = load_tokenizer(spec.target.path, spec.target.revision, "target")
    name = spec.source.hub or Path(settings.source).name
    rows, excluded = sample(source, name, tokenizer, settings)
    system = sum(bool(messages_of(source[row["source_row"]], "system")) for row in rows)
    out.facts |= {"source_rows": len(source), "excluded": excluded, "system_messages": system}
    if system:
        print(f"prompts {label}: the system messages of {system} rows are left out", flush=True)
    if settings.template == "chat" and "strftime_now" in str(tokenizer.chat_template):
        print(
            f"prompts {label}: the chat template writes today's date: prompts that are made on "
            "another day have other tokens",
            flush=True,
        )
    if excluded:
        visited = len(rows) + sum(entry["rows"] for entry in excluded.values())
        reasons = excluded_rows(excluded, settings)
        print(f"prompts {label}: of {visited} rows read, {reasons}", flush=True)
    out.write_rows(rows)


def write_log_rows(spec: LoggedPrompts, out: Out) -> None:
    """Write a row for each trajectory of an engine's log, without tokens."""
    path = local_path(spec.log.path)
    assert path is not None
    log = read_log(path, spec.log, 1)
    empty: Row = {"token_ids": [], "n_tokens": 0, "text": ""}
    rows: list[Row] = [
        {"prompt_id": prompt_id(key), "source": path.name, "source_row": steps[0].line, **empty}
        for key, steps in log.trajectories.items()
    ]
    out.facts |= {"answers": log.answers, "excluded": log.excluded}
    out.write_rows(rows)


def sample(
    source: Source, name: str, tokenizer: Any, wanted: Prompts
) -> tuple[list[Row], dict[str, Json]]:
    """Choose the first `count` usable rows in seeded order.

    Args:
        source: its rows.
        name: its name as printed.
        tokenizer: the target's; lengths are counted after its chat template, where it is used.
        wanted: which are usable, and how many.

    Returns:
        The chosen rows; and, for each reason, how many rows were excluded, and the first ones.

    Raises:
        PipelineError: there are not enough; or the tokenizer has no template.
    """
    chosen: dict[str, Row] = {}
    excluded: dict[str, list[Row]] = {}
    lengths: list[int] = []
    for at in map(int, np.random.default_rng(wanted.seed).permutation(len(source))):
        if len(chosen) == wanted.count:
            break
        row = source[at]
        try:
            values: Row = {"source": name, "source_row": at} | read_row(row, at)
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
            found = {"source_row": at, "prompt_id": str(row.get("prompt_id"))}
            excluded.setdefault(str(reason), []).append(found)
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
    """Return the number of rows excluded for each reason, with the first ones."""
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
    check=check,
)
