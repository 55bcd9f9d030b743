"""The steps of a chosen combination: launches and library calls at concrete values. Every error here is an error.

Late arguments, numbers made of scalars that decide nothing else, are left open and computed again at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright import records
from tilewright.kernel_file import limits, syntax
from tilewright.kernel_file.closures import Bindings, Closure, EvaluationFailure, show
from tilewright.kernel_file.compiled_plan import KernelFile, LaunchLine, LibraryLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.expression_values import INT_MIN, SCALAR_TYPES, MapName, Tensor, show_value
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.kernel_file.tensor_map import MapFault, tensor_map
from tilewright.records import Argument, Dim3, DType, GpuProfile, Launch, LibraryCall, ScalarType, Step, TensorMap

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class LateExpression:
    """One late argument; `item` is its position where the expression is a list parameter."""

    value: Analysed
    item: int | None


class Steps:
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
                cluster = None  # one block is no cluster, and such a GPU knows no other
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
    """A template argument as C++ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.cpp
    if value == INT_MIN:
        return f"({INT_MIN + 1}LL - 1)"  # C++ has no literal for it
    return f"{value}LL" if abs(value) > INT32_MAX else str(value)


# -- late arguments --


class LateExpressions:
    """The late arguments of one evaluation, with the values they need beside the call's scalars."""

    def __init__(self, file: KernelFile, expressions: tuple[LateExpression, ...], bindings: Bindings) -> None:
        plan = file.compiled
        self.expressions = expressions
        self.names = tuple(sorted(plan.late))
        self._file_name = file.name
        # Every late `let` is computed, used or not: one that fails means that the file does not apply.
        self._lets: tuple[tuple[str, Closure], ...] = tuple((x.directive.name, x.value.run) for x in plan.late_lets)
        self._arguments = tuple((expression.value.run, expression.item) for expression in expressions)
        late_names = {*self.names, *(name for name, _ in self._lets)}
        read: set[str] = set().union(
            *(line.value.names for line in plan.late_lets), *(expression.value.names for expression in expressions)
        )
        read |= {p.name for p in file.plan.op.parameters if p.optional}  # what `has` may ask for
        self._known = {name: bindings[name] for name in read - late_names}
        parameters = (file.parameters[name] for name in self.names)
        self._floats = tuple(p.name for p in parameters if p.scalar is ScalarType.FLOAT and not p.is_list)

    @property
    def is_empty(self) -> bool:
        """Whether a call has nothing to compute."""
        return not self._lets and not self._arguments

    def values(self, scalars: Mapping[str, Any]) -> tuple[int | float | bool, ...]:
        if self.is_empty:
            return ()
        # What the evaluation knew wins: of the call, only late scalars are new.
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
