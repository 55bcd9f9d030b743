"""PyTorch functions with matrix products in them, for the playbook."""

from __future__ import annotations

from tests.playbook.functions import Function, task_of

from tilewright.playbook.families import TracedTask
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import traced_task

SIZES = {"m": 512, "n": 512, "k": 512, "j": 512, "batch": 3, "heads": 5}
_LINEAR = "x: f32[m, k]; w: f32[n, k]; bias: f32[n]"

PRODUCTS = (
    Function("plain", "return a @ b", "a: f32[m, k]; b: f32[k, n]"),
    Function(
        "finished",
        "return torch.relu(F.linear(x, w, bias)) * 2.0 + residual * s",
        f"{_LINEAR}; residual: f32[m, n]; s: f32[m, one]",
    ),
    Function("first_turned", "return a.T @ b", "a: f32[k, m]; b: f32[k, n]"),
    Function("both_turned", "return a.T @ b.T", "a: f32[k, m]; b: f32[n, k]"),
    Function(
        "batched",
        "return torch.bmm(a, b) * s[:, :, None]",
        "a: f32[batch, m, k]; b: f32[batch, k, n]; s: f32[batch, m]",
    ),
    Function(
        "four_dimensions",
        "return torch.einsum('bijl,lk->bijk', a, b)",
        "a: f32[batch, heads, m, k]; b: f32[k, n]",
    ),
    Function("shared", "return torch.matmul(a, b)", "a: f32[batch, m, k]; b: f32[one, k, n]"),
    Function("upper", "return torch.triu(a @ b)", "a: f32[m, k]; b: f32[k, n]"),
    Function("lower", "return torch.tril(torch.bmm(a, b), 2)", "a: f32[batch, m, k]; b: f32[batch, k, n]"),
    Function("half_linear", "return F.gelu(F.linear(x, w, bias))", "x: bf16[m, k]; w: bf16[n, k]; bias: bf16[n]"),
    Function("half_turned", "return (a.T @ b).float()", "a: f16[k, m]; b: f16[k, n]"),
)

VECTORS = (
    Function("column", "return a @ b + 1.0", "a: f32[m, k]; b: f32[k, one]"),
    Function("matrix_vector", "return torch.mv(a, b) * s", "a: bf16[m, k]; b: bf16[k]; s: bf16[m]"),
    Function("vector_matrix", "return a @ b + bias", "a: f32[one, k]; b: f32[k, n]; bias: f32[n]"),
    Function("one_row", "return F.relu(F.linear(x, w, bias))", "x: f32[one, k]; w: f32[n, k]; bias: f32[n]"),
    Function("dot", "return torch.dot(x, w)", "x: f32[k]; w: f32[k]"),
    Function("batch_of_vectors", "return torch.bmm(a, b)", "a: f32[batch, m, k]; b: f32[batch, k, one]"),
    Function("turned_vector", "return a.T @ b", "a: f32[k, m]; b: f32[k]"),
)

CHAINS = (
    Function("then_softmax", "return torch.softmax(F.gelu(F.linear(x, w, bias)), dim=1)", _LINEAR),
    Function(
        "two_layers",
        "return torch.logsumexp(F.linear(torch.sigmoid(F.linear(x, w, bias)), v, b), dim=1)",
        f"{_LINEAR}; v: f32[j, n]; b: f32[j]",
    ),
    Function(
        "gated",
        "return (F.silu(x @ w) * (x @ v)) @ u",
        "x: bf16[m, k]; w: bf16[k, n]; v: bf16[k, n]; u: bf16[n, k]",
    ),
    Function(
        "norm_between",
        "h = F.layer_norm(F.linear(x, w, bias), (w.shape[0],))\nreturn F.linear(torch.tanh(h), v)",
        f"{_LINEAR}; v: f32[j, n]",
    ),
    Function(
        "three_dimensions",
        "return F.gelu(F.linear(x, w, bias)) + residual",
        "x: f32[batch, m, k]; w: f32[n, k]; bias: f32[n]; residual: f32[batch, m, n]",
    ),
    Function(
        "written_out_attention",
        "s = torch.matmul(q, p.transpose(-1, -2)) * 0.125\nreturn torch.matmul(torch.softmax(s, dim=-1), v)",
        "q: f32[batch, heads, m, k]; p: f32[batch, heads, n, k]; v: f32[batch, heads, n, j]",
    ),
    Function("scaled_operand", "return (x * s) @ w", "x: f32[m, k]; w: f32[k, n]; s: f32[k]"),
    Function("two_results", "y = x @ w\nreturn y, torch.relu(y)", "x: f32[m, k]; w: f32[k, n]"),
    Function(
        "batch_norm_softmax",
        "y = F.batch_norm(F.linear(x, w, bias), None, None, g, b, training=True)\nreturn torch.softmax(s * y, dim=1)",
        f"{_LINEAR}; g: f32[n]; b: f32[n]; s: f32[one]",
    ),
    Function(
        "sum_of_columns", "return torch.sum((x @ w.T) / 2, dim=1, keepdim=True) * 1.5", "x: f32[m, k]; w: f32[n, k]"
    ),
    Function(
        "mean_of_columns",
        "y = (F.linear(x, w, bias) - v).mean(1, keepdim=True)\nreturn F.gelu(torch.logsumexp(y, 1, keepdim=True)) + x",
        f"{_LINEAR}; v: f32[n]",
    ),
    Function("sum_with_number", "return (x @ w + 3.0).sum(-1)", "x: f32[m, k]; w: f32[k, n]"),
    Function("diagonal_first", "return torch.diag(v) @ w", "v: f32[m]; w: f32[m, n]"),
    Function("diagonal_last", "return w @ torch.diag(v)", "v: f32[n]; w: f32[m, n]"),
)

BY_NAME = {one.name: one for one in (*PRODUCTS, *VECTORS, *CHAINS)}


def traced_of(name: str) -> TracedTask:
    """The function's task, traced in this process."""
    function = BY_NAME[name]
    made = function.callable
    return traced_task(task_of(function, SIZES), lambda request: trace(made, request))
