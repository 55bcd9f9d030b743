from __future__ import annotations

import pytest

from tilewright.frontends.api.kernel_arguments import SMALL_SHAPES, complete_arguments, parse_arguments
from tilewright.kernel_file import parse
from tilewright.records import PROFILES, DType, TensorSpec
from tilewright.tasks.errors import BadArgument

PLAN = """\
//! op      scale(x, mask?, factor: float, axes: int[2], flag: bool = false) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == {dtype} and x.ndim == {ndim}
//! let     n = x.numel
//! launch  scale<<<ceil_div(n, 256), 256>>>(x, y, n, factor, axes, flag)
__global__ void scale(const float* x, float* y, long long n, float factor, int a, int b, bool flag) {{
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = x[i] * factor + a + b + flag;
}}
"""
FILE = parse(PLAN.format(dtype="f32", ndim=3))
H200 = PROFILES["H200"]


def test_options_become_values() -> None:
    values = parse_arguments(FILE.plan.op, ["x=2x3x4:f32"], ["factor=0.5", "axes=1,2", "flag=true"])
    assert values == {
        "x": TensorSpec.contiguous(DType.F32, (2, 3, 4)),
        "factor": 0.5,
        "axes": (1, 2),
        "flag": True,
    }


@pytest.mark.parametrize(
    ("shapes", "scalars", "message"),
    [
        (["q=3"], [], "one of scale's parameters: x, mask, factor, axes, flag"),
        (["x"], [], "write --shape NAME=VALUE"),
        (["64x128:f16"], [], "write --shape NAME=64x128:f16"),
        (["factor=3"], [], "factor is given with --set"),
        ([], ["x=3"], "x is given with --shape"),
        (["x=3", "x=4"], [], "x is given twice"),
        (["x=3:f33"], [], "'f33' is not a dtype"),
        ([], ["factor=much"], "'much' is not float"),
        ([], ["axes=1"], "axes takes 2 numbers, found 1"),
        ([], ["flag=1"], "'1' is not bool"),
    ],
)
def test_bad_options_are_one_sentence(shapes: list[str], scalars: list[str], message: str) -> None:
    with pytest.raises(BadArgument) as caught:
        parse_arguments(FILE.plan.op, shapes, scalars)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_guessed_to_fit() -> None:
    file = parse(PLAN.format(dtype="f16", ndim=3))
    arguments, guessed = complete_arguments(file, {}, H200)
    assert guessed
    x = arguments["x"]
    assert isinstance(x, TensorSpec)
    assert (x.dtype, x.ndim) == (DType.F16, 3)
    assert arguments["mask"] is None
    assert arguments["axes"] == (1, 1)
    assert arguments["flag"] is False


def test_given_tensors_are_kept() -> None:
    x = TensorSpec.contiguous(DType.F32, (1, 2, 3))
    arguments, guessed = complete_arguments(FILE, {"x": x, "factor": 2.0}, H200)
    assert not guessed
    assert arguments["x"] == x
    assert arguments["factor"] == 2.0


CONVOLUTION = """//! op      convolve(x, weight, bias) -> y
//! out     y: f32[x.shape[0], weight.shape[0], x.shape[2] - 2, x.shape[3] - 2]
//! need    x.dtype == f16 and weight.dtype == f16 and bias.dtype == f32
//! need    x.ndim == 4 and x.shape[1] % MULTIPLE == 0
//! need    weight.ndim == 4 and weight.shape[1] == x.shape[1] and weight.shape[2] == 3 and weight.shape[3] == 3
//! need    bias.ndim == 1 and bias.shape[0] == weight.shape[0]
//! launch  convolve<<<1, 32>>>(x, weight, bias, y)
__global__ void convolve(const void* x, const void* weight, const float* bias, float* y) {}
"""


def test_images_and_filters_are_guessed_as_the_needs_say() -> None:
    arguments, _ = complete_arguments(parse(CONVOLUTION.replace("MULTIPLE", "8")), {}, H200, SMALL_SHAPES)
    specs = [str(arguments[name]) for name in ("x", "weight", "bias")]
    assert specs == ["f16[2, 136, 6, 4]", "f16[2, 136, 3, 3]", "f32[2]"]


def test_what_cannot_be_guessed_is_asked_for_with_its_dimensions() -> None:
    file = parse(CONVOLUTION.replace("MULTIPLE", "1009"))
    with pytest.raises(BadArgument) as caught:
        complete_arguments(file, {}, H200)
    assert str(caught.value).endswith("give --shape x=AxBxCxD:f16 --shape weight=ExBx3x3:f16 --shape bias=E:f32")
