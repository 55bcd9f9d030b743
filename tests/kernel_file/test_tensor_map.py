"""Every rule of maps, and what the driver is told."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tilewright.kernel_file.expression_values import Tensor
from tilewright.kernel_file.plan_steps import MapFault, tensor_map
from tilewright.records import DType, TensorMap, TensorSpec


def made(spec: TensorSpec | str, **options: Any) -> TensorMap:
    if isinstance(spec, str):
        spec = TensorSpec.parse(spec)
    return tensor_map("t_map", Tensor("t", spec), options)


def test_a_plain_map_is_innermost_first() -> None:
    assert made("512x256:bf16", box=(128, 64), swizzle=128) == TensorMap(
        name="t_map",
        tensor="t",
        dtype=DType.BF16,
        shape=(256, 512),
        stride_bytes=(512,),
        box=(64, 128),
        step=(1, 1),
        swizzle=128,
        fill_nan=False,
        l2_bytes=128,
    )


def test_every_option() -> None:
    result = made("6x5x64:f16", shape=(30, 64), stride=(64, 1), box=(2, 32), step=(2, 1), swizzle=64, fill=1, l2=256)
    assert result == TensorMap("t_map", "t", DType.F16, (64, 30), (128,), (32, 2), (1, 2), 64, True, 256)


def test_shape_alone_is_a_contiguous_view() -> None:
    assert made("6x5x64:f16", shape=(30, 64), box=(2, 32)).stride_bytes == (128,)
    assert made("6x5x64:f16", shape=(15, 128), box=(2, 32)).stride_bytes == (256,)
    assert made("1920:f16", box=(32,)).stride_bytes == ()


def test_strided_tensors_keep_their_strides() -> None:
    gaps = TensorSpec(DType.F16, (4, 8, 64), (8 * 3 * 64, 3 * 64, 1))  # one of q, k, v in one buffer
    assert made(gaps, box=(1, 8, 64)).stride_bytes == (3 * 128, 8 * 3 * 128)
    joined = made(gaps, shape=(32, 64), stride=(3 * 64, 1), box=(8, 64))  # rows of all batches as one dimension
    assert joined.shape == (64, 32)


def test_the_stride_of_a_single_row_is_never_used() -> None:
    row = TensorSpec(DType.F16, (1, 64), (7, 1))
    assert made(row, box=(1, 64)).stride_bytes == (128,)
    assert made("1x60:f16", box=(1, 64)).stride_bytes == (128,)  # 120 bytes, rounded up
    assert made("1x64:f16", box=(1, 64), stride=(4096, 1)).stride_bytes == (8192,)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_can_be_mapped(dtype: DType) -> None:
    assert made(f"8x64:{dtype.value}", box=(8, 16)).dtype is dtype


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_swizzle_bounds_the_inner_box(swizzle: int) -> None:
    assert made("64x256:f16", box=(8, (swizzle or 256) // 2), swizzle=swizzle).swizzle == swizzle
    if swizzle:
        with pytest.raises(MapFault, match=f"the inner box is {swizzle + 16} bytes, more than swizzle {swizzle}"):
            made("64x256:f16", box=(8, swizzle // 2 + 8), swizzle=swizzle)


BAD: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("rank 0", ":f16", {"box": ()}, "shape", "0 dimensions"),
    ("rank 6", "2x2x2x2x2x64:f16", {"box": (1, 1, 1, 1, 1, 64)}, "shape", "6 dimensions"),
    ("box rank", "64x64:f16", {"box": (64,)}, "box", "box [64] has 1 numbers, the shape [64, 64] has 2"),
    ("stride rank", "64x64:f16", {"box": (8, 64), "stride": (1,)}, "stride", "stride [1] has 1 numbers"),
    ("step rank", "64x64:f16", {"box": (8, 64), "step": (1,)}, "step", "step [1] has 1 numbers"),
    ("box 0", "64x64:f16", {"box": (0, 64)}, "box", "box [0, 64]"),
    ("box 257", "512x64:f16", {"box": (257, 64)}, "box", "box [257, 64]"),
    ("box negative", "512x64:f16", {"box": (-1, 64)}, "box", "box [-1, 64]"),
    ("inner box bytes", "64x64:f16", {"box": (8, 4)}, "box", "the inner box is 4 f16, 8 bytes"),
    ("stride bytes", "64x60:f16", {"box": (8, 8)}, "stride", "a stride of 60 elements is 120 bytes"),
    ("inner stride", "64x64:f16", {"box": (8, 8), "stride": (64, 2)}, "stride", "the innermost stride is 2"),
    ("negative stride", "64x64:f16", {"box": (8, 8), "stride": (-64, 1)}, "stride", "a stride of -64 elements"),
    ("stride too far", "64x64:f16", {"box": (8, 8), "stride": (2**39, 1)}, "stride", "1099511627776 bytes"),
    ("empty", "0x64:f16", {"box": (8, 8)}, "shape", "shape [0, 64]"),
    ("size", "64x64:f16", {"box": (8, 8), "shape": (2**32 + 1, 64)}, "shape", "shape [4294967297, 64]"),
    ("leaves", "64x64:f16", {"box": (8, 8), "shape": (65, 64)}, "shape", "leaves the tensor f16[64, 64]"),
    ("leaves by stride", "64x64:f16", {"box": (8, 8), "stride": (72, 1)}, "shape", "leaves the tensor"),
    ("step 0", "64x64:f16", {"box": (8, 8), "step": (0, 1)}, "step", "step [0, 1]"),
    ("step inner", "64x64:f16", {"box": (8, 8), "step": (1, 2)}, "step", "step [1, 2]"),
    ("step 9", "64x64:f16", {"box": (8, 8), "step": (9, 1)}, "step", "step [9, 1]"),
    ("swizzle", "64x64:f16", {"box": (8, 8), "swizzle": 16}, "swizzle", "swizzle 16"),
    ("l2", "64x64:f16", {"box": (8, 8), "l2": 32}, "l2", "l2 32"),
    ("fill", "64x64:f16", {"box": (8, 8), "fill": 2}, "fill", "fill 2"),
    ("fill of ints", "64x64:i32", {"box": (8, 8), "fill": 1}, "fill", "fill 1 is NaN, and the tensor is i32"),
    ("fill of f8", "64x64:f8e4m3", {"box": (8, 16), "fill": 1}, "fill", "the tensor is f8e4m3"),
]


@pytest.mark.parametrize(("spec", "options", "option", "found"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_rule(spec: str, options: dict[str, Any], option: str, found: str) -> None:
    with pytest.raises(MapFault) as caught:
        made(spec, **options)
    assert found in caught.value.found
    assert caught.value.option == option
    assert caught.value.remedy


def test_gaps_are_not_the_tensors() -> None:
    gaps = TensorSpec(DType.F16, (4, 8, 64), (8 * 3 * 64, 3 * 64, 1))
    for shape, stride in (
        ((32, 128), (192, 1)),
        ((96, 64), (64, 1)),
        ((33, 64), (192, 1)),
        ((4, 9, 64), (1536, 192, 1)),
    ):
        with pytest.raises(MapFault, match="leaves the tensor"):
            made(gaps, shape=shape, stride=stride, box=(1,) * (len(shape) - 1) + (64,))


def test_a_view_that_is_taken_reaches_only_elements_of_the_tensor() -> None:
    spec = TensorSpec(DType.F64, (3, 4, 2), (24, 4, 1))  # gaps of two in rows of four, and of eight between planes
    own = {24 * i + 4 * j + k for i in range(3) for j in range(4) for k in range(2)}
    taken = set()
    for rows in range(1, 14):
        for step in range(0, 26, 2):
            for columns in (1, 2, 3, 4):
                with contextlib.suppress(MapFault):
                    made(spec, shape=(rows, columns), stride=(step, 1), box=(1, 2))
                    assert {step * i + k for i in range(rows) for k in range(columns)} <= own, (rows, step, columns)
                    taken.add((rows, step, columns))
    assert {(4, 4, 2), (3, 24, 2), (2, 8, 2), (1, 6, 2), (13, 0, 2)} <= taken
    assert not {(5, 4, 2), (4, 24, 2), (4, 4, 3), (2, 2, 1), (1, 6, 3)} & taken
