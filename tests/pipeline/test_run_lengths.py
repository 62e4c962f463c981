"""Stage run_lengths: what it refuses; tests/results holds its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.execution.runner import ensure
from pipeline.store import Store
from tests.pipeline.studies import MadeUp

RULES = [{"rule": "greedy"}, {"rule": "additive", "t": [0.3]}]


def test_certificates_of_other_steps_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES)
    _, certificates = made.target("t", 0)
    found = store.find(certificates[1])
    assert found is not None
    pending = store.pending(certificates[1])
    pending.write("data", found.read().slice(0, 200))
    store.publish(certificates[1], pending)
    with pytest.raises(PipelineError, match="certify different steps"):
        ensure([made.run_lengths("t", certificates)], store)
