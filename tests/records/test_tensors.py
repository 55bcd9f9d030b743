from __future__ import annotations

import pytest

from tilewright.records import ARCHITECTURES, TYPICAL, DType, TensorSpec, arch_of, cc_of, contiguous_stride


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((), ()), ((4,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 4), (4, 4, 1)), ((5, 1), (1, 1))],
)
def test_contiguous_stride_is_torchs(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    assert contiguous_stride(shape) == stride == tuple(torch.empty(shape).stride())


def test_extent_and_contiguity() -> None:
    transposed = TensorSpec(DType.F32, (3, 5), (1, 3))
    assert not transposed.is_contiguous
    assert transposed.extent == 15
    assert TensorSpec(DType.F16, (4, 5), (10, 1)).storage_bytes == 2 * (3 * 10 + 4 + 1)
    assert TensorSpec(DType.F32, (1, 5), (99, 1)).is_contiguous  # a dimension of one has no say
    assert TensorSpec(DType.F32, (0, 5), (99, 7)).is_contiguous
    assert TensorSpec(DType.F32, (0, 5), (5, 1)).extent == 0
    assert str(TensorSpec.contiguous(DType.BF16, (2, 3))) == "bf16[2, 3]"


def test_every_dtype_has_a_size_and_a_cpp_name() -> None:
    sizes = {str(d): d.itemsize for d in DType}
    one_byte = {"f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1, "bool": 1}
    assert sizes == {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, **one_byte}
    assert {d.cpp for d in DType if d.is_float} == {
        "double",
        "float",
        "__half",
        "__nv_bfloat16",
        "__nv_fp8_e4m3",
        "__nv_fp8_e5m2",
    }


def test_architectures_and_profiles_agree() -> None:
    assert set(TYPICAL) == set(ARCHITECTURES)
    for arch, profile in TYPICAL.items():
        assert arch_of(cc_of(arch)) == arch == profile.arch


def test_spec_from_text() -> None:
    assert TensorSpec.parse("4096x1024:bf16") == TensorSpec.contiguous(DType.BF16, (4096, 1024))
    assert TensorSpec.parse("7") == TensorSpec.contiguous(DType.F32, (7,))
    assert TensorSpec.parse(":i64") == TensorSpec.contiguous(DType.I64, ())
    assert TensorSpec.parse("scalar:i64") == TensorSpec.parse(":i64")
    assert TensorSpec.parse("0x3").numel == 0
    for tuple_ in ("(4, 8):bf16", "(4,8):bf16", "[4, 8]:bf16", "(4, 8,):bf16"):
        assert TensorSpec.parse(tuple_) == TensorSpec.parse("4x8:bf16")
    assert TensorSpec.parse("(7,)") == TensorSpec.parse("7")
    assert TensorSpec.parse("()") == TensorSpec.parse("scalar:f32")
    for name, dtype in (("float32", "f32"), ("torch.bfloat16", "bf16"), ("FP16", "f16"), ("half", "f16")):
        assert TensorSpec.parse(f"3:{name}").dtype is DType(dtype)
    for name, dtype in (("int64", "i64"), ("uint8", "u8"), ("int8", "i8"), ("double", "f64"), ("bool", "bool")):
        assert TensorSpec.parse(f"3:{name}").dtype is DType(dtype)


@pytest.mark.parametrize(
    "text", ["4096*1024", "(4, 8", "(4,,8)", "(,)", "4,8", "(4, -8)", "4x-1:f32", "x:f32", "4x4:float99"]
)
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write (sizes|one of)"):
        TensorSpec.parse(text)
