"""Tasks of lm-evaluation-harness, which loads items, writes prompts and scores answers.

The harness is an optional package and slow to import, so functions import it when they need it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import digest
from pipeline.core.paths import ASSETS
from pipeline.core.stage import Json
from pipeline.inputs.task_files import task_files
from pipeline.models.tokens import chat_text, encode

FOLDER = ASSETS / "tasks"
INSTALL = 'pip install -e ".[harness]"'


@dataclass(frozen=True)
class Question:
    """An item of a task, as the models read it."""

    task: str
    item_id: str  # unique within the task
    token_ids: list[int]  # of the prompt
    max_tokens: int  # of an answer
    until: list[str]  # texts that end an answer
    harness: tuple[Any, Any]  # the harness's task, and its request for the item

    @property
    def key(self) -> str:
        """The question's name, unique among all tasks; its sampling noise depends on it."""
        return f"{self.task}/{self.item_id}"

    @property
    def row(self) -> dict[str, str]:
        """The question's task and item, by column."""
        return {"task": self.task, "item_id": self.item_id}

    def right(self, answer: str) -> bool:
        """Whether the task's first metric of an answer, after its first filter, is 1."""
        task, request = self.harness
        request = replace(request, resps=[answer], filtered_resps={})
        first = task._filters[0]
        first.apply([request])
        metrics = task.process_results(request.doc, [request.filtered_resps[first.name]])
        return bool(metrics[next(iter(task.aggregation()))] == 1)


def task_file(name: str) -> Path | None:
    """Return the YAML file of a task; None for a name of the harness's."""
    for path in (FOLDER / f"{name}.yaml", Path(name)):
        if path.suffix == ".yaml" and path.is_file():
            return path
    if name.endswith(".yaml"):
        raise PipelineError(f"accuracy.tasks: there is no file {name}")
    return None


def task_entries(name: str) -> dict[str, str]:
    """Return a task's name and content: the harness's version, or a digest of the task's files."""
    file = task_file(name)
    if file is None:
        content = f"lm_eval {version('lm_eval') if find_spec('lm_eval') else ''}"
        return {"name": name, "content": content}
    content = "".join(f"{other} {known}\n" for other, known in task_files(file))
    return {"name": file.stem, "content": digest(content.encode())}


def _manager(include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return TaskManager(include_defaults=include_defaults)


@cache  # it takes ten seconds
def _all_tasks() -> Any:
    return _manager(include_defaults=True)


def check_tasks(names: Sequence[str]) -> None:
    """Raise a PipelineError for a name that is no task's, before anything is loaded."""
    for name in names:
        if task_file(name) is None and name not in _all_tasks().task_index:
            ours = ", ".join(sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")))
            raise PipelineError(
                f"accuracy.tasks: {name} is no task: give {ours}, a file *.yaml, or a name of "
                "lm-evaluation-harness (python -m lm_eval ls tasks)"
            )


def questions(names: Sequence[str], settings: Json, tokenizer: Any) -> list[Question]:
    """Return the questions of tasks, one of each in turn; `settings` are of stage accuracy."""
    tasks: dict[str, Any] = {}
    for name, task in _load(names):
        reason = "two tasks have this name" if name in tasks else _refused(task)
        if reason:
            raise PipelineError(f"accuracy.tasks: {name}: {reason}")
        tasks[name] = task
    asked = [_of_task(name, task, settings, tokenizer) for name, task in tasks.items()]
    return [question for turn in zip_longest(*asked) for question in turn if question is not None]


def _load(names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    check_tasks(names)
    files = [task_file(name) for name in names]
    manager = _all_tasks() if None in files else _manager(include_defaults=False)
    for name, file in zip(names, files, strict=True):
        try:
            loaded = manager.load([str(file or name)])["tasks"]
        except Exception as error:  # a task has code of its own, and data of the hub
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise PipelineError(f"accuracy.tasks: {name}: {reason}") from error
        yield from loaded.items()


def _refused(task: Any) -> str | None:
    if task.OUTPUT_TYPE != "generate_until" or getattr(task, "MULTIMODAL", False):
        return (
            "only tasks whose answers are generated text are scored (output_type: generate_until)"
        )
    if getattr(task, "UNSAFE_CODE", False):
        return "it runs code that the model writes, which this project does not"
    return None


def _of_task(name: str, task: Any, settings: Json, tokenizer: Any) -> list[Question]:
    from lm_eval.defaults import DEFAULT_OTHER_SEED
    from lm_eval.models.utils import normalize_gen_kwargs

    chat = settings["template"] == "chat"
    thinking = settings["enable_thinking"]
    if task.config.num_fewshot is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    with redirect_stderr(StringIO()):  # a progress bar of its own
        task.build_all_requests(
            limit=settings["items"],
            apply_chat_template=chat,
            fewshot_as_multiturn=True,
            chat_template=partial(chat_text, tokenizer, enable_thinking=thinking),
        )
    ids = [str(request.doc.get("id", request.doc_id)) for request in task.instances]
    if len(set(ids)) < len(ids):
        ids = [str(request.doc_id) for request in task.instances]
    asked = []
    for item_id, request in zip(ids, task.instances, strict=True):
        text, options = request.args
        limits = normalize_gen_kwargs(options)
        if chat:
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            tokens = encode(tokenizer, text, "none", enable_thinking=thinking)
        longest = limits["max_gen_toks"]
        until = limits["until"]
        asked.append(Question(name, item_id, tokens, longest, until, (task, request)))
    return asked
