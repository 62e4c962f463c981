"""Runs tasks of lm-evaluation-harness with every method of `accuracy.methods`, in its own runner.

For instance ``python -m pipeline.harness gsm8k,draft_acceptance_facts --limit 50 study=smollm2``.
Nothing is kept: the stage accuracy keeps what it answers. The project's tasks are called
draft_acceptance_facts and so on. Other tasks run code that a model wrote only with
``accuracy.foreign_code=true``, and then as the harness does. The harness is an optional package
(extra `harness`), imported when it is needed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pandas as pd

from pipeline.console import command
from pipeline.decoding.pair import DecodingPair, check_fits, decode_timed, load_decoding_pair
from pipeline.errors import PipelineError
from pipeline.loader import Study
from pipeline.models.load import pair_tokenizer
from pipeline.paths import ASSETS
from pipeline.plan.method import Method
from pipeline.tasks.harness import INSTALL, LONGEST_ANSWER, before_stop, chat_text, text_tokens

OUR_TASKS = "draft_acceptance_"  # begins the names of the project's tasks, which run code apart


def evaluate(tasks: list[str], limit: int | None, overrides: list[str]) -> list[dict[str, Any]]:
    """Return the scores of every method: task, metric, value, tokens a call.

    Raises:
        PipelineError: lm-evaluation-harness is not installed, or the configuration is wrong.
    """
    if find_spec("lm_eval") is None:
        raise PipelineError(f"lm-evaluation-harness is missing: {INSTALL}")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

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
            model = decoding_model(pair, method, tokenizer)
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
            known = {
                "target": node.settings["target"]["label"],
                "method": method.name,
                "draft_length": method.draft_length,
                "temperature": method.temperature,
            }
            per_call = model.emitted / model.calls if model.calls else None
            rows += [
                {**known, "task": task, "metric": name, "value": value, "tokens_per_call": per_call}
                for task, metrics in found["results"].items()
                for name, value in metrics.items()
                if isinstance(value, float) and "stderr" not in name
            ]
    return rows


def decoding_model(pair: DecodingPair, method: Method, tokenizer: Any) -> Any:
    """Return a model of the harness that answers with one method of a target and its drafter.

    A task that asks for sampling gets what the method decodes, at the method's temperature. Answers
    depend on the request alone, so they can be cached by the harness. `calls` are those of the
    target after the prompts', `emitted` the tokens from them.
    """
    from lm_eval.api.model import LM

    class DecodingModel(LM):
        calls = emitted = 0
        tokenizer_name = str(tokenizer.name_or_path).replace("/", "__")  # its cache of requests

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return chat_text(tokenizer, chat_history, add_generation_prompt, enable_thinking=False)

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
            return [self._answer(request) for request in requests]

        def _answer(self, request: Any) -> str:
            context, asked = request.args
            limit = int(asked.get("max_gen_toks", LONGEST_ANSWER))
            name = f"{request.task_name}/{request.doc_id}"  # keys its sampling noise
            row = {"prompt_id": name, "token_ids": text_tokens(tokenizer, context)}
            check_fits(replace(pair, steps=limit), row)
            answer, _ = decode_timed(pair, method, row, limit)
            self.calls += len(answer.calls)
            self.emitted += sum(call.emitted for call in answer.calls)
            said = str(tokenizer.decode(answer.tokens, skip_special_tokens=True))
            text = before_stop(said, asked.get("until"))
            self.cache_hook.add_partial("generate_until", request.args, text)
            return text

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:  # noqa: ARG002
            raise PipelineError(
                f"{requests[0].task_name} is scored by likelihoods, which no method changes: they "
                "are the target's. Give tasks with output_type: generate_until"
            )

        loglikelihood_rolling = loglikelihood

    return DecodingModel()


def main(arguments: list[str]) -> None:
    """Run the command."""
    usage = "python -m pipeline.harness TASK[,TASK...] [--limit N] [OVERRIDES]"
    with command(usage, __doc__, arguments):
        parser = argparse.ArgumentParser(usage=usage, add_help=False)
        parser.add_argument("tasks")
        parser.add_argument("--limit", type=int)
        given, overrides = parser.parse_known_args(arguments)
        rows = evaluate(given.tasks.split(","), given.limit, overrides)
        print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
