"""Matrix products in bfloat16 for a model that is otherwise computed in float32.

Where the processor multiplies bfloat16 itself this makes a batch about 1.5 times as fast. The text
is then that of a model whose weights are rounded once more: good to train on, since what a
drafter learns from (hidden states, distributions) is computed in float32 later.
"""

from __future__ import annotations

from torch import Tensor, nn


class RoundedLinear(nn.Module):
    """A linear map in bfloat16, from float32 to float32."""

    def __init__(self, linear: nn.Linear) -> None:
        """Round the weights of `linear`, which has no bias."""
        super().__init__()
        assert linear.bias is None
        self.weight: Tensor = nn.Parameter(linear.weight.bfloat16(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., n)."""
        return nn.functional.linear(x.bfloat16(), self.weight).float()


def round_products(module: nn.Module) -> None:
    """Replace all linear maps of `module`."""
    for name, inner in list(module.named_modules()):
        if isinstance(inner, nn.Linear):
            module.set_submodule(name, RoundedLinear(inner))
