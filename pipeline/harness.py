"""Runs tasks of lm-evaluation-harness with every method of `decoding.methods`, in its own runner.

For instance ``python -m pipeline.harness gsm8k,draft_acceptance_facts --limit 50 study=smollm2``.
Nothing is kept. The project's tasks are called draft_acceptance_facts and so on; ``--include DIR``
adds those of a folder with YAML files. Tasks that run code which a model wrote (humaneval) need the
harness' own switch, ``--confirm_run_unsafe_code``. The harness is an optional package (extra
`harness`), imported when it is needed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pandas as pd

from pipeline.decoding.pair import (
    DecodingPair,
    Prompt,
    check_fits,
    decode_timed,
    load_decoding_pair,
)
from pipeline.errors import PipelineError, command
from pipeline.loader import Study
from pipeline.models.load import pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.paths import ASSETS
from pipeline.plan.method import Method
from pipeline.plan.stage import models_of

UNSAFE = "--confirm_run_unsafe_code"  # named as the harness names it
INSTALL = 'pip install -e ".[harness]"'
LONGEST_ANSWER = 256  # tokens of an answer where a task does not say


def evaluate(
    tasks: list[str],
    limit: int | None,
    include: str | None,
    overrides: list[str],
    *,
    unsafe_code: bool = False,
) -> list[dict[str, Any]]:
    """Return the scores of every method: task, metric, value, tokens a call.

    Args:
        tasks: their names.
        limit: the first items of each; None takes all.
        include: a folder with YAML files of more tasks.
        overrides: of the study.
        unsafe_code: run code that a model wrote, for tasks that ask for it.

    Raises:
        PipelineError: lm-evaluation-harness is not installed, the configuration is wrong, or a task
            runs code that a model wrote without `unsafe_code`.
    """
    if find_spec("lm_eval") is None:
        raise PipelineError(f"lm-evaluation-harness is missing: {INSTALL}")
    from lm_eval.tasks import TaskManager

    study = Study(*overrides, "stage=accuracy")
    nodes = study.nodes["accuracy"]
    if not nodes:
        raise PipelineError("no drafter: add one, for instance drafter=mini")
    manager = TaskManager(include_path=[str(ASSETS / "tasks"), *([include] if include else [])])
    rows = []
    for node in nodes:
        tokenizer = pair_tokenizer(*models_of(node))
        pair = load_decoding_pair(node.spec, 1 + max(tokenizer.get_vocab().values()), 0)
        for method in pair.runs:
            model = decoding_model(pair, method, tokenizer)
            results = run_tasks(
                model,
                tasks=tasks,
                limit=limit,
                task_manager=manager,
                apply_chat_template=node.spec.prompts.template == "chat",
                bootstrap_iters=0,
                confirm_run_unsafe_code=unsafe_code,
            )
            setup = {
                "target": node.spec.target.settings.label,
                "method": method.name,
                "draft_length": method.draft_length,
                "temperature": method.temperature,
            }
            per_call = model.emitted / model.calls if model.calls else None
            rows += [
                {**setup, "task": task, "metric": name, "value": value, "tokens_per_call": per_call}
                for task, metrics in results.items()
                for name, value in metrics.items()
                if isinstance(value, float) and "stderr" not in name
            ]
    return rows


def run_tasks(model: Any, **options: Any) -> dict[str, Any]:
    """Return the results of `lm_eval.simple_evaluate` by task.

    Raises:
        PipelineError: a task runs code that a model wrote, and the switch for it is not set.
    """
    from lm_eval import simple_evaluate

    try:
        return dict(simple_evaluate(model, **options)["results"])
    except ValueError as error:
        if "marked as unsafe" not in str(error):
            raise
        raise PipelineError(
            f"one of {', '.join(options['tasks'])} runs code that the model wrote, with your "
            f"rights: {UNSAFE} allows it"
        ) from error


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
            context, limits = request.args
            limit = int(limits.get("max_gen_toks", LONGEST_ANSWER))
            name = f"{request.task_name}/{request.doc_id}"  # keys its sampling noise
            prompt = Prompt(name, text_tokens(tokenizer, context))
            check_fits(replace(pair, steps=limit), prompt)
            answer, _ = decode_timed(pair, method, prompt, limit)
            self.calls += len(answer.calls)
            self.emitted += sum(call.emitted for call in answer.calls)
            answered = str(tokenizer.decode(answer.tokens, skip_special_tokens=True))
            text = before_stop(answered, limits.get("until"))
            self.cache_hook.add_partial("generate_until", request.args, text)
            return text

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:  # noqa: ARG002
            raise PipelineError(
                f"{requests[0].task_name} is scored by the target's likelihoods, which no method "
                "changes. Give tasks with output_type: generate_until"
            )

        loglikelihood_rolling = loglikelihood

    return DecodingModel()


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
        return encode(tokenizer, text, "none", enable_thinking=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def before_stop(text: str, until: Any) -> str:
    """Return a text before the first stop of `until`, a text or a list of texts.

    >>> before_stop("four. Question: 5?", ["Question:", "."]), before_stop("four", None)
    ('four', 'four')
    """
    for stop in [until] if isinstance(until, str) else until or []:
        text = text.split(stop)[0] if stop else text
    return text


def main(arguments: list[str]) -> None:
    """Run the command."""
    usage = "python -m pipeline.harness TASK[,TASK...] [--limit N] [--include DIR] "
    usage += f"[{UNSAFE}] [OVERRIDES]"
    with command(usage, __doc__, arguments):
        parser = argparse.ArgumentParser(usage=usage, add_help=False)
        parser.add_argument("tasks")
        parser.add_argument("--limit", type=int)
        parser.add_argument("--include")
        parser.add_argument(UNSAFE, dest="unsafe_code", action="store_true")
        parser.add_argument("--config-dir", action="append", default=[])
        given, overrides = parser.parse_known_args(arguments)
        rows = evaluate(
            given.tasks.split(","),
            given.limit,
            given.include,
            [*overrides, *map("--config-dir={}".format, given.config_dir)],
            unsafe_code=given.unsafe_code,
        )
        print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
