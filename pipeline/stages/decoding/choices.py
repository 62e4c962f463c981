"""How one token is chosen from logits: the argmax, by inversion, or by an exponential race.

Noise is keyed by (seed, prompt, position), so that what is chosen at a position depends neither
on the draft length nor on where calls begin and end.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

DRAFT, TEST, TOKEN = range(3)  # what a uniform number is used for


class Noise:
    """The random numbers of one prompt."""

    def __init__(
        self, seed: int, prompt_id: str, steps: int, device: torch.device, draft_length: int
    ) -> None:
        """Make those of positions 0 .. steps; entry i depends on (seed, prompt_id, i) only.

        A call reaches `draft_length` positions beyond the first that is not settled.
        """
        key = hashlib.sha256(f"decoding\n{seed}\n{prompt_id}".encode()).digest()
        self._key = int.from_bytes(key[:16], "little")
        self._device = device
        self._reach = draft_length
        self._times: dict[int, Tensor] = {}
        self.uniforms = np.random.Generator(np.random.Philox(key=self._key)).random((steps + 1, 3))

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
        """Return the arrival times (V,) at a position, made on the device."""
        digest = hashlib.sha256(f"{self._key}\n{position}".encode()).digest()
        generator = torch.Generator(self._device)
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        times = torch.empty(vocab_size, dtype=torch.float64, device=self._device)
        return times.exponential_(generator=generator)


class Greedy:
    """The most probable token; of equal ones the first."""

    temperature = 0.0

    def __call__(self, logits: Tensor, position: int) -> Tensor:  # noqa: ARG002
        """Return the tokens (n,) for rows of logits (n, V); `position` is that of the first."""
        return logits.argmax(-1)

    def weights(self, logits: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the distribution the choice is drawn from, None where it is not drawn."""
        return None


class Inversion:
    """A draw from the tempered distribution by inversion of its cumulated probabilities."""

    def __init__(self, temperature: float, noise: Noise, purpose: int) -> None:
        """Draw with the uniform numbers of `noise` that serve `purpose`."""
        self.temperature = temperature
        self._uniforms = torch.from_numpy(noise.uniforms[:, purpose].copy())

    def __call__(self, logits: Tensor, position: int) -> Tensor:
        """Return the tokens (n,) for rows of logits (n, V); `position` is that of the first."""
        return self.draw(self.weights(logits), position)

    def draw(self, weights: Tensor, position: int) -> Tensor:
        """Return tokens (n,) drawn from distributions (n, V)."""
        cumulated = weights.cumsum(-1)
        uniform = self._uniforms[position : position + len(weights)].to(weights.device)
        wanted = (uniform * cumulated[:, -1])[:, None]
        found = torch.searchsorted(cumulated, wanted, right=True)[:, 0]
        return found.clamp(max=weights.shape[-1] - 1)

    def weights(self, logits: Tensor) -> Tensor:
        """Return the distributions (n, V) of rows of logits, float64."""
        return torch.softmax(logits.double() / self.temperature, -1)


class Race:
    """The winner of an exponential race in log space; drafter and target run the same race."""

    def __init__(self, temperature: float, noise: Noise) -> None:
        """Race with the arrival times of `noise`."""
        self.temperature = temperature
        self._noise = noise

    def __call__(self, logits: Tensor, position: int) -> Tensor:
        """Return the tokens (n,) for rows of logits (n, V); `position` is that of the first."""
        n, size = logits.shape
        log_times = self._noise.log_times(position, position + n, size)
        return (logits.double() / self.temperature - log_times).argmax(-1)

    def weights(self, logits: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return None: the test compares choices and needs no distribution."""
        return None


Choice = Greedy | Inversion | Race
