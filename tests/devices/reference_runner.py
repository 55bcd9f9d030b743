"""A worker, and its runner child, that answer the jobs of `benchmarks.gpu_spool_abuse` with the numpy references."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scripted_jobs import PROFILE

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.spool_cases import REFERENCES, Case, all_cases, array_of

from tilewright.devices.runner import JobFinished, Progress, RunStage, serve
from tilewright.records import Completed, Data, DType, Faulted, FaultKind, GpuProfile, Job, ReturnedTensor

CASES = {case.id: case for case in all_cases()}
NUMPY = {DType.F32: np.float32, DType.F16: np.float16, DType.I32: np.int32, DType.I64: np.int64, DType.U8: np.uint8}


def to_bytes(values: np.ndarray, dtype: DType) -> bytes:  # type: ignore[type-arg]
    if dtype is DType.BF16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return np.ascontiguousarray(values).astype(NUMPY[dtype]).tobytes()


class ReferenceEngine:
    profile: GpuProfile = PROFILE
    versions: tuple[tuple[str, str], ...] = ()

    def run(self, job: Job, report: Callable[[Progress], None]) -> JobFinished:
        case, step = CASES[job.id], job.plan.steps[0]
        name = getattr(step, "kernel", "library")
        report(Progress(RunStage.STEP, 0, name, step.line))
        if case.bad is FaultKind.TIME:
            time.sleep(1e6)
        if case.bad is not None:
            fault = Faulted(job.id, PROFILE.name, case.bad, "as asked", name, step.line)
            return JobFinished(fault, case.bad is FaultKind.LAUNCH_REFUSED)
        if case.kernel == "patient":
            time.sleep(2.0)
        return JobFinished(Completed(job.id, PROFILE.name, self._outputs(case, job), ()), True)

    def _outputs(self, case: Case, job: Job) -> tuple[ReturnedTensor, ...]:
        chance = np.random.default_rng(1)
        raw = {}
        for one in job.inputs:
            drawn = to_bytes(chance.integers(0, 100, one.spec.extent), one.spec.dtype)
            raw[one.name] = one.content.content if isinstance(one.content, Data) else drawn
        specs = {one.name: one.spec for one in (*job.inputs, *job.plan.buffers)}
        arrays = {name: array_of(content, specs[name]) for name, content in raw.items()}
        target = "sum" if case.kernel == "columns" else job.returns[0]
        raw[target] = to_bytes(REFERENCES[case.kernel](**arrays, **case.scalars), specs[target].dtype)
        return tuple(ReturnedTensor(name, specs[name], raw[name]) for name in job.returns)


if __name__ == "__main__":
    if "--replies" in sys.argv:
        sys.exit(serve(sys.argv[1:], lambda own: ReferenceEngine()))
    from tilewright.worker import main

    sys.exit(main(command=(sys.executable, __file__)))
