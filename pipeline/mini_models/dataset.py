"""Corpus -> tokenizer -> token windows, written once to a working directory."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.mini_models.corpus import Document, read_corpus

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


@dataclass(frozen=True)
class Tokens:
    """A part of the corpus as one stream: ids and, for each, whether it belongs to an answer."""

    ids: np.ndarray  # (n,) uint16
    in_answer: np.ndarray  # (n,) bool

    def windows(self, index: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids (len(index), length + 1) and the answer mask of the predicted tokens."""
        at = index[:, None] * length + np.arange(length + 1)
        return self.ids[at].astype(np.int64), self.in_answer[at[:, 1:]]

    def count(self, length: int) -> int:
        """How many windows of `length` predicted tokens the stream holds."""
        return (len(self.ids) - 1) // length


def prepare_data(
    directory: Path, packages: list[str], vocab_size: int, seed: int
) -> tuple[Tokens, Tokens]:
    """Return the training and validation streams, building them when they are missing."""
    if not (directory / "corpus.json").exists():
        _build(directory, packages, vocab_size, seed)
    return tuple(  # type: ignore[return-value]
        Tokens(np.load(directory / f"{part}-ids.npy"), np.load(directory / f"{part}-answer.npy"))
        for part in ("training", "validation")
    )


def _build(directory: Path, packages: list[str], vocab_size: int, seed: int) -> None:
    documents = read_corpus(packages, seed)
    training = [document for document in documents if not document.is_validation]
    validation = [document for document in documents if document.is_validation]
    tokenizer = train_tokenizer(training, vocab_size)
    tokenizer.save(str(directory / "tokenizer.json"))
    facts: dict[str, object] = {
        "packages": packages,
        "seed": seed,
        "vocab_size": vocab_size,
        "python": platform.python_version(),
    }
    for name, part in (("training", training), ("validation", validation)):
        tokens = encode_documents(tokenizer, part)
        np.save(directory / f"{name}-ids.npy", tokens.ids)
        np.save(directory / f"{name}-answer.npy", tokens.in_answer)
        facts[name] = {"documents": len(part), "tokens": len(tokens.ids)}
    (directory / "corpus.json").write_text(json.dumps(facts, indent=1) + "\n")


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer on the training part."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (f"{document.question}\n{document.answer}" for document in documents), trainer
    )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> Tokens:
    """Encode every document as a chat and join them."""
    questions = [f"{START}user\n{d.question}{END}\n{START}assistant\n" for d in documents]
    answers = [f"{d.answer}{END}" for d in documents]
    ids: list[np.ndarray] = []
    in_answer: list[np.ndarray] = []
    newline = tokenizer.encode("\n").ids
    encoded = zip(tokenizer.encode_batch(questions), tokenizer.encode_batch(answers), strict=True)
    for question, answer in encoded:
        ids.append(np.array(question.ids + answer.ids + newline, dtype=np.uint16))
        flags = np.zeros(len(ids[-1]), dtype=bool)
        flags[len(question.ids) : len(question.ids) + len(answer.ids)] = True
        in_answer.append(flags)
    return Tokens(np.concatenate(ids), np.concatenate(in_answer))
