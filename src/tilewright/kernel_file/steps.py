"""The steps of a chosen combination: launches and library calls at concrete values. Every error here is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.kernel_file.closures import Compiled, Environment, Failure
from tilewright.kernel_file.compiled_plan import ArgumentLine, CompiledPlan, LaunchLine, LibraryLine
from tilewright.kernel_file.explain import show, start
from tilewright.kernel_file.late import LateExpression
from tilewright.kernel_file.limits import block_problem, cluster_problem, grid_problem, smem_problem
from tilewright.kernel_file.problems import Code, KernelFileError, Problem
from tilewright.kernel_file.syntax import KernelFile, Name, Place
from tilewright.kernel_file.tensor_map import MapFault, tensor_map
from tilewright.kernel_file.values import INT_MIN, MapName, Tensor, show_value, type_name
from tilewright.records import (
    AbsentArgument,
    Argument,
    Dim3,
    DType,
    GpuProfile,
    LateArgument,
    Launch,
    LibraryCall,
    LibraryValue,
    MapArgument,
    ScalarArgument,
    ScalarType,
    Step,
    TensorArgument,
    TensorMap,
)

INT32_MAX = 2**31 - 1
SCALAR_TYPES = {bool: ScalarType.BOOL, int: ScalarType.INT, float: ScalarType.FLOAT}


class Steps:
    """Evaluates the steps in order; gathers the maps and late arguments they use."""

    def __init__(self, file: KernelFile, plan: CompiledPlan, environment: Environment, gpu: GpuProfile) -> None:
        self.file = file
        self.plan = plan
        self.environment = environment
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
        except Failure as failure:
            raise KernelFileError((failure.problem,), self.file.name) from None
        return tuple(steps)

    # -- launches --

    def _launch(self, line: LaunchLine, previous_ran: bool) -> Launch | None:
        directive = line.directive
        if line.when is not None and not self._bool(line.when):
            return None
        grid = self._dim(line.grid, "grid")
        if 0 in grid:
            return None
        _refuse(grid_problem(grid, start(directive.grid[0])))
        block = self._dim(line.block, "block")
        _refuse(block_problem(block, start(directive.block[0])))
        smem_bytes = 0
        if line.smem is not None:
            smem_bytes = self._int(line.smem, "shared memory")
            _refuse(smem_problem(smem_bytes, self.gpu, start(line.smem.expression)))
        cluster = None
        if line.cluster is not None:
            cluster = self._dim(line.cluster, "cluster")
            _refuse(cluster_problem(cluster, grid, self.gpu, start(line.cluster[0].expression)))
            if self.gpu.max_cluster == 1:
                cluster = None  # one block is no cluster, and such a GPU knows no other
        arguments: list[Argument] = []
        places: list[tuple[int, int]] = []
        for argument in line.arguments:
            for value in self._argument(argument):
                arguments.append(value)
                places.append((argument.place.line, argument.place.column))
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
        values = ((value.run(self.environment), start(value.expression)) for value in line.template)
        return f"{line.directive.kernel}<{', '.join(_template_text(value, place) for value, place in values)}>"

    def _dim(self, values: tuple[Compiled, ...], what: str) -> Dim3:
        sizes = [self._int(value, what) for value in values]
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _int(self, value: Compiled, what: str) -> int:
        result = value.run(self.environment)
        if type(result) is int and result >= 0:
            return result
        found = f"`{show(value.expression)}` is {show_value(result)}"
        code = Code.VALUE if type(result) is int else Code.TYPE
        raise _failure(code, start(value.expression), f"{found}, for the {what}", "it must be an int, 0 or more")

    def _bool(self, value: Compiled) -> bool:
        result = value.run(self.environment)
        if type(result) is bool:
            return result
        found = f"`when` is given {type_name(result)}"
        raise _failure(Code.TYPE, start(value.expression), found, "give it a bool")

    # -- arguments --

    def _argument(self, line: ArgumentLine) -> Iterable[Argument]:
        value = line.value.run(self.environment)
        divided = line.value.divided
        if isinstance(value, Tensor):
            return (TensorArgument(value.name),)
        if isinstance(value, MapName):
            self._encode(value.name)
            return (MapArgument(value.name),)
        if value is None:
            return (self._absent(line),)
        if isinstance(value, tuple):
            items = enumerate(value)
            return [self._scalar(line, item, position, divided) for position, item in items]
        return (self._scalar(line, value, None, divided),)

    def _scalar(self, line: ArgumentLine, value: Any, item: int | None, divided: bool) -> Argument:
        scalar_type = SCALAR_TYPES.get(type(value))
        if scalar_type is None:
            found = f"`{show(line.value.expression)}` is {type_name(value)}"
            remedy = "kernels take tensors, maps and numbers; a dtype is a template argument"
            raise _failure(Code.ARGUMENT, line.place, found, remedy)
        if line.may_be_late and line.origins & self.plan.late:
            self.late.append(LateExpression(line.value, item))
            return LateArgument(len(self.late) - 1, scalar_type, divided and scalar_type is ScalarType.INT)
        return ScalarArgument(value, divided and scalar_type is ScalarType.INT)

    def _absent(self, line: ArgumentLine) -> AbsentArgument:
        expression = line.value.expression
        if isinstance(expression, Name):
            parameter = self.file.parameters.get(expression.id)
            if parameter is not None and parameter.scalar is None:
                return AbsentArgument(expression.id)
        found = f"`{show(expression)}` was not given"
        remedy = f"guard it: `{show(expression)} if has({show(expression)}) else ...`"
        raise _failure(Code.VALUE, line.place, found, remedy)

    def _encode(self, name: str) -> None:
        if name in self.maps:
            return
        line = self.plan.maps[name]
        at = line.directive.at
        places = {key: start(value.expression) for key, value in line.options}
        accept = self.plan.accepts.get(line.directive.tensor)
        tensor = self.environment[line.directive.tensor]
        if not isinstance(tensor, Tensor):
            found = f"{name}: {line.directive.tensor} was not given"
            raise _failure(Code.MAP, at, found, f"launch it only `when has({line.directive.tensor})`")
        if accept is not None and accept.unaligned:
            found = f"{name}: {tensor.name} is accepted unaligned, a map needs 16-byte alignment"
            raise _failure(Code.MAP, at, found, f"write `accept {tensor.name}: strided`, or leave it out")
        options = {key: value.run(self.environment) for key, value in line.options}
        try:
            self.maps[name] = tensor_map(name, tensor, options)
        except MapFault as fault:
            raise _failure(Code.MAP, places.get(fault.option, at), f"{name}: {fault.found}", fault.remedy) from None

    # -- library calls --

    def _library(self, line: LibraryLine) -> LibraryCall:
        directive = line.directive
        arguments = tuple(self._library_value(value) for value in line.arguments)
        return LibraryCall(directive.target, directive.function, arguments, directive.at.line)

    def _library_value(self, argument: Compiled) -> LibraryValue:
        value: Any = argument.run(self.environment)
        if isinstance(value, Tensor):
            return TensorArgument(value.name)
        if value is None or isinstance(value, (bool, int, float, DType)):
            return value
        if isinstance(value, tuple) and all(type(item) in SCALAR_TYPES for item in value):
            return value
        found = f"`{show(argument.expression)}` is {type_name(value)}"
        remedy = "a library function takes tensors, numbers, dtypes and lists of numbers"
        raise _failure(Code.ARGUMENT, start(argument.expression), found, remedy)


def _failure(code: Code, place: Place, found: str, remedy: str) -> Failure:
    return Failure(Problem(code, place.line, place.column, found, remedy))


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise Failure(problem)


def _template_text(value: Any, place: Place) -> str:
    """A template argument as C++ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.cpp
    if type(value) is int:
        if value == INT_MIN:
            return f"({INT_MIN + 1}LL - 1)"  # C++ has no literal for it
        return f"{value}LL" if abs(value) > INT32_MAX else str(value)
    raise _failure(Code.TYPE, place, f"a template argument is {type_name(value)}", "use an int, bool or dtype")
