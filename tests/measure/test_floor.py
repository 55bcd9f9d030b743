"""The roofline floor, by bytes and by products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.measure import kernels
from tests.tasks.in_process import JudgingReference

from tilewright.measure import floor_us
from tilewright.measure.floor import LAUNCH_US, FlopAnswer, FlopRequest, count_flops, least_flops, peak_tflops, too_fast
from tilewright.measure.work import least_traffic
from tilewright.records import PROFILES, Dimension, DType, Measured, Precision, Task, TaskOutput, TensorInput, Timing

MATMUL = "import torch\n\ndef product(a, b):\n    return torch.relu(a @ b)\n"
LOOKS = "def scale(x):\n    return x * 2 if x[0, 0] > 0 else x\n"


def matmul_task(dtype: DType, n: int = 4096) -> Task:
    inputs = (TensorInput("a", dtype, ("m", "k")), TensorInput("b", dtype, ("k", "n")))
    dims = (Dimension("m", n), Dimension("k", n), Dimension("n", n))
    return Task("product", MATMUL, "product", inputs, (TaskOutput("c", dtype, ("m", "n")),), dims)


def convolution_task() -> Task:
    source = "import torch\n\ndef f(x, w, v):\n    y = torch.nn.functional.conv2d(x, w)\n"
    source += "    return torch.einsum('bchw,c->bhw', y, v)\n"
    inputs = (
        TensorInput("x", DType.F32, ("b", "c", "h", "h")),
        TensorInput("w", DType.F32, ("c", "c", "k", "k")),
        TensorInput("v", DType.F32, ("c",)),
    )
    sizes = {"b": 8, "c": 64, "h": 56, "k": 3, "o": 54}
    dims = tuple(Dimension(name, size) for name, size in sizes.items())
    return Task("f", source, "f", inputs, (TaskOutput("y", DType.F32, ("b", "o", "o")),), dims)


def test_bytes_over_the_bandwidth_and_one_launch() -> None:
    task = kernels.scale_task(16384, 4096)
    assert floor_us(task) == pytest.approx(2 * 16384 * 4096 * 4 / 4.8e6 + LAUNCH_US)
    assert floor_us(kernels.scale_task(1, 1)) == pytest.approx(LAUNCH_US, abs=0.01)


def test_what_is_changed_in_place_counts_as_written_and_not_as_read() -> None:
    """A result that is handed in may be overwritten unread: a floor that counts both is above what is possible."""
    task = kernels.scale_task(16384, 4096)
    given = replace(
        task, inputs=(*task.inputs, TensorInput("y", DType.F32, ("rows", "cols"), in_place=True)), outputs=()
    )
    assert floor_us(given) == pytest.approx(floor_us(task))
    assert least_traffic(given, PROFILES["H200"]) == least_traffic(task, PROFILES["H200"])


def test_products_over_the_peak_where_the_reference_has_them() -> None:
    task = matmul_task(DType.BF16)
    with JudgingReference(task.reference, task.function) as reference:
        assert least_flops(task, reference) == FlopAnswer(2 * 4096**3)
        assert floor_us(task, reference) == pytest.approx(2 * 4096**3 / 989e6 + LAUNCH_US)
    assert floor_us(task) == pytest.approx(3 * 4096**2 * 2 / 4.8e6 + LAUNCH_US)


def test_f32_convolutions_are_counted_at_the_rate_of_their_promise() -> None:
    task = convolution_task()
    h200 = PROFILES["H200"]
    operations = 2 * 8 * 64 * 64 * 9 * 54 * 54
    products = 2 * 8 * 64 * 54 * 54
    with JudgingReference(task.reference, task.function) as reference:
        assert least_flops(task, reference) == FlopAnswer(operations + products, operations)
        usual, strict, default = (
            floor_us(replace(task, precision=one), reference)
            for one in (Precision.DTYPE, Precision.STRICT, Precision.DEFAULT_F32)
        )
    exact = h200.half_tflops / 3
    assert default == strict == pytest.approx((operations + products) / (exact * 1e6) + LAUNCH_US)
    assert usual == pytest.approx(operations / (h200.half_tflops * 1e6) + products / (exact * 1e6) + LAUNCH_US)


def test_a_reference_that_looks_at_values_has_a_floor_by_bytes() -> None:
    task = replace(kernels.scale_task(), reference=LOOKS)
    space: dict[str, Any] = {}
    exec(LOOKS, space)
    assert count_flops(space["scale"], FlopRequest(task)).operations == 0


def test_the_peak_is_that_of_the_dtype_and_the_precision() -> None:
    h200 = PROFILES["H200"]
    assert peak_tflops(matmul_task(DType.F64), h200) == h200.f64_tflops
    assert peak_tflops(matmul_task(DType.F32), h200) == pytest.approx(h200.half_tflops / 3)
    assert peak_tflops(replace(matmul_task(DType.F32), precision=Precision.TF32), h200) == h200.half_tflops
    assert peak_tflops(matmul_task(DType.F16), h200) == h200.half_tflops
    assert peak_tflops(matmul_task(DType.F8E4M3), h200) == h200.byte_tflops


def test_a_time_in_which_the_inputs_cannot_have_been_read() -> None:
    task = kernels.scale_task(16384, 4096)
    read_us = 16384 * 4096 * 4 / 4.8e6

    def at(time_us: float, needed: tuple[str, ...]) -> bool:
        measured = Measured("H200", task.sizes, Timing("kernel", (time_us,)), (), floor_us(task))
        return too_fast(measured, task, needed) is not None

    assert at(0.9 * read_us, ("x",))
    assert not at(0.97 * read_us, ("x",))
    assert not at(1.0, ())
