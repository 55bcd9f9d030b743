"""Words to a specification."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.specification import parse_words, specification
from tilewright.records import DType
from tilewright.tasks.errors import Remedy, RemedyKind


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("LayerNorm then GELU", "layernorm gelu"),
        ("layernorm followed by tanh gelu", "layernorm gelu"),
        ("a fused kernel for layer norm, GELU, and then scale by 0.5", "layernorm gelu scale"),
        ("gelu of layernorm", "layernorm gelu"),
        ("rms norm over the last dimension, multiply by a gate, then silu", "rmsnorm gate silu"),
        ("add residual then rmsnorm", "residual rmsnorm"),
        ("x plus residual, layernorm", "residual layernorm"),
        ("RMSNorm plus residual", "rmsnorm residual"),
        ("softmax", "softmax"),
        ("row-wise softmax", "softmax"),
        ("log-softmax over each row", "log_softmax"),
        ("log softmax along the last axis", "log_softmax"),
        ("L2 normalise", "l2_normalize"),
        ("l2-normalize each row", "l2_normalize"),
        ("mean over the last dimension", "row_mean"),
        ("square, sum over the last dim, sqrt", "square row_sum sqrt"),
        ("maximum of each row", "row_max"),
        ("min over the last dimension", "row_min"),
        ("swish", "silu"),
        ("swiglu", "swiglu"),
        ("ReLU", "relu"),
        ("leaky relu 0.2", "leaky_relu"),
        ("LeakyReLU", "leaky_relu"),
        ("ELU with alpha 0.5", "elu"),
        ("add bias and relu", "bias relu"),
        ("softplus, mish, hardswish", "softplus mish hardswish"),
        ("exp then sqrt", "exp sqrt"),
        ("absolute value then log", "abs log"),
        ("clamp between -1 and 1", "clamp"),
        ("clamp(0, 6)", "clamp"),
        ("clip to 0 1 then square", "clamp square"),
        ("multiply by 3, add 1, divide by 2", "scale shift divide"),
        ("add bias then hard swish", "bias hardswish"),
        ("multiply by a mask tensor then softmax", "mask softmax"),
        ("layernorm without affine, multiply by a weight vector", "layernorm scale"),
        ("please compute the silu of x", "silu"),
        ("layernorm -> gelu", "layernorm gelu"),
        ("layernorm + residual", "layernorm residual"),
        ("layernorm without affine", "layernorm"),
        ("take x and apply gelu", "gelu"),
        ("write a fast gelu kernel", "gelu"),
        ("first layernorm, then gelu", "layernorm gelu"),
        ("apply gelu to the input tensor, then multiply it by 2", "gelu scale"),
        ("add bias before relu", "bias relu"),
        ("gelu after layernorm", "layernorm gelu"),
        ("after layernorm, apply gelu", "layernorm gelu"),
        ("before softmax, scale by 2", "scale softmax"),
        ("sum of squares", "square row_sum"),
        ("mean of squares over the last dimension", "square row_mean"),
        ("square root of the mean of squares", "square row_mean sqrt"),
        ("log of the sum of exp", "exp row_sum log"),
        ("x minus its mean", "center"),
        ("divide by the row maximum", "over_max"),
        ("exp, divided by its sum", "exp over_sum"),
        ("softmax over dim -1", "softmax"),
        ("over the last axis, softmax", "softmax"),
        ("silu times gate plus residual", "silu gate residual"),
        ("log sigmoid", "log_sigmoid"),
        ("l2 norm of each row", "row_norm"),
    ],
)
def test_words_become_steps(words: str, steps: str) -> None:
    assert [one.operation.name for one in parse_words(words).clauses] == steps.split()


@pytest.mark.parametrize(
    ("words", "dtype", "sizes"),
    [
        ("softmax in f16", DType.F16, ()),
        ("layernorm then gelu in bf16 for 8192x4096", DType.BF16, (8192, 4096)),
        ("silu on [16, 32, 64] in float32", DType.F32, (16, 32, 64)),
        ("fp32 rmsnorm, 512 by 128", DType.F32, (512, 128)),
    ],
)
def test_dtype_and_sizes_may_be_said(words: str, dtype: DType, sizes: tuple[int, ...]) -> None:
    request = parse_words(words)
    assert (request.dtype, request.sizes) == (dtype, (sizes,) if sizes else ())


def test_numbers_are_taken_where_they_are_said() -> None:
    assert parse_words("clamp between -1 and 2.5").clauses[0].numbers == ("-1.0", "2.5")
    assert parse_words("leaky relu 0.2").clauses[0].numbers == ("0.2",)
    assert parse_words("leaky relu").clauses[0].numbers == ("0.01",)
    assert parse_words("elu alpha 2").clauses[0].numbers == ("2.0",)


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("relu(x + bias)", "bias relu"),
        ("gelu(layernorm(x))", "layernorm gelu"),
        ("softmax(x * 0.125)", "scale softmax"),
        ("silu(x) * gate", "silu gate"),
        ("bias + gelu(x)", "gelu bias"),
        ("relu(x-1)", "shift relu"),
        ("1 - x", "neg shift"),
        ("exp(-x)", "neg exp"),
        ("2 * (x + bias)", "bias scale"),
        ("mean(x**2)", "square row_mean"),
        ("relu(x + bias), then softmax", "bias relu softmax"),
        ("relu(x * gate + residual)", "gate residual relu"),
        ("y = F.gelu(x, approximate='tanh')", "gelu"),
        ("torch.softmax(x, dim=-1)", "softmax"),
        ("softmax(x, -1)", "softmax"),
        ("leaky_relu(x, 0.2)", "leaky_relu"),
        ("clamp(x, 0, 6)", "clamp"),
        ("layernorm(x, weight, bias)", "layernorm"),
        ("rmsnorm(x, weight, eps=1e-3)", "rmsnorm"),
        ("softmax of (x * 0.5)", "scale softmax"),
        ("GELU (exact) after LayerNorm", "layernorm gelu"),
        ("swiglu(x, gate)", "swiglu"),
    ],
)
def test_brackets_are_read_inside_out(words: str, steps: str) -> None:
    assert [one.operation.name for one in parse_words(words).clauses] == steps.split()


@pytest.mark.parametrize(
    "words",
    [
        "relu of x plus bias",
        "relu x + bias",
        "log x plus 1",
        "gelu, of layernorm",
        "log x and bias",
        "x plus bias times gate",
        "bias + gelu",
        "relu + sigmoid",
        "relu(x) then x + bias",
        "relu(bias)",
        "relu(x, y)",
        "gelu (tanh)",
        "relu(gelu",
        "softmax(x * scale)",
        "mean absolute value",
        "neg log softmax",
        "masked softmax",
        "gated silu",
        "gelu with bias",
        "layernorm with bias",
        "layernorm(x) * weight + bias",
        "layernorm then add bias",
        "apply gelu to layernorm",
        "add bias to gelu",
        "softmax, gelu after scale by 2",
        "layernorm, first add bias",
        "sigmoid and tanh",
        "subtract the mean of squares",
        "silu minus mean",
        "sum over rows",
        "half the sum",
        "softmax in f16 of a bf16 input",
        "add x",
        "multiply by x",
        "relu or gelu",
        "softmax twice",
    ],
)
def test_what_could_be_misread_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        parse_words(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("layernorm then frobnicate", '"frobnicate"'),
        ("resize the image", "resampling"),
        ("gelu but sideways", '"but"'),
        ("softmax over the last two dimensions", '"over the last two dimensions"'),
        ("layernorm over dim 0", '"over dim 0"'),
    ],
)
def test_an_unknown_word_is_quoted(words: str, quoted: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        parse_words(words)
    message = str(caught.value)
    assert quoted in message
    assert "docs/playbook.md" in message
    assert caught.value.remedies == (Remedy(RemedyKind.WRITE_FUNCTION), Remedy(RemedyKind.CHOOSE_MODEL))
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(("word", "meant"), [("geluu", "gelu"), ("sofmax", "softmax"), ("layernrom", "layernorm")])
def test_a_word_near_a_known_one_is_suggested(word: str, meant: str) -> None:
    with pytest.raises(NotUnderstood, match=f'"{word}".* [(]did you mean {meant}[?][)]'):
        parse_words(f"{word} then relu")


def test_parameters_of_norms_may_be_said() -> None:
    def inputs(words: str) -> dict[str, Any]:
        found: dict[str, Any] = tomllib.loads(specification(words, {}).description)["inputs"]
        return found

    assert inputs("rmsnorm with eps 1e-3")["eps"] == 1e-3
    assert list(inputs("RMS norm without weight")) == ["x", "eps"]
    assert list(inputs("layernorm with weight and bias, eps 1e-6")) == ["x", "weight", "bias", "eps"]
    assert inputs("layernorm without affine with eps of 0.5") == {"x": "bf16[rows, cols]", "eps": 0.5}


def test_nothing_is_no_request() -> None:
    with pytest.raises(NotUnderstood, match="no operation"):
        parse_words("please make me a kernel")


def test_a_row_cannot_be_normalised_after_it_was_reduced() -> None:
    with pytest.raises(NotUnderstood, match='"LayerNorm" cannot follow "the mean"'):
        specification("mean then layernorm", {})


def test_the_specification_is_a_reference_and_a_description() -> None:
    made = specification("LayerNorm then GELU", {})
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
    made = specification("softmax in f16 for 16x16", {"x": "2x3x64:f32"})
    described = tomllib.loads(made.description)
    assert described["dimensions"] == {"batch": 2, "rows": 3, "cols": 64}
    assert described["inputs"]["x"] == "f32[batch, rows, cols]"


def test_shapes_of_other_tensors_are_used() -> None:
    described = tomllib.loads(specification("multiply by gate then add bias", {"gate": "8x96:f16"}).description)
    assert described["dimensions"] == {"rows": 8, "cols": 96}
    assert described["inputs"] == {"x": "f16[rows, cols]", "gate": "f16[rows, cols]", "bias": "f16[cols]"}
    described = tomllib.loads(specification("add bias", {"x": "8x96:bf16", "bias": "96:f32"}).description)
    assert described["inputs"] == {"x": "bf16[rows, cols]", "bias": "f32[cols]"}
    described = tomllib.loads(specification("add bias", {"bias": "512:f32"}).description)
    assert described["dimensions"] == {"rows": 4096, "cols": 512}


@pytest.mark.parametrize(
    ("words", "shapes", "said"),
    [
        ("add bias, relu", {"x": "16x64:f32", "bias": "63:f32"}, "shape of bias, 63: .* has the shape 64"),
        ("add bias, relu", {"x": "16x64:f32", "bias": "16x64:f32"}, "shape of bias, 16x64: .* has the shape 64"),
        ("silu(x) * gate", {"x": "16x64", "gate": "16x63"}, "shape of gate, 16x63: .* has the shape 16x64"),
        ("silu(x) * gate on 16x64", {"gate": "16x63"}, "shape of gate, 16x63: .* has the shape 16x64"),
        ("multiply by mask, add residual", {"mask": "4x4:bool", "residual": "4x5"}, "shape of residual, 4x5"),
        ("softmax in f16", {"x": "16x64"}, "means f32, and the words say f16; give a shape for x, such as 16x64:f16"),
        ("relu", {"x": "16x64:i32"}, "floating-point"),
        ("relu", {"x": "16x0:f32"}, "no size of 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(words: str, shapes: dict[str, str], said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        specification(words, shapes)


def test_a_shape_that_is_none_is_said() -> None:
    with pytest.raises(NotUnderstood, match="shape of x, many: 'many' is not a shape"):
        specification("softmax", {"x": "many"})


def test_two_norms_have_parameters_of_their_own() -> None:
    described = tomllib.loads(specification("layernorm then rmsnorm then add bias", {}).description)
    assert list(described["inputs"]) == ["x", "weight", "bias", "weight_2", "bias_2", "eps", "eps_2"]


def test_a_root_of_x_draws_x_positive() -> None:
    assert tomllib.loads(specification("sqrt", {}).description)["values"] == {"x": "uniform 0.1 4"}
    assert "values" not in tomllib.loads(specification("square then sqrt", {}).description)


def _run(words: str, *arguments: Any) -> torch.Tensor:
    made = specification(words, {})
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
    assert tomllib.loads(specification(words, {}).description)["dimensions"] == dimensions


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("matmul 1024x512x256", "several readings.*1024x512 by 512x256.*m=1024 n=512 k=256"),
        ("matmul 1024x512 by 256x128", "b goes with a, which is 1024x512, and so has the shape 512x128"),
        ("softmax over dim 2 on 16x64", "over dim 2.*2 dimensions only"),
        ("softmax k=5", "k=5 is said, and the dimensions are cols, rows"),
        ("max pooling 2x3", "equal sides"),
        ("max pooling 2x2 on 64x64", "takes batch, channels, height, width"),
        ("rotary embedding 2x4x8x7", "head_size is 7, and must be even"),
        ("transpose in place", "cannot be done in place"),
        ("top-k then relu", "several results"),
        ("sum of all elements then layernorm", "cannot follow"),
        ("max pooling 2x2 then add residual", "changes the shape"),
        ("layernorm and softmax over dim 0", "LayerNorm|softmax"),
    ],
)
def test_sizes_and_dimensions_that_do_not_fit_are_refused(words: str, said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        specification(words, {})


def test_in_place_changes_the_first_tensor() -> None:
    made = specification("in-place relu", {})
    assert "x.copy_(y)" in made.reference
    assert tomllib.loads(made.description)["inputs"] == {"x": "inplace bf16[rows, cols]"}


def test_a_result_is_not_called_as_an_input_is() -> None:
    assert "return z" in specification("x + y", {}).reference


def test_a_cast_is_to_the_dtype_said_and_from_the_other() -> None:
    made = specification("convert fp32 to bf16", {})
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
    assert f"= {code}\n" in specification(words, {}).reference
