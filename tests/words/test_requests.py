"""Everyday requests become references that compute what they say, or are refused with a sentence that helps."""

from __future__ import annotations

import inspect
import re
import time
import tomllib
from random import Random
from typing import Any

import pytest
import torch
from tests.words.asked import REFUSED, REQUESTS, Request

from tilewright.frontends.api.reporter import in_keywords, in_options
from tilewright.records import TensorSpec
from tilewright.words import NotUnderstood, read

_TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _drawn(spec: str, values: str, dimensions: dict[str, int], seed: int) -> torch.Tensor:
    """A tensor as the description says, its sizes by the dimensions' names."""
    dtype, _, inside = spec.rstrip("]").partition("[")
    shape = tuple(int(one) if one.isdigit() else dimensions[one] for one in inside.split(", ") if one)
    generator = torch.Generator().manual_seed(seed)
    if dtype == "i64":
        return torch.randint(0, dimensions[values.removeprefix("index ")], shape, generator=generator)
    if dtype == "i8":
        return torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
    drawn = torch.randn(shape, generator=generator)
    return (drawn.abs() + 0.1 if values.startswith("uniform") else drawn).to(_TORCH[dtype])


def sizes_of(described: dict[str, Any]) -> dict[str, int]:
    return {name: one["size"] if isinstance(one, dict) else one for name, one in described["dimensions"].items()}


def drawn(described: dict[str, Any]) -> dict[str, Any]:
    """The inputs that a description says, with their numbers."""
    values = described.get("values", {})
    sizes = sizes_of(described)
    return {
        name: _drawn(one, values.get(name, ""), sizes, place) if isinstance(one, str) else one
        for place, (name, one) in enumerate(described["inputs"].items())
    }


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.words)
def test_the_reference_computes_what_was_asked_for(request_: Request) -> None:
    made = read(request_.words, request_.shapes)
    described = tomllib.loads(made.description)
    inputs = drawn(described)
    assert list(inspect.signature(request_.means).parameters) == list(inputs)  # in the order in which they were said
    scope: dict[str, Any] = {}
    exec(made.reference, scope)
    got = scope[described["function"]](**inputs)
    expected = request_.means(*inputs.values())
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.words)
def test_sizes_that_nobody_gave_are_sensible(request_: Request) -> None:
    described = tomllib.loads(read(request_.words, {}).description)
    sizes = sizes_of(described)
    tensors = [one for one in described["inputs"].values() if isinstance(one, str)]
    assert tensors
    for one in tensors:
        inside = one.rstrip("]").partition("[")[2]
        count = 1
        for name in filter(None, inside.split(", ")):
            count *= int(name) if name.isdigit() else sizes[name]
        assert count <= 1 << 27, one
    assert max(TensorSpec.parse("x".join(map(str, sizes.values()))).shape) >= 1024 or len(sizes) > 3


@pytest.mark.parametrize("words", REFUSED)
def test_what_could_be_misread_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read(words, {})
    said = in_options(caught.value)
    assert "\n" not in said
    assert "--" not in in_keywords(caught.value)


def test_any_words_are_read_or_refused() -> None:
    """Words of requests in any order, and what formulas are made of: a reference that compiles, or one sentence."""
    marks = [
        "(",
        ")",
        "+",
        "@",
        "^",
        "x",
        "b.T",
        "dim=",
        "2x2",
        "[3, 4]",
        "1e400",
        "§0",
        "¤",
        "{",
        "per row",
        "in place",
    ]
    words = [*marks * 4, *(word for one in REQUESTS for word in one.words.split())]
    random, refused = Random(1), []
    for _ in range(400):
        text = random.choice((" ", " ", "")).join(random.choices(words, k=random.randint(1, 7)))
        try:
            made = read(text, {})
        except NotUnderstood as problem:
            refused.append(str(problem))
            continue
        compile(made.reference, text, "exec")
        tomllib.loads(made.description)
    assert 200 < len(refused) < 400
    assert not any("\n" in one for one in refused)


@pytest.mark.parametrize("words", ["conv batch norm relu ", "with and of the 32 ", "mean and ", "matmul a transposed "])
def test_long_requests_are_answered_at_once(words: str) -> None:
    started = time.monotonic()
    with pytest.raises(NotUnderstood):
        read(words * 50, {})
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("more", ["37", "-37", "0.37", "37x41", "sideways", "q"])
def test_nothing_that_is_said_is_dropped(more: str) -> None:
    """A number, a size or a word put anywhere into a request is found again in what is made of it, or is refused."""
    random, refused = Random(more), 0
    for _ in range(60):
        words = random.choice(REQUESTS).words.split()
        words.insert(random.randint(0, len(words)), more)
        try:
            made = read(" ".join(words), {})
        except NotUnderstood:
            refused += 1
            continue
        written = f"{made.reference}{made.description}"
        for one in more.lstrip("-").split("x"):
            assert re.search(rf"(?<![\w.]){re.escape(one)}(?!\w)", written), " ".join(words)
    assert refused > 10


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("softmax of a vector of 50,000", {"cols": 50000}),
        ("softmax of 1,024 x 32,768", {"rows": 1024, "cols": 32768}),
        ("softmax of a 50,000x128 matrix", {"rows": 50000, "cols": 128}),
        ("log softmax of 32x50,257", {"rows": 32, "cols": 50257}),
        ("softmax with 32,768 columns", {"rows": 4096, "cols": 32768}),
        ("layernorm over 4,096 features then gelu", {"rows": 4096, "cols": 4096}),
        ("relu of 1,048,576 elements", {"cols": 1 << 20}),
        ("lower triangular matrix multiplication of 1,024 by 1,024", {"n": 1024}),
        ("conv2d 16 to 32 channels, 3x3", {"channels": 16, "filters": 32}),
        ("conv2d in_channels=3, out_channels=64, kernel_size=7, stride=2", {"channels": 3, "filters": 64}),
        ("conv2d with 24 input channels and 48 output channels, kernel size 3", {"channels": 24, "filters": 48}),
        ("depthwise convolution 3x3 with 96 channels", {"channels": 96}),
        ("nn.Conv2d(16, 32, 3) then relu", {"channels": 16, "filters": 32}),
        ("nn.Linear(1024, 4096) then relu", {"k": 1024, "n": 4096}),
        ("linear layer with 1024 inputs and 512 outputs then gelu", {"k": 1024, "n": 512}),
        ("fully connected layer 1024 -> 512 with relu", {"k": 1024, "n": 512}),
        ("dot product of two vectors of length 1 million", {"elements": 1000000}),
        ("residual add and rmsnorm, hidden size 512", {"cols": 512}),
        ("softmax batch 32 dim 4096", {"rows": 32, "cols": 4096}),
        ("softmax with batch size 64 and hidden dim 8192", {"rows": 64, "cols": 8192}),
        ("softmax over 1000 classes", {"rows": 4096, "cols": 1000}),
        ("layer normalization over last dim 768 with batch 32", {"rows": 32, "cols": 768}),
        ("rmsnorm, batch 8, sequence length 512, hidden 768", {"batch": 8, "rows": 512, "cols": 768}),
        ("nn.LayerNorm(768, eps=1e-6)", {"rows": 4096, "cols": 768}),
        ("layernorm with weight and bias of size 512", {"rows": 4096, "cols": 512}),
        ("layernorm over the hidden dimension, hidden size 768", {"rows": 4096, "cols": 768}),
        ("nn.Embedding(1000, 64)", {"vocabulary": 1000, "features": 64}),
        ("cross entropy batch 128 classes 1000", {"rows": 128, "classes": 1000}),
        ("linear 1024 to 4096 batch 64 with gelu", {"rows": 64, "k": 1024, "n": 4096}),
        ("linear in_features=128 out_features=10", {"k": 128, "n": 10}),
        ("dense layer, 512 units", {"n": 512}),
        ("upper triangular matmul 4096", {"n": 4096}),
        ("matrix multiplication of 2048 in fp16", {"m": 2048, "k": 2048, "n": 2048}),
        ("multiply two square matrices of size 512", {"m": 512, "k": 512, "n": 512}),
        ("matmul with transposed a 512x256 by 512x128", {"k": 512, "m": 256, "n": 128}),
        ("outer product of vectors of size 512", {"m": 512, "n": 512}),
        ("batched matmul batch 16 512x256 by 256x128", {"batch": 16, "m": 512, "k": 256, "n": 128}),
        ("bmm, batch size 8, 256x256", {"batch": 8, "m": 256, "k": 256, "n": 256}),
        ("conv2d channels 3 filters 64 3x3", {"channels": 3, "filters": 64}),
        ("conv2d batch 8 in channels 3 out channels 16, kernel 5", {"batch": 8, "channels": 3, "filters": 16}),
        ("conv2d 24 in channels 48 out channels", {"channels": 24, "filters": 48}),
        ("conv 1x1, 256 -> 64", {"channels": 256, "filters": 64}),
        ("conv2d on 8x3x32x32 with 16 filters of size 5x5, stride 2", {"batch": 8, "channels": 3, "filters": 16}),
        ("attention, 100 queries and 200 keys", {"sequence": 100, "keys": 200}),
        ("conv1d with 64 filters of size 5", {"channels": 64, "filters": 64, "length": 4096}),
        ("1d convolution of length 16000 with kernel 25", {"length": 16000}),
        ("groupnorm 32 groups 256 channels 64x48 images", {"channels": 256, "height": 64, "width": 48}),
        ("attention with 12 heads of size 64", {"heads": 12, "head_size": 64}),
        ("causal attention with 4 heads of 64", {"heads": 4, "head_size": 64}),
        ("attention with 8 heads of 64 seq 512", {"heads": 8, "head_size": 64, "sequence": 512, "keys": 512}),
        ("attention, 8 heads of 64 and 512 tokens", {"heads": 8, "head_size": 64, "sequence": 512}),
        ("causal attention, 8 heads, head dim 64, 512 tokens", {"heads": 8, "sequence": 512, "keys": 512}),
        ("upper triangular matrix times a dense matrix of size 512", {"m": 512, "n": 512}),
        ("lower triangular matrix times a dense matrix 512x512 by 512x64", {"m": 512, "n": 64}),
        ("cross entropy for 64 tokens and 500 vocab", {"rows": 64, "classes": 500}),
        ("top 5 of 50257 logits", {"rows": 4096, "cols": 50257}),
        ("conv2d batch 32 channels 3 5x5", {"batch": 32, "channels": 3, "filters": 128}),
        ("conv2d 3x3 batch 8, 16 channels, 56x56", {"batch": 8, "channels": 16, "height": 56, "width": 56}),
        ("3x3 conv2d of 8x16x32x40", {"batch": 8, "channels": 16, "height": 32, "width": 40}),
        ("conv2d 7x7 stride 2 on 3x224x200 images", {"batch": 16, "channels": 3, "height": 224, "width": 200}),
        ("max pool 2d kernel 3 batch 8 channels 5 stride 2", {"batch": 8, "channels": 5, "height": 128}),
        ("flash attention batch 4 heads 8 seq 512 head dim 64", {"batch": 4, "heads": 8, "keys": 512, "head_size": 64}),
        ("gqa with 32 heads and 8 kv heads", {"heads": 32, "kv_heads": 8}),
        ("decode attention with kv cache 512", {"cached": 512}),
        ("rotary embedding for seq 512 head dim 64", {"sequence": 512, "head_size": 64}),
        ("embedding lookup from a 500x768 table for 64 tokens", {"vocabulary": 500, "features": 768, "tokens": 64}),
        ("sum of a vector of 10 million floats", {"cols": 10_000_000}),
        ("causal attention for 2x8x1024x64", {"sequence": 1024, "keys": 1024}),
        ("attention with batch size 4, 8 heads, head dim 64", {"batch": 4, "heads": 8, "head_size": 64}),
        ("batchnorm + relu for 32x64x56x48 images", {"batch": 32, "channels": 64, "height": 56, "width": 48}),
        ("batchnorm + relu for NxCxHxW images", {"batch": 16, "channels": 64}),
        ("conv2d 3x3 then group norm with 4 groups", {"channels": 64}),
        ("embedding lookup with vocab size 50,000 and dim 768", {"vocabulary": 50000, "features": 768}),
    ],
)
def test_sizes_as_people_write_them(words: str, sizes: dict[str, int]) -> None:
    described = tomllib.loads(read(words, {}).description)
    assert sizes.items() <= sizes_of(described).items()


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_matrices_that_are_said_to_be_triangular_are_drawn_so(side: str) -> None:
    described = tomllib.loads(read(f"product of two {side} triangular matrices", {}).description)
    assert described["values"] == {"a": f"normal {side}", "b": f"normal {side}"}


def test_a_triangular_matrix_beside_a_dense_one_is_drawn_so() -> None:
    described = tomllib.loads(read("lower triangular matrix times a dense matrix", {}).description)
    assert described["values"] == {"a": "normal lower"}


def test_a_residual_is_said_to_be_like_what_it_is_added_to() -> None:
    made = read("matmul then add residual", {})
    assert "the residual is a tensor of its own that has the shape of what it is added to" in made.assumptions


@pytest.mark.parametrize(
    ("words", "assumed"),
    [
        ("softmax(q @ k.T / sqrt(d))", "d is q.shape[-1], which the product sums over"),
        ("sum(x) / n", "n is the number of elements of each row, along the last dimension"),
        ("softmax(x / t)", "t is a number, 0.7 where none is given"),
        ("x @ W + scale * (x @ A) @ B", "scale is a number, 0.125 where none is given"),
        ("x * w + b", "w is a vector with one element per column"),
        ("x @ W + b", "b is a vector with one element per column"),
        ("x / norm(x)", "the L2 norm in the formula is that of each row, along the last dimension"),
        ("(x - mean(x)) / std(x)", "divided by the count less 1"),
    ],
)
def test_what_names_of_a_formula_are_taken_for_is_said(words: str, assumed: str) -> None:
    assert any(assumed in one for one in read(words, {}).assumptions)


def test_a_shape_with_a_dimension_of_one_more_is_no_traceback() -> None:
    with pytest.raises(NotUnderstood):
        read(
            "x is (B, 2C, T), GLU over the channel dim, then depthwise conv1d with kernel 15, weight (C,1,15), swish",
            {},
        )


def test_a_shape_of_no_tensor_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="the task has no such tensor"):
        read("x @ W + b", {"x": "64x32", "W": "32x16", "b": "16", "gate": "64x32"})


def test_floats_are_f32() -> None:
    assert 'x = "f32[elements]"' in read("vector addition of 1 million floats", {}).description
