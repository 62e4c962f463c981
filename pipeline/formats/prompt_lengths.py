"""Whether a source has the prompts that are asked for, seen without a model or its library.

Of a local source, lengths are counted as stage prompts counts them, by the tokenizer's file and its
chat template alone. What can't be read so is left to the stage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.formats.prompt_files import Source, read_text, source_files
from pipeline.formats.prompt_rows import ExcludedRowError, read_row

MOST = 5000  # rows that are looked at
SLACK = 8  # tokens by which a length may be off


def template_of(model: Path) -> str | None:
    """Return the chat template of a model directory; None where it has none."""
    file = model / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = _settings(model).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found


def check_prompts(asked: Any, model: Path, key: str) -> None:
    """Check that a local source has the prompts that are asked for.

    Args:
        asked: the configuration's `prompts`.
        model: directory of the target.
        key: of the target in the configuration.

    Raises:
        PipelineError: it has not; all that is wrong, a line each.
    """
    if found := list(_problems(asked, model, key)):
        raise PipelineError("\n".join(found))


def _problems(asked: Any, model: Path, key: str) -> Iterator[str]:
    template = template_of(model) if asked.template == "chat" else None
    if asked.template == "chat" and template is None:
        yield (
            f"{key}.path={model}: its tokenizer has no chat template. Give prompts.template=none "
            "(plain text, for base models), take an instruction-tuned model, or add a "
            "chat_template.jinja to it"
        )
    files = source_files(asked.source, None, asked.split)
    rows = Source(files)
    texts = [file for file in files if file.suffix == ".txt"]
    told = ""
    if texts:
        lines = read_text(texts[0]).strip().count("\n") + 1
        told = (
            f". A .txt file is one prompt, all of its text ({texts[0].name}: {lines} lines): for a "
            'prompt a line write .jsonl, {"text": "..."} in each'
        )
    if len(rows) < asked.count:
        yield (
            f"prompts.count={asked.count}: prompts.source={asked.source} has {len(rows)} rows: "
            f"lower prompts.count{told}"
        )
    lengths = _lengths(rows, model, template, asked.enable_thinking)
    if len(rows) > MOST or not lengths:
        return
    fit = sum(asked.min_tokens - SLACK <= n <= asked.max_tokens + SLACK for n in lengths)
    if fit < min(asked.count, len(rows)):
        ordered = sorted(lengths)
        middle = ordered[(len(ordered) - 1) // 2]
        yield (
            f"prompts.min_tokens={asked.min_tokens}, prompts.max_tokens={asked.max_tokens}: only "
            f"{fit} of {len(rows)} prompts of prompts.source={asked.source} have such a length. "
            f"They have {ordered[0]} to {ordered[-1]} tokens, half of them at most {middle}: "
            "lower prompts.min_tokens or prompts.count, or raise prompts.max_tokens"
        )


def _lengths(rows: Source, model: Path, template: str | None, thinking: bool) -> list[int]:
    """Return the tokens of each usable row; none where they can't be counted here."""
    encode = _encoder(model, template, thinking)
    found = []
    for at in range(min(len(rows), MOST) if encode is not None else 0):
        try:
            text = read_row(rows[at], at)["text"]
        except ExcludedRowError:
            continue
        try:
            found.append(encode(text))  # type: ignore[misc]
        except Exception:  # a template is a program: the stage says what is wrong with it
            return []
    return found


def _encoder(model: Path, template: str | None, thinking: bool) -> Callable[[str], int] | None:
    if not (model / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception:  # the library raises nothing else
        return None
    if template is None:
        return lambda text: len(tokenizer.encode(text).ids)
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        compiled = made.from_string(template)
    except Exception:  # as above
        return None
    named = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in _settings(model).items()
        if name.endswith("_token")
    }

    def count(text: str) -> int:
        said = compiled.render(
            messages=[{"role": "user", "content": text}],
            add_generation_prompt=True,
            enable_thinking=thinking,
            **named,
        )
        return len(tokenizer.encode(said, add_special_tokens=False).ids)

    return count


def _settings(model: Path) -> dict[str, Any]:
    try:
        found = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
