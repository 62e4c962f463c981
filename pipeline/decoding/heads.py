"""What a head has read of a text and of drafts, by passes whose shapes grow or are fixed."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pipeline.decoding.fixed import Inputs, Passes, Replayed
from pipeline.models.feature_head import Entries
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.tree_pass import TreePass

States = tuple[Tensor, Tensor]  # keys and values of entries


class HeadText:
    """The entries of one text and of a draft after it, read as they grow, and rolled back."""

    def __init__(self, model: HiddenDrafter, states: States) -> None:
        """Start empty; `states` have room for all entries."""
        self.model = model
        self._entries = Entries(model.head, states)

    @property
    def length(self) -> int:
        """How many entries there are; the first is that of token 1."""
        return self._entries.length

    def read(
        self, ids: Tensor, features: Tensor, tree: TreePass | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (r, d) and logits (r, V) of the last of n tokens, or of the n of a tree.

        Args:
            ids: (n,) tokens.
            features: (n, d) as of `Entries`.
            tree: what the entries of a draft tree see; None is a text, or a chain.
        """
        outputs = self._entries.read(self.model.embed(ids), features, tree)
        outputs = outputs[-1:] if tree is None else outputs
        return outputs, self.model.logits(outputs)

    def crop(self, length: int) -> None:
        """Forget all but the first `length` entries."""
        self._entries.crop(length)


class HeadPass(Replayed):
    """A pass over `width` entries, or fewer and padding.

    Attributes:
        outputs: (width, d) of the latest pass.
    """

    def __init__(self, model: HiddenDrafter, states: States, width: int) -> None:
        """Make room for the inputs; on CUDA capture the pass. The states must not be in use."""
        self.outputs: Tensor | None = None
        self._model, (self._keys, self._values) = model, states
        weight = model.head.fc.weight
        columns = torch.arange(width, device=model.device)
        self._features = weight.new_zeros((1, width, model.head.fc.out_features))
        super().__init__(model, Inputs(columns, self._keys.shape[2], weight.dtype))

    def __call__(
        self, ids: Tensor, features: Tensor, length: int, tree: TreePass | None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (n, d) and logits (n, V) of n entries that follow `length` others.

        They are valid until the next pass. For the others see `HeadText.read`.
        """
        rows = self._inputs.place(ids, length, tree)
        self._features.copy_(features[rows])
        logits = self._run()
        assert self.outputs is not None
        return self.outputs[: len(ids)], logits[: len(ids)]

    def _forward(self) -> Tensor:
        head, inputs = self._model.head, self._inputs
        embedded = self._model.embed(inputs.ids)
        rotation = head.rotation(inputs.positions + 1, self._features)
        q, k, v = head.midlayer.project(embedded, self._features, rotation)
        self._keys.index_copy_(2, inputs.columns, k)
        self._values.index_copy_(2, inputs.columns, v)
        attended = scaled_dot_product_attention(q, self._keys, self._values, attn_mask=inputs.bias)
        self.outputs = head.midlayer.finish(attended, self._features)[0]
        return self._model.logits(self.outputs)


class HeadPasses(Passes[States, HeadPass]):
    """The passes of a head, and the states of the entries that it has read."""

    def __init__(self, model: HiddenDrafter) -> None:
        """Keep nothing yet."""
        super().__init__()
        self._model = model

    def _new_cache(self, columns: int) -> States:
        return self._model.head.new_states(columns)

    def _new_pass(self, cache: States, width: int, layers: Tokens[int]) -> HeadPass:  # noqa: ARG002
        return HeadPass(self._model, cache, width)


class FixedHeadText(HeadText):
    """As the growing one, with passes of fixed shapes where they are short; prompts grow it.

    Outputs and logits are valid until the next pass.
    """

    def __init__(
        self, model: HiddenDrafter, capacity: int, longest: int, passes: HeadPasses
    ) -> None:
        """Start empty, with room for `capacity` entries, and padding.

        Args:
            model: that of `passes`.
            capacity: entries.
            longest: the most entries of a pass of fixed shape.
            passes: of no other text that is still read with.
        """
        states = passes.cache(capacity + longest)
        for one in states:
            one.zero_()  # an earlier text may have left NaN: masked, but 0 times NaN is NaN
        super().__init__(model, states)
        self._longest = longest
        self._one, self._more = (passes.of_width(width) for width in (1, longest))

    def read(
        self, ids: Tensor, features: Tensor, tree: TreePass | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read tokens; see `HeadText`."""
        n = len(ids)
        if not 0 < n <= self._longest:
            return super().read(ids, features, tree)
        fixed = self._one if n == 1 else self._more
        outputs, logits = fixed(ids, features, self.length, tree)
        self._entries.length += n
        first = n - 1 if tree is None else 0
        return outputs[first:], logits[first:]


def new_text(
    model: HiddenDrafter, capacity: int, longest: int, passes: HeadPasses | None
) -> HeadText:
    """Return an empty text; without `passes` all its shapes grow. See `FixedHeadText`."""
    if passes is None:
        return HeadText(model, model.head.new_states(capacity))
    return FixedHeadText(model, capacity, longest, passes)
