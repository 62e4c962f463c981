"""Runs tasks of lm-evaluation-harness with every method of `accuracy.methods`, in its own runner.

python -m pipeline.harness TASK[,TASK...] [--limit N] [OVERRIDES], for instance
``python -m pipeline.harness gsm8k,draft_acceptance_facts --limit 50 study=smollm2``. Nothing is
kept: the stage accuracy keeps what it answers. The project's tasks are called
draft_acceptance_facts and so on. Other tasks run code that a model wrote only with
``accuracy.foreign_code=true``, and then as the harness does.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Any

from pipeline.errors import PipelineError
from pipeline.paths import ASSETS

OUR_TASKS = "draft_acceptance_"  # begins the names of the project's tasks, which run code apart


def evaluate(tasks: list[str], limit: int | None, overrides: list[str]) -> list[dict[str, Any]]:
    """Return the scores of every method: task, metric, value, standard error, tokens a call.

    Raises:
        PipelineError: lm-evaluation-harness is not installed, or the configuration is wrong.
    """
    if find_spec("lm_eval") is None:
        raise PipelineError('lm-evaluation-harness is missing: pip install -e ".[harness]"')
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from pipeline.decoding.pair import load_decoding_pair
    from pipeline.harness.model import DecodingModel
    from pipeline.loader import Study
    from pipeline.models.load import pair_tokenizer

    study = Study(*overrides, "stage=accuracy")
    nodes, include = study.nodes["accuracy"], study.config.accuracy.include
    if not nodes:
        raise PipelineError("no drafter: add one, for instance drafter=mini")
    manager = TaskManager(include_path=[str(ASSETS / "tasks"), *([include] if include else [])])
    rows = []
    for node in nodes:
        tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
        pair = load_decoding_pair(node, 1 + max(tokenizer.get_vocab().values()), 0)
        for method in pair.runs:
            model = DecodingModel(pair, method, tokenizer)
            found = simple_evaluate(
                model,
                tasks=tasks,
                limit=limit,
                task_manager=manager,
                apply_chat_template=node.config["template"] == "chat",
                bootstrap_iters=0,
                confirm_run_unsafe_code=node.settings["foreign_code"]
                or all(task.startswith(OUR_TASKS) for task in tasks),
            )
            rows += scores(found["results"], node.settings["target"]["label"], model)
    return rows


def scores(results: dict[str, Any], target: str, model: Any) -> list[dict[str, Any]]:
    """Return the numbers of one method, one row a task and metric."""
    per_call = model.emitted / model.calls if model.calls else None
    return [
        {
            "target": target,
            "method": model.method.name,
            "draft_length": model.method.draft_length,
            "temperature": model.method.temperature,
            "task": task,
            "metric": name,
            "value": value,
            "tokens_per_call": per_call,
        }
        for task, metrics in results.items()
        for name, value in metrics.items()
        if isinstance(value, float) and "stderr" not in name
    ]


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.harness")
    parser.add_argument("tasks", help="names of tasks, separated by commas")
    parser.add_argument("--limit", type=int, help="items of every task")
    given, overrides = parser.parse_known_args(arguments)
    from pipeline.plan.explain import EXPECTED_ERRORS, explain

    try:
        rows = evaluate(given.tasks.split(","), given.limit, overrides)
    except EXPECTED_ERRORS as error:
        raise SystemExit(f"error: {explain(error)}") from None
    import pandas as pd

    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
