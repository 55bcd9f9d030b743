"""Words to a specification."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.playbook.problems import NotUnderstood
from tilewright.playbook.words import parse_words, specification
from tilewright.records import DType


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
        ("log-softmax over rows", "log_softmax"),
        ("log softmax along the last axis", "log_softmax"),
        ("L2 normalise", "l2_normalize"),
        ("l2-normalize each row", "l2_normalize"),
        ("mean over the last dimension", "row_mean"),
        ("square, sum over the last dim, sqrt", "square row_sum sqrt"),
        ("maximum of each row", "row_max"),
        ("min over the last dimension", "row_min"),
        ("swish", "silu"),
        ("swiglu", "silu gate"),
        ("ReLU", "relu"),
        ("leaky relu 0.2", "leaky_relu"),
        ("LeakyReLU", "leaky_relu"),
        ("ELU with alpha 0.5", "elu"),
        ("sigmoid and tanh", "sigmoid tanh"),
        ("softplus, mish, hardswish", "softplus mish hardswish"),
        ("exp then sqrt", "exp sqrt"),
        ("absolute value then log", "abs log"),
        ("clamp between -1 and 1", "clamp"),
        ("clamp(0, 6)", "clamp"),
        ("clip to 0 1 then square", "clamp square"),
        ("multiply by 3, add 1, divide by 2", "scale shift divide"),
        ("add bias then hard swish", "bias hardswish"),
        ("multiply by a mask tensor then softmax", "mask softmax"),
        ("layernorm, multiply by a weight vector", "layernorm scale"),
        ("please compute the silu of x", "silu"),
        ("layernorm -> gelu", "layernorm gelu"),
        ("layernorm + residual", "layernorm residual"),
        ("layernorm without affine", "layernorm"),
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
    assert (request.dtype, request.sizes) == (dtype, sizes)


def test_numbers_are_taken_where_they_are_said() -> None:
    assert parse_words("clamp between -1 and 2.5").clauses[0].numbers == ("-1.0", "2.5")
    assert parse_words("leaky relu 0.2").clauses[0].numbers == ("0.2",)
    assert parse_words("leaky relu").clauses[0].numbers == ("0.01",)
    assert parse_words("elu alpha 2").clauses[0].numbers == ("2.0",)


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("matmul then gelu", '"matmul"'),
        ("layernorm then frobnicate", '"frobnicate"'),
        ("convolve the image", '"convolve"'),
        ("gelu but sideways", '"but"'),
    ],
)
def test_an_unknown_word_is_quoted(words: str, quoted: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        parse_words(words)
    message = str(caught.value)
    assert quoted in message
    assert "layernorm" in message
    assert "--model" in message
    assert "\n" not in message


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


def test_a_shape_that_is_none_is_said() -> None:
    with pytest.raises(NotUnderstood, match="--shape x: 'many' is not a shape"):
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
