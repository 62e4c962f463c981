"""Writes prompts and answers that an engine served, as the tokens that the target reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from conf.schema import Prompts
from pipeline.engines.written.answers import counted
from pipeline.engines.written.served import LogProbs, Reply, Request, read_served
from pipeline.errors import PipelineError
from pipeline.formats.prompt_files import is_text
from pipeline.hub import local_path
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode, encode_chat
from pipeline.plan.specs import ServedPrompts
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.columns import Row

UNKNOWN = "\ufffd"  # what engines write for bytes that are no text
CHANGED = "answers whose text does not come back from its tokens: log token ids"
NO_TEXT = "prompts or answers that are no text"
REFUSED = "prompts that the chat template refuses"


def write_served(label: str, spec: ServedPrompts, pending: Pending) -> None:
    """Write the prompts and answers of all files, and the list of rows that were left out.

    Raises:
        PipelineError: a file can't be read, or has no answer; or the tokenizer has no template.
    """
    tokenizer = load_tokenizer(spec.target.path, spec.target.revision, "target")
    rows: list[Row] = []
    answers: dict[str, list[int]] = {}
    log_probs: dict[str, LogProbs] = {}
    excluded, noted, sampling = Counter[str](), Counter[str](), dict[str, set[float]]()
    given = 0
    for at, file in enumerate(spec.answers, start=1):
        local = local_path(file.path)
        assert local is not None
        served, left_out = read_served(local)
        excluded.update(left_out)
        refusal = None
        for answer in served:
            request, reply = answer.reply.request, answer.reply
            assert request is not None
            try:
                ids, text = prompt_of(tokenizer, request, spec.settings)
            except PipelineError as error:
                refusal = error
                excluded[REFUSED] += 1
                continue
            if not ids or not (reply.ids or is_text(reply.text)):
                excluded[NO_TEXT] += 1
                continue
            for option, value in request.sampling.items():
                sampling.setdefault(option, set()).add(value)
            name = answer.name if answer.name not in answers else f"{answer.name}@{at}"
            answers[name] = reply.ids or answer_of(tokenizer, reply, noted)
            if reply.log_probs is not None:
                log_probs[name] = reply.log_probs
            rows.append(
                {
                    "prompt_id": name,
                    "source": local.name,
                    "source_row": answer.line,
                    "text": text,
                    "later_turns": [],
                    "token_ids": ids,
                    "n_tokens": len(ids),
                }
            )
            given += reply.ids is not None
        if refusal is not None and not rows:
            raise refusal
    if not rows:
        raise PipelineError(f"distributions.answers: no answer is left: {counted(excluded)}")
    pending.write("data", pa.Table.from_pylist(rows, schema=columns.schema("prompts")))
    table = [list(answers), list(answers.values())]
    pending.write("answers", pa.table(table, schema=columns.schema("prompts", "answers")))
    if log_probs:
        pending.write("log_probs", _listed(log_probs))
    pending.facts |= {
        "answers": len(rows),
        "given_ids": given,
        "excluded": dict(excluded),
        "noted": dict(noted),
        "sampling": {option: sorted(values) for option, values in sampling.items()},
    }
    print(
        f"prompts {label}: {len(rows)} answers, {given} with token ids; left out or cut off: "
        f"{counted(excluded)}" + (f"; {counted(noted)}" if noted else ""),
        flush=True,
    )


def _listed(log_probs: Mapping[str, LogProbs]) -> pa.Table:
    """Return a row for each log-probability of each step."""
    rows = [
        (name, position, token, value)
        for name, steps in log_probs.items()
        for position, values in enumerate(steps)
        for token, value in values.items()
    ]
    schema = columns.schema("prompts", "log_probs")
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)


def prompt_of(tokenizer: Any, request: Request, settings: Prompts) -> tuple[list[int], str]:
    """Return the tokens of a request, and its text; no tokens where it is no text.

    Raises:
        PipelineError: the chat template does not take it.
    """
    if request.prompt_ids:
        return request.prompt_ids, tokenizer.decode(request.prompt_ids)
    requested = request.enable_thinking
    thinking = settings.enable_thinking if requested is None else requested
    if request.messages:
        if not all(is_text(message.get("content")) for message in request.messages):
            return [], ""
        ids = encode_chat(tokenizer, request.messages, enable_thinking=thinking)
        return ids, str(request.messages[-1]["content"])
    if request.prompt is None or not is_text(request.prompt):
        return [], ""
    template = settings.template if request.chat is None else "none"
    return encode(tokenizer, [request.prompt], template, enable_thinking=thinking), request.prompt


def answer_of(tokenizer: Any, reply: Reply, noted: Counter[str]) -> list[int]:
    """Return the tokens of an answer's text, and the end token where the model ended it."""
    ids: list[int] = tokenizer.encode(reply.text, add_special_tokens=False)
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if back != reply.text or UNKNOWN in back:
        noted[CHANGED] += 1
    end = tokenizer.eos_token_id
    return ids + ([end] if reply.ended and end is not None and ids[-1:] != [end] else [])
