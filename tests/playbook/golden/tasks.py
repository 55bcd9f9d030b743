"""Tasks beside KernelBench's: what people ask for at real sizes, in 16 bits above all, which KernelBench has not."""

from __future__ import annotations

from dataclasses import dataclass

_ATTENTION = "return F.scaled_dot_product_attention(q, k, v{})"
_BY_HAND = "s = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5\n"
_CONVOLUTION = "return F.conv2d(x, w, b, {})"
_NORM = "F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)"
_RMS = "(x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight"
_ROTATED = "h = x.shape[-1] // 2\nreturn x * c + torch.cat((-x[..., h:], x[..., :h]), -1) * s"


@dataclass(frozen=True)
class Asked:
    """A function's body over tensors such as `x=4096x1024:bf16 w=1024:bf16`."""

    name: str
    body: str
    given: str

    @property
    def shapes(self) -> dict[str, str]:
        return {name: spec for name, _, spec in (one.partition("=") for one in self.given.split())}

    @property
    def source(self) -> str:
        lines = "\n".join(f"    {line}" for line in self.body.split("\n"))
        head = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"
        return f"{head}def {self.name}({', '.join(self.shapes)}):\n{lines}\n"


def _qkv(q: str, k: str, kind: str) -> str:
    return f"q={q}:{kind} k={k}:{kind} v={k}:{kind}"


GEMMS = (
    Asked("gemm", "return a @ b", "a=4096x4096:bf16 b=4096x4096:bf16"),
    Asked("gemm_half", "return a @ b", "a=8192x1024:f16 b=1024x2048:f16"),
    Asked("gemm_turned", "return a.t() @ b", "a=4096x2048:bf16 b=4096x1024:bf16"),
    Asked("gemm_long_k", "return a @ b.t()", "a=256x65536:bf16 b=256x65536:bf16"),
    Asked("gemm_few_rows", "return x @ w.t()", "x=16x4096:bf16 w=14336x4096:bf16"),
    Asked("gemm_one_row", "return x @ w.t()", "x=1x8192:bf16 w=8192x8192:bf16"),
    Asked("gemm_odd", "return x @ w", "x=1000x1003:f16 w=1003x777:f16"),
    Asked("gemm_short_k", "return a @ b", "a=16384x64:bf16 b=64x16384:bf16"),
    Asked("gemm_to_f32", "return (a @ b).float() * 0.5", "a=2048x2048:bf16 b=2048x2048:bf16"),
    Asked("linear_gelu", "return F.gelu(F.linear(x, w, b))", "x=8192x4096:bf16 w=4096x4096:bf16 b=4096:bf16"),
    Asked(
        "linear_residual", "return F.linear(x, w) * s + r", "x=4096x4096:f16 w=4096x4096:f16 s=4096:f16 r=4096x4096:f16"
    ),
    Asked("linear_softmax", "return torch.softmax(F.linear(x, w), -1)", "x=4096x1024:bf16 w=2048x1024:bf16"),
    Asked(
        "linear_norm",
        "return F.layer_norm(F.linear(x, w), (w.shape[0],), g, b)",
        "x=4096x1024:bf16 w=1024x1024:bf16 g=1024:bf16 b=1024:bf16",
    ),
    Asked(
        "swiglu_mlp",
        "return (F.silu(x @ w) * (x @ v)) @ u",
        "x=2048x2048:bf16 w=2048x5632:bf16 v=2048x5632:bf16 u=5632x2048:bf16",
    ),
    Asked(
        "lora",
        "return F.linear(x, w) + 2.0 * F.linear(F.linear(x, a), b)",
        "x=4096x4096:bf16 w=4096x4096:bf16 a=16x4096:bf16 b=4096x16:bf16",
    ),
    Asked("batched", "return torch.bmm(a, b)", "a=64x512x512:bf16 b=64x512x512:bf16"),
    Asked("batched_small", "return torch.bmm(a, b)", "a=1024x64x64:f16 b=1024x64x64:f16"),
    Asked("batched_turned", "return torch.einsum('bhqd,bhkd->bhqk', a, b)", "a=4x16x1024x64:bf16 b=4x16x1024x64:bf16"),
    Asked("upper_half", "return torch.triu(a @ b)", "a=4096x4096:bf16 b=4096x4096:bf16"),
    Asked("lower_half", "return torch.tril(a @ b)", "a=4096x4096:f16 b=4096x4096:f16"),
    Asked("gram", "return a @ a.t()", "a=2048x2048:bf16"),
    Asked("matrix_vector", "return torch.mv(a, b)", "a=16384x8192:bf16 b=8192:bf16"),
    Asked("whole_sum", "return (x @ w.t()).sum(1, keepdim=True)", "x=4096x4096:bf16 w=4096x4096:bf16"),
    Asked("single_few_rows", "return F.relu(F.linear(x, w, b))", "x=64x4096:f32 w=4096x4096:f32 b=4096:f32"),
    Asked("single_mlp", "return F.linear(F.relu(F.linear(x, w)), v)", "x=128x1024:f32 w=4096x1024:f32 v=512x4096:f32"),
    Asked(
        "single_scores",
        "return torch.softmax(a @ b.transpose(1, 2), -1) @ v",
        "a=16x512x64:f32 b=16x512x64:f32 v=16x512x64:f32",
    ),
    Asked("one_after_another", "return torch.relu(x @ w) @ v", "x=4096x1024:bf16 w=1024x4096:bf16 v=4096x1024:bf16"),
)

ATTENTION = (
    Asked("attention", _ATTENTION.format(""), _qkv("4x16x2048x128", "4x16x2048x128", "bf16")),
    Asked("causal", _ATTENTION.format(", is_causal=True"), _qkv("4x16x2048x64", "4x16x2048x64", "bf16")),
    Asked("attention_256", _ATTENTION.format(""), _qkv("2x8x2048x256", "2x8x2048x256", "f16")),
    Asked("attention_80", _ATTENTION.format(", is_causal=True"), _qkv("2x8x1024x80", "2x8x1024x80", "f16")),
    Asked(
        "grouped", _ATTENTION.format(", is_causal=True, enable_gqa=True"), _qkv("2x32x2048x128", "2x8x2048x128", "bf16")
    ),
    Asked("decode", _ATTENTION.format(", enable_gqa=True"), _qkv("32x32x1x128", "32x8x4096x128", "bf16")),
    Asked("decode_one", _ATTENTION.format(""), _qkv("1x32x1x128", "1x32x8192x128", "f16")),
    Asked("attention_f32", _ATTENTION.format(""), _qkv("2x8x1024x64", "2x8x1024x64", "f32")),
    Asked("causal_f32", _ATTENTION.format(", is_causal=True"), _qkv("2x8x1024x128", "2x8x1024x128", "f32")),
    Asked("decode_f32", _ATTENTION.format(""), _qkv("8x16x1x64", "8x16x4096x64", "f32")),
    Asked(
        "masked_attention",
        _ATTENTION.format(", attn_mask=m"),
        _qkv("4x16x1024x64", "4x16x1024x64", "bf16") + " m=1024x1024:bool",
    ),
    Asked(
        "biased_attention",
        _BY_HAND + "return torch.softmax(s + b, -1) @ v",
        _qkv("4x16x1024x64", "4x16x1024x64", "bf16") + " b=16x1024x1024:bf16",
    ),
    Asked(
        "causal_by_hand",
        _BY_HAND + "m = torch.tril(torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool))\n"
        "return torch.softmax(s.masked_fill(~m, float('-inf')), -1) @ v",
        _qkv("4x16x1024x64", "4x16x1024x64", "f16"),
    ),
    Asked("long_heads", _ATTENTION.format(""), _qkv("4x4x512x512", "4x4x512x512", "bf16")),
)

CONVOLUTIONS = (
    Asked("conv3x3", _CONVOLUTION.format("padding=1"), "x=32x128x56x56:bf16 w=128x128x3x3:bf16 b=128:bf16"),
    Asked("conv3x3_half", _CONVOLUTION.format("stride=2, padding=1"), "x=32x64x112x112:f16 w=128x64x3x3:f16 b=128:f16"),
    Asked("conv1x1", _CONVOLUTION.format("padding=0"), "x=32x256x28x28:bf16 w=512x256x1x1:bf16 b=512:bf16"),
    Asked("conv7x7", _CONVOLUTION.format("stride=2, padding=3"), "x=32x3x224x224:f16 w=64x3x7x7:f16 b=64:f16"),
    Asked("conv_deep", _CONVOLUTION.format("padding=1, groups=192"), "x=32x192x56x56:f16 w=192x1x3x3:f16 b=192:f16"),
    Asked(
        "conv_groups", _CONVOLUTION.format("padding=1, groups=4"), "x=16x128x32x32:bf16 w=128x32x3x3:bf16 b=128:bf16"
    ),
    Asked("conv_dilated", _CONVOLUTION.format("padding=2, dilation=2"), "x=8x64x64x64:f32 w=64x64x3x3:f32 b=64:f32"),
    Asked("conv_line", "return F.relu(F.conv1d(x, w, padding=2))", "x=16x64x8192:bf16 w=128x64x5:bf16"),
    Asked("conv_back", "return F.conv_transpose2d(x, w, stride=2, padding=1)", "x=8x64x64x64:bf16 w=64x32x4x4:bf16"),
    Asked(
        "conv_norm_relu",
        "return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, g, b))",
        "x=32x256x28x28:bf16 w=256x256x3x3:bf16 mean=256:bf16 var=256:bf16 g=256:bf16 b=256:bf16",
    ),
    Asked("conv_pooled", "return F.max_pool2d(F.relu(F.conv2d(x, w)), 2)", "x=16x32x64x64:f16 w=64x32x3x3:f16"),
    Asked("conv_mean", "return F.conv2d(x, w, padding=1).mean((2, 3))", "x=16x32x64x64:f32 w=64x32x3x3:f32"),
    Asked(
        "conv_residual",
        "return F.silu(F.conv2d(x, w, padding=1) + r)",
        "x=8x64x64x64:bf16 w=64x64x3x3:bf16 r=8x64x64x64:bf16",
    ),
    Asked("conv_channels", "return torch.softmax(F.conv2d(x, w, padding=1), 1)", "x=8x64x64x64:bf16 w=64x64x3x3:bf16"),
)

ROWS = (
    Asked("layernorm", f"return {_NORM}", "x=8192x4096:bf16 weight=4096:bf16 bias=4096:bf16"),
    Asked("layernorm_gelu", f"return F.gelu({_NORM})", "x=4096x1024:f16 weight=1024:f16 bias=1024:f16"),
    Asked("rmsnorm", f"return {_RMS}", "x=8192x8192:bf16 weight=8192:bf16"),
    Asked("add_rmsnorm", f"x = x + r\nreturn {_RMS}, x", "x=8192x4096:bf16 r=8192x4096:bf16 weight=4096:bf16"),
    Asked("softmax_short", "return torch.softmax(x, -1)", "x=65536x128:bf16"),
    Asked("softmax_wide", "return torch.softmax(x, -1)", "x=4096x50257:bf16"),
    Asked("softmax_cluster", "return torch.softmax(x, -1)", "x=128x262144:f32"),
    Asked("softmax_grid", "return torch.softmax(x, -1)", "x=8x4194304:f32"),
    Asked("softcap", "return torch.softmax(30.0 * torch.tanh(x / 30.0), -1)", "x=4096x32000:bf16"),
    Asked("log_softmax", "return torch.log_softmax(x.float(), -1)", "x=8192x32000:f16"),
    Asked("l2_rows", "return F.normalize(x, dim=-1)", "x=32768x2048:f16"),
    Asked("logsumexp", "return torch.logsumexp(x, -1)", "x=8192x8192:f32"),
    Asked("argmax", "return x.argmax(-1)", "x=4096x32000:bf16"),
    Asked("greatest", "return x.max(-1)", "x=4096x1000:f32"),
    Asked("variance", "return torch.var(x, -1), x.mean(-1)", "x=8192x4096:f32"),
    Asked(
        "quantised",
        "s = x.float().abs().amax(-1, keepdim=True) / 127\nreturn torch.round(x.float() / s).to(torch.int8), s",
        "x=8192x4096:bf16",
    ),
    Asked(
        "layernorm_backward",
        "d = g * weight\nreturn (d - d.mean(-1, keepdim=True)) * r, (g * x).sum(0), g.sum(0)",
        "x=4096x1024:f32 g=4096x1024:f32 weight=1024:f32 r=4096x1:f32",
    ),
    Asked("bias_gradient", "return g.sum(0)", "g=16384x4096:bf16"),
)

DIMENSIONS = (
    Asked("channel_softmax", "return torch.softmax(x, 1)", "x=16x64x256x256:f16"),
    Asked(
        "group_norm",
        "return F.silu(F.group_norm(x, 32, weight, bias))",
        "x=8x320x64x64:f16 weight=320:f16 bias=320:f16",
    ),
    Asked("instance_norm", "return F.instance_norm(x)", "x=16x64x256x256:bf16"),
    Asked(
        "batch_norm_train",
        "return F.batch_norm(x, None, None, weight, bias, True)",
        "x=64x256x56x56:f16 weight=256:f16 bias=256:f16",
    ),
    Asked(
        "channel_norm",
        "m = x.mean(1, keepdim=True)\nv = (x - m).pow(2).mean(1, keepdim=True)\nreturn (x - m) / torch.sqrt(v + 1e-6)",
        "x=16x96x112x112:bf16",
    ),
    Asked("middle_mean", "return x.mean(1)", "x=128x4096x1023:f16"),
    Asked("whole_mean", "return x.mean()", "x=16384x16384:bf16"),
    Asked("whole_norm", "return x / torch.norm(x)", "x=16384x8192:f16"),
    Asked("spatial_mean", "return x.mean((2, 3))", "x=64x2048x7x7:f16"),
)

POINTWISE = (
    Asked("add", "return x + y", "x=67108864:f32 y=67108864:f32"),
    Asked("silu", "return F.silu(x)", "x=8192x8192:bf16"),
    Asked("bias_gelu", "return F.gelu(x + b)", "x=8192x4096:bf16 b=4096:bf16"),
    Asked("swiglu", "a, b = x.chunk(2, -1)\nreturn F.silu(a) * b", "x=8192x28672:bf16"),
    Asked("geglu", "return F.gelu(a, approximate='tanh') * b", "a=8192x8192:f16 b=8192x8192:f16"),
    Asked("cast", "return x.half()", "x=8192x8192:f32"),
    Asked(
        "adam",
        "m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g\nreturn p - 0.001 * m / (v.sqrt() + 1e-8), m, v",
        "p=16777216:f32 g=16777216:f32 m=16777216:f32 v=16777216:f32",
    ),
    Asked(
        "channel_scale",
        "return x * s[None, :, None, None] + b[None, :, None, None]",
        "x=32x256x56x56:f16 s=256:f16 b=256:f16",
    ),
    Asked("image", "return ((x.float() / 255.0 - 0.45) / 0.225).permute(0, 3, 1, 2).half()", "x=64x512x512x3:u8"),
    Asked(
        "powers",
        "return x ** 3 + torch.sqrt(x.abs()) + torch.erf(x) + torch.log1p(x.abs()) + torch.tan(x)",
        "x=8192x1024:f32",
    ),
)

MOVES = (
    Asked("transposed", "return x.t().contiguous()", "x=8192x4096:bf16"),
    Asked("heads_first", "return x.view(8, 2048, 16, 64).permute(0, 2, 1, 3).contiguous()", "x=8x2048x1024:bf16"),
    Asked("rotary", _ROTATED, "x=4x32x2048x128:bf16 c=2048x128:bf16 s=2048x128:bf16"),
    Asked("joined", "return torch.cat((x, y), -1)", "x=8192x4096:f16 y=8192x1024:f16"),
    Asked("padded", "return F.pad(x, (1, 1, 1, 1))", "x=16x64x128x128:f32"),
    Asked("nearest", "return F.interpolate(x, scale_factor=2.0, mode='nearest')", "x=8x64x128x128:f16"),
    Asked("shuffled", "return F.pixel_shuffle(x, 2)", "x=8x256x128x128:f16"),
    Asked("rolled", "return torch.roll(x, 1, 1).flip(0)", "x=4096x4096:f32"),
    Asked("embedded", "return F.embedding(ids, table)", "ids=32x512:i64 table=30522x1024:bf16"),
    Asked("picked_rows", "return x[index]", "x=16384x2048:bf16 index=65536:i64"),
    Asked("taken", "return torch.gather(x, 1, index)", "x=4096x4096:f32 index=4096x128:i64"),
    Asked(
        "embedded_norm",
        "return F.layer_norm(table[ids], (table.shape[1],), w, b)",
        "ids=16384:i64 table=30522x1024:bf16 w=1024:bf16 b=1024:bf16",
    ),
    Asked("lower", "return torch.tril(x)", "x=4096x4096:f32"),
)

SCANS = (
    Asked("running_sum", "return torch.cumsum(x, -1)", "x=4096x8192:f32"),
    Asked("running_sum_half", "return torch.cumsum(x, -1)", "x=32768x256:bf16"),
    Asked("running_long", "return torch.cumsum(x, -1)", "x=4x4194304:f32"),
    Asked("running_product", "return torch.cumprod(x, 1)", "x=4096x4096:f32"),
    Asked("running_down", "return torch.cumsum(x, 0)", "x=8192x4096:f32"),
    Asked("running_back", "return torch.flip(torch.cumsum(torch.flip(x, (1,)), 1), (1,))", "x=4096x8192:f32"),
    Asked("running_masked", "return torch.cumsum(x * m, 1)", "x=4096x8192:f32 m=4096x8192:bool"),
)

POOLING = (
    Asked("max_pool", "return F.max_pool2d(x, 2)", "x=16x64x256x256:f16"),
    Asked("max_pool_overlap", "return F.max_pool2d(x, 3, 2, 1)", "x=32x64x112x112:bf16"),
    Asked("max_pool_dilated", "return F.max_pool2d(x, 4, 1, 1, 3)", "x=16x64x128x128:f32"),
    Asked("mean_pool", "return F.avg_pool2d(x, 3, 1, 1)", "x=16x64x128x128:f16"),
    Asked("line_pool", "return F.avg_pool1d(x, 8, 1, 4)", "x=64x128x4096:f32"),
    Asked("space_pool", "return F.max_pool3d(x, 3, 2, 1)", "x=8x32x64x64x64:f16"),
    Asked("whole_pool", "return F.adaptive_avg_pool2d(x, 1)", "x=32x512x14x14:f16"),
)

LOSSES = (
    Asked("cross_entropy", "return F.cross_entropy(x, y)", "x=8192x32000:bf16 y=8192:i64"),
    Asked("cross_entropy_short", "return F.cross_entropy(x, y)", "x=32768x10:f32 y=32768:i64"),
    Asked("smoothed", "return F.cross_entropy(x, y, w, label_smoothing=0.1)", "x=8192x1000:f16 y=8192:i64 w=1000:f16"),
    Asked(
        "each_row", "return F.cross_entropy(x, y, reduction='none', ignore_index=-100)", "x=4096x50257:f32 y=4096:i64"
    ),
    Asked("squares", "return F.mse_loss(x, y)", "x=8192x8192:bf16 y=8192x8192:bf16"),
    Asked("huber", "return F.smooth_l1_loss(x, y)", "x=8192x8192:f32 y=8192x8192:f32"),
    Asked("divergence", "return F.kl_div(x, y, reduction='batchmean')", "x=8192x4096:f32 y=8192x4096:f32"),
    Asked("top_eight", "return torch.topk(x, 8, -1)", "x=16384x64:bf16"),
    Asked("top_few", "return torch.topk(x, 32)", "x=1024x32000:f32"),
    Asked("top_one", "return torch.topk(x, 1, -1)", "x=65536x256:f16"),
)

ASKED = (
    *GEMMS,
    *ATTENTION,
    *CONVOLUTIONS,
    *ROWS,
    *DIMENSIONS,
    *POINTWISE,
    *MOVES,
    *SCANS,
    *POOLING,
    *LOSSES,
)
