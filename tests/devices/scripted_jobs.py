"""Jobs for the scripted runner: the cubin is a list of actions, the plan names one kernel per action.

An action is a word and perhaps a number: `add`, `sleep 0.5`, `hang`. `scripted_runner` performs them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from tilewright.records import (
    BoundPlan,
    Buffer,
    BufferRole,
    Completed,
    Data,
    Execution,
    GpuProfile,
    InputTensor,
    Job,
    Limits,
    PackedLaunch,
    TensorSpec,
)
from tilewright.records.dtypes import DType

PROFILE = GpuProfile("Scripted GPU", 90, 132, 227 << 10, 228 << 10, 50 << 20)
HERE = Path(__file__).parent
RUNNER = (sys.executable, str(HERE / "scripted_runner.py"))
WORKER = (sys.executable, str(HERE / "scripted_worker.py"))
FIRST_LINE = 10  # of the plan: action number i stands at line 10 + i


def scripted_job(
    job_id: str,
    *actions: str,
    numbers: tuple[float, ...] = (1.0, 2.0, 3.0),
    seconds: float = 30.0,
    arch: str = "sm_90a",
    log: Path | None = None,
) -> Job:
    """A job that performs `actions` (just `add` when none is given) and returns y = a + 1."""
    a = np.asarray(numbers, np.float32)
    spec = TensorSpec.contiguous(DType.F32, a.shape)
    steps = tuple(
        PackedLaunch(
            symbol=word,
            kernel=word,
            grid=(1, 1, 1),
            block=(1, 1, 1),
            dynamic_smem_bytes=0,
            cluster=None,
            cooperative=False,
            pdl=False,
            parameters=(),
            block_template=b"",
            pointers=(),
            maps=(),
            late=(),
            line=FIRST_LINE + index,
        )
        for index, word in enumerate(actions or ("add",))
    )
    return Job(
        id=job_id,
        arch=arch,
        cubin=json.dumps({"log": str(log) if log else None}).encode(),
        plan=BoundPlan((Buffer("y", BufferRole.OUT, spec),), (), steps),
        inputs=(InputTensor("a", spec, Data(a.tobytes())),),
        returns=("y",),
        limits=Limits(seconds=seconds),
    )


def answer_of(execution: Execution) -> list[float]:
    """The numbers a completed scripted job returned."""
    assert isinstance(execution, Completed), execution
    return [float(v) for v in np.frombuffer(execution.outputs[0].content, np.float32)]
