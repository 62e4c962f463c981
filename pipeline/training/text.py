"""Let the target write training text for its drafter: ``python -m pipeline.training.text``.

The target writes questions, from seeded beginnings, and answers them. Each batch is one Parquet
shard in outputs/drafter_training/ (or directory=DIRECTORY). A run that was stopped goes on after
the last whole shard; a shard depends on its number and the questions of those before it alone.
Overrides of conf/drafter_training.yaml are given as KEY=VALUE.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.models.load import LanguageModel, load_model, load_tokenizer
from pipeline.paths import ASSETS, CONF, OUTPUTS
from pipeline.training.conversations import Conversation, Sampler, Turns, converse
from pipeline.training.features import round_products
from pipeline.training.questions import Novelty, beginnings

SCHEMA = pa.schema(
    [
        ("token_ids", pa.list_(pa.int32())),  # the whole conversation, the template included
        ("answer_at", pa.int32()),  # the index of the answer's first token
        ("temperature", pa.float32()),  # of the answer; 0 is greedy
        ("beginning", pa.string()),  # what the question was given to begin with
    ]
)


def main(overrides: list[str]) -> None:
    """Write the shards that are missing."""
    with command("python -m pipeline.training.text [OVERRIDES]", __doc__, overrides):
        recipe = recipe_of(overrides)
        with alone(recipe, "text") as directory:
            write_text(recipe, directory)


def recipe_of(overrides: list[str]) -> Any:
    """Return conf/drafter_training.yaml with `overrides`; a key that it lacks is an error."""
    recipe = OmegaConf.load(CONF / "drafter_training.yaml")
    OmegaConf.set_struct(recipe, True)
    recipe = OmegaConf.merge(recipe, OmegaConf.from_dotlist(overrides))
    targets = sorted(path.stem for path in (CONF / "target").glob("*.yaml"))
    if recipe.target not in targets:
        raise PipelineError(f"target={recipe.target}: give one of {', '.join(targets)}")
    if not (isinstance(recipe.generate.batch, int) and recipe.generate.batch > 0):
        raise PipelineError(f"generate.batch={recipe.generate.batch}: give a positive integer")
    return recipe


@contextmanager
def alone(recipe: Any, name: str) -> Iterator[Path]:
    """Yield the directory of a recipe, of which no other process makes `name` meanwhile."""
    directory = Path(recipe.directory or OUTPUTS / "drafter_training")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / f"{name}.lock", timeout=0):
            yield directory
    except Timeout:
        raise PipelineError(f"{directory}: another process makes {name} there") from None


def write_text(recipe: Any, directory: Path) -> None:
    """Write the shards of `recipe` that are missing in `directory`, one after another."""
    settings = recipe.generate
    model, tokenizer = load_target(recipe)
    novelty = Novelty(study_prompts(), settings.ngram_of_study, settings.ngram, settings.repeated)
    turns = turns_of(tokenizer, settings)
    openings, topics = (
        (ASSETS / "smollm2" / f"training_{name}.txt").read_text().splitlines()
        for name in ("openings", "topics")
    )
    begun, tokens = time.monotonic(), 0
    for number in range(settings.shards):
        path = directory / f"shard-{number:05d}.parquet"
        if path.exists():  # what it asked is not asked again
            for question in questions_in(path, tokenizer, turns):
                novelty.refusal(question)
            continue
        rng = np.random.default_rng([recipe.seed, number])
        begin = list(islice(beginnings(openings, topics, settings.unprompted, rng), settings.batch))
        rows, why = write_conversations(path, begin, rng, recipe, model, tokenizer, turns, novelty)
        tokens += sum(len(row.tokens) - (row.answer_at or 0) for row in rows)
        rate = tokens / (time.monotonic() - begun)
        print(f"{path.name}: {len(rows)} conversations, {dict(why)} dropped, "
              f"{tokens} answer tokens, {rate:.0f} a second", flush=True)  # fmt: skip


def load_target(recipe: Any) -> tuple[LanguageModel, Any]:
    """Return the target and its tokenizer."""
    path = OmegaConf.load(CONF / "target" / f"{recipe.target}.yaml").path
    settings = {"path": path, "revision": None, "label": recipe.target, "device": "cpu"}
    config = {"dtype": "float32", "head_dtype": "float32", "attention": "sdpa"}
    model = load_model(config, settings | {"threads": recipe.threads}, "target")
    if recipe.generate.bfloat16:
        round_products(model.module)
    return model, load_tokenizer(path, None, "target")


def turns_of(tokenizer: Any, settings: Any) -> Turns:
    """Return what the chat template writes around a question and its answer."""
    mark = "QUESTION"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, after = text.split(mark)
    between = tokenizer.encode(after, add_special_tokens=False)
    assert between[0] == tokenizer.eos_token_id
    return Turns(
        tokenizer.encode(before, add_special_tokens=False),
        between[1:],
        tokenizer.eos_token_id,
        settings.max_question,
        settings.max_answer,
        Sampler(**settings.question),
    )


def write_conversations(
    path: Path,
    texts: list[str],
    rng: np.random.Generator,
    recipe: Any,
    model: LanguageModel,
    tokenizer: Any,
    turns: Turns,
    novelty: Novelty,
) -> tuple[list[Conversation], Counter[str]]:
    """Write one conversation for each beginning; return those kept and why others were dropped."""
    settings = recipe.generate
    greedy, sampled = Sampler(0.0, 1.0), Sampler(**settings.answer)
    rows = converse(
        model,
        [tokenizer.encode(text, add_special_tokens=False) for text in texts],
        [sampled if rng.random() < settings.sampled else greedy for _ in texts],
        turns,
        lambda tokens: novelty.refusal(tokenizer.decode(tokens)),
        torch.Generator().manual_seed(int(rng.integers(2**62))),
    )
    kept = [(row, text) for row, text in zip(rows, texts, strict=True) if row.dropped is None]
    columns = [
        [row.tokens for row, _ in kept],
        [row.answer_at for row, _ in kept],
        [row.answer.temperature for row, _ in kept],
        [text for _, text in kept],
    ]
    beside = path.with_suffix(".partial")
    pq.write_table(pa.table(columns, schema=SCHEMA), beside, compression="zstd")
    beside.replace(path)
    return [row for row, _ in kept], Counter(row.dropped for row in rows if row.dropped)


def questions_in(path: Path, tokenizer: Any, turns: Turns) -> Iterator[str]:
    """Yield the questions of a shard."""
    table = pq.read_table(path, columns=["token_ids", "answer_at"]).to_pydict()
    for tokens, at in zip(table["token_ids"], table["answer_at"], strict=True):
        end = at - len(turns.between) - 1
        yield tokenizer.decode(tokens[len(turns.before) : end])


def study_prompts() -> list[str]:
    """Return the prompts of the study, which no training question may be near to."""
    path = ASSETS / "smollm2" / "prompts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["prompt"] for line in lines]


if __name__ == "__main__":
    main(sys.argv[1:])
