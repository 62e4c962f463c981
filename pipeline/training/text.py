"""Let the target write training text for its drafter: ``python -m pipeline.training.text``.

The target writes questions, from seeded beginnings, and answers them. Each batch is one Parquet
shard in outputs/drafter_training/ (or directory=DIRECTORY). A run that was stopped goes on after
the last whole shard, and writes damaged ones again (checksums.json). A shard depends on its number
and the questions of those before it alone. Overrides of conf/drafter_training.yaml are given as
KEY=VALUE.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from pipeline.models.passes import Batch
from pipeline.paths import ASSETS, CONF, OUTPUTS
from pipeline.plan.specs import model_at
from pipeline.training import features

SCHEMA = pa.schema(
    [
        ("token_ids", pa.list_(pa.int32())),  # the whole conversation, the template included
        ("answer_at", pa.int32()),  # the index of the answer's first token
        ("temperature", pa.float32()),  # of the answer; 0 is greedy
        ("beginning", pa.string()),  # what the question was given to begin with
    ]
)
Turns = tuple[list[int], list[int]]  # the template's tokens before a question, and after its end
TextRow = tuple[list[int], int, float, str]  # as in SCHEMA


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
    model, tokenizer = load_target(recipe, "bfloat16" if recipe.bfloat16 else "float32")
    novelty = Novelty(study_prompts(), settings.ngram_of_study, settings.ngram, settings.repeated)
    turns = turns_of(tokenizer)
    for left in directory.glob("shard-*.partial"):  # of a killed run
        left.unlink()
    begun, tokens = time.monotonic(), 0
    for number in range(settings.shards):
        path = directory / f"shard-{number:05d}.parquet"
        if features.whole(path):  # what it asked is not asked again
            for question in questions_in(path, tokenizer, turns):
                novelty.refusal(question)
            continue
        if path.exists():
            print(f"damaged: {path}: written again", flush=True)
        rows, why = conversations(number, recipe, model, tokenizer, turns, novelty)
        beside = path.with_suffix(".partial")
        columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
        pq.write_table(pa.table(columns, schema=SCHEMA), beside, compression="zstd")
        features.keep(beside, path)
        tokens += sum(len(row[0]) - row[1] for row in rows)
        rate = tokens / (time.monotonic() - begun)
        print(f"{path.name}: {len(rows)} conversations, {dict(why)} dropped, "
              f"{tokens} answer tokens, {rate:.0f} a second", flush=True)  # fmt: skip


def load_target(recipe: Any, dtype: str) -> tuple[LanguageModel, Any]:
    """Return the target and its tokenizer."""
    path = OmegaConf.load(CONF / "target" / f"{recipe.target}.yaml").path
    model = load_model(model_at(path, recipe.target, dtype=dtype, threads=recipe.threads))
    return model, load_tokenizer(path, None, "target")


def turns_of(tokenizer: Any) -> Turns:
    """Return the chat template's text around a question, without the token that ends it."""
    mark = "QUESTION"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in text.split(mark))
    assert after[0] == tokenizer.eos_token_id
    return before, after[1:]


def conversations(
    number: int, recipe: Any, model: LanguageModel, tokenizer: Any, turns: Turns, novelty: Novelty
) -> tuple[list[TextRow], Counter[str]]:
    """Return the conversations of a shard, and why others were dropped."""
    settings, end = recipe.generate, tokenizer.eos_token_id
    rng = np.random.default_rng([recipe.seed, number])
    torch.manual_seed(int(rng.integers(2**62)))
    before, between = turns
    texts = beginnings(settings.unprompted, settings.batch, rng)
    begins = [[*before, *tokenizer.encode(text, add_special_tokens=False)] for text in texts]
    written_tokens = written(model, begins, settings.max_question, settings.question, end)
    prompts: dict[str, tuple[list[int], str]] = {}
    why = Counter[str]()
    for text, begin, tokens in zip(texts, begins, written_tokens, strict=True):
        prompt_tokens = [*begin, *tokens]
        question = tokenizer.decode(prompt_tokens[len(before) : -1])
        refusal = novelty.refusal(question) if tokens[-1] == end else "too long"
        if refusal is None:
            prompts[question] = ([*prompt_tokens, *between], text)
        else:
            why[refusal] += 1
    rows: list[TextRow] = []
    sampled = {question for question in prompts if rng.random() < settings.sampled}
    for questions, how in (
        (prompts.keys() - sampled, {"temperature": 0.0}),
        (sampled, settings.answer),
    ):
        some = [prompt for question, prompt in prompts.items() if question in questions]
        answers = written(model, [ids for ids, _ in some], settings.max_answer, how, end)
        rows += [
            ([*ids, *answer], len(ids), how["temperature"], text)
            for (ids, text), answer in zip(some, answers, strict=True)
        ]
    return rows, why


@torch.inference_mode()
def written(
    model: LanguageModel, prompts: Sequence[list[int]], most: int, how: Mapping[str, Any], end: int
) -> list[list[int]]:
    """Return a model's continuation of each prompt, up to and with the token `end`.

    Args:
        model: the target.
        prompts: tokens; none may be empty.
        most: tokens of each text at most.
        how: temperature, 0 is greedy, and top_p.
        end: the token that ends a text.
    """
    if not prompts:
        return []
    batch = Batch.make(prompts, [[]] * len(prompts), model.device)
    chosen: dict[str, Any] = {"do_sample": False}
    if how["temperature"] > 0:
        chosen = {"do_sample": True, "top_k": 0, **how}
    out = model.module.generate(
        batch.ids,
        attention_mask=batch.mask,
        max_new_tokens=most,
        eos_token_id=end,
        pad_token_id=end,
        repetition_penalty=1.0,  # a model's own generation_config.json may say otherwise
        **chosen,
    )
    texts = out[:, batch.width :].tolist()
    return [text[: text.index(end) + 1] if end in text else text for text in texts]


def questions_in(path: Path, tokenizer: Any, turns: Turns) -> Iterator[str]:
    """Yield the questions of a shard."""
    before, between = turns
    table = pq.read_table(path, columns=["token_ids", "answer_at"]).to_pydict()
    for tokens, at in zip(table["token_ids"], table["answer_at"], strict=True):
        yield tokenizer.decode(tokens[len(before) : at - len(between) - 1])


def study_prompts() -> list[str]:
    """Return the prompts of the study, which no training question may be near to."""
    path = ASSETS / "smollm2" / "prompts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["prompt"] for line in lines]


def beginnings(unprompted: float, count: int, rng: np.random.Generator) -> list[str]:
    """Return beginnings of questions; {} stands for the topic.

    The share `unprompted` is empty.
    """
    openings, topics = (
        (ASSETS / "smollm2" / f"training_{name}.txt").read_text().splitlines()
        for name in ("openings", "topics")
    )
    return [
        ""
        if rng.random() < unprompted
        else openings[rng.integers(len(openings))].replace("{}", topics[rng.integers(len(topics))])
        for _ in range(count)
    ]


class Novelty:
    """Knows the questions so far by their n-grams of words; case and punctuation don't count."""

    def __init__(self, study: Iterable[str], n_study: int, n: int, repeated: float) -> None:
        """Keep apart from the prompts `study`.

        Args:
            study: the texts of which no question may share an n-gram of `n_study` words.
            n_study: the words of those n-grams; a shorter text counts as one n-gram.
            n: the words of the n-grams compared between questions.
            repeated: the share of its n-grams that a question may have in common with earlier ones.
        """
        self._n_study, self._n, self._repeated = n_study, n, repeated
        self._study = {gram for text in study for gram in ngrams(text, n_study)}
        self._seen: set[int] = set()

    def refusal(self, text: str) -> str | None:
        """Return why `text` is no new question, or None and remember it."""
        if not ngrams(text, 1):
            return "empty"
        if ngrams(text, self._n_study) & self._study:
            return "in the study"
        grams = ngrams(text, self._n)
        if len(grams & self._seen) > self._repeated * len(grams):
            return "repeated"
        self._seen |= grams
        return None


def ngrams(text: str, n: int) -> set[int]:
    """Return the hashes of the n-grams of words of `text`; all its words where it has fewer.

    Examples:
        >>> len(ngrams("One fish, two fish; one fish!", 2))
        4
    """
    words = re.findall(r"\w+", text.lower())
    spans = range(max(len(words) - n, 0) + 1) if words else ()
    return {hash(tuple(words[at : at + n])) for at in spans}


if __name__ == "__main__":
    main(sys.argv[1:])
