"""What people type, and what it means, said independently in PyTorch; and what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """`means` takes the inputs by name; `shapes` are small ones, for the tests to run it at."""

    words: str
    means: Callable[..., Tensor | tuple[Tensor, ...]]
    shapes: dict[str, str]


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale).to(torch.int8), scale


def _group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, groups, weight, bias, 1e-3)


def _rows(**more: str) -> dict[str, str]:
    return {"x": "6x40:f32", **more}


def _image(size: int = 10, channels: int = 8) -> dict[str, str]:
    return {"x": f"2x{channels}x{size}x{size}:f32"}


def _convolved(window: str, **more: str) -> dict[str, str]:
    return {**_image(), "weight": f"5x8x{window}:f32", **more}


_PAIR = {"a": "9x24:f32", "b": "24x17:f32"}
_TRANSPOSED = {"a": "9x24:f32", "b": "17x24:f32"}
_LOSS = {"prediction": "6x40:f32"}

REQUESTS: tuple[Request, ...] = (
    # two operands
    Request("vector add", lambda x, y: x + y, {"x": "100:f32"}),
    Request("add two arrays", lambda x, y: x + y, {"x": "100:f32"}),
    Request("x + y", lambda x, y: x + y, _rows()),
    Request("add two vectors of 1000000 elements in float32", lambda x, y: x + y, {"x": "100:f32"}),
    Request("elementwise multiply of two tensors", lambda x, y: x * y, _rows()),
    Request("x * y + z", lambda x, y, z: x * y + z, _rows()),
    Request("saxpy", lambda x, y, alpha: alpha * x + y, {"x": "100:f32"}),
    Request("x * sigmoid(x)", lambda x: x * torch.sigmoid(x), _rows()),
    Request("relu(x) + y", lambda x, y: torch.relu(x) + y, _rows()),
    Request("x + y * z / w - 3", lambda x, y, z, w: x + y * z / w - 3, _rows()),
    Request("transpose the last two dimensions", lambda x: x.mT.contiguous(), _rows()),
    Request("scaled softmax with scale 0.125", lambda x: torch.softmax(x * 0.125, -1), _rows()),
    Request("matrix multiplication A (1024 x 24) times B (24 x 17)", lambda a, b: a @ b, {}),
    Request("dequantize int8", lambda x, scale: x.float() * scale[:, None], {"x": "6x40:i8"}),
    Request("elementwise maximum of two tensors", lambda x, y: torch.maximum(x, y), _rows()),
    Request("cosine similarity between rows", lambda x, y: F.cosine_similarity(x, y, -1), _rows()),
    Request("swish gated linear unit", lambda x, gate: F.silu(x) * gate, _rows()),
    Request("sum reduction of a large array", lambda x: x.sum(), _rows()),
    Request("upper triangular matmul", lambda a, b: torch.triu(a @ b), {"a": "9x9:f32", "b": "9x9:f32"}),
    Request("product of two lower-triangular matrices", lambda a, b: torch.tril(a @ b), {"a": "9x9:f32"}),
    Request("y + x @ w", lambda y, x, w: y + x @ w, {"y": "9x17:f32", "x": "9x24:f32", "w": "24x17:f32"}),
    Request("gate * x + y", lambda gate, x, y: gate * x + y, {"gate": "6x40:f32"}),
    Request("bias + x * y", lambda x, bias, y: bias + x * y, _rows()),
    Request("max(a, b)", lambda a, b: torch.maximum(a, b), {"a": "6x40:f32"}),
    Request("min(a, 1)", lambda a: a.clamp_max(1), {"a": "6x40:f32"}),
    Request("add a and b", lambda a, b: a + b, {"a": "6x40:f32"}),
    Request("subtract y from x", lambda x, y: x - y, _rows()),
    Request("divide x by y", lambda x, y: x / y, _rows()),
    Request("exclusive_cumsum(x + y) * y", lambda x, y: ((x + y).cumsum(-1) - x - y) * y, _rows()),
    Request("neg(x + y) ** 2", lambda x, y: (x + y).square(), _rows()),
    Request("dot product of two vectors", lambda x, y: x @ y, {"x": "100:f32"}),
    Request("cosine similarity", lambda x, y: F.cosine_similarity(x, y), _rows()),
    Request(
        "cosine similarity between matching rows of a and b",
        lambda a, b: F.cosine_similarity(a, b, -1),
        {"a": "6x40:f32", "b": "6x40:f32"},
    ),
    Request("dot product of a and b", lambda a, b: a @ b, {"a": "100:f32"}),
    Request("difference between a and b", lambda a, b: a - b, {"a": "6x40:f32"}),
    Request(
        "row-wise l2 norm of the difference between a and b",
        lambda a, b: (a - b).square().sum(-1).sqrt(),
        {"a": "6x40:f32"},
    ),
    Request("A^T A", lambda A: A.T @ A, {"A": "9x24:f32"}),
    Request("A B^T in f32", lambda A, B: A @ B.T, {"A": "9x24:f32", "B": "17x24:f32"}),
    Request("gram matrix of the rows of x", lambda x: x @ x.T, {"x": "9x24:f32"}),
    Request(
        *("lower triangular matrix times a dense matrix", lambda a, b: a @ b, {"a": "9x9:f32", "b": "9x17:f32"}),
    ),
    Request("multiply an upper triangular matrix by a dense matrix", lambda a, b: a @ b, {"a": "9x9:f32"}),
    Request("concatenate two tensors along dim 1", lambda x, y: torch.cat((x, y), 1), _rows()),
    # elements
    Request("fused bias gelu", lambda x, bias: F.gelu(x + bias), _rows()),
    Request("leaky ReLU with slope 0.2 in half precision", lambda x: F.leaky_relu(x, 0.2), {"x": "6x40:f16"}),
    Request("clip to [0, 1]", lambda x: x.clamp(0, 1), _rows()),
    Request("clip to 0..1", lambda x: x.clamp(0, 1), _rows()),
    Request("clip to -1..1", lambda x: x.clamp(-1, 1), _rows()),
    Request("clamp to 0-1", lambda x: x.clamp(0, 1), _rows()),
    Request("leaky relu with slope 1/10", lambda x: F.leaky_relu(x, 0.1), _rows()),
    Request("elu -2/3", lambda x: F.elu(x, -2 / 3), _rows()),
    Request("scale by 1/8, add 1/2", lambda x: x / 8 + 0.5, _rows()),
    Request("clamp(x, -1, 1)", lambda x: x.clamp(-1, 1), _rows()),
    Request("x * weight", lambda x, weight: x * weight, _rows()),
    Request("swish activation for a (4096, 1024) tensor", lambda x: x * torch.sigmoid(x), _rows()),
    Request("SwiGLU", lambda x, gate: F.silu(x) * gate, _rows()),
    Request("convert fp32 to half", lambda x: x.half(), _rows()),
    Request("squared ReLU", lambda x: torch.relu(x) ** 2, _rows()),
    Request("max(x, 0)", lambda x: x.clamp_min(0), _rows()),
    Request("multiply a tensor by a scalar", lambda x, alpha: x * alpha, _rows()),
    Request("where(x > 0, x, 0.1 * x)", lambda x: F.leaky_relu(x, 0.1), _rows()),
    Request("exp(-x^2/(2*s^2))", lambda x, s: torch.exp(-(x**2) / (2 * s * s)), _rows()),
    Request("x / sqrt(n)", lambda x: x / 40**0.5, _rows()),
    Request("x * w + b", lambda x, w, b: x * w + b, _rows(w="40:f32", b="40:f32")),
    Request("relu(x + b)", lambda x, b: torch.relu(x + b), _rows(b="40:f32")),
    Request("(x ** 2) ** 3 + y", lambda x, y: x**6 + y, {"x": "2x2:f32"}),
    Request(
        "0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))", lambda x: F.gelu(x, approximate="tanh"), _rows()
    ),
    Request("2x + 1", lambda x: 2 * x + 1, _rows()),
    Request("3x² - 2x + 1", lambda x: 3 * x * x - 2 * x + 1, _rows()),
    Request("x³", lambda x: x * x * x, _rows()),
    Request("|x - y|", lambda x, y: (x - y).abs(), _rows()),
    Request("scale x by 1/sqrt(64)", lambda x: x / 8, _rows()),
    Request("silu_and_mul", lambda x: F.silu(x[:, :20]) * x[:, 20:], _rows()),
    # norms and softmax
    Request("please, could you write a softmax kernel? Thanks!", lambda x: x.softmax(-1), _rows()),
    Request("softmax(x / t)", lambda x, t: (x / t).softmax(-1), _rows()),
    Request("e^x / sum(e^(x))", lambda x: x.softmax(-1), _rows()),
    Request("exp(x / T)", lambda x, T: (x / T).exp(), _rows()),
    Request("softmax(x / sqrt(t))", lambda x, t: (x / t**0.5).softmax(-1), _rows()),
    Request("softmax(x / temperature)", lambda x, temperature: (x / temperature).softmax(-1), _rows()),
    Request("x / norm(x)", lambda x: x / x.norm(dim=-1, keepdim=True), _rows()),
    Request(
        "x * rsqrt(mean(x**2) + 1e-6) * w", lambda x, w: F.rms_norm(x, (40,), w, 1e-6), {"x": "6x40:f32", "w": "40:f32"}
    ),
    Request(
        "x / sqrt(mean(x^2) + eps) * g",
        lambda x, g, eps: F.rms_norm(x, (40,), g, eps),
        {"x": "6x40:f32", "g": "40:f32"},
    ),
    Request(
        "(x - mean(x)) / sqrt(var(x) + eps) * gamma + beta",
        lambda x, gamma, beta, eps: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + eps).sqrt() * gamma + beta,
        _rows(),
    ),
    Request("softmax with temperature 1/8", lambda x, temperature: (x * 8).softmax(-1), _rows()),
    Request("softmax(x, 0)", lambda x: x.softmax(0), _rows()),
    Request(
        "layernorm with eps 1/1000",
        lambda x, weight, bias, eps: F.layer_norm(x, (40,), weight, bias, 1e-3),
        _rows(),
    ),
    Request("layer norm without bias", lambda x, weight, eps: F.layer_norm(x, (40,), weight, None, eps), _rows()),
    Request(
        *("layernorm then gelu", lambda x, weight, bias, eps: F.gelu(F.layer_norm(x, (40,), weight, bias, eps))),
        _rows(),
    ),
    Request(
        "fused residual add + RMSNorm",
        lambda x, residual, weight, eps: F.rms_norm(x + residual, (40,), weight, eps),
        _rows(),
    ),
    Request(
        "RMSNorm over dim 1",
        lambda x, eps: x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + eps),
        {"x": "3x8x5x5:f32"},
    ),
    Request("group norm + SiLU", lambda x, weight, bias, eps: F.silu(F.group_norm(x, 8, weight, bias, eps)), _image()),
    Request(
        "batch norm inference",
        lambda x, running_mean, running_var, weight, bias, eps: (
            (x - running_mean[:, None, None]) / torch.sqrt(running_var[:, None, None] + eps) * weight[:, None, None]
            + bias[:, None, None]
        ),
        _image(),
    ),
    Request("instance norm", lambda x, eps: F.instance_norm(x, eps=eps), _image()),
    Request("L2 normalise rows", lambda x: x / x.norm(dim=1, keepdim=True), _rows()),
    Request("standardise each row", lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), _rows()),
    Request(
        "min-max normalise each row",
        lambda x: (x - x.amin(1, True)) / (x.amax(1, True) - x.amin(1, True)),
        _rows(),
    ),
    Request(
        "min-max normalise each column to [0, 1]",
        lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)),
        _rows(),
    ),
    Request("softmax per column", lambda x: x.softmax(0), _rows()),
    Request("softmax", lambda x: x.softmax(-1), _rows()),
    Request("softmax with temperature", lambda x, temperature: (x / temperature).softmax(-1), _rows()),
    Request("log softmax over dim 1", lambda x: x.log_softmax(1), _rows()),
    Request("softmax over the channels", lambda x: x.softmax(1), _image()),
    # reductions and scans
    Request("sum(x) / n", lambda x: x.mean(-1), _rows()),
    Request("x.sum() / n", lambda x: x.mean(), _rows()),
    Request("sum((x - y)**2) / n over dim 0", lambda x, y: (x - y).square().mean(0), _rows()),
    Request("x.sum()", lambda x: x.sum(), _rows()),
    Request("x / x.sum()", lambda x: x / x.sum(), {"x": "4x5:f32"}),
    Request("x.abs().mean()", lambda x: x.abs().mean(), _rows()),
    Request("torch.mean(torch.abs(x - y))", lambda x, y: (x - y).abs().mean(), _rows()),
    Request("(x - y).pow(2).sum(dim=0)", lambda x, y: (x - y).square().sum(0), _rows()),
    Request("max(x) - min(x)", lambda x: x.amax(-1) - x.amin(-1), _rows()),
    Request("sum(x, 0)", lambda x: x.sum(0), _rows()),
    Request("mean(x, (0, 1))", lambda x: x.mean(), _rows()),
    Request("mean over dims 0, 1", lambda x: x.mean((0, 1)), {"x": "3x7x5:f32"}),
    Request("topk(x, 3)", lambda x: tuple(x.topk(3)), _rows()),
    Request("sum of all elements", lambda x: x.sum(), _rows()),
    Request("mean over dim 1", lambda x: x.mean(1), {"x": "3x7x5:f32"}),
    Request("sum over dims 1 and 2", lambda x: x.sum((1, 2)), {"x": "3x7x5:f32"}),
    Request("max of each column", lambda x: x.amax(0), _rows()),
    Request("max over the first dimension", lambda x: x.amax(0), _rows()),
    Request("argmax over the last axis", lambda x: x.argmax(-1), _rows()),
    Request("standard deviation of each row", lambda x: x.std(-1), _rows()),
    Request("logsumexp", lambda x: x.logsumexp(-1), _rows()),
    Request("log of the sum of exponentials of each column", lambda x: x.logsumexp(0), _rows()),
    Request("sum of exponentials of each row", lambda x: x.exp().sum(-1), _rows()),
    Request("variance of each column, biased", lambda x: (x - x.mean(0)).square().mean(0), _rows()),
    Request("biased variance of all elements", lambda x: (x - x.mean()).square().mean(), _rows()),
    Request("x.var(dim=1, unbiased=False)", lambda x: x.var(1, correction=0), _rows()),
    Request("population standard deviation of each row", lambda x: x.std(-1, correction=0), _rows()),
    Request("sample variance of each row", lambda x: x.var(-1), _rows()),
    Request("mean and variance of each row (biased)", lambda x: (x.mean(-1), x.var(-1, correction=0)), _rows()),
    Request("geometric mean of each row", lambda x: x.log().mean(-1).exp(), _rows()),
    Request("Frobenius norm", lambda x: x.square().sum().sqrt(), _rows()),
    Request("column sums", lambda x: x.sum(0), _rows()),
    Request("variance over the first dimension", lambda x: x.var(0), _rows()),
    Request("cumulative product", lambda x: x.cumprod(-1), _rows()),
    Request("cumsum over axis 0", lambda x: x.cumsum(0), _rows()),
    Request("cumulative sum along dim 1", lambda x: x.cumsum(1), _rows()),
    Request("exclusive prefix sum", lambda x: x.cumsum(-1) - x, _rows()),
    Request("reverse cumsum", lambda x: x.flip(-1).cumsum(-1).flip(-1), _rows()),
    Request("top-k", lambda x: tuple(x.topk(8)), _rows()),
    Request("mean and variance of each row", lambda x: (x.mean(-1), x.var(-1)), _rows()),
    Request("min and max over dim 0", lambda x: (x.amin(0), x.amax(0)), _rows()),
    Request("largest value of each row", lambda x: x.amax(-1), _rows()),
    Request("find the index of the largest element in each row", lambda x: x.argmax(-1), _rows()),
    Request("largest 5 of each row", lambda x: tuple(x.topk(5)), _rows()),
    Request("k largest elements, k = 5", lambda x: tuple(x.topk(5)), _rows()),
    Request("sum all the elements of a matrix", lambda x: x.sum(), _rows()),
    Request("torch.norm(x)", lambda x: x.norm(), _rows()),
    Request("x.norm(dim=1)", lambda x: x.norm(dim=1), _rows()),
    Request("F.normalize(x, dim=0)", lambda x: F.normalize(x, dim=0), _rows()),
    Request("add all elements", lambda x: x.sum(), _rows()),
    Request("smallest element of a tensor", lambda x: x.amin(), _rows()),
    Request("index of the largest element of a vector", lambda x: x.argmax(-1), {"x": "40:f32"}),
    Request("l2 norm of a vector", lambda x: x.norm(), _rows()),
    Request("normalize each row by its L2 norm", lambda x: F.normalize(x, dim=-1), _rows()),
    Request("add up all the numbers", lambda x: x.sum(), _rows()),
    Request("max of a matrix", lambda x: x.amax(), _rows()),
    Request("mean of a matrix over dim 0", lambda x: x.mean(0), _rows()),
    Request("mean over the batch", lambda x: x.mean(0), _rows()),
    Request("mean over height and width", lambda x: x.mean((2, 3)), _image()),
    Request("running total along dim 1", lambda x: x.cumsum(1), _rows()),
    Request("root mean square of each row", lambda x: x.square().mean(-1).sqrt(), _rows()),
    Request("softmax rows=32 dim 1", lambda x: x.softmax(1), _rows()),
    Request("multiply every element by 3", lambda x: x * 3, _rows()),
    Request("add 1 to all elements", lambda x: x + 1, _rows()),
    Request("x squared plus 1", lambda x: x * x + 1, _rows()),
    # images
    Request("max pooling 2x2", lambda x: F.max_pool2d(x, 2), _image()),
    Request("average pooling with a 3x3 window and stride 2", lambda x: F.avg_pool2d(x, 3, 2), _image()),
    Request("3x3 max pool stride 2 padding 1", lambda x: F.max_pool2d(x, 3, 2, 1), _image()),
    Request("MaxPool1d(kernel_size=3, stride=2)", lambda x: F.max_pool1d(x, 3, 2), {"x": "2x3x20:f32"}),
    Request("max pooling 3 x 3 stride 2x2", lambda x: F.max_pool2d(x, 3, 2), _image()),
    Request("group_norm(4, 32)", lambda x, weight, bias, eps: F.group_norm(x, 4, weight, bias, eps), _image()),
    Request("max_pool2d(x, 3, 2)", lambda x: F.max_pool2d(x, 3, 2), _image()),
    Request(
        "nn.Conv2d(8, 5, 3, 2, 1, bias=False)",
        lambda x, weight: F.conv2d(x, weight, None, 2, 1),
        _convolved("3x3"),
    ),
    Request("nn.AvgPool2d(3, 2, 1)", lambda x: F.avg_pool2d(x, 3, 2, 1), _image()),
    Request("3D average pooling", lambda x: F.avg_pool3d(x, 2), {"x": "2x3x6x6x6:f32"}),
    Request("adaptive average pooling to 1x1", lambda x: x.mean((2, 3)), _image()),
    Request("group norm, 4 groups, eps 1e-3", lambda x, weight, bias, eps: _group_norm(x, 4, weight, bias), _image()),
    Request("global average pooling", lambda x: x.mean((2, 3)), _image()),
    Request("max(x, -1)", lambda x: x.clamp(min=-1), {"x": "5x8:f32"}),
    Request("min(alpha, x)", lambda x, alpha: x.clamp(max=alpha), {"x": "5x8:f32"}),
    Request("torch.max(x, 0)", lambda x: x.amax(0), {"x": "5x8:f32"}),
    Request("x.min(1)", lambda x: x.amin(1), {"x": "5x8:f32"}),
    Request("mean over 16 batches", lambda x: x.mean(0), {"x": "5x8:f32"}),
    Request("torch.matmul(b, a)", lambda b, a: b @ a, {"b": "5x4:f32", "a": "4x6:f32"}),
    # convolutions
    Request(
        "causal conv1d with kernel size 4",
        lambda x, weight, bias: F.conv1d(x, weight, bias, padding=3)[..., :-3],
        {"x": "2x8x20:f32", "weight": "5x8x4:f32", "bias": "5:f32"},
    ),
    Request(
        "causal depthwise conv1d, kernel size 3, dilation 2, without bias, then silu",
        lambda x, weight: F.silu(F.conv1d(x, weight, None, padding=4, dilation=2, groups=8)[..., :-4]),
        {"x": "2x8x20:f32"},
    ),
    Request(
        "conv2d with 3x3 kernel, 8 channels in, 5 out, padding 1",
        lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1),
        _convolved("3x3", bias="5:f32"),
    ),
    *(
        Request(
            words, lambda x, weight, bias: F.relu(F.conv2d(x, weight, bias, padding=1)), _convolved("3x3", bias="5:f32")
        )
        for words in (
            "2d convolution 3x3 with padding 1 then relu",
            "3x3 conv2d, padding=1, with bias and relu",
            "conv2d same padding then relu",
        )
    ),
    Request("conv 5 stride 2 without bias", lambda x, weight: F.conv2d(x, weight, stride=2), _convolved("5x5")),
    Request(
        "pointwise convolution", lambda x, weight, bias: F.conv2d(x, weight, bias), _convolved("1x1", bias="5:f32")
    ),
    Request(
        "depthwise convolution then gelu",
        lambda x, weight, bias: F.gelu(F.conv2d(x, weight, bias, groups=8)),
        _image(),
    ),
    Request(
        "nn.ConvTranspose2d(8, 5, 3, stride=2) then group norm with 1 groups",
        lambda x, weight, bias, weight_2, bias_2, eps: F.group_norm(
            F.conv_transpose2d(x, weight, bias, 2), 1, weight_2, bias_2, eps
        ),
        {**_image(), "weight": "8x5x3x3:f32", "bias": "5:f32"},
    ),
    Request(
        "1d convolution kernel 5 dilation 2",
        lambda x, weight, bias: F.conv1d(x, weight, bias, dilation=2),
        {"x": "2x3x20:f32", "weight": "4x3x5:f32", "bias": "4:f32"},
    ),
    Request(
        "conv bn relu",
        lambda x, weight, bias, running_mean, running_var, weight_2, bias_2, eps: F.relu(
            F.batch_norm(F.conv2d(x, weight, bias), running_mean, running_var, weight_2, bias_2, eps=eps)
        ),
        _convolved("3x3", bias="5:f32"),
    ),
    # moves
    Request("NHWC to NCHW", lambda x: x.permute(0, 3, 1, 2).contiguous(), {"x": "2x10x9x8:f32"}),
    Request("transpose", lambda x: x.T.contiguous(), _rows()),
    Request("A.T", lambda A: A.T.contiguous(), {"A": "9x24:f32"}),
    Request("transpose a 4096x1024 matrix", lambda x: x.T.contiguous(), _rows()),
    Request("NCHW to NHWC", lambda x: x.permute(0, 2, 3, 1).contiguous(), _image()),
    Request("rotary embedding", lambda x, cos, sin: x * cos + _turned(x) * sin, {"x": "2x3x5x8:f32"}),
    Request("embedding lookup", lambda indices, table: table[indices], {"indices": "9:i64", "table": "30x16:f32"}),
    Request("gather rows by index", lambda x, indices: x[indices], {"x": "30x16:f32", "indices": "9:i64"}),
    Request("quantise to int8 per row", _quantised, _rows()),
    Request("quantise each row to int8 with a scale", _quantised, _rows()),
    Request("quantise to int8 with one scale per row", _quantised, _rows()),
    Request("dequantise int8", lambda x, scale: x.float() * scale[:, None], {"x": "6x40:i8"}),
    Request("gated linear unit", lambda x: x[:, :20] * torch.sigmoid(x[:, 20:]), _rows()),
    # products
    Request("diag(a) @ b", lambda a, b: a[:, None] * b, {"a": "9:f32", "b": "9x17:f32"}),
    Request("matrix multiply a by b transposed, then softmax", lambda a, b: (a @ b.T).softmax(-1), _TRANSPOSED),
    Request("matmul with b transposed, then softmax", lambda a, b: (a @ b.T).softmax(-1), _TRANSPOSED),
    Request(
        "rmsnorm then linear",
        lambda x, weight, weight_2, bias, eps: F.rms_norm(x, (24,), weight, eps) @ weight_2.T + bias,
        {"x": "9x24:f32", "weight_2": "17x24:f32"},
    ),
    Request("MLP", lambda x, w_up, w_down: F.gelu(x @ w_up.T) @ w_down.T, {"x": "9x24:f32", "w_up": "32x24:f32"}),
    Request("matrix multiplication 4096x4096 in bf16", lambda a, b: a @ b, _PAIR),
    Request("matmul", lambda a, b: a @ b, _PAIR),
    Request("gemm 1024x512 by 512x2048 in fp16", lambda a, b: a @ b, _PAIR),
    Request("torch.matmul(a, b.T)", lambda a, b: a @ b.T, _TRANSPOSED),
    Request("nn.Linear(24, 17, bias=False)", lambda x, weight: x @ weight.T, {"x": "9x24:f32", "weight": "17x24:f32"}),
    Request("torch.matmul(a, b)", lambda a, b: a @ b, _PAIR),
    Request("softmax(q @ k.T / sqrt(64))", lambda q, k: (q @ k.T / 8).softmax(-1), {"q": "9x24:f32", "k": "7x24:f32"}),
    Request("matrix multiply 1024x64 by 64x128", lambda a, b: a @ b, _PAIR),
    Request("matmul m=1024 n=512 k=2048", lambda a, b: a @ b, _PAIR),
    Request("matmul with bias and GELU", lambda a, b, bias: F.gelu(a @ b + bias), _PAIR),
    Request("matmul + bias + relu", lambda a, b, bias: torch.relu(a @ b + bias), _PAIR),
    Request("a @ b.T", lambda a, b: a @ b.T, _TRANSPOSED),
    Request("x @ w + b", lambda x, w, b: x @ w + b, {"x": "9x24:f32", "w": "24x17:f32"}),
    Request("matmul with transposed A", lambda A, b: A.T @ b, {"A": "24x9:f32", "b": "24x17:f32"}),
    Request("A transposed times B transposed", lambda A, B: A.T @ B.T, {"A": "24x9:f32", "B": "17x24:f32"}),
    Request(
        "softmax(q @ k.T / sqrt(d))", lambda q, k: (q @ k.T / 24**0.5).softmax(-1), {"q": "9x24:f32", "k": "7x24:f32"}
    ),
    Request("y + x.T", lambda y, x: y + x.T, {"y": "9x24:f32", "x": "24x9:f32"}),
    Request("x.T - y", lambda x, y: x.T - y, {"x": "24x9:f32", "y": "9x24:f32"}),
    Request("x + x.T", lambda x: x + x.T, {"x": "9x9:f32"}),
    Request("M @ K + N", lambda M, K, N: M @ K + N, {"M": "9x24:f32", "K": "24x7:f32"}),
    Request("(A + B) @ C", lambda A, B, C: (A + B) @ C, {"A": "9x24:f32", "C": "24x7:f32"}),
    Request("q @ k^T * d**-0.5", lambda q, k: q @ k.T / 24**0.5, {"q": "9x24:f32", "k": "7x24:f32"}),
    Request("(q * rsqrt(d)) @ k.T", lambda q, k: q @ k.T / 24**0.5, {"q": "9x24:f32", "k": "7x24:f32"}),
    *(
        Request(
            words,
            lambda Q, K, V: (Q @ K.T / 24**0.5).softmax(-1) @ V,
            {"Q": "9x24:f32", "K": "7x24:f32", "V": "7x5:f32"},
        )
        for words in ("softmax(Q @ K.T / sqrt(d)) @ V", "softmax(QK^T / sqrt(d_k)) V")
    ),
    Request("x.T @ x / n", lambda x: x.T @ x / 9, {"x": "9x24:f32"}),
    Request(
        "silu(x @ wg) * (x @ wu)",
        lambda x, wg, wu: F.silu(x @ wg) * (x @ wu),
        {"x": "9x24:f32", "wu": "24x17:f32"},
    ),
    Request(
        "x @ W + scale * (x @ A) @ B",
        lambda x, W, A, B, scale: x @ W + scale * (x @ A @ B),
        {"x": "9x24:f32", "W": "24x17:f32", "A": "24x5:f32", "B": "5x17:f32"},
    ),
    Request("x + x @ w", lambda x, w: x + x @ w, {"x": "9x24:f32"}),
    Request("matmul where b is transposed", lambda a, b: a @ b.T, _TRANSPOSED),
    Request("matrix times vector", lambda a, vector: a @ vector, {"a": "9x24:f32"}),
    Request("multiply a matrix by a vector", lambda a, vector: a @ vector, {"a": "9x24:f32"}),
    Request("vector times matrix", lambda vector, b: vector @ b, {"vector": "9:f32", "b": "9x24:f32"}),
    Request("batched matrix multiplication", lambda a, b: a @ b, {"a": "3x9x24:f32", "b": "3x24x17:f32"}),
    Request("matrix-vector multiplication", lambda a, vector: a @ vector, {"a": "9x24:f32"}),
    Request("outer product", lambda x, y: x[:, None] * y, {"x": "9:f32", "y": "17:f32"}),
    Request(
        "linear layer followed by relu",
        lambda x, weight, bias: torch.relu(x @ weight.T + bias),
        {"x": "9x24:f32", "weight": "17x24:f32", "bias": "17:f32"},
    ),
    Request(
        "SwiGLU feed-forward",
        lambda x, w_gate, w_up, w_down: (F.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T,
        {"x": "9x24:f32", "w_up": "32x24:f32"},
    ),
    # losses
    Request(
        "cross entropy",
        lambda logits, target: -logits.log_softmax(-1)[torch.arange(len(target)), target].mean(),
        {"logits": "6x40:f32"},
    ),
    Request(
        "nll loss",
        lambda log_probabilities, target: -log_probabilities[torch.arange(len(target)), target].mean(),
        {"log_probabilities": "6x40:f32"},
    ),
    *(
        Request(
            words,
            lambda logits, target: (
                0.9 * F.nll_loss(logits.log_softmax(-1), target) - 0.1 * logits.log_softmax(-1).mean()
            ),
            {"logits": "6x40:f32"},
        )
        for words in (
            "cross entropy with label smoothing 0.1",
            "nn.CrossEntropyLoss(label_smoothing=0.1)",
            "F.cross_entropy(logits, target, label_smoothing=0.1)",
            "label smoothed cross entropy with smoothing 0.1",
        )
    ),
    Request(
        "cross entropy with ignore_index=3",
        lambda logits, target: F.cross_entropy(logits[target != 3], target[target != 3]),
        {"logits": "30x5:f32"},
    ),
    Request(
        "F.cross_entropy(pred, labels, ignore_index=-100)",
        lambda pred, labels: F.cross_entropy(pred, labels),
        {"pred": "6x40:f32"},
    ),
    *(
        Request(words, lambda prediction, target: (prediction - target).abs().mean(), _LOSS)
        for words in ("mean absolute error between pred and target", "l1 loss")
    ),
    Request("mae between a and b", lambda a, b: (a - b).abs().mean(), {"a": "6x40:f32"}),
    Request(
        "mean squared error between prediction and target, mean reduction",
        lambda prediction, target: F.mse_loss(prediction, target),
        _LOSS,
    ),
    Request("mse between prediction and target", lambda prediction, target: F.mse_loss(prediction, target), _LOSS),
    Request("huber loss with delta 0.5", lambda prediction, target: F.huber_loss(prediction, target, delta=0.5), _LOSS),
    Request("mean squared error", lambda prediction, target: (prediction - target).square().mean(), _LOSS),
    Request("MSE loss in fp32", lambda prediction, target: (prediction - target).square().mean(), _LOSS),
    Request("mse_loss(x, y)", lambda x, y: (x - y).square().mean(), _rows()),
    Request("mse_loss(pred, target)", lambda pred, target: (pred - target).square().mean(), {"pred": "6x40:f32"}),
    Request("L1 loss", lambda prediction, target: (prediction - target).abs().mean(), _LOSS),
    Request("smooth L1", lambda prediction, target: F.smooth_l1_loss(prediction, target), _LOSS),
    Request(
        "binary cross entropy", lambda prediction, target: F.softplus(prediction).sub(prediction * target).mean(), _LOSS
    ),
    Request(
        "triplet loss",
        lambda anchor, positive, negative: F.triplet_margin_loss(anchor, positive, negative),
        {"anchor": "6x40:f32"},
    ),
    Request(
        "triplet loss margin 0.5",
        lambda anchor, positive, negative: F.triplet_margin_loss(anchor, positive, negative, margin=0.5),
        {"anchor": "6x40:f32"},
    ),
    Request(
        "nn.SmoothL1Loss(beta=0.5)", lambda prediction, target: F.smooth_l1_loss(prediction, target, beta=0.5), _LOSS
    ),
    Request("Huber loss", lambda prediction, target: F.huber_loss(prediction, target), _LOSS),
    Request(
        *("hinge loss", lambda prediction, target: torch.relu(1 - prediction * target).mean(), _LOSS),
    ),
    *(
        Request(
            words,
            lambda query, key, value: F.scaled_dot_product_attention(query, key, value),
            {"query": "1x2x7x16:f32", "key": "1x2x9x16:f32"},
        )
        for words in ("dropout-free attention", "non-causal attention", "attention without a causal mask")
    ),
    Request(
        "flash attention, 16 heads, head dim 64, seq len 1024, causal, fp16",
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        {"query": "1x2x7x16:f16", "key": "1x2x9x16:f16"},
    ),
    Request(
        "flash attention with a causal mask",
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        {"query": "1x2x7x16:f32", "key": "1x2x9x16:f32"},
    ),
    Request(
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        {"q": "1x2x7x16:f32", "k": "1x2x9x16:f32"},
    ),
    Request(
        "causal grouped-query attention",
        lambda query, key, value: F.scaled_dot_product_attention(
            query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=True
        ),
        {"query": "1x4x7x16:f32", "key": "1x2x9x16:f32"},
    ),
    Request(
        "multi-query attention",
        lambda query, key, value: F.scaled_dot_product_attention(
            query, key.expand(-1, 2, -1, -1), value.expand(-1, 2, -1, -1)
        ),
        {"query": "1x2x7x16:f32", "key": "1x1x9x16:f32"},
    ),
    Request(
        "decode attention",
        lambda query, key, value: F.scaled_dot_product_attention(query[:, :, None], key, value)[:, :, 0],
        {"query": "1x2x16:f32", "key": "1x2x9x16:f32"},
    ),
    Request(
        "KL divergence",
        lambda prediction, target: (
            (target.softmax(-1) * (target.log_softmax(-1) - prediction.log_softmax(-1))).sum() / len(target)
        ),
        _LOSS,
    ),
)

# What says too little, too much or two things: refused, or asked about.
REFUSED: tuple[str, ...] = (
    # a word says that it is another operation, of other elements, or in another place
    "softmax without max subtraction",
    "layernorm but with median",
    "relu except on the last channel",
    "sum of the top 3",
    "sparse attention",
    "hierarchical softmax",
    "trimmed mean",
    "stochastic rounding to bf16",
    "layernorm over the first half",
    "sorted softmax",
    "gelu twice",
    "relu on even columns",
    "softmax over every other column",
    "conv with circular padding",
    "conv with reflect padding",
    "attention with dropout 0.1",
    "topk smallest",
    "batchnorm in training mode",
    "embedding with max norm",
    "median of each column ignoring nan",
    "complex multiply",
    "matmul with complex numbers",
    "fft then abs",
    "adam with amsgrad",
    "polar softmax of logits",
    "softmax sideways",
    "inverse softmax",
    "leaky attention",
    "double softmax",
    "approximate softmax",
    "log2 softmax",
    "softmax base 2",
    "low rank attention",
    "attention where keys are quantized",
    "dilated attention",
    "relu clipped at 6",
    "sum then divide by count of nonzeros",
    "cumulative max from the right",
    "index of the second largest value",
    "second largest value per row",
    "sum of squares of differences between neighbours",
    "max pooling with argmax and unpooling",
    "average excluding padding",
    "transposed softmax",
    "softmax of x squared",
    "relu minus sigmoid",
    "sigmoid times tanh",
    "swish with beta 2",
    "gelu with factor 1.5",
    "random noise added to x",
    "gaussian noise",
    "beam search",
    "matrix inverse",
    "cholesky",
    "svd",
    "eigenvalues",
    "solve linear system",
    "relu(x) * y summed",
    "the softmax but in reverse order",
    "flash attention backward",
    "conv backward",
    "sum of every third element",
    "mean of the first 10 columns",
    "max of the last 5 rows",
    "attention with learned temperature per head",
    "attention with relu instead of softmax",
    "sigmoid attention",
    "cosine attention",
    "normalized attention",
    "attention with keys normalized",
    "rope with scaling factor 4",
    "yarn rope",
    "ntk rope",
    "linear with weight normalization",
    "spectral norm",
    "conv with weight standardization",
    "top k per column",
    "sort by absolute value",
    "unique values",
    "nonzero indices",
    "batched softmax with lengths",
    "ragged softmax",
    "segment softmax",
    "edge softmax",
    "gated mlp",
    "relu of x plus bias",
    "frobnicate the tensor",
    "make it fast",
    "softmax(a, b)",
    "sum(a, b)",
    "softmax with temperature 2 * 3",
    "elu 3^2",
    "rmsnorm with weight + 1",
    "softmax and its max",
    "layernorm and mean",
    "sum over dim 0 then over dim 1",
    "sum over the last dim then over dim 0",
    "smooth l1 with gamma 0.5",
    "relu six times",
    "average pooling over the last dimension",
    "nn.LayerNorm([64, 64])",
    "F.layer_norm(x, (64, 64))",
    "quantise",
    "attention with a mask",
    "gram matrix of x",
    "l2 norm of (a - b) / c",
    "variance and standard deviation of each row, biased",
    "min-max normalise each row to [0, 2]",
    "attention with 4 heads of 64, 32",
    "lower triangular matrix times upper triangular matrix",
    "mean squared of x",
    "l1 of x",
    "sum of x and y squared",
    "sum of x and y / 2",
    "subtract y from x * 3",
    "divide x by y + 1",
    "where(x, y, z)",
    "F.kl_div(x, y)",
    "attention(k, q, v)",
    "mean over 128 tokens",
    "attention with dropout",
    "dropout",
    "fft",
    "sparse matrix times dense matrix",
    "sampling from logits",
    "sum the rows",
    "sum over 64 rows",
    "cumsum over 128 rows",
    "sum of 64 rows",
    "mean of 128 tokens",
    "mean of each image",
    "softmax of each matrix",
    "a and b transposed",
    "average columns",
    "conv2d 64",
    "flash attention with 16 heads and dim 1024",
    "softmax with sequence length 512",
    "grouped query attention with 6 heads and 4 kv heads",
    "huber loss delta 0",
    "cross entropy with label smoothing 2",
    "decode attention with 512 tokens",
    "sum over rows",
    "a * x + y",
    "s * x + y",
    "x / n",
    "x / (x + c * y) * k",
    "softmax(q @ k.T * s)",
    "x ** p",
    "x + c",
    "(x - m) / s",
    "where(x > t, x, 0)",
    "max(x, t)",
    "x / (1 + exp(-k*x))",
    "x - X",
    "matmul 1024x512",
    "max pooling 3x3 strides of 2 and 1",
    "max pooling 3x3x3 stride 2x2",
    "softmax over dim 5",
    "softmax 128x64 with rows=32",
    "relu on 16x16 with 1000 elements",
    "softmax of 32,768",
    "triangular matmul",
    "upper triangular matmul of 512x256",
    "causal conv2d 3x3",
    "causal conv1d with padding 2",
    "gelu then embedding lookup",
    "mean squared error then sum",
    "scale by 1e400",
    "scale by 1/0",
    "divide by 0",
    "softmax temperature 0",
    "layernorm with eps -1",
    "clamp between 5 and -5",
    "conv2d 3x3 and 5",
    "conv 9x9 on 1x1x4x4",
    "conv2d 3x3 dilation 0",
    "conv2d 4x4 same padding",
    "convolution 3x3 with padding -1",
    "conv2d(64, 128, 3, stride=-2)",
    "convolution -3x3",
    "max pooling 2x2 padding 0.5",
    "max pooling 0x0",
    "average pooling 4 stride 0",
    "max pooling 2x2 padding 5",
    "max pooling 9x9 on 1x1x4x4",
    "group norm with 0 groups",
    "group norm with 3 groups",
    "top 5 of 16x3",
    "top 0",
    "relu x + bias",
    "log x plus 1",
    "gelu, of layernorm",
    "log x and bias",
    "relu + sigmoid",
    "relu(x) then x + bias",
    "relu(bias)",
    "relu(x, y)",
    "relu(gelu",
    "mean absolute value",
    "neg log softmax",
    "masked softmax",
    "gelu with bias",
    "layernorm, first add bias",
    "sigmoid and tanh",
    "subtract the mean of squares",
    "silu minus mean",
    "half the sum",
    "relu or gelu",
    "softmax twice",
    "fast gelu",
    "mean pool",
    "norm",
    "layernorm except the first row",
    "gelu without erf",
)
