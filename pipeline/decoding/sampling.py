"""Samplers: greedy, by inverse CDF, and Gumbel-max, written as an exponential race.

Random numbers are keyed by (seed, prompt, position), so a sampled token depends neither on the
draft length nor on where target calls begin and end. All nodes of a depth in a draft tree share
them, because only one of these nodes can be on the accepted path.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import Topology
from pipeline.models.devices import to_device
from pipeline.models.logit_statistics import argmax, inverse_cdf, top_k

DRAFT, ACCEPTANCE, TOKEN = range(3)  # what a uniform number is used for: a column of `uniforms`
SIBLING_STREAM = 2  # Philox stream of the acceptance tests of siblings after the first


class BrokenLogitsError(Exception):
    """The logits of "target" or "drafter", its message, are NaN, +inf, or all masked (-inf)."""


# The drafted children of r nodes: tokens (r, width), NOTHING where no further one can be drafted;
# the score (r,) of the first child of each node, not finite only if the logits are broken; and the
# distributions (r, V) that they were drawn from, None if they were not drawn.
DrawnChildren = tuple[Tensor, Tensor, Tensor | None]


class Noise:
    """The random numbers of one prompt, at positions 0 to `steps` of its answer.

    Those at position i depend on (seed, prompt_id, i) only. `draft_length` says how long noise is
    kept: a call samples at most that many positions beyond the first one.
    """

    def __init__(
        self, seed: int, prompt_id: str, steps: int, device: torch.device, draft_length: int
    ) -> None:
        key = hashlib.sha256(f"decoding\n{seed}\n{prompt_id}".encode()).digest()
        self._key = int.from_bytes(key[:16], "little")
        self._device = device
        self._draft_length = draft_length
        self._steps = steps
        self._log_times: dict[int, Tensor] = {}
        self._siblings: dict[int, np.ndarray] = {}
        self.uniforms = np.random.Generator(np.random.Philox(key=self._key)).random((steps + 1, 3))

    def acceptance_uniform(self, position: int, sibling: int) -> float:
        """Return the uniform number for the acceptance test of a child; siblings count from 1."""
        if sibling == 1:
            return self.uniforms[position, ACCEPTANCE]
        if sibling not in self._siblings:
            counter = (SIBLING_STREAM << 192) + (sibling << 128)  # streams do not overlap
            stream = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            self._siblings[sibling] = stream.random(self._steps + 1)
        return self._siblings[sibling][position]

    def log_arrival_times(self, start: int, stop: int, vocab_size: int) -> Tensor:
        """Return log arrival times (stop - start, V), Exp(1), of all tokens at some positions.

        Drafter and target use the same ones, so they are kept while a later call may need them.
        """
        oldest = stop - 1 - self._draft_length
        self._log_times = {at: row for at, row in self._log_times.items() if at >= oldest}
        for position in range(start, stop):
            if position not in self._log_times:
                self._log_times[position] = self._arrival_times(position, vocab_size).log_()
        return torch.stack([self._log_times[position] for position in range(start, stop)])

    def _arrival_times(self, position: int, vocab_size: int) -> Tensor:
        digest = hashlib.sha256(f"{self._key}\n{position}".encode()).digest()
        generator = torch.Generator(self._device)
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        times = torch.empty(vocab_size, dtype=torch.float64, device=self._device)
        return times.exponential_(generator=generator)


class GreedySampler:
    """Chooses the most probable token, the first of equal ones."""

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:  # noqa: ARG002
        """Choose tokens (n + 1,) from logits (n + 1, V) after the text and each drafted token.

        `position` is that of the first drafted token in the answer, `tree` the draft's shape.
        """
        return argmax(logits)

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:
        """Draft `width` children for each row of logits (r, V), `depth` tokens into a draft."""
        keys = self.keys(logits, position + depth)
        tokens = first_tokens(keys, width)
        return tokens, keys.gather(1, tokens[:, :1].clamp(min=0))[:, 0], None

    def keys(self, logits: Tensor, position: int) -> Tensor:  # noqa: ARG002
        """Return the scores (r, V) that rank the tokens at a position, from logits (r, V)."""
        return logits


class GumbelSampler(GreedySampler):
    """Gumbel-max sampling: the token with the largest log p_i - log e_i, e_i ~ Exp(1).

    Drafter and target share the noise e (an exponential race), so they often choose the same token.
    """

    def __init__(self, temperature: float, noise: Noise) -> None:
        self.temperature = temperature
        self._noise = noise

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:
        """Choose tokens (n + 1,); see `GreedySampler`."""
        end = position + tree.depth + 1
        log_times = self._noise.log_arrival_times(position, end, logits.shape[1])
        if not tree.is_chain:
            log_times = log_times[to_device((0, *tree.depths), logits.device)]
        return argmax(tempered(logits, self.temperature) - log_times)

    def keys(self, logits: Tensor, position: int) -> Tensor:
        """Return log q_i - log e_i (r, V) from logits (r, V), up to a constant in each row."""
        log_times = self._noise.log_arrival_times(position, position + 1, logits.shape[1])
        return tempered(logits, self.temperature) - log_times


class GumbelWithoutReplacement(GumbelSampler):
    """Draws children without replacement (Gumbel top-k); the target uses other noise."""

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:
        """Draw `width` children for each row of logits (r, V); return the distributions, too."""
        tokens, first_keys, _ = super().draft(logits, position, depth, width)
        weights = torch.softmax(tempered(logits, self.temperature), -1)
        possible = weights.gather(1, tokens.clamp(min=0)) > 0  # softmax can round to 0
        return tokens.masked_fill(~possible, NOTHING), first_keys, weights


class InverseCdfSampler:
    """Samples by inverse CDF, with the uniform numbers of `noise` for `purpose`: DRAFT or TOKEN."""

    def __init__(self, temperature: float, noise: Noise, purpose: int) -> None:
        self.temperature = temperature
        self._uniforms = noise.uniforms[:, purpose].copy()

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:  # noqa: ARG002
        """Sample tokens (n,) from logits (n, V) at `position` and after; see `GreedySampler`."""
        uniforms = self._uniforms[position : position + len(logits)]
        return inverse_cdf(self.weights(logits), to_device(uniforms, logits.device))

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:  # noqa: ARG002
        """Draw the one child from logits (1, V), `depth` tokens into a draft."""
        weights = self.weights(logits)
        index = position + depth
        uniform = to_device(self._uniforms[index : index + 1], logits.device)
        tokens = inverse_cdf(weights, uniform)[:, None]
        return tokens, weights.gather(1, tokens)[:, 0], weights

    def weights(self, logits: Tensor) -> Tensor:
        """Return the distributions (n, V) at the temperature, float64."""
        return torch.softmax(tempered(logits, self.temperature), -1)


# What chooses tokens: the drafter's with `draft`, the target's with `__call__`.
Sampler = GreedySampler | InverseCdfSampler


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Return logits (n, V) divided by the temperature, float64."""
    return logits.to(torch.float64, copy=True).div_(temperature)


def first_tokens(keys: Tensor, width: int) -> Tensor:
    """Return the ids (r, width) of the largest keys, ties by id; NOTHING where the key is -inf."""
    if width == 1:
        return argmax(keys)[:, None]
    values, ids = top_k(keys, min(width, keys.shape[1]))
    ids = ids.masked_fill(values == -torch.inf, NOTHING)
    missing = width - ids.shape[1]
    return torch.nn.functional.pad(ids, (0, missing), value=NOTHING) if missing else ids
