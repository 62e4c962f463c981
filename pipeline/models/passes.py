"""Passes of a model over texts that grow and are rolled back: its cache, and nothing else.

One class for one text and for left-padded batches, for a language model and for a head on it. A
model may accept a cache and ignore it, or count positions so that padding shifts them: its logits
are then wrong without an error. A few made-up tokens show that at once, before anything relies on a
loaded model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.errors import PipelineError, first_line
from pipeline.models.caches import draft_refusal
from pipeline.models.devices import send
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import Found

TreePass = Callable[[int], tuple[Tensor, Tensor]]  # `tree_pass`
Model = LanguageModel | HiddenDrafter  # both have the same `read`
TOKENS, PADDED = 14, 3  # of the longer text; how much shorter the other one is
STEPS, ALONE = 6, 3  # read with a cache: three one by one, then the others at once, as drafts are
# The error as a part of the logits' spread, both root mean squares over the vocabulary. Rounding
# to float16 gave 4 units of the dtype in 36 random layers; a model without its past is off by 1.
ALLOWED_UNITS = 32
LEAST = 1e-3  # float32 sums in another order: up to 8e-5 in a mixture of experts of large weights


@dataclass(frozen=True)
class Batch:
    """Prompts, left-padded, and their answers, right-padded: B rows of W + n tokens."""

    ids: Tensor  # (B, W + n)
    mask: Tensor  # (B, W + n), 0 left of the prompts
    positions: Tensor  # (B, W + n)
    padding: Tensor  # (B,) columns left of the prompts
    width: int  # W
    lengths: Tensor  # (B,) tokens of each answer

    @classmethod
    def make(
        cls, prompts: Sequence[list[int]], answers: Sequence[list[int]], device: torch.device
    ) -> Batch:
        """Pad prompts and answers; every prompt ends, and every answer begins, at column W."""
        width, steps = max(map(len, prompts)), max(map(len, answers))
        ids = torch.zeros((len(prompts), width + steps), dtype=torch.long)
        mask = torch.ones_like(ids)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids[row, width - len(prompt) : width + len(answer)] = torch.tensor(prompt + answer)
            mask[row, : width - len(prompt)] = 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        lengths = torch.tensor([len(answer) for answer in answers])
        padding = width - torch.tensor([len(prompt) for prompt in prompts])
        ids, mask, positions, padding, lengths = (
            tensor.to(device) for tensor in (ids, mask, positions, padding, lengths)
        )
        return cls(ids, mask, positions, padding, width, lengths)

    def blocks(self, values: int, vocabulary: int) -> Iterator[tuple[int, int, int]]:
        """Yield the columns of each block that is read, from begin to end, and its answer steps.

        The logits of a step are those after the token before it: the first block is the prompts
        without their last token, and has none. A block has as many columns as `values` logits
        allow: it bounds what a full vocabulary takes, and a key-value cache makes all one pass.
        """
        if self.width > 1:
            yield 0, self.width - 1, 0
        length = max(1, values // (len(self.ids) * vocabulary))
        for begin in range(self.width - 1, self.ids.shape[1] - 1, length):
            end = min(begin + length, self.ids.shape[1] - 1)
            yield begin, end, end - begin


def concat_columns(parts: Sequence[Mapping[str, Tensor]], dim: int = 0) -> Found:
    """Return the columns of all parts, one behind the other along a dimension."""
    return {name: torch.cat([part[name] for part in parts], dim) for name in parts[0]}


def tree_pass(seen: Tensor, offsets: Tensor, dtype: torch.dtype) -> TreePass:
    """Return the pass over n nodes of a tree of which m - n were read before, after a text.

    It is a function of the columns in the cache (the text, which every task sees, and the m - n
    nodes): what is added to the attention scores (1, 1, n, columns + n), 0 where a task sees a
    column, else the least number of the dtype; and the positions (1, n).

    Args:
        seen: (n, m) which of the m nodes each sees; the last n columns are those of the pass.
        offsets: (n,) how many tokens are between the text and each task.
        dtype: of the scores.
    """
    n, m = seen.shape
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    bias.masked_fill_(~seen, torch.finfo(dtype).min)

    def after(columns: int) -> tuple[Tensor, Tensor]:
        text = columns - (m - n)
        return pad(bias, (text, 0))[None, None], (offsets + text)[None]

    return after


class Texts:
    """B texts that a model has read, equally long in columns of its cache.

    Attributes:
        length: how many columns are in use.
        hidden: (B, n, ...) of the tokens that were read last: hidden states after `layers`, or a
            head's outputs; None where none are kept.
    """

    def __init__(
        self, model: Model, capacity: int, layers: Sequence[int] = (), padding: Tensor | None = None
    ) -> None:
        """Start empty, with room for `capacity` tokens.

        Args:
            model: what reads.
            capacity: tokens, padding included.
            layers: after how many layers hidden states are kept; empty is none.
            padding: (B,) columns before the first token of each text; None is none.
        """
        self.model, self.length = model, 0
        self.hidden: Tensor | None = None
        self.cache = model.new_cache(capacity)
        self._layers, self._padding, self._mask = layers, padding, None
        if padding is not None:
            column = torch.arange(capacity, device=padding.device)
            self._mask = (column >= padding[:, None]).long()

    def read(self, ids: Tensor, keep: int = 1) -> Tensor:
        """Read prompts (B, n) as `extend` does; return the logits after the last token only."""
        return self.extend(ids, keep=keep)

    def extend(
        self,
        ids: Tensor,
        tree: TreePass | None = None,
        features: Tensor | None = None,
        keep: int = 0,
    ) -> Tensor:
        """Read tokens and return the logits (B, keep, V) after the last of them.

        Args:
            ids: (B, n) tokens.
            tree: what they see, as nodes of a draft tree after the text; None is a chain.
            features: (B, n, d) that a head reads beside them.
            keep: 0 is all n.
        """
        end, mask, positions = self.length + ids.shape[1], None, None
        if tree is not None:
            mask, positions = tree(self.length)
        elif self._mask is not None and self._padding is not None:
            mask = self._mask[:, :end]
            at = torch.arange(self.length, end, device=ids.device)
            positions = (at - self._padding[:, None]).clamp(min=0)
        logits, self.hidden = self.model.read(
            ids, self.cache, mask, positions, keep=keep, layers=self._layers, features=features
        )
        self.length = end
        if 0 < keep < logits.shape[1]:  # a model may give all
            logits = logits[:, -keep:]
        rows = self.model.vocab_size  # a drafter may have fewer
        return logits if logits.shape[2] == rows else logits[..., :rows]

    def crop(self, length: int) -> None:
        """Forget all but the first `length` columns for good; none when there are not more."""
        kept = min(length, self.length)
        if kept < self.length:
            for layer in self.cache.layers:
                layer.crop(kept - self.length)
        self.length = kept

    def select(self, rows: Tensor) -> None:
        """Keep only the texts `rows` (b,), indices in their new order."""
        self.cache.reorder_cache(rows)
        if self._padding is not None and self._mask is not None:
            self._padding, self._mask = self._padding[rows], self._mask[rows]


class Text(Texts):
    """One text, and drafts after it; tokens (n,), logits (n, V), hidden states (n, ...)."""

    def __init__(self, model: Model, capacity: int, layers: Sequence[int] = ()) -> None:
        """Start empty; for the arguments see `Texts`.

        Raises:
            PipelineError: a layer of the model can't be rolled back.
        """
        model.check_drafts("decoding")
        super().__init__(model, capacity, layers)
        self._windows = [layer for layer in self.cache.layers if layer.is_sliding]
        for layer in self._windows:  # until the next roll-back they keep more than their window
            layer.activate_past_recording()

    def extend(
        self,
        ids: Tensor,
        tree: TreePass | None = None,
        features: Tensor | None = None,
        keep: int = 0,
    ) -> Tensor:
        """Read tokens (n,), with features (n, d); return logits (keep, V), see `Texts`."""
        features = None if features is None else features[None]
        logits = super().extend(ids[None], tree, features, keep)[0]
        self.hidden = None if self.hidden is None else self.hidden[0]
        return logits

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens only; a window drops the rows that it kept for this."""
        if length >= self.length:
            for layer in self._windows:
                layer.crop(0)
        super().crop(length)

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens and, of the ones read after them, those of `path`."""
        if list(path) != list(range(len(path))):
            index = send([length + at for at in path], self.model.device)
            for layer in self.cache.layers:
                for states in (layer.keys, layer.values):
                    states[:, :, length : length + len(path)] = states.index_select(2, index)
        self.crop(length + len(path))

    def hidden_after(self, path: Sequence[int]) -> Tensor | None:
        """Return the hidden states (1 + p, layers, d) of the token read before a draft, and a path.

        None where none are kept.
        """
        if self.hidden is None:
            return None
        return self.hidden[send([0, *(at + 1 for at in path)], self.hidden.device)]


@torch.inference_mode()
def check_cached_steps(model: LanguageModel, key: str) -> None:
    """Check that cached steps of left-padded texts give the logits of plain uncached passes.

    Args:
        model: loaded, on its device.
        key: its configuration key, for errors.

    Raises:
        PipelineError: they don't, beyond the rounding of the model's dtype; or the logits are NaN
            or infinite (-inf is allowed: a masked token); or the model can't be run so at all.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        plain, cached = both_ways(model)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # of code that is not ours; all mean the same to a user
        raise PipelineError(
            f"{key}: {model.label} can't decode token by token: {type(error).__name__}: "
            f"{first_line(error)}. Take another model"
        ) from error
    if bool((plain.isnan() | plain.isposinf()).any()):
        raise PipelineError(
            f"{key}: {model.label} gives NaN or infinite logits: its weights are damaged, or too "
            f"large for {key}.dtype={dtype}: give {key}.dtype=float32 or bfloat16, or "
            "fetch the model again"
        )
    off = relative_error(plain, cached)
    allowed = max(ALLOWED_UNITS * torch.finfo(model.module.dtype).eps, LEAST)
    if not off <= allowed:  # NaN, too
        raise PipelineError(
            f"{key}: {model.label} gives other logits a token at a time than in one pass (off by "
            f"{off:.2g} of their spread, {dtype} explains {allowed:.1g}): it does not use "
            f"its key-value cache as other models do. Give {key}.dtype=float32, or take another "
            "model"
        )


def both_ways(model: LanguageModel) -> tuple[Tensor, Tensor]:
    """Return (2, STEPS, V) logits, float64, from plain passes and from cached, padded steps."""
    rows = min(model.vocab_size, model.module.get_input_embeddings().weight.shape[0])
    text = (torch.arange(TOKENS, device=model.device) * 7919 + 5) % rows
    plain = [
        model.module(input_ids=part[None], use_cache=False).logits[0, -STEPS:]
        for part in (text, text[PADDED:])
    ]
    ids = text.repeat(2, 1)
    ids[1, :PADDED] = 0
    texts = Texts(model, TOKENS, padding=torch.tensor([0, PADDED], device=model.device))
    ends = [*range(TOKENS - STEPS, TOKENS + 1)]
    if draft_refusal(model.module) is None:
        del ends[ALONE + 1 : -1]
    cached = [texts.extend(ids[:, begin:end]) for begin, end in pairwise([0, *ends])]
    return torch.stack(plain).double(), torch.cat(cached[1:], dim=1).double()


def relative_error(plain: Tensor, cached: Tensor) -> float:
    """Return the error of logits (2, STEPS, V), as a part of their spread.

    Of each text and way of reading it is the median of its steps, since a mixture of experts may
    route a token differently after rounding; of these the largest.
    """
    kept = plain.isfinite()
    count = kept.sum(-1).clamp(min=1)
    mean = plain.where(kept, 0).sum(-1) / count
    spread = (plain - mean[..., None]).where(kept, 0).square().sum(-1).div(count).sqrt()
    error = (plain - cached).where(plain != cached, 0)  # equal infinities, too
    size = error.square().sum(-1).div(count).sqrt()
    ratio = (size / spread).where(size != 0, 0)  # error without spread: infinite; neither: 0
    return float(ratio.view(2, -1, ALONE).median(dim=2).values.max())
