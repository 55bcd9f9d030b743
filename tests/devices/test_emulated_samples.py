"""Jobs of which some blocks are run: inputs that repeat, what the blocks wrote, which blocks they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.devices.contents import ContentError, check_content
from tilewright.devices.emulation.engine import EmulatorEngine
from tilewright.devices.emulation.input_content import input_bytes, row_major
from tilewright.devices.emulation.plan_run import edge_blocks
from tilewright.kernel_file import parse
from tilewright.records import (
    PROFILES,
    Check,
    Completed,
    DType,
    Emulation,
    FindingKind,
    InputTensor,
    Limits,
    Repeated,
    TensorSpec,
)
from tilewright.toolchain import BuiltPlan, build_plan

H200 = PROFILES["H200"]
ROWS = """
//! op      f(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows, cols]
//! launch  f<<<rows, 32>>>(x, y, cols)
__global__ void f(const float* x, float* y, int cols) {
  long long row = (long long)blockIdx.x * cols;
  for (int i = threadIdx.x; i < cols - 1; i += 32) y[row + i] = 2 * x[row + i];
}
"""


def repeated(spec: TensorSpec, values: np.ndarray) -> InputTensor:
    return InputTensor("x", spec, Repeated(np.ascontiguousarray(values).tobytes(), values.shape))


def test_elements_repeat_along_every_axis() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = input_bytes(repeated(TensorSpec.contiguous(DType.F32, (5, 7)), values)).view(np.float32).reshape(5, 7)
    assert all(found[i, j] == values[i % 2, j % 3] for i in range(5) for j in range(7))
    columns = TensorSpec(DType.F32, (5, 7), (1, 5))
    stored = bytes(input_bytes(repeated(columns, values)))
    assert row_major(columns, stored) == found.tobytes()
    with pytest.raises(ContentError, match="cannot be repeated"):
        check_content(columns, Repeated(b"\0" * 8, (3, 2)))


def test_what_sampled_blocks_wrote_comes_back() -> None:
    spec = TensorSpec.contiguous(DType.F32, (100, 40))
    values = np.random.default_rng(1).standard_normal((7, 40)).astype(np.float32)
    ready = build_plan(parse(ROWS.strip() + "\n", "k.cu"), {"x": spec}, H200)
    assert isinstance(ready, BuiltPlan)
    how = Emulation((Check.COVERAGE,), sampled_blocks=3, written_elements=1000)
    job = replace(ready.job("j", (repeated(spec, values),), limits=Limits()), emulation=how, returns=())
    finished = EmulatorEngine(H200).run(job, lambda _: None).execution
    assert isinstance(finished, Completed), finished
    assert finished.emulated is not None
    part = next(one for one in finished.emulated.written if one.name == "y")
    assert part.indices == ((0, 49, 99), tuple(range(39)))
    content = np.frombuffer(part.content, np.float32).reshape(3, 39)
    assert set(part.written) == {1}
    assert (content == 2 * values[[0, 49 % 7, 99 % 7], :39]).all()
    few = replace(job, emulation=replace(how, written_elements=60))
    finished = EmulatorEngine(H200).run(few, lambda _: None).execution
    assert isinstance(finished, Completed)
    assert finished.emulated is not None
    part = finished.emulated.written[0]
    assert len(part.indices[0]) * len(part.indices[1]) <= 60
    assert part.indices[1][0] == 0
    assert part.indices[1][-1] == 38


def test_blocks_of_tensors_beyond_what_an_int_counts() -> None:
    """Two blocks of 2.4 G elements, the first and the last."""
    spec = TensorSpec.contiguous(DType.I8, (36864, 65536))
    values = np.random.default_rng(1).integers(-60, 60, (7, 65536), dtype=np.int8)
    how = Emulation((Check.UNINITIALISED,), sampled_blocks=2, written_elements=1000, written_periods=(("y", (7, 0)),))
    text = ROWS.replace("f32", "i8").replace("float", "signed char").strip() + "\n"
    for wraps, kernel in ((False, text), (True, text.replace("long long row = (long long)", "int row = "))):
        ready = build_plan(parse(kernel, "k.cu"), {"x": spec}, H200)
        assert isinstance(ready, BuiltPlan)
        job = replace(ready.job("j", (repeated(spec, values),), limits=Limits()), emulation=how, returns=())
        finished = EmulatorEngine(H200).run(job, lambda _: None).execution
        assert isinstance(finished, Completed), finished
        assert (FindingKind.OUT_OF_BOUNDS_GLOBAL in {one.kind for one in finished.findings}) == wraps
        assert finished.emulated is not None
        (part,) = finished.emulated.written
        assert part.indices[0] == ((0,) if wraps else (0, 36863))
        content = np.frombuffer(part.content, np.int8).reshape(len(part.indices[0]), -1)
        assert (content == 2 * values[[place % 7 for place in part.indices[0]]][:, part.indices[1]]).all()


@pytest.mark.parametrize(
    ("grid", "wanted", "blocks"),
    [
        ((10, 1, 1), None, None),
        ((2, 1, 1), 6, None),
        ((10, 1, 1), 1, (0,)),
        ((10, 1, 1), 2, (0, 9)),
        ((101, 1, 1), 5, (0, 25, 50, 75, 100)),
        ((32, 32, 1), 8, (0, 31, 146, 292, 438, 584, 992, 1023)),
    ],
)
def test_corners_of_the_grid_come_first(
    grid: tuple[int, int, int], wanted: int | None, blocks: tuple[int, ...] | None
) -> None:
    assert edge_blocks(grid, wanted) == blocks
