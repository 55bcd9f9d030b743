"""Sampled blocks and smaller inputs give the counts of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.measure import kernels

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import parse
from tilewright.measure import emulated_counts
from tilewright.measure.emulated_counts import NotCounted, affordable_sizes, count_plan
from tilewright.measure.preparation import NotPrepared
from tilewright.records import Dimension, DType, IndexValues, SizeFormula, Task, TaskOutput, TensorInput

GRID_WAITS = """//! op      scale(x) -> y
//! out     y: x.dtype[x.shape]
//! launch  scale<<<64, 256>>>(x, y, x.numel) cooperative
#include <cooperative_groups.h>
__global__ void scale(const float* x, float* y, long long n) {
  cooperative_groups::this_grid().sync();
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += 64 * 256) y[i] = 2 * x[i];
}
"""


def test_what_sampled_blocks_count_is_the_whole_launch(emulator: EmulatedDevice) -> None:
    counted = count_plan(kernels.VECTOR, kernels.scale_task(256, 1024), None, emulator)
    (launch,) = counted.launches
    assert (launch.counts.blocks, launch.grid_blocks) == (64, 256)
    sectors = launch.scale * sum(one.sectors for one in launch.counts.instructions)
    assert sectors * 32 == 2 * 256 * 1024 * 4


def test_blocks_of_several_kinds_are_counted_by_their_share(emulator: EmulatedDevice) -> None:
    """Every third block does nothing, as where a tile begins at the end of a row."""
    file = kernels.scale("if (blockIdx.x % 3 != 2 && i < n) y[i] = 2 * x[i];", 1)
    (launch,) = count_plan(file, kernels.scale_task(372, 768), None, emulator).launches
    sectors = launch.scale * sum(one.sectors for one in launch.counts.instructions)
    assert sectors * 32 == pytest.approx(2 / 3 * 2 * 372 * 768 * 4, rel=0.05)


def test_sampled_blocks_stand_for_as_many_as_make_the_results(emulator: EmulatedDevice) -> None:
    """Of two neighbours one has three quarters of the work, and a sample may have more of one kind."""
    body = """const long long start = blockIdx.x / 2 * 2048ll + threadIdx.x;
  const int from = blockIdx.x % 2 ? 6 : 0, to = blockIdx.x % 2 ? 8 : 6;
  for (int k = from; k < to; ++k) y[start + k * 256] = 2 * x[start + k * 256];"""
    (launch,) = count_plan(kernels.scale(body, 4), kernels.scale_task(146, 1024), None, emulator).launches
    assert launch.counts.blocks < launch.grid_blocks
    stored = [
        one for one in launch.counts.instructions if one.ptx_text.lstrip("@%p0123456789! ").startswith("st.global")
    ]
    found = sum(one.bytes for one in stored)
    assert found * launch.grid_blocks / launch.counts.blocks != 146 * 1024 * 4  # or nothing is tested
    assert launch.scale * found == pytest.approx(146 * 1024 * 4)


def test_blocks_that_do_much_are_counted_by_few_of_them(emulator: EmulatedDevice) -> None:
    file = kernels.scale("float v = x[i]; for (int k = 0; k < 1000; ++k) v = v * v + k; y[i] = v;", 1)
    (launch,) = count_plan(file, kernels.scale_task(256, 1024), None, emulator).launches
    assert (launch.counts.blocks, launch.grid_blocks) == (8, 1024)


@pytest.mark.slow
def test_large_inputs_are_counted_at_the_tasks_own_sizes(emulator: EmulatedDevice) -> None:
    task = kernels.scale_task(8192, 65536)  # two gigabytes, of which a few rows are drawn
    counted = count_plan(kernels.VECTOR, task, None, emulator)
    (launch,) = counted.launches
    assert counted.counted_at == task.sizes
    assert launch.scale * sum(one.sectors for one in launch.counts.instructions) * 32 == 2 * 8192 * 65536 * 4


def test_blocks_that_wait_for_each_other_all_run(emulator: EmulatedDevice) -> None:
    counted = count_plan(parse(GRID_WAITS, "k.cu"), kernels.scale_task(1024, 64), None, emulator)
    assert [one.counts.blocks for one in counted.launches] == [64]


def test_what_a_whole_grid_does_once_is_not_scaled_up(emulator: EmulatedDevice) -> None:
    """Counts of two sizes lie on a line: the loop grows with the rows, the rest of the kernel does not."""
    small = count_plan(parse(GRID_WAITS, "k.cu"), kernels.scale_task(16384, 64), None, emulator)
    counted = count_plan(parse(GRID_WAITS, "k.cu"), kernels.scale_task(1 << 20, 64), None, emulator)
    assert counted.counted_at["rows"] < 1 << 20
    (few,), (many,) = small.launches, counted.launches
    assert many.scale == 1.0
    sectors = [max(one.sectors for one in each.counts.instructions) for each in (few, many)]  # of the loop's store
    assert sectors[1] == 64 * sectors[0]
    first = [next(one.executions for one in each.counts.instructions) for each in (few, many)]
    assert first == [64 * 8, 64 * 8]


def test_whole_grids_are_counted_where_the_same_code_runs(
    emulator: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of another length would be other code, whose counts are not this one's."""
    monkeypatch.setattr(emulated_counts, "FEW_ELEMENTS", 1 << 14)
    file = parse(
        GRID_WAITS.replace("//! launch", "//! const   LENGTH = x.shape[1]\n//! launch").replace(
            "i < n", "i < n / LENGTH * LENGTH"
        ),
        "k.cu",
    )
    assert count_plan(file, kernels.scale_task(4, 1 << 16), None, emulator).counted_at == {"rows": 1, "cols": 1 << 16}
    monkeypatch.setattr(emulated_counts, "MORE_ELEMENTS", 1 << 15)  # then it is not affordable
    assert count_plan(file, kernels.scale_task(4, 1 << 16), None, emulator).counted_at["cols"] < 1 << 16


def test_what_cannot_be_emulated_and_what_does_not_apply_are_told_apart(emulator: EmulatedDevice) -> None:
    a100 = replace(kernels.scale_task(4, 1024), gpu="A100")
    with pytest.raises(NotCounted, match="sm_80"):
        count_plan(kernels.VECTOR, a100, None, emulator)
    with pytest.raises(NotPrepared, match="rows % 32"):
        count_plan(kernels.transpose(33), kernels.transpose_task(100, 64), None, emulator)


def test_sizes_keep_their_remainder_and_their_multiple() -> None:
    task = kernels.scale_task(8205, 4096)
    sizes = affordable_sizes(task, 1 << 20)
    assert sizes["rows"] % 16 == 8205 % 16
    assert sizes["cols"] == 4096
    assert sizes["rows"] * 4096 <= 1 << 20
    assert affordable_sizes(task, 1 << 40) == task.sizes
    whole = replace(task, dimensions=(Dimension("rows", 8192, multiple_of=8192), Dimension("cols", 4096)))
    assert affordable_sizes(whole, 1 << 24) == {"rows": 8192, "cols": 2048}


def test_a_square_dimension_stays_and_indices_follow_the_dimension_they_name() -> None:
    inputs = (TensorInput("x", DType.F32, ("n", "n")), TensorInput("i", DType.I32, ("m",), IndexValues("n")))
    task = Task("f", "", "f", inputs, (TaskOutput("y", DType.F32, ("m",)),), (Dimension("n", 4096), Dimension("m", 64)))
    assert affordable_sizes(task, 1024)["n"] == 4096


def test_sizes_that_follow_from_others_keep_following() -> None:
    inputs = (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("cos", DType.F32, ("rows", "half")))
    half = Dimension("half", 2048, formula=SizeFormula.parse("cols / 2"))
    dimensions = (Dimension("rows", 8192), Dimension("cols", 4096, multiple_of=2), half)
    task = Task("f", "", "f", inputs, (TaskOutput("y", DType.F32, ("rows", "half")),), dimensions)
    for most in (1 << 22, 1 << 12, 1):
        sizes = affordable_sizes(task, most)
        assert sizes == task.complete(sizes) != task.sizes
