"""The training corpus of the embedded models: docstrings as chat, their tokenizer, their tokens.

Reads the source of the standard library and of the installed packages named in
``conf/mini_models.yaml`` with `ast` (nothing is imported or run) and turns every docstring
into one exchange: a question about the object, and its documentation as the answer.
Exact duplicates are dropped, and a document belongs to the validation part when the hash of
its answer says so, hence never to both parts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import random
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
MIN_CHARACTERS = 40
MAX_CHARACTERS = 6_000
VALIDATION_SHARE = 50  # one document in fifty

QUESTIONS = (
    "What does the Python {kind} `{name}` do?",
    "Please explain the {kind} `{name}` to me.",
    "I came across `{name}` in some Python code. What is this {kind} for, and how do I use it?",
    "Write the documentation of the {kind} `{name}`.",
    "How does the {kind} `{name}` work? Tell me about its parameters and what it returns.",
)
SIGNATURE = "\n\nIts signature is:\n\n```python\n{signature}\n```"


Document = tuple[str, str]  # a question about a documented object, and its docstring


def is_validation(document: Document) -> bool:
    """Whether the hash of the answer puts a document into the validation part."""
    digest = hashlib.sha256(document[1].encode()).digest()
    return int.from_bytes(digest[:4], "big") % VALIDATION_SHARE == 0


def package_directories(packages: list[str]) -> list[tuple[str, Path]]:
    """Return (import name, source directory) of the standard library and of each package.

    Raises:
        ModuleNotFoundError: a package named in the configuration is not installed.
    """
    found = [("", Path(sysconfig.get_path("stdlib")))]
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"mini_models.packages names {name!r}, which is not installed: "
                "run `make install` or remove it from conf/mini_models.yaml"
            )
        found.append((name, Path(spec.origin).parent))
    return found


def read_corpus(packages: list[str], seed: int) -> list[Document]:
    """Collect the documents of all packages, deduplicated, in a seeded random order."""
    seen: set[str] = set()
    documents = []
    for package, directory in package_directories(packages):
        for path in sorted(directory.rglob("*.py")):
            relative = path.relative_to(directory)
            if {"site-packages", "test", "tests", "__pycache__"} & set(relative.parts):
                continue
            module = ".".join([package, *relative.with_suffix("").parts]).strip(".")
            for document in _documents(path, module.removesuffix(".__init__")):
                if document[1] not in seen:
                    seen.add(document[1])
                    documents.append(document)
    random.Random(seed).shuffle(documents)
    return documents


def _documents(path: Path, module: str) -> Iterator[Document]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's source
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # templates and deliberately broken files
    yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Document]:
    kinds = {ast.Module: "module", ast.ClassDef: "class"}
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
        if len(text) >= MIN_CHARACTERS:
            answer = text[:MAX_CHARACTERS].encode("utf-8", "ignore").decode()
            yield _question(node, name, kinds.get(type(node), "function")), answer
    for child in ast.iter_child_nodes(node):
        child_name = getattr(child, "name", None)
        yield from _walk(child, f"{name}.{child_name}" if isinstance(child_name, str) else name)


def _question(node: ast.AST, name: str, kind: str) -> str:
    choice = random.Random(name)  # seeded by the name: the same question on every build
    question = choice.choice(QUESTIONS).format(kind=kind, name=name)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and choice.random() < 0.7:
        signature = f"{node.name}({ast.unparse(node.args)})"
        if len(signature) < 400:
            question += SIGNATURE.format(signature=signature)
    return question


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
    files = {name: directory / f"{name}.npz" for name in ("training", "validation")}
    if not files["validation"].exists():  # written last
        documents = read_corpus(packages, seed)
        training = [document for document in documents if not is_validation(document)]
        tokenizer = train_tokenizer(training, vocab_size)
        tokenizer.save(str(directory / "tokenizer.json"))
        validation = [document for document in documents if is_validation(document)]
        for path, part in zip(files.values(), (training, validation), strict=True):
            tokens = encode_documents(tokenizer, part)
            print(f"{path.stem}: {len(part)} documents, {len(tokens.ids)} tokens", flush=True)
            beside = path.with_suffix(".partial.npz")
            np.savez(beside, ids=tokens.ids, in_answer=tokens.in_answer)
            beside.replace(path)
    training_, validation_ = (Tokens(**np.load(path)) for path in files.values())
    return training_, validation_


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
        (f"{question}\n{answer}" for question, answer in documents), trainer
    )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> Tokens:
    """Encode every document as a chat and join them."""
    questions = [f"{START}user\n{question}{END}\n{START}assistant\n" for question, _ in documents]
    answers = [f"{answer}{END}" for _, answer in documents]
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
