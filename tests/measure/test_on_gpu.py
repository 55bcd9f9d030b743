"""Times on a GPU. Also a script: `python tests/measure/test_on_gpu.py` measures and prints, without pytest."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.measure import kernels

from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.devices.profiler import NCU
from tilewright.kernel_file import KernelFile
from tilewright.measure import Stopwatch, autotune
from tilewright.measure.baselines import TIME_BASELINES, BaselineAnswer, BaselineRequest
from tilewright.records import (
    USUAL_BASELINES,
    Dimension,
    DType,
    Measured,
    Passed,
    Precision,
    Task,
    TaskOutput,
    TensorInput,
    is_beyond_noise,
)
from tilewright.reference import Reference, ReferenceLimits
from tilewright.verify import Referee

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def timed(task: Task, *files: KernelFile, baselines: tuple[str, ...] = ("eager",), against: str = "") -> list[Measured]:
    with (
        CudaDevice() as gpu,
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function) as reference,
        Stopwatch(
            task, reference, emulator=emulator, gpu=gpu, baselines=baselines, against=against, say=print
        ) as stopwatch,
    ):
        made = [stopwatch.measure(file) for file in files]
    return [one for one in made if isinstance(one, Measured)]


def test_a_kernel_is_timed_beside_eager_and_compiled() -> None:
    (made,) = timed(
        kernels.scale_task(16384, 4096), kernels.VECTOR, baselines=USUAL_BASELINES, against="operator:nonsense"
    )
    assert {one.name for one in made.baselines} >= {"eager"}
    eager = made.speedup("eager")
    assert eager is not None
    assert 0.8 < eager < 1.5  # both only move memory
    assert 0.7 < made.fraction < 1.0
    assert any("against failed: AttributeError" in note for note in made.notes)
    assert made.control is not None
    assert made.control_error < 0.03
    assert made.precision is Precision.DTYPE
    assert made.conditions is None or 0 < made.conditions.least_sm_mhz <= made.conditions.possible_sm_mhz
    assert not made.answered_otherwise
    assert not is_beyond_noise(made, made, 0.0)


def test_an_answer_that_depends_on_where_a_tensor_lies_is_seen() -> None:
    odd = kernels.scale("if (i < n) y[i] = i == 7 ? (float)((size_t)x >> 9 & 0xffff) : 2 * x[i];", 1)
    (made,) = timed(kernels.scale_task(256, 256), odd)
    assert "timed call" in made.answered_otherwise


@pytest.mark.parametrize("rows", [256, 16384])  # inputs that travel, and inputs drawn on the GPU
def test_what_is_timed_answers_as_what_was_judged(rows: int) -> None:
    task = kernels.scale_task(rows, 4096)
    with (
        CudaDevice() as gpu,
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function, limits=ReferenceLimits.on_gpu()) as reference,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu, baselines=("eager",)) as stopwatch,
        Referee(task, reference, emulator=emulator, gpu=gpu) as referee,
    ):
        verdict = referee.judge(kernels.VECTOR_WITH_TAIL)
        assert isinstance(verdict, Passed)
        assert verdict.answer is not None
        made = stopwatch.measure(kernels.VECTOR_WITH_TAIL, None, verdict.answer)
        assert isinstance(made, Measured)
        assert made.answered_otherwise == ""
        other = replace(verdict.answer, digest=replace(verdict.answer.digest, bits="other"))
        refused = stopwatch.measure(kernels.VECTOR_WITH_TAIL, None, other)
    assert isinstance(refused, Measured)
    assert "the call before timing of round 1" in refused.answered_otherwise


def test_baselines_keep_the_promise() -> None:
    source = "import torch\n\ndef convolved(x, w):\n    return torch.nn.functional.conv2d(x, w, padding=1)\n"
    inputs = (TensorInput("x", DType.F32, ("b", "c", "h", "h")), TensorInput("w", DType.F32, ("c", "c", "k", "k")))
    dims = tuple(Dimension(name, size) for name, size in {"b": 16, "c": 256, "h": 28, "k": 3}.items())
    task = Task("convolved", source, "convolved", inputs, (TaskOutput("y", DType.F32, ("b", "c", "h", "h")),), dims)
    times = {}
    with Reference(task.reference, task.function, limits=ReferenceLimits.on_gpu()) as reference:
        for precision in (Precision.DTYPE, Precision.STRICT):
            request = BaselineRequest(replace(task, precision=precision), 7, ("eager", "library"))
            answer = reference.call(TIME_BASELINES, request, BaselineAnswer, 120.0)
            assert answer.failures == {}
            times[precision] = [one.median_us for one in answer.timings]
    assert times[Precision.STRICT][0] > 1.3 * times[Precision.DTYPE][0]


def test_a_bad_kernel_is_slower_than_a_good_one() -> None:
    bad, good = timed(kernels.scale_task(4096, 4096), kernels.STRIDED, kernels.VECTOR)
    assert bad.time_us > 1.5 * good.time_us


@pytest.mark.skipif(NCU.find() is None, reason="needs Nsight Compute")
def test_evidence_has_the_counters_of_the_gpu() -> None:
    task = kernels.scale_task(4096, 4096)
    with (
        CudaDevice() as gpu,
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function) as reference,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu) as stopwatch,
    ):
        text = stopwatch.evidence(kernels.STRIDED)
    if text.startswith("No hardware counters: "):
        pytest.skip(text.splitlines()[0])
    assert text.startswith(f"Counters of {torch.cuda.get_device_name(0)}")
    assert "sectors per load" in text
    assert "Emulated and modelled" in text


def test_the_sweep_works_on_times() -> None:
    task = kernels.scale_task(2048, 4096)
    with (
        CudaDevice() as gpu,
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function) as reference,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu) as stopwatch,
        Referee(task, reference, emulator=emulator, gpu=gpu) as referee,
    ):
        result = autotune(kernels.TUNED, referee, stopwatch, 24, print)
    assert len(result.tried) == 8
    assert result.choice != (("THREADS", 256), ("WIDE", True))


VERSIONS: tuple[tuple[Task, dict[str, KernelFile]], ...] = (
    (
        kernels.scale_task(),
        {
            "vector": kernels.VECTOR,
            "scalar": kernels.SCALAR,
            "strided": kernels.STRIDED,
            "two passes": kernels.TWO_PASSES,
            "two launches": kernels.TWO_LAUNCHES,
            "low occupancy": kernels.CROWDED,
        },
    ),
    (
        kernels.transpose_task(),
        {"padded": kernels.transpose(33), "colliding": kernels.transpose(32), "naive": kernels.NAIVE_TRANSPOSE},
    ),
    (kernels.row_sum_task(16, 1 << 20), {"one block": kernels.row_sum(1), "64 blocks": kernels.row_sum(64)}),
    (kernels.row_sum_task(16384, 1024), {"one block": kernels.row_sum(1), "64 blocks": kernels.row_sum(64)}),
)


def main() -> None:
    """Every version of the kernels, measured, with the model's score beside it."""
    for task, versions in VERSIONS:
        sizes = "x".join(map(str, task.sizes.values()))
        measured = timed(task, *versions.values())
        for name, made, score in zip(versions, measured, scores(task, *versions.values()), strict=True):
            others = ", ".join(f"{one.name} {one.median_us:.1f}" for one in made.baselines)
            print(
                f"{task.name} {sizes} {name}: {made.time_us:.1f} us, modelled {score:.1f}, floor {made.floor_us:.1f}; "
                f"{others}; {'; '.join(made.notes)}",
                flush=True,
            )


def scores(task: Task, *files: KernelFile) -> list[float]:
    with (
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function) as reference,
        Stopwatch(task, reference, emulator=emulator) as stopwatch,
    ):
        made = [stopwatch.measure(file) for file in files]
    return [one.time_us for one in made if one is not None]


if __name__ == "__main__":
    main()
