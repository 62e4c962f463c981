"""Stage prompts: samples prompts of the wanted length from a data set.

Run it with ``python -m pipeline stage=prompts``. A row of the source has a text (`text` or
`prompt`), or UltraChat's `messages`, of which the first of the user is the prompt
(`pipeline.formats.prompt_files`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.columns import Column
from pipeline.engines.written.logs import prompt_id, read_log
from pipeline.errors import PipelineError, say
from pipeline.formats.prompt_files import ExcludedRowError, Source, read_row, source_files
from pipeline.hub import local_path
from pipeline.models.prompt_tokens import encode, file_tokenizer, no_template
from pipeline.stage import Json, Stage, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from conf.schema import Prompts
    from pipeline.columns import Row
    from pipeline.stage import Inputs
    from pipeline.store import Out
    from pipeline.study import Study

NAMED = 5  # excluded rows that are named, for each reason
REASONS = (
    *("no user message", "not a string", "empty", "id not a string or integer", "duplicate id"),
    *("too short", "too long"),
)
MOST = 5000  # rows of a source that are tokenized before the stage runs
SLACK = 8  # tokens by which a length that is counted then may be off
LIMITS = {"too short": "min_tokens", "too long": "max_tokens"}  # the key behind a reason


def check(study: Study) -> None:
    """Check that there are such prompts, of those that were not chosen yet: all at once.

    Raises:
        PipelineError: no length is allowed, or `compute` will refuse them.
    """
    prompts = study.config.prompts
    if prompts.min_tokens > prompts.max_tokens:
        raise PipelineError(
            f"prompts.min_tokens={prompts.min_tokens} exceeds "
            f"prompts.max_tokens={prompts.max_tokens}: no prompt has such a length"
        )
    wanted = STAGE.name in study.wanted and study.config.distributions.source == "model"
    missing = {task.key: task for task in plan(study) if not study.made(task)}
    if wanted and missing:
        say([problem for task in missing.values() for problem in foreseen(task)])


def plan(study: Study) -> list[Task]:
    """Return the planned prompts of each target: the same for targets that share a tokenizer.

    Of an engine's log they are its answers.
    """
    config, identities = study.config, study.identities
    prompts, source = config.prompts, config.distributions.source
    made: list[Task] = []
    for key, target in config.targets.items():
        if source == "logs":
            settings: Json = {"log": study.log_entries(key)}
        else:
            tokenizer = identities.tokenizer(target.path, target.revision, f"targets.{key}.path")
            rows = identities.source(prompts.source, prompts.revision, "prompts.source")
            settings = {"tokenizer": tokenizer.entries, "source": rows.entries}
            settings |= prompts.model_dump(exclude={"source", "revision"})
        runtime = study.runtime(target)
        extra = {**runtime.extra, "revision": target.revision, "prompts": prompts}
        made.append(Task(STAGE, config.study, settings, {}, replace(runtime, extra=extra)))
    return made


def compute(task: Task, _: Inputs, out: Out) -> None:
    """Write the prompts of a source, or of an engine's log."""
    if "log" in task.settings:
        write_log_rows(task, out)
    else:
        write_sample(task, out)


def write_sample(task: Task, out: Out) -> None:
    """Visit the rows of the source in seeded order until enough prompts are found.

    Raises:
        PipelineError: there are not enough; or the tokenizer has no template.
    """
    from pipeline.models.load import load_tokenizer

    extra, source = task.runtime.extra, task.settings["source"]
    wanted: Prompts = extra["prompts"]
    rows = Source(source_files(wanted.source, source.get("commit"), wanted.split))
    tokenizer = load_tokenizer(extra["path"], extra["revision"], "target")
    sampled = sample(rows, tokenizer, wanted, source.get("hub"))
    say(sampled.problems)
    out.facts |= {
        "source_rows": len(rows),
        "excluded": {name: vars(entry) for name, entry in sampled.excluded.items()},
    }
    if sampled.excluded:
        visited = len(sampled.rows) + sum(entry.rows for entry in sampled.excluded.values())
        reasons = excluded_rows(sampled.excluded, wanted)
        print(f"prompts {task.label}: of {visited} rows read, {reasons}", flush=True)
    out.write_rows(sampled.rows)


def foreseen(task: Task) -> list[str]:
    """Return the problems of a local source and model, found without loading transformers.

    For sources of more than `MOST` rows, only problems that need no row are reported.
    """
    extra = task.runtime.extra
    wanted, tokenizer = extra["prompts"], file_tokenizer(extra["path"])
    if tokenizer is None or local_path(wanted.source) is None:
        return []
    rows = Source(source_files(wanted.source, None, wanted.split))
    if len(rows) > MOST:
        wanted = wanted.model_copy(update={"count": 0})
    lengths = {"min_tokens": wanted.min_tokens - SLACK, "max_tokens": wanted.max_tokens + SLACK}
    near = wanted.model_copy(update=lengths)
    sampled = sample(rows, tokenizer, near)
    return (sample(rows, tokenizer, wanted) if sampled.problems else sampled).problems


def write_log_rows(task: Task, out: Out) -> None:
    """Write a row for each trajectory of an engine's log, without tokens."""
    path = local_path(task.runtime.extra["path"])
    assert path is not None
    log = read_log(path, task.settings["log"], 1)
    empty: Row = {"token_ids": [], "n_tokens": 0, "text": "", "later_turns": []}
    rows: list[Row] = [
        {"prompt_id": prompt_id(key), "source": path.name, "source_row": steps[0].line, **empty}
        for key, steps in log.trajectories.items()
    ]
    out.facts |= {"answers": log.answers, "excluded": log.excluded}
    out.write_rows(rows)


def excluded_rows(excluded: Mapping[str, ExcludedRows], wanted: Prompts) -> str:
    """Return the number of rows excluded for each reason, with the first ones."""
    parts = []
    for reason, entry in excluded.items():
        rows = [str(row["source_row"]) for row in entry.first]
        more = ["..."] if entry.rows > len(rows) else []
        key = LIMITS.get(reason)
        limit = f" for prompts.{key}={getattr(wanted, key)}" if key else ""
        parts.append(f"{entry.rows} {reason}{limit} (row {', '.join(rows + more)})")
    return ", ".join(parts)


@dataclass(frozen=True)
class ExcludedRows:
    """Rows of a source that were excluded for one reason: how many, and the first ones."""

    rows: int
    first: list[Row]  # source_row and prompt_id


class Sample(NamedTuple):
    """The chosen rows, the excluded ones by reason, and the problem that stops the run."""

    rows: list[Row]
    excluded: dict[str, ExcludedRows]
    problems: list[str]


def sample(rows: Source, tokenizer: Any, wanted: Prompts, hub: str | None = None) -> Sample:
    """Choose the first `count` usable rows in seeded order.

    Args:
        rows: of the source.
        tokenizer: the target's; lengths are counted after its chat template, where it is used.
        wanted: which are usable, and how many.
        hub: the name of a data set of the hub.
    """
    problems, template = [], wanted.template
    if template == "chat" and tokenizer.chat_template is None:
        problems.append(no_template(tokenizer))
        template = "none"  # lengths are near: what else is wrong is said, too
    source = hub or Path(wanted.source).name
    chosen: list[Row] = []
    left_out: dict[str, list[Row]] = {}
    seen, lengths = set[str](), list[int]()
    for at in map(int, np.random.default_rng(wanted.seed).permutation(len(rows))):
        if len(seen) == wanted.count:
            break
        row = rows[at]
        try:
            values: Row = {"source": source, "source_row": at} | read_row(row, at)
            if values["prompt_id"] in seen:
                raise ExcludedRowError("duplicate id")
            thinking = wanted.enable_thinking
            ids = encode(tokenizer, values["text"], template, enable_thinking=thinking)
            lengths.append(len(ids))
            if len(ids) < wanted.min_tokens:
                raise ExcludedRowError("too short")
            if len(ids) > wanted.max_tokens:
                raise ExcludedRowError("too long")
        except ExcludedRowError as reason:
            excluded_row = {"source_row": at, "prompt_id": str(row.get("prompt_id"))}
            left_out.setdefault(str(reason), []).append(excluded_row)
            continue
        seen.add(values["prompt_id"])
        chosen.append(values | {"token_ids": ids, "n_tokens": len(ids)})
    excluded = {
        reason: ExcludedRows(len(left_out[reason]), left_out[reason][:NAMED])
        for reason in REASONS
        if reason in left_out
    }
    if len(seen) < wanted.count:
        problems.append(_too_few(rows, len(seen), excluded, lengths, wanted))
    return Sample(chosen, excluded, problems)


def _too_few(
    rows: Source,
    count: int,
    excluded: Mapping[str, ExcludedRows],
    lengths: Sequence[int],
    wanted: Prompts,
) -> str:
    """Return the error of a source with `found` usable rows: the keys to change, and how."""
    change = [f"lower prompts.count to {count}"] if count else []
    whole = [
        f"raise prompts.{key} to {max(lengths)}"
        if key == "max_tokens"
        else f"lower prompts.{key} to {min(lengths)}"
        for reason, key in LIMITS.items()
        if reason in excluded
    ]
    if whole and len(lengths) < wanted.count:
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
        f"prompts.count={wanted.count}: prompts.source={wanted.source} has only {count} prompts of "
        f"{wanted.min_tokens} to {wanted.max_tokens} tokens{have} (excluded, rows counted "
        f"from 0: {excluded_rows(excluded, wanted) or 'none'}): "
        + (", or ".join(change) or "give other prompts")
    )


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
