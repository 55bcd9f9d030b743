"""Seeded inputs of the emulator: rounded as torch rounds, the same for every layout, refused where they do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilewright.devices.contents import ContentError
from tilewright.devices.emulation.input_content import drawn
from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.records import Content, DType, Integers, Normal, Part, TensorSpec, Uniform


def tensor_of(spec: TensorSpec, content: Normal | Uniform | Integers) -> torch.Tensor:
    raw = torch.from_numpy(drawn(spec, content))
    return raw.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float])
@pytest.mark.parametrize("content", [Normal(1, 0.5, 3.0), Uniform(2, -4.0, 9.0), Integers(3, -20, 20)])
def test_values_are_rounded_as_torch_rounds_them(dtype: DType, content: Normal | Uniform | Integers) -> None:
    wide = tensor_of(TensorSpec.contiguous(DType.F64, (40, 50)), content)
    narrow = tensor_of(TensorSpec.contiguous(dtype, (40, 50)), content)
    rounded = wide if dtype is DType.F64 else wide.float().to(TORCH_DTYPE[dtype])
    assert torch.equal(narrow.double(), rounded.double())


def test_eight_bit_floats_reach_their_largest_and_smallest() -> None:
    for dtype, largest in ((DType.F8E4M3, 448.0), (DType.F8E5M2, 57344.0)):
        far = tensor_of(TensorSpec.contiguous(dtype, (100,)), Uniform(0, 1e6, 1e7)).double()
        assert far.unique().tolist() == [largest]
        near = tensor_of(TensorSpec.contiguous(dtype, (1000,)), Uniform(0, -1e-3, 1e-3))
        wide = tensor_of(TensorSpec.contiguous(DType.F32, (1000,)), Uniform(0, -1e-3, 1e-3))
        assert torch.equal(near.double(), wide.to(TORCH_DTYPE[dtype]).double())


def test_triangles_are_drawn() -> None:
    for stride in ((35, 7, 1), (60, 1, 8)):
        spec = TensorSpec(DType.F32, (2, 5, 7), stride)
        whole = tensor_of(spec, Uniform(4, 1.0, 2.0))
        assert torch.equal(tensor_of(spec, Uniform(4, 1.0, 2.0, Part.UPPER)), whole.triu())
        assert torch.equal(tensor_of(spec, Uniform(4, 1.0, 2.0, Part.LOWER)), whole.tril())


def test_the_layout_does_not_change_the_values() -> None:
    plain = tensor_of(TensorSpec.contiguous(DType.F32, (6, 5)), Normal(4))
    gapped = TensorSpec(DType.F32, (6, 5), (1, 10))
    assert torch.equal(tensor_of(gapped, Normal(4)), plain)
    storage = drawn(gapped, Normal(4))
    assert (storage.reshape(-1, 4)[6:10] == 0xFF).all()  # the gap
    assert (drawn(gapped, Normal(4)) == storage).all()
    assert not (drawn(gapped, Normal(5)) == storage).all()


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8])
def test_integers_fill_their_range(dtype: DType) -> None:
    values = tensor_of(TensorSpec.contiguous(dtype, (5000,)), Integers(7, 3, 100))
    assert (int(values.min()), int(values.max())) == (3, 99)
    booleans = tensor_of(TensorSpec.contiguous(DType.BOOL, (100,)), Integers(7, 0, 2))
    assert booleans.any()
    assert not booleans.all()


@pytest.mark.parametrize(
    ("dtype", "content", "said"),
    [
        (DType.I32, Normal(0), "use Integers or Data"),
        (DType.U8, Integers(0, 0, 257), "do not fit u8"),
        (DType.BOOL, Integers(0, 0, 3), "do not fit bool"),
        (DType.F32, Integers(0, 5, 5), "is empty"),
    ],
)
def test_what_does_not_fit_is_refused(dtype: DType, content: Content, said: str) -> None:
    with pytest.raises(ContentError, match=said):
        drawn(TensorSpec.contiguous(dtype, (4,)), content)  # type: ignore[arg-type]


def test_empty_and_scalar_tensors() -> None:
    assert drawn(TensorSpec.contiguous(DType.F32, (0, 4)), Normal(0)).size == 0
    assert np.isfinite(drawn(TensorSpec.contiguous(DType.F32, ()), Normal(0)).view(np.float32)).all()
