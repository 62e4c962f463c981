"""Choices exactly at a boundary."""

import numpy as np
import torch

from analysis.trees.topology import sequence
from pipeline.decoding.choices import TOKEN, Inversion, Noise
from pipeline.decoding.drafters import Draft
from pipeline.decoding.verify import SpeculativeSampling
from pipeline.models.batch_decoding import choose

CPU = torch.device("cpu")


def test_a_uniform_number_of_zero_takes_no_token_without_probability():
    zero = torch.zeros(1, dtype=torch.float64)
    assert int(choose(torch.tensor([[-1e9, 0.0]]), zero, 1.0)[0]) == 1


def test_the_token_after_a_draft_is_drawn_with_the_number_of_its_own_position():
    """However many drafted tokens come before it: what is chosen there does not depend on calls."""
    noise = Noise(3, "p", 40, CPU, 4)
    sure, flat = torch.full((3, 50), -1e9), torch.zeros((1, 50))
    sure[:, 7] = 0.0
    logits = torch.cat([sure, flat])
    draft = Draft(torch.tensor([7, 7, 7]), sequence(3), torch.softmax(sure.double(), 1))
    alone = Inversion(1.0, noise, TOKEN)
    for position in range(0, 30, 3):
        path, token, _ = SpeculativeSampling(1.0, noise).verify(logits, draft, position)
        assert path == (0, 1, 2)
        assert token == int(alone(flat, position + 3, sequence(0))[0])
    assert len(np.unique(noise.uniforms[:, TOKEN])) == 41
