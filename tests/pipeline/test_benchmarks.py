"""Benchmarks in their small forms: they run, and their files hold what their readers expect."""

import csv
import sys

import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_timings, scale

pytestmark = pytest.mark.thorough


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_that_a_gpu_is_checked_and_timed_for_runs_in_small_shapes(
    tmp_path, monkeypatch, capsys
):
    place = tmp_path / "gpu.csv"
    monkeypatch.setattr(sys, "argv", ["gpu", "--reduced", "--results", str(place)])
    gpu.main()
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in gpu.CHECKS)
    rows = rows_of(place)
    parts = {row["part"] for row in rows}
    passes_of = {"pass, eager", "pass, recorded", "attention of a head"}
    assert parts == {"copy", *passes_of, "loop", "dump", "study"}
    passes = [row["setting"] for row in rows if row["part"] == "pass, recorded"]
    assert passes == 2 * [f"{count} tokens" for count in range(1, 9)]
    assert [row["setting"] for row in rows if row["part"] == "study"] == list(gpu_timings.TIMED)
    for row in rows:
        assert float(row["value"]) > 0
        has_bound = row["part"] not in ("copy", "study") or row["setting"] in (
            *("distributions", "drafts", "decoding"),
        )
        assert bool(row["bound"]) == has_bound, row


@pytest.mark.parametrize("check", ["recorded passes, float32", "verification"])
def test_a_check_that_fails_says_so(check, monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(gpu_checks.verification, "outcomes_at_all_nodes", broken_test)
    monkeypatch.setattr(gpu_checks.recorded_passes.PassRecorder, "run", broken_run)
    with pytest.raises(AssertionError):
        gpu.CHECKS[check](device)


def broken_test(p, draft, _):
    return torch.zeros(len(draft.tree), dtype=torch.bool), p


def broken_run(self, ids, *_):
    """A pass that always reads the same token."""
    logits = torch.zeros((*ids.shape, self.model.vocab_size))
    logits[..., 1] = 1.0
    return logits, None


def test_memory_is_measured_by_stage_on_made_up_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale", "300", "--k", "70", "--folder", str(tmp_path)])
    scale.main()
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["stage"] for row in rows] == list(scale.STAGES)
    assert all(float(row["peak_mib"]) > 50 for row in rows)
    assert not list(tmp_path.iterdir())
