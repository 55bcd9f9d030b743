"""Static checks of a launch plan: scopes, types, dependencies, and the plan as a whole.

One pass over the directives checks them and compiles them for evaluation, without shapes or a device. Sizes, GPU limits
and alignment are checked when the plan is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import compiled_plan, expression_values, syntax, words
from tilewright.kernel_file.compiled_plan import (
    CompiledPlan,
    LaunchLine,
    LibraryLine,
    Line,
    MapLine,
    SourceSummary,
    Unparsed,
)
from tilewright.kernel_file.expression_analysis import Analysed, Analysis, DefinedName, NameTable
from tilewright.kernel_file.expression_values import TENSOR, Type, TypeKind
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import BufferDirective, Directive, Expr, LaunchDirective, Op, Span
from tilewright.records import BufferRole, Clearing, DType, ScalarType

_CONSTANTS = (TypeKind.INT, TypeKind.FLOAT, TypeKind.BOOL, TypeKind.DTYPE)
_ARGUMENTS = (TypeKind.INT, TypeKind.FLOAT, TypeKind.BOOL, TypeKind.TENSOR, TypeKind.MAP)
_STEPS = frozenset(("launch", "library"))


def check(
    op: Op | None, directives: Sequence[Directive], code: SourceSummary, lost: Unparsed, *, allow_library: bool
) -> tuple[CompiledPlan, list[Problem]]:
    """The compiled plan, which is usable if there are no problems, and the problems."""
    checker = _Checker(op, code, lost, allow_library)
    for directive in directives:
        if not isinstance(
            directive, (syntax.Need, syntax.Accept, syntax.Lead, syntax.LibraryDirective, LaunchDirective)
        ):
            checker.names.later.setdefault(directive.name, directive.at.line)
    if op is not None:
        checker.op_line(op)
    for directive in directives:
        checker.directive(directive)
    checker.whole()
    return checker.compiled(), checker.problems


@dataclass
class _Uses:
    """Definitions that must be used, and uses so far."""

    required: dict[str, tuple[str, Span]] = field(default_factory=dict)  # name -> (directive, place)
    named: set[str] = field(default_factory=set)  # in any expression
    passed: set[str] = field(default_factory=set)  # to a step or a map


class _Checker:
    """One pass over a plan."""

    def __init__(self, op: Op | None, code: SourceSummary, lost: Unparsed, allow_library: bool) -> None:
        self.op = op
        self.results = op.results if op is not None else ()
        self.code = code
        self.lost = lost
        self.allow_library = allow_library
        self.problems: list[Problem] = []
        self.names = NameTable(lost=lost.names, is_open=op is None)
        self.analysis = Analysis(self.names, self.problems)
        self.uses = _Uses()
        self.deciding: set[str] = set()
        self.tunes: dict[str, int] = {}  # bits, in written order
        self.float_parameters: set[str] = set()
        self.buffers: dict[str, BufferDirective] = {}
        self.combinations = 1
        self.lines: list[Line] = []
        self.steps: list[LaunchLine | LibraryLine] = []
        self.maps: dict[str, MapLine] = {}
        self.accepts: dict[str, syntax.Accept] = {}
        self.lead: syntax.Lead | None = None

    def _problem(self, code: Code, at: Span, found: str, remedy: str, autofix: Autofix | None = None) -> None:
        self.analysis.problem(code, at, found, remedy, autofix)

    # -- expressions --

    def _value(self, expression: Expr, what: str, *kinds: TypeKind) -> Analysed:
        """A single value of one of these kinds."""
        result = self.analysis.require(expression, what, *kinds)
        self.uses.named |= result.names
        return result

    def _any(self, expression: Expr, *, may_be_absent: bool = False) -> Analysed:
        result = self.analysis.analyse(expression, may_be_absent=may_be_absent)
        self.uses.named |= result.names
        return result

    def _integers(self, expressions: Iterable[Expr], what: str, *, lists: bool = False) -> tuple[Analysed, ...]:
        values = tuple(self._any(expression) for expression in expressions)
        for value in values:
            type_ = value.type
            if not type_.is_unknown and (type_.kind is not TypeKind.INT or (type_.is_list and not lists)):
                remedy = f"{what} is an int" + (" or a list of int" if lists else "")
                self._problem(Code.TYPE, value.expression.at, f"{type_} for {what}", remedy)
        return values

    def _decide(self, values: Iterable[Analysed]) -> frozenset[str]:
        """The origins of these values, marked as deciding."""
        origins: frozenset[str] = frozenset().union(*(value.origins for value in values))
        self.deciding |= origins
        return origins

    def _tunes_of(self, origins: frozenset[str]) -> int:
        return sum(bit for name, bit in self.tunes.items() if name in origins)

    # -- names --

    def _define(
        self, name: str, type_: Type, at: Span, origins: frozenset[str], *, line: int = 0, is_buffer: bool = False
    ) -> None:
        known = self.names.known.get(name)
        if known is not None:
            remedy = "choose another name; a name is defined once"
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is defined on line {known.line} already", remedy)
            return
        if name in words.TAKEN:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a word of the plan", "choose another name")
        elif name in self.results and not is_buffer:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a result of the op", "choose another name")
        self.names.known[name] = DefinedName(type_, line or at.line, origins)

    def compiled(self) -> CompiledPlan:
        scalars = frozenset(one.name for one in self.op.numbers) if self.op is not None else frozenset()
        deciding = scalars & self.deciding
        late = scalars - deciding
        return CompiledPlan(tuple(self.lines), tuple(self.steps), self.maps, self.accepts, self.lead, deciding, late)

    def directive(self, directive: Directive) -> None:
        match directive:
            case syntax.Let():
                self._let(directive)
            case syntax.Const():
                self._const(directive)
            case syntax.Need():
                self._need(directive)
            case syntax.Tune():
                self._tune(directive)
            case BufferDirective():
                self._buffer(directive)
            case syntax.Accept():
                self._accept(directive)
            case syntax.Lead():
                self._lead(directive)
            case syntax.MapDirective():
                self._map(directive)
            case syntax.LibraryDirective():
                self._library(directive)
            case LaunchDirective():
                self._launch(directive)

    # -- names --

    def op_line(self, op: Op) -> None:
        for parameter in op.parameters:
            if parameter.scalar is ScalarType.FLOAT:
                self.float_parameters.add(parameter.name)
            kind = TypeKind.TENSOR if parameter.scalar is None else TypeKind(parameter.scalar.value)
            type_ = Type(kind, parameter.is_list, parameter.optional)
            self._define(parameter.name, type_, parameter.at, frozenset({parameter.name}), line=op.at.line)
        seen: set[str] = set()
        for result in op.results:
            if result in seen or result in self.names.known:
                self._problem(Code.NAME_TAKEN, op.at, f"the result `{result}` has a name in use", "rename the result")
            elif result in words.TAKEN:
                found = f"the result `{result}` is a word of the plan"
                self._problem(Code.NAME_TAKEN, op.at, found, "rename the result")
            seen.add(result)
        if not op.results and not any(parameter.in_place for parameter in op.parameters):
            remedy = "name its results after `->`, or mark the tensor it changes with `!`"
            self._problem(Code.OUT, op.at, f"the op {op.name} yields nothing", remedy)

    def _constant(self, name: str, at: Span, directive: str) -> None:
        if not words.CONSTANT_NAME.match(name):
            upper = name.upper().lstrip("_")
            self._problem(Code.CONST, at, f"the {directive} `{name}`", f"write it in upper case: {upper}")
        elif words.MACRO_NAME.match(name):
            self._problem(Code.CONST, at, f"`{name}` is a macro of the C++ headers", "choose another name")
        self.uses.required[name] = (directive, at)

    # -- definitions --

    def _let(self, let: syntax.Let) -> None:
        value = self._any(let.value)
        if value.type.kind in (TypeKind.NONE, TypeKind.DEVICE, TypeKind.MAP, TypeKind.TENSOR):
            remedy = "a let names a number, a bool, a dtype or a list"
            self._problem(Code.TYPE, let.value.at, f"`{let.name}` would be {value.type}", remedy)
        self._define(let.name, value.type, let.at, value.origins)
        self.lines.append(compiled_plan.DefinitionLine(let, value, self._tunes_of(value.origins), value.origins))

    def _const(self, const: syntax.Const) -> None:
        value = self._value(const.value, "a const", *_CONSTANTS)
        if value.origins & self.float_parameters:
            remedy = "pass the value as a launch argument; a const would mean one build per value"
            self._problem(Code.CONST, const.at, f"the const `{const.name}` depends on a float parameter", remedy)
        self._constant(const.name, const.at, "const")
        self._define(const.name, value.type.present, const.at, value.origins)
        origins = self._decide((value,))
        self.lines.append(compiled_plan.DefinitionLine(const, value, self._tunes_of(origins), origins))

    def _need(self, need: syntax.Need) -> None:
        # Each conjunct of `a and b and c` is analysed separately.
        parts = list(syntax.conjuncts(need.condition))
        what = "`need`" if len(parts) == 1 else "`and`"
        values = tuple(self._value(part, what, TypeKind.BOOL) for part in parts)
        origins = self._decide(values)
        self.lines.append(compiled_plan.NeedLine(need, values, self._tunes_of(origins), origins))

    def _tune(self, tune: syntax.Tune) -> None:
        self._constant(tune.name, tune.at, "tune")
        before = self.combinations
        self.combinations *= len(tune.choices)
        limit = words.MAX_TUNE_COMBINATIONS
        if before <= limit < self.combinations:
            found = f"{self.combinations} combinations of tune choices"
            self._problem(Code.LIMIT, tune.at, found, f"at most {limit}; drop choices or constants")
        self.lines.append(compiled_plan.TuneLine(tune, len(self.tunes)))
        self.tunes[tune.name] = 1 << len(self.tunes)
        self._define(tune.name, expression_values.literal_type(tune.choices[0]), tune.at, frozenset({tune.name}))

    def _buffer(self, buffer: BufferDirective) -> None:
        dtype = self._value(buffer.dtype, "an element type", TypeKind.DTYPE)
        sizes = self._integers(buffer.sizes, "a size", lists=True)
        stride = None if buffer.stride is None else self._integers(buffer.stride, "a stride", lists=True)
        origins = self._decide((dtype, *sizes, *(stride or ())))
        if buffer.role is BufferRole.OUT:
            self._out(buffer, origins)
        else:
            self._scratch(buffer)
        self.uses.required[buffer.name] = (buffer.role.value, buffer.at)
        self._define(buffer.name, TENSOR, buffer.at, origins, is_buffer=True)
        self.buffers.setdefault(buffer.name, buffer)
        self.lines.append(compiled_plan.BufferLine(buffer, dtype, sizes, stride, self._tunes_of(origins), origins))

    def _out(self, buffer: BufferDirective, origins: frozenset[str]) -> None:
        if self.op is not None and buffer.name not in self.results:
            remedy = f"the results of the op line are: {words.quoted(self.op.results) or 'none'}"
            autofix = Autofix.of(buffer.at, words.closest_name(buffer.name, self.op.results))
            self._problem(Code.OUT, buffer.at, f"`{buffer.name}` is no result of the op", remedy, autofix)
        refused = ["a tune constant"] if origins & self.tunes.keys() else []
        refused += ["the device"] if "device" in origins else []
        if refused:
            remedy = "an output is the same for every tuning and device; use parameters and `let` only"
            found = f"the output `{buffer.name}` depends on {' and '.join(refused)}"
            self._problem(Code.OUT, buffer.at, found, remedy)

    def _scratch(self, buffer: BufferDirective) -> None:
        if buffer.name in self.results:
            found = f"`scratch` of the result `{buffer.name}`"
            self._problem(Code.OUT, buffer.at, found, "a result is declared with `out`")
        limit = words.MAX_SCRATCH_BUFFERS
        if sum(known.role is BufferRole.SCRATCH for known in self.buffers.values()) == limit:
            self._problem(Code.LIMIT, buffer.at, f"more than {limit} scratch buffers", "share one buffer between uses")
        if buffer.clearing is not Clearing.COUNTER or not isinstance(buffer.dtype, syntax.Literal):
            return
        dtype = buffer.dtype.value
        if isinstance(dtype, DType) and (dtype.is_float or dtype is DType.BOOL):
            remedy = "counters are integers: i32, i64, i16, i8 or u8"
            self._problem(Code.TYPE, buffer.dtype.at, f"a counter of {dtype}", remedy)

    def _accept(self, accept: syntax.Accept) -> None:
        first = self.accepts.setdefault(accept.name, accept)
        if first is not accept:
            found = f"a second accept of `{accept.name}`"
            remedy = f"write it on line {first.at.line}: `accept {accept.name}: strided, unaligned`"
            self._problem(Code.NAME_TAKEN, accept.at, found, remedy)
        if self.op is None:
            return
        tensors = [one.name for one in self.op.tensors]
        if accept.name in tensors:
            return
        known = self.names.known.get(accept.name)
        remedy = f"accept takes a tensor parameter: {words.quoted(tensors) or 'the op has none'}"
        if known is not None:
            self._problem(Code.TYPE, accept.at, f"`{accept.name}` is {known.type}, no tensor parameter", remedy)
        elif accept.name not in self.lost.names:
            autofix = Autofix.of(accept.at, words.closest_name(accept.name, tensors))
            self._problem(Code.UNKNOWN_NAME, accept.at, f"unknown name `{accept.name}`", remedy, autofix)

    def _lead(self, lead: syntax.Lead) -> None:
        if self.lead is not None:
            found, remedy = "a second `lead`", f"write all tensors on line {self.lead.at.line}"
            self._problem(Code.NAME_TAKEN, lead.at, found, remedy)
        self.lead = lead
        if self.op is None:
            return
        tensors = [one.name for one in self.op.tensors]
        for name, _ in lead.ranks:
            if name not in tensors:
                remedy = f"lead takes tensor parameters: {words.quoted(tensors) or 'the op has none'}"
                self._problem(Code.UNKNOWN_NAME, lead.at, f"`{name}` is no tensor parameter", remedy)
        named = {name for name, _ in lead.ranks}
        for parameter in self.op.parameters:
            if parameter.in_place and parameter.name not in named:
                found = f"`{parameter.name}` is changed in place and not among the tensors of `lead`"
                self._problem(Code.TYPE, lead.at, found, f"add `{parameter.name}`, or leave `lead` out")

    def _map(self, map_: syntax.MapDirective) -> None:
        self._tensor_of_map(map_)
        options = tuple((key, self._map_option(key, value)) for key, value in map_.options)
        origins = self._decide(value for _, value in options)
        self.uses.required[map_.name] = ("map", map_.at)
        self._define(map_.name, expression_values.MAP, map_.at, origins)
        self.maps[map_.name] = MapLine(map_, options)

    def _map_option(self, key: str, expression: Expr) -> Analysed:
        if key not in words.MAP_CHOICES:
            value = self._any(expression)
            if not value.type.is_unknown and not (value.type.is_list and value.type.kind is TypeKind.INT):
                remedy = f"write a list of int, outermost first: {key}=[64, 64]"
                self._problem(Code.TYPE, expression.at, f"{value.type} for `{key}`", remedy)
            return value
        written = expression.value if isinstance(expression, syntax.Literal) else None
        choices = words.MAP_CHOICES[key]
        if isinstance(written, int) and written not in choices:
            allowed = " ".join(str(choice) for choice in choices)
            self._problem(Code.MAP, expression.at, f"{key}={written}", f"{key} is one of {allowed}")
        return self._value(expression, f"`{key}`", TypeKind.INT)

    def _tensor_of_map(self, map_: syntax.MapDirective) -> None:
        known = self.names.known.get(map_.tensor)
        self.uses.passed.add(map_.tensor)
        if known is None:
            if map_.tensor in self.lost.names or self.op is None:
                return
            tensors = [name for name, other in self.names.known.items() if other.type.kind is TypeKind.TENSOR]
            meant = words.closest_name(map_.tensor, tensors)
            remedy = f"tiled takes a tensor defined above: {words.quoted(tensors) or 'there is none'}"
            found = f"unknown name `{map_.tensor}` in the map `{map_.name}`"
            self._problem(Code.UNKNOWN_NAME, map_.at, found, f"write {meant}; {remedy}" if meant else remedy)
        elif not known.type.is_a(TypeKind.TENSOR):
            found = f"`{map_.tensor}` in tiled() is {known.type}"
            self._problem(Code.TYPE, map_.at, found, "tiled takes a tensor, an out or a scratch")

    # -- steps --

    def _library(self, library: syntax.LibraryDirective) -> None:
        if not self.allow_library:
            remedy = "this task permits no vendor steps; write a kernel"
            self._problem(Code.LIBRARY, library.at, f"a library step ({library.function})", remedy)
        elif library.function not in words.LIBRARY_FUNCTIONS:
            known = words.quoted(words.LIBRARY_FUNCTIONS)
            self._problem(Code.LIBRARY, library.at, f"`{library.function}` is no library function", f"known: {known}")
        buffer = self.buffers.get(library.target)
        if buffer is not None and buffer.clearing is not Clearing.UNDEFINED:
            found = f"`{library.target}` is {buffer.clearing.value} and also a library result"
            self._problem(Code.LIBRARY, library.at, found, f"drop `{buffer.clearing.value}` on line {buffer.at.line}")
        elif buffer is None and library.target not in self.lost.names and not self.names.is_open:
            found = f"`{library.target}` is no out or scratch declared above"
            remedy = f"declare `scratch {library.target}: dtype[sizes]` first"
            self._problem(Code.LIBRARY, library.at, found, remedy)
        arguments = tuple(self._any(argument, may_be_absent=True) for argument in library.arguments)
        for argument in arguments:
            type_ = argument.type
            if type_.kind in (TypeKind.MAP, TypeKind.DEVICE) or (type_.is_list and type_.kind is TypeKind.DTYPE):
                remedy = "pass tensors, numbers, dtypes, lists of numbers or none"
                self._problem(Code.TYPE, argument.expression.at, f"a {type_} as library argument", remedy)
            self.uses.passed |= argument.names
        self.uses.passed.add(library.target)
        self._decide(arguments)
        self.steps.append(LibraryLine(library, arguments))

    def _launch(self, launch: LaunchDirective) -> None:
        limit = words.MAX_LAUNCHES
        if sum(isinstance(step, LaunchLine) for step in self.steps) == limit:
            self._problem(Code.LIMIT, launch.at, f"more than {limit} launches", "do more work in one kernel")
        self._kernel_name(launch)
        template = None
        if launch.template is not None:
            kinds = (TypeKind.INT, TypeKind.BOOL, TypeKind.DTYPE)
            template = tuple(self._value(argument, "a template argument", *kinds) for argument in launch.template)
        grid = self._integers(launch.grid, "a grid size")
        block = self._integers(launch.block, "a block size")
        cluster = None if launch.cluster is None else self._integers(launch.cluster, "a cluster size")
        smem = None if launch.smem is None else self._integers((launch.smem,), "shared memory")[0]
        when = None if launch.when is None else self._value(launch.when, "`when`", TypeKind.BOOL)
        self._decide((*(template or ()), *grid, *block, *(cluster or ())))
        self._decide(value for value in (smem, when) if value is not None)
        arguments = tuple(value for argument in launch.arguments for value in self._arguments(argument))
        self._decide(argument for argument in arguments if not argument.may_be_late)
        self._pdl(launch)
        self.steps.append(LaunchLine(launch, template, grid, block, smem, cluster, when, arguments))

    def _arguments(self, expression: Expr) -> list[Analysed]:
        """The values that an argument passes; a list literal `[a, b]` passes two arguments."""
        if isinstance(expression, syntax.ListOf):
            items = [value for item in expression.items for value in self._arguments(item)]
            self.analysis.list_type([(item.expression, item.type) for item in items])
            return items
        value = self._any(expression, may_be_absent=True)
        self.uses.passed |= value.names
        is_null = isinstance(expression, syntax.Literal) and expression.value is None
        if not (value.type.is_unknown or is_null) and value.type.kind not in _ARGUMENTS:
            remedy = "arguments are tensors, maps, numbers, bools and lists of them"
            if value.type.kind is TypeKind.DTYPE:
                remedy = "pass a dtype as template argument: kernel<x.dtype><<<...>>>(...)"
            elif value.type.kind is TypeKind.NONE:
                remedy = "pass the optional tensor itself; an absent one is a null pointer"
            self._problem(Code.TYPE, expression.at, f"{value.type} as launch argument", remedy)
        return [value]

    def _kernel_name(self, launch: LaunchDirective) -> None:
        name = launch.kernel.rpartition("::")[2]
        if name in self.code.identifiers or self.code.incomplete:
            return
        meant = words.closest_name(name, self.code.kernels) if launch.kernel == name else None
        kernels = words.quoted(self.code.kernels) or "none"
        remedy = f"define `__global__ void {name}(...)` below; the code has: {kernels}"
        found = f"the code has no kernel `{launch.kernel}`"
        self._problem(Code.UNKNOWN_NAME, launch.at, found, remedy, Autofix.of(launch.at, meant))

    def _pdl(self, launch: LaunchDirective) -> None:
        if not launch.pdl:
            return
        if launch.cooperative:
            self._problem(Code.PDL, launch.at, "`pdl` together with `cooperative`", "drop one of them")
        follows_launch = bool(self.steps) and isinstance(self.steps[-1], LaunchLine)
        if not follows_launch and not self.lost.words & _STEPS:
            remedy = "pdl overlaps the launch just before it; drop it here"
            self._problem(Code.PDL, launch.at, "`pdl` without a launch just before", remedy)

    # -- the plan as a whole --

    def whole(self) -> None:
        if self.op is None:
            return
        if not self.steps and not self.lost.words & _STEPS:
            remedy = "end the plan with `//! launch kernel<<<grid, block>>>(...)`"
            self._problem(Code.NO_LAUNCH, self.op.at, "the plan launches nothing", remedy)
        if "out" not in self.lost.words:
            for result in self.op.results:
                if result not in self.buffers and result not in self.lost.names:
                    remedy = f"add `//! out {result}: dtype[sizes]`"
                    self._problem(Code.OUT, self.op.at, f"the result `{result}` has no out line", remedy)
        if self.lead is not None and any(isinstance(step, LibraryLine) for step in self.steps):
            found = "`lead` beside a library step, which gets its tensors as they are given"
            self._problem(Code.TYPE, self.lead.at, found, "leave `lead` out")
        if self.lost.words:
            return
        for name, (directive, at) in self.uses.required.items():
            if directive in ("const", "tune"):
                used = name in self.uses.named or name in self.code.identifiers or self.code.incomplete
                remedy = "use it in the code or in the plan, or drop the line"
            else:
                used = name in self.uses.passed
                remedy = "pass it to a launch, or drop the line"
            if not used:
                self._problem(Code.UNUSED, at, f"nothing uses the {directive} `{name}`", remedy)
