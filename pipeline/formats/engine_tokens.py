"""The ids of the tokens of engines' logs."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import Token


class TokenIds:
    """The ids of tokens: the engine's, or by the bytes in the order of the file."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        """Take ids below `vocab_size`; `path` is for errors."""
        self.path, self.vocab_size = path, vocab_size
        self.texts: dict[tuple[bytes, int], int] = {}

    def __call__(self, token: Token) -> int:
        """Return the id of a token.

        Raises:
            PipelineError: it is not in the vocabulary.
        """
        found = token if isinstance(token, int) else self.texts.setdefault(token, len(self.texts))
        if found >= self.vocab_size:
            what = "token id" if isinstance(token, int) else "more tokens than"
            raise PipelineError(
                f"{self.path} has {what} "
                f"{found}, and distributions.log.vocab_size={self.vocab_size}: give the size of "
                "the logged model's vocabulary"
            )
        return found
