"""Recognises an op as a layer of transformers by comparing its reference with the layers' formulas.

`recognise` calls `compare` in the reference's child process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.exports.source import Source
from tilewright.records import TensorSpec
from tilewright.reference import Reference, ReferenceProblem

TOLERANCE = 1e-5  # in f64 and f32; two roundings of tanh-like formulas differ by a few thousandths
COARSE = 1e-2  # where the reference answers in 16 bits
SECONDS = 60.0


@dataclass(frozen=True)
class Form:
    """A layer, and the roles of the op's parameters in it."""

    layer: str  # its name on the Hub: "RMSNorm"
    roles: tuple[str, ...]  # of the tensors in the op's order: x weight gate up gate_up up_gate cos sin query key value
    number: str = ""  # the role of the op's one number: eps, scale


FORMS = (
    Form("RMSNorm", ("x", "weight"), "eps"),
    Form("SiLU", ("x",)),
    Form("GeLU", ("x",)),
    Form("GeluTanh", ("x",)),
    Form("QuickGELU", ("x",)),
    Form("SwiGLUMLP", ("gate", "up")),
    Form("SwiGLUMLP", ("up", "gate")),
    Form("SwiGLUMLP", ("gate_up",)),
    Form("SwiGLUMLP", ("up_gate",)),
    Form("GeGLUMLP", ("gate", "up")),
    Form("GeGLUMLP", ("gate_up",)),
    Form("rotary_pos_emb", ("x", "cos", "sin")),
    Form("attention", ("query", "key", "value"), "scale"),
    Form("attention", ("query", "key", "value")),
    Form("causal_attention", ("query", "key", "value"), "scale"),
    Form("causal_attention", ("query", "key", "value")),
)
LAYERS = tuple(dict.fromkeys(form.layer for form in FORMS))


@dataclass(frozen=True)
class CompareRequest:
    """The request to `compare`: forms that fit the op's parameters, and the tensors' shapes."""

    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[bool, ...]  # for each parameter in order, whether it is the number; the others are tensors
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class CompareAnswer:
    form: Form | None


def fitting_forms(source: Source, layer: str = "") -> tuple[Form, ...]:
    """The forms, of all layers or of one, that match the op's parameters and results."""
    op = source.op
    tensors, numbers = op.tensors, op.numbers
    if len(op.results) != 1 or len(numbers) > 1 or any(one.in_place or one.optional for one in tensors):
        return ()
    return tuple(
        form
        for form in FORMS
        if len(form.roles) == len(tensors) and bool(form.number) == bool(numbers) and layer in ("", form.layer)
    )


def recognise(source: Source) -> Form | None:
    """The op's layer; None if it is none, or if its reference fails."""
    forms = fitting_forms(source)
    if not forms or source.task is None or source.reference is None:
        return None
    shapes = _small_shapes(source)
    numbers = tuple(one.scalar is not None for one in source.op.parameters)
    request = CompareRequest(shapes, numbers, forms)
    try:
        with Reference(source.reference.source, source.reference.function) as reference:
            answer: CompareAnswer = reference.call(f"{__name__}:compare", request, CompareAnswer, SECONDS)
    except ReferenceProblem:
        return None
    return answer.form


def _small_shapes(source: Source) -> tuple[tuple[int, ...], ...]:
    """The tensors' shapes at small, different sizes of the dynamic dimensions."""
    task = source.task
    assert task is not None
    wanted = {one.name: one.permitted(4 + 2 * i) if one.varies else one.size for i, one in enumerate(task.free)}
    sizes = task.complete(wanted)
    arguments = task.arguments(sizes if task.is_sound(sizes) else None)
    return tuple(value.shape for value in arguments.values() if isinstance(value, TensorSpec))


# -- in the reference's process --


def compare(function: Callable[..., Any], request: CompareRequest) -> CompareAnswer:
    """The first form whose formula agrees with the function, for two values of its number."""
    import torch

    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in request.shapes]
    return CompareAnswer(
        next((form for form in request.forms if _agrees(function, form, tensors, request.numbers)), None)
    )


def _agrees(function: Callable[..., Any], form: Form, tensors: list[Any], numbers: tuple[bool, ...]) -> bool:
    import torch

    given = dict(zip(form.roles, tensors, strict=True))
    for number in (0.25, 0.5) if form.number else (0.0,):
        left = iter(tensors)
        arguments = [number if is_number else next(left) for is_number in numbers]
        try:
            wanted = _formula(form, given, number)
            found = function(*[one.clone() if isinstance(one, torch.Tensor) else one for one in arguments])
        except Exception:  # the shapes do not fit this layer
            return False
        if not isinstance(found, torch.Tensor) or found.shape != wanted.shape:
            return False
        allowed = COARSE if found.dtype in (torch.float16, torch.bfloat16) else TOLERANCE
        if not torch.allclose(found.double(), wanted, rtol=allowed, atol=allowed):
            return False
    return True


def _formula(form: Form, given: dict[str, Any], number: float) -> Any:
    import torch
    import torch.nn.functional as F

    match form.layer:
        case "RMSNorm":
            x = given["x"]
            return given["weight"] * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + number)
        case "SiLU":
            return F.silu(given["x"])
        case "GeLU":
            return F.gelu(given["x"])
        case "GeluTanh":
            return F.gelu(given["x"], approximate="tanh")
        case "QuickGELU":
            return given["x"] * torch.sigmoid(1.702 * given["x"])
        case "SwiGLUMLP" | "GeGLUMLP":
            gate, up = _gate_and_up(given)
            return (F.silu(gate) if form.layer == "SwiGLUMLP" else F.gelu(gate)) * up
        case "rotary_pos_emb":
            return _rotated(given["x"], given["cos"], given["sin"])
    scale = number if form.number else None
    causal = form.layer == "causal_attention"
    attend = F.scaled_dot_product_attention
    return attend(given["query"], given["key"], given["value"], is_causal=causal, scale=scale)


def _gate_and_up(given: dict[str, Any]) -> tuple[Any, Any]:
    if "gate" in given:
        return given["gate"], given["up"]
    first, second = next(iter(given.values())).chunk(2, dim=-1)
    return (first, second) if "gate_up" in given else (second, first)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Llama's rotary embedding; cosines and sines of half a head, or of a whole one with equal halves."""
    import torch

    half = x.shape[-1] // 2
    if cos.shape[-1] == x.shape[-1]:
        cos, sin = cos[..., :half], sin[..., :half]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
