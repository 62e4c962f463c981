"""Top-k and top-p: which of the most probable tokens may be chosen."""

from __future__ import annotations

import torch
from torch import Tensor


def nucleus(ordered: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """Return the probabilities of the most probable tokens, 0 for those beyond top_p.

    top_k is applied first. Of what it leaves, normalised, a token is kept if those before it have
    less than top_p together: the first always is.

    Args:
        ordered: (B, V) logits, the largest first.
        temperature: above 0.
        top_p: in (0, 1]; 1 leaves all tokens in.
        top_k: at least 0; 0 leaves all tokens in.

    Returns:
        (B, V), or (B, top_k) where that is less; not normalised again.
    """
    kept = ordered[:, :top_k] if top_k else ordered
    probabilities = torch.softmax(kept / temperature, dim=1)
    before = probabilities.double().cumsum(1) - probabilities
    return probabilities.masked_fill(before >= top_p, 0.0)
