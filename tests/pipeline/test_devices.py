"""Threads that wait give up their cores, unless the user decided otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "2000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)  # fmt: skip
def test_spin_count_is_set_before_torch_is_imported(
    given: dict[str, str], spins: str | None
) -> None:
    script = (
        "import os, sys, pipeline\nprint(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    own = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    environment = {name: value for name, value in os.environ.items() if name not in own} | given
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == [str(spins), "False"]
