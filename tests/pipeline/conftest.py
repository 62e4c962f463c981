"""What several tests of the pipeline only read."""

import pytest

from pipeline.core.store import Store
from pipeline.decoding import verification
from pipeline.models import recorded_passes
from pipeline.models.loading import load_model
from tests.pipeline import tiny
from tests.pipeline.toy import LOG


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The directory of a tiny model: no test changes it."""
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def target(model):
    """The tiny model."""
    return load_model(tiny.used(model))


@pytest.fixture(params=["growing", pytest.param("fixed", marks=pytest.mark.thorough)])
def buffers(request, monkeypatch):
    """The cache of a CPU, which grows, and that of recorded passes, here without recording.

    With the latter, drafts are verified as on a GPU: tests and draws at all nodes.
    """
    monkeypatch.setattr(recorded_passes, "FIXED_ON_CPU", request.param == "fixed")
    monkeypatch.setattr(verification, "ALL_NODES_ON_CPU", request.param == "fixed")
    return request.param


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty store, whose toy stages write down what they compute."""
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    return Store(tmp_path / "artifacts")
