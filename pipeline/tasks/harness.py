"""Tasks of lm-evaluation-harness for stage accuracy: their documents, prompts and verdicts.

The harness makes the prompts, filters an answer and scores it; what decodes is the stage's. Its
package is imported only where one of its tasks is named.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, first_line
from pipeline.models.prompt_tokens import encode
from pipeline.store.durable import file_digest
from pipeline.store.node import fingerprint

TASKS_KEY = "accuracy.tasks"
INSTALL = 'pip install -e ".[harness]"'
LONGEST_ANSWER = 256  # tokens of an answer where a task does not say
FEWSHOT_SEED = 1234  # that of the harness's own runner
SOURCES = ("dataset_path", "dataset_name", "dataset_kwargs")  # what they hold is read


def parts_of(name: str) -> tuple[str, str | None]:
    """Return a task's name in the harness and its filter, None for the task's first.

    >>> parts_of("gsm8k:strict"), parts_of("gsm8k")
    (('gsm8k', 'strict'), ('gsm8k', None))
    """
    task, _, chosen = name.partition(":")
    return task, chosen or None


def problem(name: str, include: str | None, known: str, *, foreign_code: bool) -> str | None:
    """Return why a task can't be asked, before any document is read; None where it can.

    The harness is not installed, it has no such task or filter, the task is not answered with one
    text, or it runs code and that is not allowed.

    Args:
        name: as in `accuracy.tasks`.
        include: a folder with YAML files of tasks, besides those of the harness.
        known: the project's tasks, as printed.
        foreign_code: whether code is run that answers tasks which are not the project's.
    """
    named, chosen = parts_of(name)
    none = f"is no task: give {known}, a file *.jsonl, or a task of lm-evaluation-harness"
    if find_spec("lm_eval") is None:
        return f"{none}, which is not installed: {INSTALL}"
    entry = _entry(named, include)
    if entry is None:
        where = f"accuracy.include={include} and " if include else ""
        return f"{none}: {where}version {version('lm_eval')} have none"
    config, kind = entry.cfg or {}, entry.kind.name
    if kind not in ("TASK", "PY_TASK"):
        return f"is a {kind.lower()} of tasks: name the tasks one by one"
    output = config.get("output_type", "generate_until")
    if output != "generate_until":
        return (
            f"is answered by {output}, which no method changes: likelihoods are the target's. "
            "Give a task with output_type: generate_until"
        )
    if config.get("repeats", 1) != 1:
        return f"asks for {config['repeats']} answers to a question: give a task that asks for one"
    filters = [one["name"] for one in config.get("filter_list") or []]
    if chosen is not None and chosen not in filters:
        given = f"give one of {', '.join(filters)}" if filters else "name the task alone"
        return f"names a filter that the task does not have: {given}"
    if config.get("unsafe_code") and not foreign_code:
        return (
            "runs code that a model wrote, as lm-evaluation-harness does and not in the project's "
            "sandbox: read its page, then give accuracy.foreign_code=true"
        )
    return None


@lru_cache
def load_task(name: str, include: str | None) -> Any:
    """Return a task with its documents.

    Raises:
        PipelineError: its documents can't be read, from the hub for most.
    """
    named, _ = parts_of(name)
    try:
        task = _manager(named, include).load([named])["tasks"][named]
    except Exception as error:  # a task is a program: it can raise anything
        raise PipelineError(
            f"{TASKS_KEY}: lm-evaluation-harness can't load {name}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    return task


def documents_identity(name: str, include: str | None, items: int | None) -> dict[str, Any]:
    """Return what determines the questions of a task and their verdicts.

    Its YAML, the Python files beside it (of a folder of your own), the harness's version, and the
    documents with their prompts; never where they lie.
    """
    named, _ = parts_of(name)
    entry = _entry(named, include)
    assert entry is not None
    folder = entry.yaml_path.parent
    config = {key: value for key, value in (entry.cfg or {}).items() if key not in SOURCES}
    text = json.dumps(config, sort_keys=True, default=str).replace(f"{folder}/", "")
    own = include is not None and folder.resolve().is_relative_to(Path(include).resolve())
    code = [file_digest(path) for path in sorted(folder.glob("*.py"))] if own else []
    asked = [
        [one.args[0], one.args[1], json.dumps(one.doc, sort_keys=True, default=str)]
        for one in requests(load_task(name, include), items)
    ]
    return {
        "name": name,
        "harness": version("lm_eval"),
        "task": fingerprint([text, code]),
        "documents": hashlib.sha256(json.dumps(asked, default=str).encode()).hexdigest(),
    }


def requests(task: Any, items: int | None, chat: Callable[..., str] | None = None) -> list[Any]:
    """Return the first requests of a task, with prompts by a chat template where one is given."""
    task.set_fewshot_seed(seed=FEWSHOT_SEED)  # building draws the shots
    task.build_all_requests(
        limit=items,
        rank=0,
        world_size=1,
        apply_chat_template=chat is not None,
        fewshot_as_multiturn=chat is not None,  # as the harness's own runner does
        chat_template=chat,
        tokenizer_name="",
    )
    return list(task.instances)


def chat_text(
    tokenizer: Any,
    chat_history: list[dict[str, str]],
    add_generation_prompt: bool = True,
    *,
    enable_thinking: bool,
) -> str:
    """Return a conversation as text, up to where the next answer begins."""
    return str(
        tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            enable_thinking=enable_thinking,
        )
    )


def text_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that a chat template wrote, or of plain text.

    Tokens that begin a text are added where there is no chat template, which writes those that it
    wants, and the text has none.
    """
    bos = tokenizer.bos_token
    if tokenizer.chat_template is None and not (bos and text.startswith(bos)):
        return encode(tokenizer, [text], "none", enable_thinking=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def before_stop(text: str, until: Any) -> str:
    """Return a text before the first stop of `until`, a text or a list of texts.

    >>> before_stop("four. Question: 5?", ["Question:", "."]), before_stop("four", None)
    ('four', 'four')
    """
    for stop in [until] if isinstance(until, str) else until or []:
        text = text.split(stop)[0] if stop else text
    return text


def is_right(name: str, include: str | None, request: Any, text: str) -> bool:
    """Return whether an answer is right: the task's first metric behind its filter is 1.

    Raises:
        PipelineError: the metric is neither 0 nor 1.
    """
    task, (named, chosen) = load_task(name, include), parts_of(name)
    one = copy.copy(request)
    one.resps, one.filtered_resps = [text], {}
    task._instances = [one]  # the one way to filter a single answer
    task.apply_filters()
    chosen = chosen or next(iter(one.filtered_resps))
    found = task.process_results(one.doc, [one.filtered_resps[chosen]])
    metric, value = next(iter(found.items()))
    if value not in (0, 1):
        raise PipelineError(
            f"{TASKS_KEY}: {metric} of {named} is {value}, neither 0 nor 1: only right and wrong "
            "answers can be paired"
        )
    return bool(value)


def _entry(task: str, include: str | None) -> Any:
    return _manager(task, include).task_index.get(task)


def _manager(task: str, include: str | None) -> Any:
    """Return the harness's index: that of `include` where it has the task, since all take long."""
    if include is not None:
        if not Path(include).is_dir():
            raise PipelineError(
                f"accuracy.include={include} is no folder: give one with YAML files"
            )
        own = _index(include, defaults=False)
        if task in own.task_index:
            return own
    return _index(include, defaults=True)


@lru_cache
def _index(include: str | None, *, defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return TaskManager(include_path=include, include_defaults=defaults)
