"""Evaluates the steps of a plan: launches and library calls at concrete values.

Late arguments are left open and computed at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright import records
from tilewright.kernel_file import limits, syntax, words
from tilewright.kernel_file.closures import Bindings, Closure, EvaluationFailure, show
from tilewright.kernel_file.compiled_plan import KernelFile, LaunchLine, LibraryLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.expression_values import INT_MIN, SCALAR_TYPES, MapName, OperationFault, Tensor, show_value
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.records import (
    Argument,
    Dim3,
    DType,
    GpuProfile,
    Launch,
    LibraryCall,
    ScalarType,
    Step,
    TensorMap,
    TensorSpec,
    contiguous_stride,
)

# -- TMA maps --

MAX_RANK = 5
MAX_BOX = 256
MAX_STEP = 8
MAX_SIZE = 2**32
MAX_STRIDE_BYTES = 2**40
ALIGNMENT = 16
# Dtypes with NaN fill; f8 is passed as bytes.
NAN_DTYPES = (DType.F64, DType.F32, DType.F16, DType.BF16)


class MapFault(OperationFault):
    """A violated rule of maps, and the option at fault ("" for the tensor)."""

    def __init__(self, option: str, found: str, remedy: str) -> None:
        self.option = option
        super().__init__(found, remedy, Code.MAP)


def tensor_map(name: str, tensor: Tensor, options: Mapping[str, Any]) -> TensorMap:
    """The TMA descriptor of `map name = tiled(tensor, options...)`; raises `MapFault`."""
    spec = tensor.spec
    shape = options.get("shape", spec.shape)
    stride = options.get("stride", contiguous_stride(shape) if "shape" in options else spec.stride)
    box = options["box"]
    step = options.get("step", (1,) * len(shape))
    _check_ranks(shape, stride, box, step)
    stride = _without_idle_strides(spec.dtype.itemsize, shape, stride)
    _check_view(spec, shape, stride)
    _check_box(spec.dtype, box, step)
    return TensorMap(
        name=name,
        tensor=tensor.name,
        dtype=spec.dtype,
        shape=shape[::-1],
        stride_bytes=tuple(s * spec.dtype.itemsize for s in stride[:-1])[::-1],
        box=box[::-1],
        step=step[::-1],
        swizzle=_swizzle(spec.dtype, box, options),
        fill_nan=_fill(spec.dtype, options),
        l2_bytes=_one_of(options, "l2", 128),
    )


def _check_ranks(shape: tuple[int, ...], stride: tuple[int, ...], box: tuple[int, ...], step: tuple[int, ...]) -> None:
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK:
        raise MapFault("shape", f"{rank} dimensions", f"a map has 1 to {MAX_RANK}; give `shape` to join some")
    for key, values in (("stride", stride), ("box", box), ("step", step)):
        if len(values) != rank:
            found = f"{key} {show_value(values)} has {len(values)} numbers, the shape {show_value(shape)} has {rank}"
            raise MapFault(key, found, f"give {rank}; {key} is outermost first")


def _without_idle_strides(itemsize: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Replace invalid strides of dimensions of size 1, which are never used but checked by the driver."""
    result = list(stride)
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1:
            continue
        if i == len(shape) - 1:
            result[i] = 1
        elif not _is_regular(result[i] * itemsize):
            row_bytes = max(shape[i + 1] * result[i + 1] * itemsize, 1)
            result[i] = -(-row_bytes // ALIGNMENT) * ALIGNMENT // itemsize
    return tuple(result)


def _is_regular(stride_bytes: int) -> bool:
    return 0 <= stride_bytes < MAX_STRIDE_BYTES and stride_bytes % ALIGNMENT == 0


def _check_view(spec: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    itemsize = spec.dtype.itemsize
    if not all(1 <= size <= MAX_SIZE for size in shape):
        found = f"shape {show_value(shape)}"
        raise MapFault("shape", found, "sizes are 1 to 2^32; skip the launch with `when`, or add a `need`")
    if stride[-1] != 1:
        raise MapFault("stride", f"the innermost stride is {stride[-1]}", "it must be 1; the order is outermost first")
    for step in stride[:-1]:
        if not _is_regular(step * itemsize):
            found = f"a stride of {step} elements is {step * itemsize} bytes"
            raise MapFault("stride", found, f"strides are multiples of {ALIGNMENT} bytes below 2^40; add a `need`")
    if not _stays_inside(spec, shape, stride):
        found = f"shape {show_value(shape)} with stride {show_value(stride)} leaves the tensor {spec}"
        found += "" if spec.is_contiguous else f" with stride {show_value(spec.stride)}"
        raise MapFault("shape", found, "every element of the view must be one of the tensor's")


def _stays_inside(spec: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether each dimension of the view steps along one run of the tensor's elements, within its bounds."""
    if 0 in spec.shape:
        return False
    runs = _runs(spec)
    used = [0] * len(runs)
    for size, step in zip(shape, stride, strict=True):
        if size == 1 or step == 0:
            continue
        fitting = [i for i, (_, run_step) in enumerate(runs) if run_step <= step and step % run_step == 0]
        if not fitting:
            return False
        widest = max(fitting, key=lambda i: runs[i][1])
        used[widest] += (size - 1) * (step // runs[widest][1])
    return all(reach < size for reach, (size, _) in zip(used, runs, strict=True))


def _runs(spec: TensorSpec) -> list[tuple[int, int]]:
    """The tensor's dimensions as (size, stride), merged where contiguous."""
    runs: list[tuple[int, int]] = []
    dimensions = [(n, s) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1 and s > 0]
    for size, step in sorted(dimensions, key=lambda dimension: dimension[1]):
        if runs and runs[-1][0] * runs[-1][1] == step:
            runs[-1] = (runs[-1][0] * size, runs[-1][1])
        else:
            runs.append((size, step))
    return runs


def _check_box(dtype: DType, box: tuple[int, ...], step: tuple[int, ...]) -> None:
    if not all(1 <= size <= MAX_BOX for size in box):
        raise MapFault("box", f"box {show_value(box)}", f"each size is 1 to {MAX_BOX}; box is outermost first")
    inner_bytes = box[-1] * dtype.itemsize
    if inner_bytes % ALIGNMENT:
        found = f"the inner box is {box[-1]} {dtype}, {inner_bytes} bytes"
        raise MapFault("box", found, f"it must be a multiple of {ALIGNMENT} bytes; box is outermost first")
    if step[-1] != 1:
        remedy = "the innermost is 1: the hardware steps along the others only"
        raise MapFault("step", f"step {show_value(step)}", remedy)
    if not all(1 <= size <= MAX_STEP for size in step):
        raise MapFault("step", f"step {show_value(step)}", f"each is 1 to {MAX_STEP}; step is outermost first")


def _swizzle(dtype: DType, box: tuple[int, ...], options: Mapping[str, Any]) -> int:
    swizzle = _one_of(options, "swizzle", 0)
    inner_bytes = box[-1] * dtype.itemsize
    if swizzle and inner_bytes > swizzle:
        found = f"the inner box is {inner_bytes} bytes, more than swizzle {swizzle}"
        raise MapFault("swizzle", found, f"use at most {swizzle // dtype.itemsize} elements; box is outermost first")
    return swizzle


def _fill(dtype: DType, options: Mapping[str, Any]) -> bool:
    fill = _one_of(options, "fill", 0)
    if fill and dtype not in NAN_DTYPES:
        raise MapFault("fill", f"fill 1 is NaN, and the tensor is {dtype}", "leave `fill` out, or use a float tensor")
    return fill == 1


def _one_of(options: Mapping[str, Any], key: str, default: int) -> int:
    value: int = options.get(key, default)
    allowed = words.MAP_CHOICES[key]
    if value in allowed:
        return value
    raise MapFault(key, f"{key} {show_value(value)}", f"it is one of {', '.join(map(str, allowed))}")


# -- steps --

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class LateExpression:
    """One late argument; `item` is its position where the expression is a list parameter."""

    value: Analysed
    item: int | None


class StepEvaluator:
    """Evaluates the steps in order; gathers the maps and late arguments they use."""

    def __init__(self, file: KernelFile, bindings: Bindings, gpu: GpuProfile) -> None:
        self.file = file
        self.plan = file.compiled
        self.bindings = bindings
        self.gpu = gpu
        self.maps: dict[str, TensorMap] = {}
        self.late: list[LateExpression] = []

    def run(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        previous_ran = False
        try:
            for line in self.plan.steps:
                if isinstance(line, LibraryLine):
                    steps.append(self._library(line))
                    previous_ran = False
                    continue
                launch = self._launch(line, previous_ran)
                previous_ran = launch is not None
                if launch is not None:
                    steps.append(launch)
        except EvaluationFailure as failure:
            raise KernelFileError((failure.problem,), self.file.name) from None
        return tuple(steps)

    # -- launches --

    def _launch(self, line: LaunchLine, previous_ran: bool) -> Launch | None:
        directive = line.directive
        if line.when is not None and not line.when.run(self.bindings):
            return None
        grid = self._dim(line.grid, "grid")
        if 0 in grid:
            return None
        _refuse(limits.grid_problem(grid, line.grid[0].start))
        block = self._dim(line.block, "block")
        _refuse(limits.block_problem(block, line.block[0].start))
        smem_bytes = 0
        if line.smem is not None:
            smem_bytes = self._int(line.smem, "shared memory")
            _refuse(limits.smem_problem(smem_bytes, self.gpu, line.smem.start))
        cluster = None
        if line.cluster is not None:
            cluster = self._dim(line.cluster, "cluster")
            _refuse(limits.cluster_problem(cluster, grid, self.gpu, line.cluster[0].start))
            if self.gpu.max_cluster == 1:
                cluster = None  # such a GPU has no clusters
        arguments: list[Argument] = []
        places: list[tuple[int, int]] = []
        for argument in line.arguments:
            for value in self._argument(argument):
                arguments.append(value)
                places.append((argument.start.line, argument.start.column))
        return Launch(
            kernel=self._kernel(line),
            grid=grid,
            block=block,
            dynamic_smem_bytes=smem_bytes,
            arguments=tuple(arguments),
            cluster=cluster,
            cooperative=directive.cooperative,
            pdl=directive.pdl and previous_ran,
            line=directive.at.line,
            column=directive.at.column,
            places=tuple(places),
        )

    def _kernel(self, line: LaunchLine) -> str:
        if line.template is None:
            return line.directive.kernel
        values = (value.run(self.bindings) for value in line.template)
        return f"{line.directive.kernel}<{', '.join(_template_text(value) for value in values)}>"

    def _dim(self, values: tuple[Analysed, ...], what: str) -> Dim3:
        sizes = [self._int(value, what) for value in values]
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _int(self, value: Analysed, what: str) -> int:
        result: int = value.run(self.bindings)
        if result >= 0:
            return result
        found = f"`{show(value.expression)}` is {show_value(result)}, for the {what}"
        raise EvaluationFailure.at(value.start, Code.VALUE, found, "it must be an int, 0 or more")

    # -- arguments --

    def _argument(self, argument: Analysed) -> Iterable[Argument]:
        value = argument.run(self.bindings)
        if isinstance(value, Tensor):
            return (records.TensorArgument(value.name),)
        if isinstance(value, MapName):
            self._encode(value.name)
            return (records.MapArgument(value.name),)
        if value is None:
            return (self._absent(argument),)
        if isinstance(value, tuple):
            return [self._scalar(argument, item, position) for position, item in enumerate(value)]
        return (self._scalar(argument, value, None),)

    def _scalar(self, argument: Analysed, value: Any, item: int | None) -> Argument:
        scalar_type = SCALAR_TYPES[type(value)]
        divided = argument.type.divided and scalar_type is ScalarType.INT
        if argument.may_be_late and argument.origins & self.plan.late:
            self.late.append(LateExpression(argument, item))
            return records.LateArgument(len(self.late) - 1, scalar_type, divided)
        return records.ScalarArgument(value, divided)

    def _absent(self, argument: Analysed) -> records.AbsentArgument:
        expression = argument.expression
        if argument.type.is_opaque and isinstance(expression, syntax.Name):
            return records.AbsentArgument(expression.id)
        if isinstance(expression, syntax.Literal):
            return records.AbsentArgument("none")
        found = f"`{show(expression)}` was not given"
        remedy = f"guard it: `{show(expression)} if has({show(expression)}) else ...`"
        raise EvaluationFailure.at(argument.start, Code.VALUE, found, remedy)

    def _encode(self, name: str) -> None:
        if name in self.maps:
            return
        line = self.plan.maps[name]
        at = line.directive.at
        accept = self.plan.accepts.get(line.directive.tensor)
        tensor = self.bindings[line.directive.tensor]
        if tensor is None:
            found = f"{name}: {line.directive.tensor} was not given"
            raise EvaluationFailure.at(at, Code.MAP, found, f"launch it only `when has({line.directive.tensor})`")
        if accept is not None and accept.unaligned:
            found = f"{name}: {tensor.name} is accepted unaligned, a map needs 16-byte alignment"
            raise EvaluationFailure.at(at, Code.MAP, found, f"write `accept {tensor.name}: strided`, or leave it out")
        options = {key: value.run(self.bindings) for key, value in line.options}
        try:
            self.maps[name] = tensor_map(name, tensor, options)
        except MapFault as fault:
            span = next((value.start for key, value in line.options if key == fault.option), at)
            raise EvaluationFailure.at(span, Code.MAP, f"{name}: {fault.found}", fault.remedy) from None

    def _library(self, line: LibraryLine) -> LibraryCall:
        values = (argument.run(self.bindings) for argument in line.arguments)
        arguments = tuple(records.TensorArgument(v.name) if isinstance(v, Tensor) else v for v in values)
        return LibraryCall(line.directive.target, line.directive.function, arguments, line.directive.at.line)


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise EvaluationFailure(problem)


def _template_text(value: int | bool | DType) -> str:
    """A template argument in C++ syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.cpp
    if value == INT_MIN:
        return f"({INT_MIN + 1}LL - 1)"  # C++ has no literal
    return f"{value}LL" if abs(value) > INT32_MAX else str(value)


# -- late arguments --


class LateExpressions:
    """The late arguments of one evaluation, with the values they need besides the call's scalars."""

    def __init__(self, file: KernelFile, expressions: tuple[LateExpression, ...], bindings: Bindings) -> None:
        plan = file.compiled
        self.expressions = expressions
        self.names = tuple(sorted(plan.late))
        self._file_name = file.name
        # All late `let`s, used or not: if one fails, the file does not apply.
        self._lets: tuple[tuple[str, Closure], ...] = tuple((x.directive.name, x.value.run) for x in plan.late_lets)
        self._arguments = tuple((expression.value.run, expression.item) for expression in expressions)
        late_names = {*self.names, *(name for name, _ in self._lets)}
        read: set[str] = set().union(
            *(line.value.names for line in plan.late_lets), *(expression.value.names for expression in expressions)
        )
        read |= {p.name for p in file.plan.op.parameters if p.optional}  # for `has`
        self._known = {name: bindings[name] for name in read - late_names}
        parameters = (file.parameters[name] for name in self.names)
        self._floats = tuple(p.name for p in parameters if p.scalar is ScalarType.FLOAT and not p.is_list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute per call."""
        return not self._lets and not self._arguments

    def values(self, scalars: Mapping[str, Any]) -> tuple[int | float | bool, ...]:
        if self.is_empty:
            return ()
        # Values of the evaluation take precedence: only late scalars are new.
        known = {**scalars, **self._known}
        for name in self._floats:
            value = known[name]
            if type(value) is int:
                known[name] = float(value)
        try:
            for name, run in self._lets:
                known[name] = run(known)
        except EvaluationFailure as failure:
            raise DoesNotApply(replace(failure.problem, code=Code.DOES_NOT_APPLY)) from None
        try:
            return tuple([run(known) if item is None else run(known)[item] for run, item in self._arguments])
        except EvaluationFailure as failure:
            raise KernelFileError((failure.problem,), self._file_name) from None
