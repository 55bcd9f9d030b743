"""The abuse script on this machine: its jobs are real builds, its runner answers from the references."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.gpu_spool_abuse import prepare, run, verdict
from benchmarks.spool_cases import all_cases
from tests.devices.scripted_jobs import HERE

from tilewright.child.envelope import EnvelopeKind, record_in, unseal
from tilewright.records import Completed, Data, Job, ReturnedTensor


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("abuse")
    prepare(directory, "sm_90a")
    return directory


def test_thirty_jobs_are_prepared(prepared: Path) -> None:
    cases = all_cases()
    assert len(cases) == len({case.id for case in cases}) == 30
    assert [case.id for case in cases if case.bad] == ["bad-hang", "bad-wild", "bad-greedy"]
    for case in cases:
        job = record_in(unseal((prepared / f"{case.id}.job").read_bytes()), EnvelopeKind.JOB, Job)
        assert job.cubin.startswith(b"\x7fELF")
        assert {one.name for one in job.inputs} == case.tensors.keys()
        assert set(job.returns) >= case.tensors.keys()


def test_the_slow_kernel_has_the_answer_of_plain_iteration(prepared: Path) -> None:
    from benchmarks.spool_cases import REFERENCES

    x = np.array([0, 1, -5, 2**31 - 1], np.int32)
    values = [int(v) % 2**32 for v in x]
    for _ in range(1000):
        values = [(v * 1664525 + 1013904223) % 2**32 for v in values]
    found = REFERENCES["patient"](x, a=1664525, c=1013904223, times=1000)
    assert found.view(np.uint32).tolist() == values


def test_a_wrong_answer_is_noticed(prepared: Path) -> None:
    case = next(case for case in all_cases() if case.id == "01-axpy")
    job = record_in(unseal((prepared / "01-axpy.job").read_bytes()), EnvelopeKind.JOB, Job)
    right = np.load(prepared / "01-axpy.npy")
    inputs = tuple(ReturnedTensor(i.name, i.spec, i.content.content) for i in job.inputs if isinstance(i.content, Data))
    for change, expected in ((0.0, True), (1e-3, False), (np.nan, False)):
        values = right.copy()
        values[500] += change
        output = ReturnedTensor("z", job.plan.buffers[0].spec, values.astype(np.float32).tobytes())
        assert verdict(case, Completed(case.id, "GPU", (output, *inputs), ()), prepared)[0] is expected


@pytest.mark.slow
def test_the_whole_run_passes_with_a_runner_that_is_right(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    worker = (sys.executable, str(HERE / "reference_runner.py"))
    assert run(prepared, out, worker) == 0
    table = json.loads(out.read_text())
    assert (table["good"], table["bad"], table["passed"]) == (27, 3, True)
    assert table["killed_runner"] not in table["runner_afterwards"]
    assert len(table["runner_afterwards"]) == 1
