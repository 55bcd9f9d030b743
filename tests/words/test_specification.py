"""Words to a specification: the reference, its description, sizes, dtypes and names."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.words import NotUnderstood, read


def test_parameters_of_norms_may_be_said() -> None:
    def inputs(words: str) -> dict[str, Any]:
        found: dict[str, Any] = tomllib.loads(read(words, {}).description)["inputs"]
        return found

    assert inputs("rmsnorm with eps 1e-3")["eps"] == 1e-3
    assert list(inputs("RMS norm without weight")) == ["x", "eps"]
    assert list(inputs("layernorm with weight and bias, eps 1e-6")) == ["x", "weight", "bias", "eps"]
    assert inputs("layernorm without affine with eps of 0.5") == {"x": "bf16[rows, cols]", "eps": 0.5}


def test_nothing_is_no_request() -> None:
    with pytest.raises(NotUnderstood, match="no operation"):
        read("please make me a kernel", {})


def test_a_row_cannot_be_normalised_after_it_was_reduced() -> None:
    with pytest.raises(NotUnderstood, match="LayerNorm cannot follow the mean"):
        read("mean then layernorm", {})


def test_the_specification_is_a_reference_and_a_description() -> None:
    made = read("LayerNorm then GELU", {})
    assert "F.layer_norm(x, (x.shape[-1],), weight, bias, eps)" in made.reference
    described = tomllib.loads(made.description)
    assert described["name"] == described["function"] == "layernorm_gelu"
    assert described["dimensions"] == {"rows": 4096, "cols": 1024}
    assert described["inputs"] == {
        "x": "bf16[rows, cols]",
        "weight": "bf16[cols]",
        "bias": "bf16[cols]",
        "eps": 1e-5,
    }
    assert tuple(described["assumptions"]) == made.assumptions
    assert any("erf" in one for one in made.assumptions)
    assert any("1e-5" in one for one in made.assumptions)
    assert any("no dtype was said" in one for one in made.assumptions)


def test_shapes_given_win() -> None:
    made = read("softmax in f16 for 16x16", {"x": "2x3x64:f32"})
    described = tomllib.loads(made.description)
    assert described["dimensions"] == {"batch": 2, "rows": 3, "cols": 64}
    assert described["inputs"]["x"] == "f32[batch, rows, cols]"


def test_shapes_of_other_tensors_are_used() -> None:
    described = tomllib.loads(read("multiply by gate then add bias", {"gate": "8x96:f16"}).description)
    assert described["dimensions"] == {"rows": 8, "cols": 96}
    assert described["inputs"] == {"x": "f16[rows, cols]", "gate": "f16[rows, cols]", "bias": "f16[cols]"}
    described = tomllib.loads(read("add bias", {"x": "8x96:bf16", "bias": "96:f32"}).description)
    assert described["inputs"] == {"x": "bf16[rows, cols]", "bias": "f32[cols]"}
    described = tomllib.loads(read("add bias", {"bias": "512:f32"}).description)
    assert described["dimensions"] == {"rows": 4096, "cols": 512}


@pytest.mark.parametrize(
    ("words", "shapes", "said"),
    [
        ("add bias, relu", {"x": "16x64:f32", "bias": "63:f32"}, "shape of bias, 63: .* has the shape 64"),
        ("add bias, relu", {"x": "16x64:f32", "bias": "16x64:f32"}, "shape of bias, 16x64: .* has the shape 64"),
        ("silu(x) * gate", {"x": "16x64", "gate": "16x63"}, "shape of gate, 16x63: .* has the shape 16x64"),
        ("multiply by mask, add residual", {"mask": "4x4:bool", "residual": "4x5"}, "shape of residual, 4x5"),
        ("softmax in f16", {"x": "16x64"}, "means f32, and the words say f16; give a shape for x, such as 16x64:f16"),
        ("relu", {"x": "16x64:i32"}, "floating-point"),
        ("relu", {"x": "16x0:f32"}, "no size of 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(words: str, shapes: dict[str, str], said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        read(words, shapes)


def test_a_shape_that_is_none_is_said() -> None:
    with pytest.raises(NotUnderstood, match="shape of x, many: 'many' is not a shape"):
        read("softmax", {"x": "many"})


def test_two_norms_have_parameters_of_their_own() -> None:
    described = tomllib.loads(read("layernorm then rmsnorm then add bias", {}).description)
    assert list(described["inputs"]) == ["x", "weight", "bias", "weight_2", "bias_2", "eps", "eps_2"]


def test_a_root_of_x_draws_x_positive() -> None:
    assert tomllib.loads(read("sqrt", {}).description)["values"] == {"x": "uniform 0.1 4"}
    assert "values" not in tomllib.loads(read("square then sqrt", {}).description)


def _run(words: str, *arguments: Any) -> torch.Tensor:
    made = read(words, {})
    scope: dict[str, Any] = {}
    exec(made.reference, scope)
    result: torch.Tensor = scope[tomllib.loads(made.description)["function"]](*arguments)
    return result


def test_references_compute_what_was_said() -> None:
    x, gate, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    assert torch.equal(
        _run("rmsnorm then silu then multiply by gate", x, weight, gate),
        F.silu(F.rms_norm(x, (16,), weight, 1e-6)) * gate,
    )
    assert torch.equal(_run("clamp between -1 and 1, then mean", x), x.clamp(-1, 1).mean(-1))
    assert torch.equal(_run("tanh gelu then scale by 2 then add 1", x), F.gelu(x, approximate="tanh") * 2 + 1)
    assert torch.equal(_run("leaky relu 0.3 then log softmax", x), F.leaky_relu(x, 0.3).log_softmax(-1))
    assert torch.equal(_run("l2 normalise then negate", x), -F.normalize(x, dim=-1))
    assert torch.equal(_run("relu(x + bias)", x, weight), torch.relu(x + weight))
    assert torch.equal(_run("1 - silu(x) * gate", x, gate), -(F.silu(x) * gate) + 1)
    assert torch.equal(_run("x minus its mean, then gelu", x), F.gelu(x - x.mean(-1, keepdim=True)))
    assert torch.equal(_run("sqrt(mean(x**2))", x), x.square().mean(-1).sqrt())
    assert torch.equal(_run("rmsnorm without weight, eps 0.5", x), F.rms_norm(x, (16,), eps=0.5))
    assert torch.equal(_run("l2 norm of each row", x), x.norm(dim=-1))


@pytest.mark.parametrize(
    ("words", "dimensions"),
    [
        ("matmul 1024x512 by 512x2048", {"m": 1024, "k": 512, "n": 2048}),
        ("matmul of a 1024x512 and a 512x256 matrix", {"m": 1024, "k": 512, "n": 256}),
        ("multiply a 512x1024 matrix by a 1024x256 matrix", {"m": 512, "k": 1024, "n": 256}),
        ("matmul 2048x2048", {"m": 2048, "k": 2048, "n": 2048}),
        ("matmul 2048x2048x2048", {"m": 2048, "k": 2048, "n": 2048}),
        ("matmul m=1024 n=512 k=2048", {"m": 1024, "k": 2048, "n": 512}),
        ("linear layer 1024x512 by 512x2048", {"rows": 1024, "k": 512, "n": 2048}),
        ("linear from 512 to 2048", {"rows": 4096, "k": 512, "n": 2048}),
        ("batched matmul 64x128x128", {"batch": 64, "m": 128, "k": 128, "n": 128}),
        ("64 matrices of 128x128, batched matmul", {"batch": 64, "m": 128, "k": 128, "n": 128}),
        ("vector add of 1000000 elements", {"elements": 1000000}),
        ("prefix sum of an array of 1M elements", {"cols": 1 << 20}),
        ("softmax on a (4096, 1000) tensor", {"rows": 4096, "cols": 1000}),
        ("softmax over 4096 x 32000 logits", {"rows": 4096, "cols": 32000}),
        ("gelu on 4096 by 1024", {"rows": 4096, "cols": 1024}),
        ("max pooling 2x2 on 8x3x32x32", {"batch": 8, "channels": 3, "height": 32, "width": 32}),
        ("mean over dims 2 and 3", {"batch": 16, "channels": 64, "height": 128, "width": 128}),
        ("group_norm(4, 32)", {"batch": 16, "channels": 32, "height": 128, "width": 128}),
        ("bias * 2 + x * y", {"rows": 4096, "cols": 1024}),
        ("mean over dim 2", {"batch": 16, "rows": 4096, "cols": 1024}),
    ],
)
def test_sizes_are_taken_as_they_are_said(words: str, dimensions: dict[str, int]) -> None:
    assert tomllib.loads(read(words, {}).description)["dimensions"] == dimensions


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("matmul 1024x512x256", "several readings.*1024x512 by 512x256.*m=1024 n=512 k=256"),
        ("matmul 1024x512 by 256x128", "b does not go with the others"),
        ("softmax over dim 2 on 16x64", "over dim 2.*2 dimensions only"),
        ("softmax k=5", "k=5 is said, and the dimensions are rows, cols"),
        ("rotary embedding 2x4x8x7", "head_size is 7, and must be a multiple of 2"),
        ("transpose in place", "cannot be done in place"),
        ("top-k then relu", "several results"),
        ("sum of all elements then layernorm", "cannot follow the sum"),
        ("max pooling 2x2 then add residual", "depends on windows"),
        ("max pooling padding=same", "not understood what .same. means"),
        ("convolution 3x3 with padding -1", "padding of conv is at least 0, and -1 is said"),
        ("pixel shuffle 0", "cannot be a multiple of 0"),
        ("batched matmul of A (32,128,64) and B (32,256,64)", "b does not go with the others"),
        ("A @ B.T, A is (32,128,64), B is (32,256,64)", "takes m, k"),
    ],
)
def test_sizes_and_dimensions_that_do_not_fit_are_refused(words: str, said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        read(words, {})


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        ("attention", {"query": "2x4096x32x128:f16", "key": "2x4096x32x128:f16", "value": "2x4096x32x128:f16"}),
        ("causal attention of 2x4096x32x128", {}),
        ("rotary embedding, q 2x4096x32x128", {}),
    ],
)
def test_a_shape_with_more_heads_than_there_are_is_in_the_other_order(words: str, shapes: dict[str, str]) -> None:
    made = read(words, shapes)
    described = tomllib.loads(made.description)
    assert next(iter(described["inputs"].values())).endswith("[batch, sequence, heads, head_size]")
    assert described["dimensions"]["sequence"] == 4096
    assert any("[batch, sequence, heads, head" in one for one in made.assumptions)


def test_few_tokens_of_many_heads_are_so_where_the_words_say_the_order() -> None:
    described = tomllib.loads(read("attention, q (B, H, S, D) 2x512x32x128", {}).description)
    assert described["dimensions"]["heads"] == 512


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("conv2d 3x3 then softmax over the height dim", "torch.softmax(y, dim=2)"),
        ("conv2d 3x3 then sum over the filters dim", "y.sum(dim=1)"),
        ("conv3d 3x3x3 then sum over the depth dim", "y.sum(dim=2)"),
        ("sum over the width dim", "x.sum(dim=4)"),
    ],
)
def test_dimensions_of_images_have_names(words: str, code: str) -> None:
    shapes = {} if "conv" in words else {"x": "2x3x4x5x6:f32"}
    assert code in read(words, shapes).reference


@pytest.mark.parametrize("words", ["cumsum", "sum", "max of each row", "sort", "argsort"])
def test_integers_are_summed_compared_and_sorted(words: str) -> None:
    assert tomllib.loads(read(words, {"x": "8x64:i32"}).description)["inputs"]["x"] == "i32[rows, cols]"


@pytest.mark.parametrize("words", ["softmax", "add residual then rmsnorm", "sum then sqrt"])
def test_integers_are_not_read_where_the_result_is_none(words: str) -> None:
    with pytest.raises(NotUnderstood, match="floating-point"):
        read(words, {"x": "8x64:i32"})


def test_in_place_changes_the_first_tensor() -> None:
    made = read("in-place relu", {})
    assert "x.copy_(y)" in made.reference
    assert tomllib.loads(made.description)["inputs"] == {"x": "inplace bf16[rows, cols]"}


def test_a_result_is_not_called_as_an_input_is() -> None:
    assert "return z" in read("x + y", {}).reference


def test_a_cast_is_to_the_dtype_said_and_from_the_other() -> None:
    made = read("convert fp32 to bf16", {})
    assert "x.to(torch.bfloat16)" in made.reference
    assert tomllib.loads(made.description)["inputs"] == {"x": "f32[rows, cols]"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("a + b * c", "a + b * c"),
        ("(a + b) * c", "(a + b) * c"),
        ("a - (b - c)", "a - (b - c)"),
        ("-(x ** 2) + y", "-x ** 2 + y"),
        ("(-x) ** 2 + y", "(-x) ** 2 + y"),
        ("x / (1 + exp(-x))", "x / (1 + torch.exp(-x))"),
        ("x - mean(x)", "x - x.mean(dim=-1, keepdim=True)"),
        ("sum((x - y) ** 2, dim=0)", "((x - y) ** 2).sum(dim=0)"),
        ("relu(a @ b.T)", "torch.relu(a @ b.T)"),
        ("diag(a) @ b", "torch.diag(a) @ b"),
        ("a kernel that computes alpha * x + y", "alpha * x + y"),
    ],
)
def test_expressions_keep_their_meaning(words: str, code: str) -> None:
    assert f"= {code}\n" in read(words, {}).reference


@pytest.mark.parametrize(
    "words", ["row sums in fp16", "matmul in fp16 with fp32 accumulation", "sum of each row in half"]
)
def test_a_dtype_that_is_said_is_kept(words: str) -> None:
    assert '"f16[' in read(words, {}).description


def test_a_bias_is_left_out_where_only_the_weight_is_given() -> None:
    made = read("conv2d 3x3", {"x": "2x8x10x10", "weight": "5x8x3x3"})
    assert list(tomllib.loads(made.description)["inputs"]) == ["x", "weight"]
    assert any("no bias" in one for one in made.assumptions)


def test_a_residual_may_follow_windows_that_keep_the_sides() -> None:
    made = read("conv2d 3x3 padding 1 without bias then add residual", {})
    inputs = tomllib.loads(made.description)["inputs"]
    assert inputs["residual"] == "bf16[batch, filters, height, width]"
