"""Tensors made from specs and contents; the CPU stands in for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilewright.devices.contents import ContentError
from tilewright.devices.inputs import (
    GUARD_BYTE,
    TORCH_DTYPE,
    PlacedTensor,
    allocate,
    allocation_bytes,
    bitwise_equal,
    clear,
    content_of,
    fill,
    guard_damage,
)
from tilewright.records import Content, Data, DType, Integers, Normal, Part, TensorSpec, Uniform

CPU = torch.device("cpu")
FLOATS = [dtype for dtype in DType if dtype.is_float]


def made(spec: TensorSpec, content: Content) -> PlacedTensor:
    placed = allocate(spec, CPU)
    fill(placed, content)
    return placed


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_is_nan_in_every_float_type(dtype: DType) -> None:
    placed = allocate(TensorSpec.contiguous(dtype, (3, 5)), CPU)
    assert placed.tensor.dtype == TORCH_DTYPE[dtype]
    assert bool(placed.tensor.to(torch.float32).isnan().all())
    clear(placed)
    assert bool((placed.tensor.to(torch.float32) == 0).all())


@pytest.mark.parametrize("dtype", list(DType))
def test_bytes_go_in_and_come_out_in_storage_order(dtype: DType) -> None:
    spec = TensorSpec.contiguous(dtype, (4, 3))
    raw = bytes(i % 2 for i in range(spec.storage_bytes))
    placed = made(spec, Data(raw))
    assert content_of(placed) == raw
    assert placed.tensor.shape == (4, 3)


def test_strides_are_honoured() -> None:
    spec = TensorSpec(DType.F32, (2, 3), (1, 4))  # a transposed view with a gap after every two elements
    raw = np.arange(10, dtype=np.float32)
    placed = made(spec, Data(raw.tobytes()))
    assert placed.tensor.tolist() == [[0.0, 4.0, 8.0], [1.0, 5.0, 9.0]]
    assert content_of(placed) == raw.tobytes()


@pytest.mark.parametrize("content", [Normal(3, 1.5, 0.25), Uniform(3, -2.0, 5.0), Integers(3, -4, 9)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_seed_gives_the_same_elements_and_every_float_type_the_same_values(dtype: DType, content: Content) -> None:
    spec = TensorSpec.contiguous(dtype, (64, 17))
    first, again = made(spec, content), made(spec, content)
    assert content_of(first) == content_of(again)
    if dtype is not DType.F64:
        wide = made(TensorSpec.contiguous(DType.F32, (64, 17)), content).tensor
        assert torch.equal(wide.to(TORCH_DTYPE[dtype]).view(torch.uint8), first.tensor.view(torch.uint8))


def test_distributions_have_their_parameters() -> None:
    spec = TensorSpec.contiguous(DType.F32, (200_000,))
    normal = made(spec, Normal(1, 3.0, 0.5)).tensor
    assert abs(normal.mean().item() - 3.0) < 0.01
    assert abs(normal.std().item() - 0.5) < 0.01
    uniform = made(spec, Uniform(1, -1.0, 3.0)).tensor
    assert -1.0 <= uniform.min().item() < -0.99
    assert 2.99 < uniform.max().item() <= 3.0
    assert abs(uniform.mean().item() - 1.0) < 0.02
    whole = made(TensorSpec.contiguous(DType.I16, (10_000,)), Integers(1, -3, 4)).tensor
    assert sorted(set(whole.tolist())) == list(range(-3, 4))
    truth = made(TensorSpec.contiguous(DType.BOOL, (10_000,)), Integers(1, 0, 2)).tensor
    assert 4_500 < int(truth.sum()) < 5_500
    assert content_of(made(spec, Normal(1))) != content_of(made(spec, Normal(2)))


def test_layout_does_not_change_the_elements() -> None:
    plain = made(TensorSpec.contiguous(DType.F32, (5, 7)), Normal(9)).tensor
    gapped = made(TensorSpec(DType.F32, (5, 7), (1, 8)), Normal(9))
    assert torch.equal(gapped.tensor, plain)
    storage = gapped.storage.view(torch.float32)
    assert storage.isnan().sum().item() == storage.numel() - 35, "what no element occupies stays poisoned"


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F8E4M3])
@pytest.mark.parametrize("stride", [(35, 7, 1), (60, 1, 8)])
def test_triangles_of_every_matrix_are_drawn(dtype: DType, stride: tuple[int, int, int]) -> None:
    spec = TensorSpec(dtype, (2, 5, 7), stride)
    whole = made(spec, Uniform(4, 1.0, 2.0)).tensor
    for part, kept in ((Part.UPPER, torch.triu), (Part.LOWER, torch.tril)):
        assert torch.equal(made(spec, Uniform(4, 1.0, 2.0, part)).tensor.float(), kept(whole.float()))
    with pytest.raises(ContentError, match="has no upper triangle; that takes two dimensions"):
        made(TensorSpec.contiguous(dtype, (5,)), Normal(4, part=Part.UPPER))


def test_repeated_and_overlapping_elements_are_filled() -> None:
    broadcast = made(TensorSpec(DType.F32, (4, 3), (0, 1)), Normal(5)).tensor
    assert torch.equal(broadcast[0], broadcast[3])
    assert not bool(broadcast.isnan().any())
    window = made(TensorSpec(DType.F32, (4, 3), (1, 1)), Normal(5))
    assert window.storage.numel() == 6 * 4
    assert not bool(window.tensor.isnan().any())
    assert window.tensor[1, 0] == window.tensor[0, 1]


@pytest.mark.parametrize("alignment", [2, 4, 16, 64, 256])
def test_memory_is_aligned_as_promised_and_no_better(alignment: int) -> None:
    spec = TensorSpec(DType.F16, (8,), (1,), alignment)
    placed = made(spec, Integers(1, 0, 5))
    start = placed.tensor.untyped_storage().data_ptr()
    offset = placed.tensor.data_ptr() - start
    assert offset == (0 if alignment == 256 else alignment)
    assert allocation_bytes(spec) == 512
    assert len(content_of(placed)) == 16


@pytest.mark.parametrize("alignment", [2, 256])
def test_guards_see_the_nearest_byte_that_was_written(alignment: int) -> None:
    placed = allocate(TensorSpec(DType.F16, (8,), (1,), alignment), CPU, guard_byte=GUARD_BYTE)
    fill(placed, Integers(1, 0, 5))
    assert guard_damage(placed) is None
    behind = placed.tensor.storage_offset() + 8
    placed.tensor.as_strided((3,), (1,), behind + 100).fill_(1)
    assert guard_damage(placed) == 200
    placed.tensor.as_strided((1,), (1,), behind - 9).fill_(0)
    assert guard_damage(placed) == -1
    assert guard_damage(allocate(placed.spec, CPU)) is None, "not guarded"


@pytest.mark.parametrize("stride", [(1,), (2,)])
@pytest.mark.parametrize("count", [3, 8])
def test_bits_are_compared_and_not_numbers(stride: tuple[int], count: int) -> None:
    spec = TensorSpec(DType.F32, (count,), stride)
    one, other = allocate(spec, CPU), allocate(spec, CPU)
    assert bitwise_equal(one, other), "NaN like NaN"
    clear(one)
    clear(other)
    other.storage[-4:] = torch.tensor([0, 0, 0, 0x80], dtype=torch.uint8)
    assert torch.equal(one.tensor, other.tensor)
    assert not bitwise_equal(one, other), "-0 is not 0"


@pytest.mark.parametrize("content", [Normal(1), Data(b""), Integers(1, 0, 5)])
def test_empty_tensors_are_fine(content: Content) -> None:
    placed = made(TensorSpec.contiguous(DType.F32, (3, 0, 2)), content)
    assert content_of(placed) == b""
    assert placed.tensor.shape == (3, 0, 2)


@pytest.mark.parametrize(
    ("dtype", "content", "message"),
    [
        (DType.F32, Data(b"abc"), r"f32\[2, 2\] with strides \(2, 1\) takes 16 bytes, its data has 3"),
        (DType.I32, Normal(1), "a i32 tensor cannot be filled from Normal; use Integers or Data"),
        (DType.BOOL, Uniform(1), "a bool tensor cannot be filled from Uniform"),
        (DType.I8, Integers(1, 0, 200), "Integers from 0 to 199 do not fit i8"),
        (DType.BOOL, Integers(1, 0, 3), "Integers from 0 to 2 do not fit bool"),
        (DType.F32, Integers(1, 5, 5), "Integers from 5 to below 5 is empty"),
    ],
)
def test_contents_that_cannot_be_are_refused(dtype: DType, content: Content, message: str) -> None:
    with pytest.raises(ContentError, match=message):
        made(TensorSpec.contiguous(dtype, (2, 2)), content)
