"""PyTorch functions for the playbook, each with its task."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.rows import row_program
from tilewright.playbook.tracing import TraceRequest, Traces, trace
from tilewright.playbook.understanding import Ask, traced_task
from tilewright.records import Dimension, DType, NumberInput, ScalarType, Task, TaskOutput, TensorInput
from tilewright.reference import ReferenceProblem
from tilewright.reference.torch_calls import DTYPE_OF_TORCH, TORCH_DTYPE, call_reference

_HEADER = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True)
class Function:
    """A body in PyTorch over inputs such as `x: bf16[rows, cols]; eps = 1e-5`."""

    name: str
    body: str
    inputs: str = "x: f32[rows, cols]"
    fixed: tuple[str, ...] = ()  # dimensions that do not vary

    @property
    def source(self) -> str:
        names = ", ".join(re.split(r"[:=]", one)[0].replace("inplace", "").strip() for one in self.inputs.split(";"))
        lines = "\n".join(f"    {line}" for line in self.body.strip().split("\n"))
        return f"{_HEADER}def {self.name}({names}):\n{lines}\n"

    @property
    def callable(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec(compile(self.source, self.name, "exec"), scope)
        found: Callable[..., Any] = scope[self.name]
        return found


_PROGRAMS: dict[str, RowProgram] = {}
SIZES = {"rows": 4096, "cols": 1024, "batch": 3, "heads": 5, "channels": 6, "height": 7, "width": 9, "groups": 3}


def ask_of(function: Function) -> Ask:
    """Traces in this process; sizes that PyTorch refuses are a problem of the reference, as in a child."""
    made = function.callable

    def ask(request: TraceRequest) -> Traces:
        try:
            return trace(made, request)
        except (RuntimeError, ValueError) as error:
            raise ReferenceProblem(str(error)) from error

    return ask


def task_of(function: Function, sizes: dict[str, int] = SIZES) -> Task:
    """The task, with outputs as the function returns them at small sizes."""
    inputs: list[TensorInput | NumberInput] = []
    for text in function.inputs.split(";"):
        if "=" in text:
            name, value = (one.strip() for one in text.split("="))
            plain = {"True": True, "False": False}.get(value)
            number = plain if plain is not None else float(value) if re.search(r"[.e]", value) else int(value)
            kind = {bool: ScalarType.BOOL, int: ScalarType.INT, float: ScalarType.FLOAT}[type(number)]
            inputs.append(NumberInput(name, kind, number))
            continue
        name, spec = (one.strip() for one in text.split(":"))
        found = re.fullmatch(r"(\w+)\[(.*)\]", spec)
        assert found is not None
        dimensions = tuple(one.strip() for one in found[2].split(",") if one.strip())
        in_place = name.startswith("inplace ")
        inputs.append(
            TensorInput(name.removeprefix("inplace ").strip(), DType(found[1]), dimensions, in_place=in_place)
        )
    used = dict.fromkeys(name for one in inputs if isinstance(one, TensorInput) for name in one.dimensions)
    known = {**sizes, "one": 1}
    dimensions = tuple(Dimension(name, known[name], name != "one" and name not in function.fixed) for name in used)
    bare = Task(function.name, function.source, function.name, tuple(inputs), (), dimensions)
    return _with_outputs(function, bare)


def _with_outputs(function: Function, task: Task) -> Task:
    probe = {one.name: one.size if not one.varies else 12 + 2 * place for place, one in enumerate(task.dimensions)}
    tensors = draw(task, probe, 0)
    changed = sum(one.in_place for one in task.tensors)
    arguments = {
        **{one.name: one.value for one in task.numbers},
        **{name: one.clone() for name, one in tensors.items()},
    }
    returned = function.callable(**arguments)
    results = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    results = tuple(
        one for one in results if not any(one is arguments[name.name] for name in task.tensors if name.in_place)
    )
    assert changed or results
    by_size = {size: name for name, size in probe.items() if name != "one"}
    outputs = tuple(
        TaskOutput(f"y{place}", DTYPE_OF_TORCH[one.dtype], tuple(by_size.get(size, size) for size in one.shape))
        for place, one in enumerate(results)
    )
    return Task(task.name, task.reference, task.function, task.inputs, outputs, task.dimensions)


def draw(task: Task, sizes: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, torch.Tensor] = {}
    for one in task.tensors:
        shape = [sizes[name] for name in one.dimensions]
        if one.dtype.is_float:
            found[one.name] = torch.randn(shape, generator=generator).to(TORCH_DTYPE[one.dtype])
        else:
            high = 2 if one.dtype is DType.BOOL else 9
            found[one.name] = torch.randint(0, high, shape, generator=generator).to(TORCH_DTYPE[one.dtype])
    return found


def truth(function: Function, task: Task, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results in f64, from the same inputs."""
    wide = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
    return call_reference(function.callable, task, wide)


def program_of(function: Function, task: Task | None = None) -> RowProgram:
    """The row program, traced in this process: starting a child for each would take seconds."""
    task = task or task_of(function)
    if task.hash not in _PROGRAMS:
        made = function.callable
        _PROGRAMS[task.hash] = row_program(traced_task(task, lambda request: trace(made, request)))
    return _PROGRAMS[task.hash]


_LN = "F.layer_norm(x, (x.shape[-1],), weight, bias, eps)"
_LN_INPUTS = "x: {t}[rows, cols]; weight: {t}[cols]; bias: {t}[cols]; eps = 1e-5"

SUMS_OVER_ROWS = (
    Function("column_sum", "return x.sum(0)", "x: f16[rows, cols]"),
    Function(
        "scaled_and_summed",
        "return x * weight, (x * g).sum(0), g.sum((0,))",
        "x: bf16[rows, cols]; g: bf16[rows, cols]; weight: f32[cols]",
    ),
    Function(
        "centred_and_summed",
        "h = x - x.mean(-1, keepdim=True)\nreturn h, (h * x.std(-1, keepdim=True)).sum(0, keepdim=True)",
    ),
    Function("stacked_sum", "return (x * y).sum((0, 1)), x.amax(-1)", "x: f32[batch, rows, cols]; y: f32[rows, cols]"),
)

POINTWISE = (
    Function("silu", "return F.silu(x)", "x: bf16[rows, cols]"),
    Function("many_activations", "return torch.tanh(F.softplus(x)) + F.mish(x) * F.hardswish(x) - F.elu(x, 0.7)"),
    Function(
        "more_activations",
        "return F.leaky_relu(x, 0.2) * torch.sigmoid(x) + F.hardtanh(x) + F.logsigmoid(x) + x * F.softplus(x).tanh()",
    ),
    Function("gelus", "return F.gelu(x) + F.gelu(x, approximate='tanh')", "x: f16[rows, cols]"),
    Function("powers", "return x ** 3 + x.abs() ** 0.5 + torch.exp(-x ** 2) + torch.log1p(x.abs()) + x.abs() ** 1.3"),
    Function("bias_gelu", "return F.gelu(x + bias)", "x: bf16[rows, cols]; bias: bf16[cols]"),
    Function(
        "gate",
        "return F.silu(x) * gate + 0.5 * residual",
        "x: f32[rows, cols]; gate: f32[rows, cols]; residual: f32[rows, cols]",
    ),
    Function("mixed", "return x.float() * scale + y", "x: bf16[rows, cols]; scale: f32[cols]; y: f16[rows, cols]"),
    Function("row_scaled", "return x * scale + shift", "x: f32[rows, cols]; scale: f32[rows, one]; shift: f32[]"),
    Function(
        "batch_norm",
        "s = weight / torch.sqrt(var + eps)\nreturn (x - mean[None, :, None, None]) * s[:, None, None] + bias[:, "
        "None, None]",
        "x: f32[batch, channels, height, width]; mean: f32[channels]; var: f32[channels]; weight: f32[channels]; "
        "bias: f32[channels]; eps = 1e-5",
    ),
    Function("outer", "return a[:, None] * b[None, :]", "a: f32[rows]; b: f32[cols]"),
    Function(
        "masked",
        "return torch.where(mask, x, -x).masked_fill(x > 1.5, 9.0)",
        "x: f32[rows, cols]; mask: bool[rows, cols]",
    ),
    Function(
        "whole_numbers", "return (a * 3 - b) * (a > b), torch.maximum(a, b)", "a: i32[rows, cols]; b: i32[rows, cols]"
    ),
    Function("to_decimals", "return torch.round(x, decimals=2), torch.round(x * 999, decimals=-1)"),
    Function(
        "remainders",
        "y = (x * 2654435761 - 99999999999) * (3 - z)\nreturn y % 1000003, y % -7, torch.fmod(y, 1000), y // 7, "
        "y // -7, torch.div(y, 7, rounding_mode='trunc'), y % (z + 1), y // (-1 - z), 1000003 % (z + 1), x ** 19",
        "x: i64[rows, cols]; z: i64[rows, cols]",
    ),
    Function(
        "bits",
        "y = x * 2654435761\nreturn (x << 3) ^ (x >> 1), ~x & y.int(), (y | 255) >> z, x << z * 9, "
        "(-y) >> (z * 11 - 5)",
        "x: i32[rows, cols]; z: i64[rows, cols]",
    ),
    Function(
        "narrowed",
        "a, b = (x * 100003).int(), (y * 100019).int()\n"
        "return a.long() * b.long(), torch.minimum(a, 3 * b), torch.rsub(x, y, alpha=2), torch.add(x, y, alpha=3)",
        "x: i64[rows, cols]; y: i64[rows, cols]",
    ),
    Function("four_bits", "return ((x * 29) >> 4) & 15, x * 29 & 15, ~x, x << 6", "x: u8[rows, cols]"),
    Function(
        "divided",
        "return x // y, x // 0.1, torch.div(x, y, rounding_mode='trunc'), x % y, torch.fmod(x, y), 1 // x",
        "x: f32[rows, cols]; y: f32[rows, cols]",
    ),
    Function(
        "clamps", "return x.clamp(-0.5, hi), torch.minimum(x, -x), x.clamp_min(0.1)", "x: f32[rows, cols]; hi = 1.25"
    ),
    Function("in_place", "x.mul_(2).add_(y)\nreturn x * y", "inplace x: f32[rows, cols]; y: f32[rows, cols]"),
    Function("shrinks", "return F.softshrink(x) + F.hardshrink(x, 0.3) + F.softsign(x) + F.tanhshrink(x) + F.selu(x)"),
    Function(
        "written",
        "target.copy_(x * 2)\nreturn x + 1",
        "x: f32[rows, cols]; inplace target: bf16[rows, cols]; unused: f32[cols]",
    ),
    Function(
        "adamw",
        "p.mul_(1 - lr * wd)\nm.mul_(b1).add_(g, alpha=1 - b1)\nv.mul_(b2).addcmul_(g, g, value=1 - b2)\n"
        "root = (v.abs() / (1 - b2 ** step)).sqrt() + eps\np.sub_(lr / (1 - b1 ** step) * m / root)\nreturn p * 2",
        "inplace p: f32[rows, cols]; g: f32[rows, cols]; inplace m: f32[rows, cols]; inplace v: f32[rows, cols]; "
        "lr = 1e-3; b1 = 0.9; b2 = 0.999; eps = 1e-8; wd = 0.01; step = 10",
    ),
    Function("numbers", "return alpha * x + (1 - alpha) * y", "x: f32[rows, cols]; y: f32[rows, cols]; alpha = 0.3"),
)

ROWS = (
    Function("softmax", "return torch.softmax(x, -1)"),
    Function("softmax_half", "return torch.softmax(x, -1)", "x: f16[rows, cols]"),
    Function("log_softmax", "return torch.log_softmax(x * scale, -1)", "x: f32[rows, cols]; scale = 0.125"),
    Function("layernorm_gelu", f"return F.gelu({_LN})", _LN_INPUTS.format(t="bf16")),
    Function("layernorm", f"return {_LN}", _LN_INPUTS.format(t="f32")),
    Function(
        "rmsnorm",
        "return F.rms_norm(x, (x.shape[-1],), w, 1e-6) * F.silu(g)",
        "x: bf16[rows, cols]; w: bf16[cols]; g: bf16[rows, cols]",
    ),
    Function(
        "hand_rmsnorm",
        "h = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)\nreturn (w * h.to(x.dtype)), "
        "h.sum(-1)",
        "x: bf16[rows, cols]; w: bf16[cols]; eps = 1e-6",
    ),
    Function(
        "add_rmsnorm",
        "residual += x\nreturn F.rms_norm(residual, (x.shape[-1],), w, 1e-6)",
        "x: bf16[rows, cols]; inplace residual: bf16[rows, cols]; w: bf16[cols]",
    ),
    Function("l2", "return F.normalize(x, dim=-1)"),
    Function("row_sum", "return x.sum(-1)", "x: bf16[rows, cols]"),
    Function("extremes", "return x.amax(-1), x.amin(-1, keepdim=True), x.mean(-1)"),
    Function("where_greatest", "return x.max(-1)"),
    Function("where_least", "return x.argmin(-1)", "x: f16[rows, cols]"),
    Function("deviation", "return x.std(-1), x.var(-1, unbiased=False)"),
    Function("logsumexp", "return torch.logsumexp(x, -1)"),
    Function("scaled_scores", "return torch.softmax(x / math.sqrt(x.shape[-1]), -1)"),
    Function(
        "masked_softmax",
        "return torch.softmax(x.masked_fill(~keep, -1e9), -1)",
        "x: f32[batch, heads, rows, cols]; keep: bool[rows, cols]",
    ),
    Function("mean_loss", "return F.mse_loss(x, y), F.l1_loss(x, y)", "x: f32[rows, cols]; y: f32[rows, cols]"),
    Function("cosine", "return F.cosine_similarity(x, y, dim=-1)", "x: f32[rows, cols]; y: f32[rows, cols]"),
    Function("kinds", "return (x > 0).any(-1), (x > -9).all(-1), (x > 0).sum(-1)"),
    Function("last_two", "return F.layer_norm(x, x.shape[-2:], w)", "x: f32[rows, heads, cols]; w: f32[heads, cols]"),
    Function("two_norms", "return F.layer_norm(torch.softmax(x, -1), (x.shape[-1],))"),
    Function(
        "losses",
        "return F.smooth_l1_loss(x, y), F.kl_div(x, y.exp(), reduction='batchmean')",
        "x: f32[rows, cols]; y: f32[rows, cols]",
    ),
    Function(
        "written_rows",
        "target.copy_(torch.softmax(x, -1))\nreturn x.sum(-1)",
        "x: f32[rows, cols]; inplace target: f32[rows, cols]",
    ),
    Function("products", "return x.abs().clamp(0.9, 1.1).prod(-1)"),
)

_IMAGE = "x: f32[batch, channels, height, width]"

ANY_DIMENSIONS = (
    Function("middle_sum", "return x.sum(1, keepdim=True)", "x: f32[batch, rows, cols]"),
    Function("middle_mean", "return x.mean(1)", "x: f16[batch, rows, cols]"),
    Function("middle_places", "return x.argmax(1), x.amin(1)", "x: f32[batch, rows, cols]"),
    Function(
        "masked_mean",
        "m = mask.unsqueeze(-1).to(x.dtype)\nreturn (x * m).sum(1) / m.sum(1).clamp(min=1)",
        "x: bf16[batch, rows, cols]; mask: bool[batch, rows]",
    ),
    Function(
        "weighted_middle",
        "return (x * w[:, None, :, None]).sum((1, 2)), (x * v[:, :, None, None]).amax((1, 2))",
        "x: f32[batch, heads, rows, cols]; w: f32[batch, rows]; v: f32[batch, heads]",
    ),
    Function("middle_least", "return torch.min(x, dim=1)", "x: f32[batch, rows, cols]"),
    Function("first_softmax", "return torch.softmax(x, 0)", "x: f32[rows, cols]"),
    Function("first_mean", "return x.mean(0)", "x: bf16[rows, cols]"),
    Function(
        "channel_rmsnorm",
        "return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5) * w[:, None, None]",
        f"{_IMAGE}; w: f32[channels]",
    ),
    Function("channel_log_softmax", "return F.log_softmax(x, dim=1)", "x: bf16[batch, rows, cols]"),
    Function("two_middle", "return x.std((1, 2))", "x: f32[batch, rows, heads, cols]"),
    Function("instance_norm", "return F.instance_norm(x)", _IMAGE),
    Function(
        "instance_norm_affine",
        "return F.instance_norm(x, weight=w, bias=b)",
        f"{_IMAGE}; w: f32[channels]; b: f32[channels]",
    ),
    Function(
        "batch_norm_train",
        "return F.batch_norm(x, None, None, w, b, training=True)",
        f"{_IMAGE}; w: f32[channels]; b: f32[channels]",
    ),
    Function(
        "batch_norm_running",
        "return F.relu(F.batch_norm(x, m, v, w, b))",
        f"{_IMAGE}; m: f32[channels]; v: f32[channels]; w: f32[channels]; b: f32[channels]",
    ),
    Function(
        "channel_moments", "return x.var((0, 2, 3)), x.mean((0, 2, 3))", "x: bf16[batch, channels, height, width]"
    ),
    Function(
        "group_norm",
        "return F.group_norm(x, 3, w, b)",
        "x: f32[batch, channels, height, width]; w: f32[channels]; b: f32[channels]",
        ("channels",),
    ),
    Function(
        "logsumexp_of_groups",
        "y = (x.view(x.shape[0], 3, -1, x.shape[2], x.shape[3]) * s[:, :, None, None, None]).view_as(x)\n"
        "return torch.logsumexp(x + torch.tanh(y), 1)",
        "x: f32[batch, channels, height, width]; s: f32[batch, groups]",
        ("channels", "groups"),
    ),
    Function("grouped_by_hand", "return x.view(x.shape[0], 3, -1).softmax(-1).view_as(x)", _IMAGE, ("channels",)),
    Function("flattened", "return x.flatten(1).amax(1)", _IMAGE),
    Function("hinge", "return torch.mean(torch.clamp(1 - x * t, min=0))", "x: f32[rows, cols]; t: f32[cols]"),
    Function("row_weighted_loss", "return (x * t).sum()", "x: f32[rows, cols]; t: f32[rows, one]"),
)

TWO_SETS = (
    Function(
        "triplet", "return F.triplet_margin_loss(x, y, z)", "x: f32[rows, cols]; y: f32[rows, cols]; z: f32[rows, cols]"
    ),
    Function("mean_of_sums", "return x.sum(-1).mean()", "x: bf16[rows, cols]"),
    Function(
        "soft_loss", "return -(F.log_softmax(x, -1) * y).sum(-1).mean()", "x: f32[rows, cols]; y: f32[rows, cols]"
    ),
    Function(
        "norm_and_loss",
        "h = torch.softmax(x, -1)\nreturn h, (h * y).mean()",
        "x: f32[rows, cols]; y: f32[rows, cols]",
    ),
    Function("middle_then_all", "return x.amax(1).sum()", "x: f32[batch, rows, cols]"),
)

FUNCTIONS = (*POINTWISE, *ROWS, *SUMS_OVER_ROWS, *ANY_DIMENSIONS)
BY_NAME = {one.name: one for one in FUNCTIONS}
