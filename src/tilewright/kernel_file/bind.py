"""Binds a plan to its build: packs each launch's arguments as the compiled kernel declares them.

Nothing wraps or truncates. Inputs bind only to `const` pointers, or to pointers that the compiled code never writes
through. Launches beyond the GPU's limits are refused. The device fills in addresses and descriptors, `pack_late` late
numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import records
from tilewright.kernel_file.evaluate import Evaluation
from tilewright.kernel_file.expression_values import SCALAR_TYPES, show_value
from tilewright.kernel_file.limits import TENSOR_ALIGNMENT, argument_block_problem, compiled_problems
from tilewright.kernel_file.problems import Code, KernelFileError, Problem
from tilewright.records import KernelParameter, LateField, Launch, PackedLaunch, ParameterKind, PointeeKind, ScalarType

TENSOR_MAP_BYTES = 128
_SIGNED = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_UNSIGNED = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_FLOATS = {4: "<f", 8: "<d"}
_INTEGER_RANGES = {
    **{code: (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) for size, code in _SIGNED.items()},
    **{code: (0, 2 ** (8 * size) - 1) for size, code in _UNSIGNED.items()},
}
_HALVES = {records.DType.F16: PointeeKind.F16, records.DType.BF16: PointeeKind.BF16}


class _Misfit(Exception):
    """An argument that does not fit its parameter."""

    def __init__(self, found: str, remedy: str) -> None:
        self.found = found
        self.remedy = remedy
        super().__init__(found)


@dataclass(frozen=True)
class _BoundTensor:
    """What binding needs of a tensor."""

    dtype: records.DType
    is_input: bool
    is_unaligned: bool
    alignment: int  # guaranteed to the file


def bind(evaluation: Evaluation, build: records.Build | None, gpu: records.GpuProfile) -> records.BoundPlan:
    """The plan with packed launches; `build` is None where there are none.

    Raises `KernelFileError` with every argument and limit that does not fit.
    """
    tensors = _tensors(evaluation)
    problems: list[Problem] = []
    steps: list[PackedLaunch | records.LibraryCall] = []
    for step in evaluation.steps:
        if isinstance(step, records.LibraryCall):
            steps.append(step)
            continue
        assert build is not None, "a plan that launches kernels needs their build"
        kernel = build.kernel(step.kernel)
        packed, found = _pack(step, kernel, tensors)
        problems.extend(found)
        problems.extend(compiled_problems(step, kernel, gpu))
        if packed is not None:
            steps.append(packed)
    if problems:
        raise KernelFileError(tuple(problems), evaluation.file.name)
    return records.BoundPlan(evaluation.buffers, evaluation.maps, tuple(steps))


def _tensors(evaluation: Evaluation) -> dict[str, _BoundTensor]:
    file = evaluation.file
    tensors = {}
    for name, spec in evaluation.tensors:
        accept = file.compiled.accepts.get(name)
        unaligned = accept is not None and accept.unaligned
        alignment = spec.dtype.itemsize if unaligned else TENSOR_ALIGNMENT
        tensors[name] = _BoundTensor(spec.dtype, not file.parameters[name].in_place, unaligned, alignment)
    for buffer in evaluation.buffers:
        tensors[buffer.name] = _BoundTensor(buffer.spec.dtype, False, False, records.ALLOCATION_ALIGNMENT)
    return tensors


# -- packing --


def _pack(
    launch: Launch, kernel: records.CompiledKernel, tensors: dict[str, _BoundTensor]
) -> tuple[PackedLaunch | None, list[Problem]]:
    given, declared = len(launch.arguments), len(kernel.parameters)
    if given != declared:
        found = f"{launch.kernel} takes {declared} arguments, {given} are passed (lists count each item)"
        remedy = "pass one for each parameter of the kernel"
        return None, [Problem(Code.ARGUMENT, launch.line, launch.column, found, remedy)]
    problems: list[Problem] = []
    places = launch.places or ((launch.line, launch.column),) * given
    layout = _layout(kernel.parameters)
    size = max((offset + length for offset, length in layout), default=0)
    writer = _ArgumentBlock(bytearray(size), tensors)
    rows = zip(launch.arguments, kernel.parameters, layout, places, strict=True)
    for number, (argument, parameter, (offset, _), place) in enumerate(rows, 1):
        try:
            writer.write(argument, parameter, offset, place)
        except _Misfit as misfit:
            found = f"argument {number} of {launch.kernel}: {misfit.found}"
            problems.append(Problem(Code.ARGUMENT, *place, found, misfit.remedy))
    too_large = argument_block_problem(launch, size)
    if too_large is not None:
        problems.append(too_large)
    if problems:
        return None, problems
    packed = PackedLaunch(
        symbol=kernel.symbol,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        dynamic_smem_bytes=launch.dynamic_smem_bytes,
        cluster=launch.cluster or kernel.cluster,
        cooperative=launch.cooperative,
        pdl=launch.pdl,
        parameters=layout,
        block_template=bytes(writer.block),
        pointers=tuple(writer.pointers),
        maps=tuple(writer.maps),
        late=tuple(writer.late),
        line=launch.line,
    )
    return packed, []


def _layout(parameters: Sequence[KernelParameter]) -> tuple[tuple[int, int], ...]:
    """(offset, size) of each parameter: in order, each at its own alignment."""
    layout = []
    end = 0
    for parameter in parameters:
        align = max(parameter.align, 1)
        offset = -(-end // align) * align
        layout.append((offset, parameter.size))
        end = offset + parameter.size
    return tuple(layout)


class _ArgumentBlock:
    """Fills an argument block and records the fields that are filled in later."""

    def __init__(self, block: bytearray, tensors: dict[str, _BoundTensor]) -> None:
        self.block = block
        self.tensors = tensors
        self.pointers: list[records.PointerField] = []
        self.maps: list[records.MapField] = []
        self.late: list[LateField] = []

    def write(
        self, argument: records.Argument, parameter: KernelParameter, offset: int, place: tuple[int, int]
    ) -> None:
        match argument:
            case records.TensorArgument(name=name):
                _check_pointer(name, self.tensors[name], parameter)
                self.pointers.append(records.PointerField(offset, name))
            case records.AbsentArgument(name=name):
                _check_absent(name, parameter)  # stays zero: a null pointer
            case records.MapArgument(name=name):
                if parameter.kind is not ParameterKind.TENSOR_MAP or parameter.size != TENSOR_MAP_BYTES:
                    found = f"{name} is a map, the kernel declares {describe_parameter(parameter)}"
                    raise _Misfit(found, "declare it `const __grid_constant__ CUtensorMap`")
                self.maps.append(records.MapField(offset, name))
            case records.ScalarArgument(value=value, divided=divided):
                code = _format(SCALAR_TYPES[type(value)], divided, show_value(value), parameter)
                problem = _range_fault(code, value)
                if problem is not None:
                    raise _Misfit(f"{value} {problem}, the kernel declares {describe_parameter(parameter)}", _WIDER)
                struct.pack_into(code, self.block, offset, value)
            case records.LateArgument(index=index, type=scalar_type, divided=divided):
                code = _format(scalar_type, divided, f"a {scalar_type.value}", parameter)
                self.late.append(LateField(offset, code, index, place))


# -- rules --


def describe_parameter(parameter: KernelParameter) -> str:
    """A parameter's type in words: `const pointer to 4 bytes`, `32-bit signed integer`."""
    match parameter.kind:
        case ParameterKind.POINTER | ParameterKind.CONST_POINTER:
            what = parameter.pointee.value if parameter.pointee is not PointeeKind.OTHER else "elements"
            return f"a {parameter.kind.value} to {what} of {parameter.pointee_size} bytes"
        case ParameterKind.SIGNED | ParameterKind.UNSIGNED | ParameterKind.FLOAT:
            return f"a {8 * parameter.size}-bit {parameter.kind.value}"
        case ParameterKind.OTHER:
            return f"a struct, reference or other type of {parameter.size} bytes"
    return f"a {parameter.kind.value}"


def _check_pointer(name: str, tensor: _BoundTensor, parameter: KernelParameter) -> None:
    declared = describe_parameter(parameter)
    what = f"{name} is a tensor of {tensor.dtype}, the kernel declares {declared}"
    fitting = f"`{'const ' if tensor.is_input else ''}{tensor.dtype.cpp}*`"
    if parameter.kind not in (ParameterKind.POINTER, ParameterKind.CONST_POINTER):
        raise _Misfit(what, f"declare it {fitting}, or pass what the kernel declares: the order may differ")
    if tensor.is_input and parameter.kind is ParameterKind.POINTER and not parameter.only_read:
        found = f"{name} is an input, the kernel declares {declared}"
        raise _Misfit(found, f"declare it {fitting}, or pass an output: the order may differ")
    half = _HALVES.get(tensor.dtype)
    if PointeeKind.OTHER not in (half or PointeeKind.OTHER, parameter.pointee) and half is not parameter.pointee:
        raise _Misfit(what, f"declare it {tensor.dtype.cpp}, or pass a tensor of the kernel's type")
    size, itemsize = parameter.pointee_size, tensor.dtype.itemsize
    if size > 1 and size % itemsize:
        raise _Misfit(what, f"the pointee is a multiple of {itemsize} bytes, or 1 byte")
    if tensor.is_unaligned and size > itemsize:
        raise _Misfit(
            f"{what}, and {name} is accepted unaligned", f"declare it {tensor.dtype.cpp}, or align the tensor"
        )
    if parameter.pointee_align > tensor.alignment:
        found = f"{what}, aligned to {parameter.pointee_align} bytes; {name} is aligned to {tensor.alignment}"
        raise _Misfit(found, "use a type of smaller alignment")


def _check_absent(name: str, parameter: KernelParameter) -> None:
    declared = describe_parameter(parameter)
    if parameter.kind not in (ParameterKind.POINTER, ParameterKind.CONST_POINTER):
        what = "no pointer" if name == "none" else "an optional tensor"
        raise _Misfit(f"{name} is {what}, the kernel declares {declared}", "declare it a const pointer")
    if parameter.kind is ParameterKind.POINTER and name != "none" and not parameter.only_read:
        raise _Misfit(f"{name} is an input, the kernel declares {declared}", "declare it a const pointer")


def _format(scalar_type: ScalarType, divided: bool, text: str, parameter: KernelParameter) -> str:
    """The `struct` code that packs a number into a parameter."""
    kind, size = parameter.kind, parameter.size
    what = f"{text} is {'an' if scalar_type is ScalarType.INT else 'a'} {scalar_type.value}"
    if text == f"a {scalar_type.value}":
        what = f"{'an' if scalar_type is ScalarType.INT else 'a'} {scalar_type.value}"
    found = f"{what}, the kernel declares {describe_parameter(parameter)}"
    if kind is ParameterKind.SIGNED and scalar_type is not ScalarType.FLOAT and size in _SIGNED:
        return _SIGNED[size]
    if kind is ParameterKind.UNSIGNED and scalar_type is not ScalarType.FLOAT and size in _UNSIGNED:
        return _UNSIGNED[size]
    if kind is ParameterKind.FLOAT and scalar_type is not ScalarType.BOOL and size in _FLOATS:
        if divided:
            raise _Misfit(f"{found}; the int comes from an integer division", "divide floats: write `1.0 / n`")
        return _FLOATS[size]
    if kind is ParameterKind.BOOL and scalar_type is ScalarType.BOOL:
        return "<?"
    if kind in (ParameterKind.POINTER, ParameterKind.CONST_POINTER):
        raise _Misfit(found, "pass a tensor; numbers never become pointers")
    if kind is ParameterKind.TENSOR_MAP:
        raise _Misfit(found, "pass the name of a `map`")
    if kind is ParameterKind.OTHER:
        raise _Misfit(found, "kernels take pointers, numbers and CUtensorMap; pass the parts as numbers")
    if scalar_type is ScalarType.FLOAT:
        raise _Misfit(found, "declare it float or double")
    raise _Misfit(found, "pass a value of the declared type, or change the declaration")


_WIDER = "declare a wider type such as long long, or add a `need`"


def _range_fault(code: str, value: int | float | bool) -> str | None:
    bounds = _INTEGER_RANGES.get(code)
    if bounds is not None:
        return None if bounds[0] <= value <= bounds[1] else f"is outside {bounds[0]} to {bounds[1]}"
    if code == "<f" and math.isfinite(value):
        try:
            struct.pack(code, value)
        except OverflowError:
            return "is beyond the range of a float"
    return None


# -- late numbers --


def pack_late(launch: PackedLaunch, block: bytearray, values: Sequence[int | float | bool]) -> None:
    """Write a call's late values into an argument block; raises `KernelFileError` if one does not fit."""
    for late in launch.late:
        value = values[late.index]
        try:
            struct.pack_into(late.format, block, late.offset, value)
        except (struct.error, OverflowError):
            number = 1 + next(i for i, (offset, _) in enumerate(launch.parameters) if offset == late.offset)
            fault = _range_fault(late.format, value) or "does not fit"
            line, column = late.place if late.place[0] else (launch.line, 0)
            found = f"argument {number} of {launch.kernel}: {value} {fault}"
            raise KernelFileError((Problem(Code.ARGUMENT, line, column, found, _WIDER),)) from None


def settle(plan: records.BoundPlan, values: Sequence[int | float | bool]) -> records.BoundPlan:
    """The plan with the late values of one call filled in."""
    steps: list[PackedLaunch | records.LibraryCall] = []
    for step in plan.steps:
        if isinstance(step, PackedLaunch) and step.late:
            block = bytearray(step.block_template)
            pack_late(step, block, values)
            step = replace(step, block_template=bytes(block), late=())
        steps.append(step)
    return replace(plan, steps=tuple(steps))
