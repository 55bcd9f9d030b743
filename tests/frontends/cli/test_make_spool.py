"""Whole runs through a spool: a worker's process, and `tilewright make` in one that sees no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.spool_on_gpu import LARGE, WORKER, is_whole, run_all
from tests.devices.emulating_worker import WORKER as EMULATING

from tilewright.verify.candidate import LARGEST_DATA


@pytest.mark.slow
def test_a_run_through_a_spool_whose_worker_is_killed_under_a_call(tmp_path: Path) -> None:
    """The worker's GPU is emulated and its times are made up; large enough that the worker judges."""
    result = run_all(tmp_path, EMULATING, [("softmax over the last dimension", "x=1024x768:f32")], ["--attempts", "1"])
    (row,) = result["runs"]
    assert row["measured"]
    assert "task on H200" in row["own_sizes_right_on"]
    assert "eager failed: this process sees no GPU" in row["notes"]
    assert len(result["said_of_it"]) == 2, "returned when its worker died, then answered by the next"
    assert result["workers_did"].keys() >= {
        "completed",
        "job and reference call: judge",
        "reference call: time_baselines",
    }
    assert result["left"] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_whose_inputs_are_drawn_by_seed_on_the_worker_s_gpu(tmp_path: Path) -> None:
    result = run_all(tmp_path, WORKER, [LARGE], ["--against", "absent_module:f"])
    (row,) = result["runs"]
    assert row["input_bytes"] > LARGEST_DATA
    assert is_whole(row), row
    reason = "against failed: ImportError: absent_module cannot be imported where it is to be timed"
    assert any(note.startswith(reason) for note in row["notes"]), row["notes"]
    assert result["killed_under"]
    assert result["left"] == []
