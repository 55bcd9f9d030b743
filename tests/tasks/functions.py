"""References for the tests of tasks: what people write."""

SOURCE = """
import torch
import torch.nn.functional as F


def layernorm_gelu(x, weight, bias, eps: float = 1e-5, approximate="none"):
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps), approximate=approximate)


def matmul_bias(a, b, bias):
    return torch.relu(a @ b + bias)


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def top1(x):
    value, index = x.max(dim=-1)
    return value, index


def add_rmsnorm(x, residual, weight, eps: float = 1e-6):
    residual.add_(x)
    return residual * torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + eps) * weight


def scale_(x, factor: float):
    x.mul_(factor)


def add(x, y):
    return x + y


def lookup(table, ids):
    return table[ids]


def loss(logits, target):
    return F.cross_entropy(logits, target)


def group_norm(x, groups: int = 4):
    return F.group_norm(x, groups)


def halves(x):
    return F.glu(x)


def twice(x):
    return torch.cat([x, 2 * x], dim=-1), x.sum(0)


def heads(x):
    return x.view(x.shape[0], 4, 16).transpose(1, 2).contiguous() * 2


def own_heads(x, w):
    batch, cols = x.shape
    return (x.view(batch, *w.shape) * w).view(batch, cols)


def cat_matmul(x, y, w):
    return torch.cat([x, y], -1) @ w


def glu_matmul(x, w):
    return F.glu(x) @ w


def filter_times(x, g, w):
    return F.conv1d(x, w) * g


def steps(x, offsets):
    assert len(offsets) == len(x) + 1
    return x * torch.diff(offsets)


def halves_and_quarters(x, a, b):
    assert x.shape[-1] == 2 * a.shape[-1] == 4 * b.shape[-1]
    return F.glu(x) * a + b.repeat(2)


def picked(x, table, ids):
    assert len(table) == 2 * len(x)
    return table[ids] + x.sum()


def windows(x):
    return x.unfold(-1, 64, 16) * 2


def wide_filter(x, w):
    return F.conv2d(x, w, stride=(2, 1), dilation=(1, 2))


def depthwise(x, w):
    return F.conv1d(x, w, groups=x.shape[1])


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def pairs(x):
    return torch.combinations(x).prod(-1)


def logarithm(x):
    return torch.log(x)


def bce(p, target):
    return F.binary_cross_entropy(p, target)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def prefix(x, table):
    return x + table[: x.shape[0]]


def looks(x):
    return x * 2 if x.sum().item() > 0 else x * 3


def maybe(x, bias=None, scale: float | None = None):
    y = x if bias is None else x + bias
    return y * 2 if scale is None else y * scale


def odd_names(min, device, /, float=2):
    return min * float + device


def identity(x):
    return x


def zeros(x):
    return x - x


def ones(x):
    return torch.softmax(x, -1).sum(-1)


def noise(x):
    return x + torch.randn_like(x)


def idle(x, w):
    return x * 2


def all_nan(x):
    return torch.log(-x * x - 1)


def rounding(x):
    return (x + x.mean()) - x.mean() - x


def positive(x):
    return torch.relu(x)


def chosen(x):
    return x[x > 0]


def nothing(x):
    x * 2


def wrong(x):
    return x.view(7, -1)
"""
