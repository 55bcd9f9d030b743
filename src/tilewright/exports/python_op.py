"""Python text for an op: signatures, torch's schema, and expressions that make arguments."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

from tilewright.exports.source import Source
from tilewright.kernel_file import Arguments, Op, Parameter
from tilewright.records import (
    DType,
    IndexValues,
    IntegerValues,
    NormalValues,
    NumberInput,
    Part,
    TensorInput,
    TensorSpec,
    UniformValues,
)

SMALL_ELEMENTS = 1 << 12


def python_name(name: str) -> str:
    """A parameter's name in Python; words of the language get an underscore."""
    return f"{name}_" if keyword.iskeyword(name) or name in ("self", "torch") else name


def signature(op: Op) -> str:
    """`x, weight, eps=1e-06`; parameters after a default have one too."""
    parts = []
    has_default = False
    for one in op.parameters:
        has_default = has_default or one.has_default or one.optional
        default = repr(one.default) if one.has_default else "None"
        parts.append(python_name(one.name) + (f"={default}" if has_default else ""))
    return ", ".join(parts)


def arguments_text(op: Op) -> str:
    return ", ".join(python_name(one.name) for one in op.parameters)


def schema(op: Op) -> str:
    """`(Tensor x, float eps=1e-06) -> Tensor`, as torch.library takes it."""
    parts = [_schema_parameter(one, position) for position, one in enumerate(op.parameters)]
    results = "Tensor" if len(op.results) == 1 else f"({', '.join(['Tensor'] * len(op.results))})"
    return f"({', '.join(parts)}) -> {results}"


def _schema_parameter(one: Parameter, position: int) -> str:
    if one.scalar is None:
        kind = f"Tensor({chr(ord('a') + position % 26)}!)" if one.in_place else "Tensor"
    else:
        kind = one.scalar.value
        if one.is_list:
            kind += f"[{one.length if one.length is not None else ''}]"
    kind += "?" if one.optional else ""
    text = f"{kind} {python_name(one.name)}"
    if one.has_default:
        default = list(one.default) if isinstance(one.default, tuple) else one.default
        return f"{text}={default}"
    return f"{text}=None" if one.optional else text


# -- arguments for tests and benchmarks --


def small_call(covered: Sequence[Arguments]) -> Arguments:
    """A covered call that a CPU computes quickly.

    Calls with a size of 1 where the op's own call has more prove little and are avoided.
    """
    telling = [call for call in covered if not _is_degenerate(call, covered[0])]
    by_size = sorted(telling, key=_elements)  # the first call is one of them
    return next((call for call in by_size if _elements(call) >= SMALL_ELEMENTS), by_size[-1])


def _is_degenerate(call: Arguments, own: Arguments) -> bool:
    pairs = [(call.get(name), value) for name, value in own.items() if isinstance(value, TensorSpec)]
    return any(
        size <= 1 < other
        for one, value in pairs
        if isinstance(one, TensorSpec) and one.ndim == value.ndim
        for size, other in zip(one.shape, value.shape, strict=True)
    )


def _elements(call: Arguments) -> int:
    return sum(value.numel for value in call.values() if isinstance(value, TensorSpec))


def call_text(source: Source, call: Arguments) -> str:
    """Python expressions for a call's arguments on `device`, separated by commas."""
    known = {one.name: one for one in source.task.inputs} if source.task is not None else {}
    sizes = _sizes(source, call)
    parts = []
    for parameter in source.op.parameters:
        value = call.get(parameter.name)
        if isinstance(value, TensorSpec):
            parts.append(_tensor_text(value, known.get(parameter.name), sizes))
        else:
            parts.append(repr(value))
    return ", ".join(parts)


def _sizes(source: Source, call: Arguments) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in source.task.tensors if source.task is not None else ():
        spec = call.get(one.name)
        if isinstance(spec, TensorSpec):
            found.update(zip(one.dimensions, spec.shape, strict=True))
    return found


_KEPT = {Part.WHOLE: "", Part.UPPER: ".triu()", Part.LOWER: ".tril()"}


def _tensor_text(spec: TensorSpec, known: TensorInput | NumberInput | None, sizes: dict[str, int]) -> str:
    shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
    dtype = f"torch.{spec.dtype.torch_name}"
    values = known.values if isinstance(known, TensorInput) else None
    plain = f"device=device, dtype=torch.float32).to({dtype})"
    match values:
        case UniformValues(low=low, high=high):
            return f"(torch.rand({shape}, device=device) * {high - low!r} + {low!r}){_KEPT[values.part]}.to({dtype})"
        case IntegerValues(low=low, high=high):
            top = 2 if spec.dtype is DType.BOOL else high
            return f"torch.randint({max(low, 0) if top == 2 else low}, {top}, {shape}, device=device).to({dtype})"
        case IndexValues(dimension=dimension):
            return f"torch.randint(0, {max(sizes.get(dimension, 1), 1)}, {shape}, device=device).to({dtype})"
        case NormalValues(mean=mean, deviation=deviation) if values != NormalValues():
            drawn = f"(torch.randn({shape}, device=device) * {deviation!r} + {mean!r}){_KEPT[values.part]}"
            return f"{drawn}.to({dtype})"  # cast last: torch has no triu of 8-bit floats
    if spec.dtype.is_float:
        return f"torch.randn({shape}, {plain}"
    return f"torch.randint(0, 2, {shape}, device=device).to({dtype})"
