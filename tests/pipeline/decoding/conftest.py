"""The pair of models of all tests of decoding, made once: no test changes a model."""

import pytest
import torch

from tests.pipeline.decoding.pair import V
from tests.pipeline.tiny import random_model


@pytest.fixture(scope="package")
def target():
    return random_model(V)


@pytest.fixture(scope="package")
def drafter():
    """The target with noise on its weights: right often, but not always."""
    model = random_model(V)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(
                0.05 * parameter.std() * torch.randn_like(parameter) if parameter.ndim == 2 else 0
            )
    return model


@pytest.fixture(autouse=True)
def both_caches(buffers):
    """Run every test twice."""
