"""Runs in the child: describes a module's parameters and buffers, and the inputs of a KernelBench problem."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.records import IntegerValues, NormalValues, Part, UniformValues, Values
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe as describe_error
from tilewright.reference.torch_calls import dtype_of
from tilewright.tasks.questions import FoundNumber, FoundTensor, ModuleAnswer, ModuleRequest, some_of
from tilewright.tasks.reading.python_source import SourceParameter

_LARGEST_ELEMENTS = 1 << 27  # of inputs that are created only to read their values
_LOOKED_AT = 1 << 20
_FEW = 64  # too few elements to identify a distribution by its moments
_STANDARD_ERRORS = 3.0  # a mean within these of 0 is 0
_MANY_ZEROS = 0.2  # of all elements: more than a distribution gives
_FILLED = 0.5  # of a triangle: a diagonal or a band is not one
_UNIFORM_KURTOSIS = 2.3  # 1.8 for a uniform distribution, 3 for a normal one
_NORMS = tuple(getattr(torch.nn, f"{kind}Norm{rank}d") for kind in ("Batch", "Instance") for rank in (1, 2, 3))
_SAME_VALUES = (  # operations that keep the elements of a tensor
    *("to", "float", "half", "bfloat16", "double", "contiguous", "view", "reshape", "permute", "transpose", "t"),
    *("unsqueeze", "squeeze", "requires_grad_", "detach", "clone", "cpu"),
)


def describe(function: Callable[..., Any], request: ModuleRequest) -> ModuleAnswer:
    """Build the module and describe it; make the inputs, on the meta device if that is enough."""
    names = vars(sys.modules[function.__module__])
    torch.manual_seed(0)
    module = _evaluated(request.build, names)
    if not isinstance(module, torch.nn.Module):
        raise ReferenceProblem(f"{request.build} is a {type(module).__name__}, not an nn.Module")
    learned = [_found(name, one.detach(), True) for name, one in module.named_parameters()]
    notes, inside = [], []
    for name, buffer in module.named_buffers():
        if is_structure(buffer):
            inside.append(name)
        else:
            found = _found(name, buffer.detach(), False)
            learned.append(replace(found, statistic=_is_statistic(module, name)))
    if inside:
        many = len(inside) > 1
        held = "are part of the reference, not inputs" if many else "is part of the reference, not an input"
        notes.append(f"the buffer{'s' if many else ''} {some_of(inside)} {held}")
    inputs = _inputs(request.inputs, names) if request.inputs else ()
    if any(isinstance(one, FoundTensor) and one.values is None for one in inputs):
        notes.append("the inputs of get_inputs are too large to examine; the usual values are used")
    masks = tuple(name for name in inside if module.get_buffer(name).ndim)  # scalars work with any device
    return ModuleAnswer(tuple(learned), inputs, tuple(notes), _forward(module), masks)


def _forward(module: torch.nn.Module) -> tuple[SourceParameter, ...]:
    """The parameters of the module's `forward`."""
    if type(module).forward is torch.nn.Module.forward:
        raise ReferenceProblem(f"{type(module).__name__} defines no forward; write one, or a function that calls it")
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError) as error:
        raise ReferenceProblem(f"{type(module).__name__}.forward has no readable signature: {error}") from error
    return tuple(
        SourceParameter(
            one.name,
            getattr(one.annotation, "__name__", str(one.annotation)) if one.annotation is not one.empty else "",
            None if one.default is one.empty else repr(one.default) if _is_plain(one.default) else "...",
            one.kind is one.POSITIONAL_ONLY,
        )
        for one in parameters
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    )


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _evaluated(expression: str, names: dict[str, Any]) -> Any:
    """The expression's value. Its names were checked, or a person wrote it for their own class."""
    try:
        return eval(expression, dict(names))
    except Exception as error:  # whatever somebody's constructor raises
        raise ReferenceProblem(f"{expression} fails: {describe_error(error)}") from error


def is_structure(buffer: torch.Tensor) -> bool:
    """Whether a buffer is a mask or a counter, whose values must not be redrawn."""
    if not buffer.is_floating_point() or buffer.is_meta:
        return not buffer.is_meta
    looked_at = buffer.flatten()[:_LOOKED_AT]
    return buffer.numel() > 1 and bool(((looked_at == 0) | (looked_at == 1)).all()) and bool(looked_at.var() > 0)


def _is_statistic(module: torch.nn.Module, name: str) -> bool:
    """Whether a buffer is a running statistic of one of torch's norms in training mode."""
    place, _, own = name.rpartition(".")
    owner = module.get_submodule(place)
    return own in ("running_mean", "running_var") and type(owner) in _NORMS and owner.training


def _found(name: str, tensor: torch.Tensor, learned: bool) -> FoundTensor:
    return FoundTensor(name, dtype_of(tensor), tuple(tensor.shape), values_like(tensor), learned)


def values_like(tensor: torch.Tensor) -> Values | None:
    """The distribution of a tensor's elements.

    A constant becomes a narrow distribution around it, so that a kernel that leaves out a zero bias does not pass.
    """
    flat = tensor.flatten()[:_LOOKED_AT]
    if flat.numel() == 0 or flat.is_meta:
        return None
    if not flat.is_floating_point():
        return IntegerValues(int(flat.min()), int(flat.max()) + 1)
    wide = flat.double()
    mean = float(wide.mean())
    deviation = float(wide.std(correction=0))
    if not math.isfinite(mean) or not math.isfinite(deviation):
        return None
    if abs(mean) <= _STANDARD_ERRORS * deviation / math.sqrt(flat.numel()):
        mean = 0.0
    if deviation <= 1e-6 * max(abs(mean), 1e-30):
        return NormalValues(_rounded(mean), _rounded(0.1 * abs(mean)) or 0.1)
    if flat.numel() < _FEW:
        return UniformValues(_rounded(float(wide.min())), _rounded(float(wide.max())))
    if float((wide - mean).pow(4).mean()) / deviation**4 < _UNIFORM_KURTOSIS:
        half = deviation * math.sqrt(3.0)
        # Not beyond the observed range: the inputs of a logarithm must stay positive.
        low, high = max(mean - half, float(wide.min())), min(mean + half, float(wide.max()))
        return UniformValues(_rounded(low, half), _rounded(high, half))
    return NormalValues(_rounded(mean, deviation), _rounded(deviation))


def _rounded(value: float, scale: float = 0.0) -> float:
    """Round to three digits of the larger of value and scale."""
    largest = max(abs(value), abs(scale))
    if largest == 0.0:
        return 0.0
    return round(value, 2 - math.floor(math.log10(largest))) + 0.0


# -- the inputs of a problem file --


class _Origins(TorchFunctionMode):
    """Tracks tensors that come from torch's random functions and were not written since."""

    def __init__(self) -> None:
        super().__init__()
        # The tensor is kept alive because ids are reused; every write changes its version.
        self._known: dict[int, tuple[torch.Tensor, int, Values]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        values = _drawn_by(name, args, kwargs or {})
        if values is None and name in _SAME_VALUES and args and isinstance(args[0], torch.Tensor):
            values = self.of(args[0])
        if values is not None and isinstance(made, torch.Tensor):
            self._known[id(made)] = (made, made._version, values)
        return made

    def of(self, tensor: torch.Tensor) -> Values | None:
        _, version, values = self._known.get(id(tensor), (None, -1, None))
        return values if version == tensor._version else None


def _drawn_by(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values | None:
    if name in ("rand", "rand_like"):
        return UniformValues(0.0, 1.0)
    if name in ("randn", "randn_like"):
        return NormalValues()
    if name in ("randint", "randint_like"):
        bounds = [one for one in args if isinstance(one, int)]
        low = kwargs.get("low", bounds[0] if len(bounds) > 1 else 0)
        high = kwargs.get("high", bounds[-1] if bounds else None)
        return IntegerValues(int(low), int(high)) if isinstance(high, int) else None
    return None


def _inputs(expression: str, names: dict[str, Any]) -> tuple[FoundTensor | FoundNumber, ...]:
    origins = _Origins()
    try:
        with torch.device("meta"), origins:
            made = _list(_evaluated(expression, names))
        known = [origins.of(one) if isinstance(one, torch.Tensor) else None for one in made]
    except ReferenceProblem:
        made, known = [], []  # it reads values; real tensors are made below
    unknown = [one for one, values in zip(made, known, strict=True) if isinstance(one, torch.Tensor) and not values]
    if not made or (unknown and sum(one.numel() for one in unknown) <= _LARGEST_ELEMENTS):
        torch.manual_seed(0)
        made = _list(_evaluated(expression, names))
        known = [known[i] if i < len(known) else None for i in range(len(made))]
        return tuple(_looked_at(one, values) for one, values in zip(made, known, strict=True))
    return tuple(_input(one, values) for one, values in zip(made, known, strict=True))


def _looked_at(one: Any, known: Values | None) -> FoundTensor | FoundNumber:
    """An input made with real values; structure beyond a distribution, such as symmetry, is noted."""
    if known or not isinstance(one, torch.Tensor) or not one.is_floating_point() or one.numel() < _FEW:
        return _input(one, known or (values_like(one) if isinstance(one, torch.Tensor) else None))
    zeros = float((one == 0).double().mean())
    sparse = _MANY_ZEROS < zeros < 1.0
    found = _input(one, values_like(one[one != 0] if sparse else one))
    assert isinstance(found, FoundTensor)
    for part, kept in ((Part.UPPER, torch.triu), (Part.LOWER, torch.tril)) if sparse and one.ndim >= 2 else ():
        filled = (1.0 - zeros) * one.numel() > _FILLED * float(kept(torch.ones_like(one, dtype=torch.bool)).sum())
        if filled and torch.equal(one, kept(one)) and isinstance(found.values, (NormalValues, UniformValues)):
            return replace(found, values=replace(found.values, part=part))
    if sparse:
        return replace(found, structure=f"get_inputs leaves {zeros:.0%} of it zero")
    if one.ndim >= 2 and one.shape[-1] == one.shape[-2] and torch.equal(one, one.mT):
        return replace(found, structure="get_inputs makes it symmetric")
    return found


def _list(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _input(one: Any, values: Values | None) -> FoundTensor | FoundNumber:
    if isinstance(one, torch.Tensor):
        return FoundTensor("", dtype_of(one), tuple(map(int, one.shape)), values)
    if isinstance(one, (bool, int, float)):
        return FoundNumber(one)
    raise ReferenceProblem(f"get_inputs gives a {type(one).__name__}; an op takes tensors and numbers")
