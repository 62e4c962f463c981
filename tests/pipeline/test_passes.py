"""Prompts of different lengths, read in groups into one cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import SIMILAR, Text, read_prompts

LENGTHS = (2, 30, 3, 9, 31, 10)


def test_prompts_in_groups_are_read_as_alone(
    target: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits after the prompts and after two more tokens, with a text that left in between.

    A pass costs rows times columns: padding may add SIMILAR - 1 to the tokens, no more.
    """
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(target.vocab_size, (n,), generator=draw).tolist() for n in LENGTHS]
    more = torch.randint(target.vocab_size, (len(LENGTHS), 2), generator=draw)
    sizes, plain = [], LanguageModel.read

    def counted(model: LanguageModel, ids: torch.Tensor, *rest: Any, **named: Any) -> Any:
        sizes.append(ids.numel())
        return plain(model, ids, *rest, **named)

    with torch.inference_mode():
        with monkeypatch.context() as patch:
            patch.setattr(LanguageModel, "read", counted)
            texts, logits = read_prompts(target, prompts, 2)
        assert sum(LENGTHS) < sum(sizes) <= SIMILAR * sum(LENGTHS)
        assert texts.length == max(LENGTHS)
        first = texts.extend(more[:, :1])
        kept = torch.tensor([0, 1, 3, 5])
        texts.select(kept)
        second = texts.extend(more[kept, 1:])
        for row, prompt in enumerate(prompts):
            alone = Text(target, len(prompt) + 2)
            torch.testing.assert_close(logits[row], alone.read(torch.tensor(prompt))[-1])
            torch.testing.assert_close(first[row], alone.extend(more[row, :1]))
            if row in kept:
                at = kept.tolist().index(row)
                torch.testing.assert_close(second[at], alone.extend(more[row, 1:]))
