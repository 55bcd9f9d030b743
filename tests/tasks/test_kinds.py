"""The kind of workload, from names in the source."""

from __future__ import annotations

import pytest

from tilewright.records import Kind
from tilewright.tasks.drafts import kind_of


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("return F.gelu(x) * torch.sigmoid(w)", Kind.POINTWISE),
        ("return x * 2", Kind.POINTWISE),
        ("return x.sum(-1)", Kind.REDUCTION),
        ("return x.argmax(-1)", Kind.REDUCTION),
        ("return F.layer_norm(x, (8,)) + w", Kind.NORMALISATION),
        ("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)", Kind.NORMALISATION),
        ("return torch.softmax(x, -1) * w", Kind.SOFTMAX),
        ("return F.silu(x @ w)", Kind.MATMUL),
        ("return F.linear(x, w).softmax(-1)", Kind.MATMUL),
        ("return torch.softmax(x @ w.T, -1) @ w", Kind.ATTENTION),
        ("return F.scaled_dot_product_attention(x, w, w)", Kind.ATTENTION),
        ("return F.relu(F.conv2d(x, w))", Kind.CONVOLUTION),
        ("return F.max_pool2d(x, 2)", Kind.POOLING),
        ("return torch.cumsum(x, 0)", Kind.SCAN),
        ("return F.cross_entropy(x, w)", Kind.LOSS),
        ("return torch.gather(x, 1, w)", Kind.GATHER),
        ("return helper(x)", Kind.SOFTMAX),
        ("return x / torch.norm(x)", Kind.NORMALISATION),
        ("return x / x.abs().mean(1, keepdim=True)", Kind.NORMALISATION),
        ("e = torch.exp(x); return e / e.sum(-1, keepdim=True)", Kind.SOFTMAX),
        ("return x / w.sum()", Kind.REDUCTION),
        ("return F.normalize(torch.softmax(F.batch_norm(x @ w, m, v), -1).mT @ x)", Kind.MATMUL),
        ("return nn.TransformerEncoderLayer(8, 2)(x @ w)", Kind.ATTENTION),
        ("return x", Kind.OTHER),
    ],
)
def test_kind(body: str, kind: Kind) -> None:
    source = (
        f"def helper(x):\n    return x.softmax(-1)\n\ndef other(x):\n    return x @ x\n\ndef f(x, w):\n    {body}\n"
    )
    assert kind_of(source, "f") is kind


def test_a_mean_of_differences_from_targets_is_a_loss() -> None:
    assert kind_of("def f(x, targets):\n    return ((x - targets) ** 2).mean()\n", "f") is Kind.LOSS
    assert kind_of("def f(x, other):\n    return ((x - other) ** 2).mean()\n", "f") is Kind.REDUCTION
