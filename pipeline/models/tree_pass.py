"""One pass of a model over nodes of a draft tree: what each of them sees, and where it stands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class TreePass(NamedTuple):
    """A pass over n nodes of a tree of which m - n were read before, all of them after a text.

    Attributes:
        bias: (n, m) added to the attention scores: 0 where a node sees one of the m, else the
            least number of the dtype. The last n columns are those of the pass.
        offsets: (n,) how many tokens are between the text and each node.
    """

    bias: Tensor
    offsets: Tensor

    def after(self, columns: int) -> tuple[Tensor, Tensor]:
        """Return what is added to all scores (1, 1, n, columns + n), and the positions (1, n).

        Args:
            columns: of the cache: the text, which every node sees, and the m - n nodes.
        """
        n, m = self.bias.shape
        text = columns - (m - n)
        return pad(self.bias, (text, 0))[None, None], (self.offsets + text)[None]


def tree_pass(seen: Tensor, offsets: Tensor, dtype: torch.dtype) -> TreePass:
    """Return the pass in which node i sees the nodes where row i of `seen` (n, m) is true."""
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return TreePass(bias.masked_fill_(~seen, torch.finfo(dtype).min), offsets)
