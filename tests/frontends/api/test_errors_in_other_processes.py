"""What a worker of a pool of processes raises reaches whoever waits for it, whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from tests.refine.runs import run_of

import tilewright
from tilewright.frontends.api.make import NoKernelMade
from tilewright.kernel_file import KernelFileError
from tilewright.playbook.errors import NotSupported
from tilewright.runtime.errors import NoKernelApplies
from tilewright.tasks import TaskError
from tilewright.tasks.errors import Remedy, RemedyKind

_NARROW = """//! op      double(x) -> y
//! out     y: f32[x.shape[0]]
//! need    x.shape[0] % 4 == 0
//! launch  twice<<<1, 32>>>(x, y, x.shape[0])
extern "C" __global__ void twice(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += 32) y[i] = 2 * x[i];
}
"""


def _carried(error: BaseException) -> BaseException:
    again: BaseException = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    return again


def test_refusals_arrive_with_what_they_hold(tmp_path: Path) -> None:
    again = _carried(TaskError("no such size", Remedy(RemedyKind.CHOOSE_MODEL)))
    assert again.remedies == (Remedy(RemedyKind.CHOOSE_MODEL),)  # type: ignore[attr-defined]
    assert _carried(NotSupported("eigenvalues")).found == "eigenvalues"  # type: ignore[attr-defined]

    kernel = tmp_path / "double.cu"
    kernel.write_text(_NARROW)
    with pytest.raises(NoKernelApplies) as refused:
        tilewright.load(str(kernel))(torch.ones(3))
    assert len(_carried(refused.value).reasons) == 1  # type: ignore[attr-defined]

    kernel.write_text(_NARROW.replace("//! out", "//! outt"))
    with pytest.raises(KernelFileError) as wrong:
        tilewright.load(str(kernel))
    assert _carried(wrong.value).problems == wrong.value.problems  # type: ignore[attr-defined]


def test_a_run_that_ended_with_nothing_arrives() -> None:
    run = run_of()
    again = _carried(NoKernelMade(run))
    assert again.run == run  # type: ignore[attr-defined]
