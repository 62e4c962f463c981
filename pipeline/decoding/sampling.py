"""Chooses tokens from logits: the largest, by inversion, or by an exponential race.

Noise is keyed by (seed, prompt, position), so that what is chosen at a position depends neither
on the draft length nor on where calls begin and end. On a tree all nodes of a depth share it: only
one of them is on the accepted path.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from analysis.decoding.schemes import NOTHING
from analysis.trees.topology import Topology
from pipeline.models.devices import send
from pipeline.models.logit_statistics import argmax, invert, top_k

DRAFT, TEST, TOKEN = range(3)  # what a uniform number is used for
SIBLING = 2  # the stream of numbers of siblings, apart from that of positions


class BrokenLogitsError(Exception):
    """The target or the drafter, as its text says, gave NaN, +inf, or nothing but masked tokens."""


# The children of r nodes: tokens (r, width), NOTHING where no other can be drafted; what chose the
# first of each row (r,), finite unless the logits are broken; and the distributions (r, V) that
# they were drawn from, None when they were not drawn.
DrawnChildren = tuple[Tensor, Tensor, Tensor | None]


class Noise:
    """The random numbers of one prompt, at positions 0 .. steps of its answer.

    Entry i depends on (seed, prompt_id, i) only. A call reaches `draft_length` positions beyond the
    first that is not settled.
    """

    def __init__(
        self, seed: int, prompt_id: str, steps: int, device: torch.device, draft_length: int
    ) -> None:
        key = hashlib.sha256(f"decoding\n{seed}\n{prompt_id}".encode()).digest()
        self._key = int.from_bytes(key[:16], "little")
        self._device = device
        self._reach = draft_length
        self._steps = steps
        self._times: dict[int, Tensor] = {}
        self._siblings: dict[int, np.ndarray] = {}
        self.uniforms = np.random.Generator(np.random.Philox(key=self._key)).random((steps + 1, 3))

    def test(self, position: int, sibling: int) -> float:
        """Return the uniform number that tests a child, by its sibling index from 1."""
        if sibling == 1:
            return self.uniforms[position, TEST]
        if sibling not in self._siblings:
            counter = (SIBLING << 192) + (sibling << 128)  # no stream reaches the next
            stream = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            self._siblings[sibling] = stream.random(self._steps + 1)
        return self._siblings[sibling][position]

    def log_times(self, start: int, stop: int, vocab_size: int) -> Tensor:
        """Return the logarithms (stop - start, V) of the arrival times at some positions.

        Drafter and target ask for the same ones: they are kept until no call can reach them.
        """
        settled = stop - 1 - self._reach
        self._times = {at: row for at, row in self._times.items() if at >= settled}
        for position in range(start, stop):
            if position not in self._times:
                self._times[position] = self._arrivals(position, vocab_size).log_()
        return torch.stack([self._times[position] for position in range(start, stop)])

    def _arrivals(self, position: int, vocab_size: int) -> Tensor:
        digest = hashlib.sha256(f"{self._key}\n{position}".encode()).digest()
        generator = torch.Generator(self._device)
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        times = torch.empty(vocab_size, dtype=torch.float64, device=self._device)
        return times.exponential_(generator=generator)


class GreedySampler:
    """The most probable token; of equal ones the first."""

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:  # noqa: ARG002
        """Return the tokens (n + 1,) for logits (n + 1, V) after the text and each drafted token.

        The first is at `position` of the answer; `tree` is the shape of the draft.
        """
        return argmax(logits)

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:
        """Return the `width` children with the largest keys for each row of logits (r, V)."""
        keys = self.keys(logits, position + depth)
        tokens = first_tokens(keys, width)
        return tokens, keys.gather(1, tokens[:, :1].clamp(min=0))[:, 0], None

    def keys(self, logits: Tensor, position: int) -> Tensor:  # noqa: ARG002
        """Return the scores that rank the tokens at a position, for each row of logits (r, V)."""
        return logits


class GumbelSampler(GreedySampler):
    """The winner of an exponential race in log space; drafter and target run the same race."""

    def __init__(self, temperature: float, noise: Noise) -> None:
        self.temperature = temperature
        self._noise = noise

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:
        """Return the winners (n + 1,); see `GreedySampler`."""
        end = position + tree.depth + 1
        log_times = self._noise.log_times(position, end, logits.shape[1])
        if not tree.is_chain:
            log_times = log_times[send((0, *tree.depths), logits.device)]
        return argmax(tempered(logits, self.temperature) - log_times)

    def keys(self, logits: Tensor, position: int) -> Tensor:
        """Return log q_i - log e_i of each row of logits (r, V), up to a number a row."""
        log_times = self._noise.log_times(position, position + 1, logits.shape[1])
        return tempered(logits, self.temperature) - log_times


class GumbelWithoutReplacement(GumbelSampler):
    """Draws children without replacement, with a race of which the target knows nothing."""

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:
        """Return `width` draws from each row of logits (r, V), and their distributions."""
        tokens, first_keys, _ = super().draft(logits, position, depth, width)
        weights = torch.softmax(tempered(logits, self.temperature), -1)
        possible = weights.gather(1, tokens.clamp(min=0)) > 0  # softmax can round to 0
        return tokens.masked_fill(~possible, NOTHING), first_keys, weights


class InverseCdfSampler:
    """A draw from the tempered distribution by inversion of its cumulated probabilities.

    It uses the uniform numbers of `noise` that serve `purpose`.
    """

    def __init__(self, temperature: float, noise: Noise, purpose: int) -> None:
        self.temperature = temperature
        self._uniforms = noise.uniforms[:, purpose].copy()

    def __call__(self, logits: Tensor, position: int, tree: Topology) -> Tensor:  # noqa: ARG002
        """Return the draws (n,) for rows of logits (n, V); see `GreedySampler`."""
        uniforms = self._uniforms[position : position + len(logits)]
        return invert(self.weights(logits), send(uniforms, logits.device))

    def draft(self, logits: Tensor, position: int, depth: int, width: int) -> DrawnChildren:  # noqa: ARG002
        """Return a token drawn from the logits (1, V) `depth` tokens into a draft."""
        weights = self.weights(logits)
        at = position + depth
        tokens = invert(weights, send(self._uniforms[at : at + 1], logits.device))[:, None]
        return tokens, weights.gather(1, tokens)[:, 0], weights

    def weights(self, logits: Tensor) -> Tensor:
        """Return the distributions (n, V) of rows of logits, float64."""
        return torch.softmax(tempered(logits, self.temperature), -1)


Sampler = GreedySampler | InverseCdfSampler


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Return logits (n, V) over the temperature, float64."""
    return logits.to(torch.float64, copy=True).div_(temperature)


def first_tokens(keys: Tensor, width: int) -> Tensor:
    """Return the ids (r, width) of the largest keys, ties by id; NOTHING for those of -inf."""
    if width == 1:
        return argmax(keys)[:, None]
    values, ids = top_k(keys, min(width, keys.shape[1]))
    ids = ids.masked_fill(values == -torch.inf, NOTHING)
    missing = width - ids.shape[1]
    return torch.nn.functional.pad(ids, (0, missing), value=NOTHING) if missing else ids
