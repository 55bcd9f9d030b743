"""The static rules of a launch plan: scope, types, what may depend on what, and the shape of the plan as a whole.

Needs no shapes and no device. What only values can tell (sizes, limits of a GPU, alignment) is checked when the
plan is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import words
from tilewright.kernel_file.inference import Inference, Scope, Source, Symbol
from tilewright.kernel_file.problems import Code, Mend, Problem
from tilewright.kernel_file.syntax import (
    Accept,
    BufferDirective,
    Const,
    Directive,
    Expr,
    LaunchDirective,
    Let,
    Library,
    Literal,
    MapDirective,
    Need,
    Op,
    Place,
    Tune,
)
from tilewright.kernel_file.types import BOOL, INT, MAP, TENSOR, Kind, parameter_type
from tilewright.records import BufferRole, Clearing, DType


@dataclass(frozen=True)
class CodeFacts:
    """What the C++ text tells the plan's rules."""

    identifiers: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()  # names declared `__global__`
    incomplete: bool = False  # there may be names that no token shows: `##`, or text that could not be read


@dataclass(frozen=True)
class Lost:
    """What could not be read, so that its absence is not reported again."""

    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()


def check(
    op: Op | None, directives: Sequence[Directive], code: CodeFacts, lost: Lost, *, allow_library: bool
) -> list[Problem]:
    """Every problem of a plan that its text alone shows."""
    checker = _Checker(op, directives, code, lost, allow_library)
    checker.run()
    return checker.problems


@dataclass
class _Uses:
    """Which definitions must be used, and which have been."""

    required: dict[str, tuple[str, Place]] = field(default_factory=dict)  # name -> (directive, place)
    named: set[str] = field(default_factory=set)  # in any expression
    passed: set[str] = field(default_factory=set)  # to a step or a map


class _Checker:
    def __init__(
        self, op: Op | None, directives: Sequence[Directive], code: CodeFacts, lost: Lost, allow_library: bool
    ) -> None:
        self.op = op
        self.directives = directives
        self.code = code
        self.lost = lost
        self.allow_library = allow_library
        self.problems: list[Problem] = []
        self.scope = Scope(lost=set(lost.names), is_open=op is None)
        self.inference = Inference(self.scope, self.problems)
        self.uses = _Uses()
        self.outs: set[str] = set()
        self.buffers: dict[str, BufferDirective] = {}
        self.accepted: dict[str, int] = {}
        self.launches = 0
        self.scratches = 0
        self.combinations = 1
        self.previous_step: LaunchDirective | Library | None = None

    def run(self) -> None:
        for directive in self.directives:
            if not isinstance(directive, (Need, Accept, Library, LaunchDirective)):
                self.scope.later.setdefault(directive.name, directive.at.line)
        if self.op is not None:
            self._op(self.op)
        for directive in self.directives:
            self._directive(directive)
        self._whole()

    def _problem(self, code: Code, at: Place, found: str, remedy: str, mend: Mend | None = None) -> None:
        self.problems.append(Problem(code, at.line, at.column, found, remedy, mend))

    def _directive(self, directive: Directive) -> None:
        if isinstance(directive, Let):
            found = self.inference.start()
            type_ = self.inference.type_of(directive.value)
            if type_.kind in (Kind.NONE, Kind.DEVICE, Kind.MAP, Kind.TENSOR):
                remedy = "a let names a number, a bool, a dtype or a list"
                self._problem(Code.TYPE, directive.value.at, f"`{directive.name}` would be {type_}", remedy)
            self._define(directive.name, Symbol(type_, directive.at.line, frozenset(found.sources)), directive.at)
        elif isinstance(directive, Const):
            self._const(directive)
        elif isinstance(directive, Need):
            self.inference.require(directive.condition, "`need`", Kind.BOOL)
        elif isinstance(directive, Tune):
            self._tune(directive)
        elif isinstance(directive, BufferDirective):
            self._buffer(directive)
        elif isinstance(directive, Accept):
            self._accept(directive)
        elif isinstance(directive, MapDirective):
            self._map(directive)
        elif isinstance(directive, Library):
            self._library(directive)
        else:
            self._launch(directive)
        self.uses.named |= self.inference.found.names
        self.inference.start()

    # -- names --

    def _op(self, op: Op) -> None:
        for parameter in op.parameters:
            is_float = parameter.scalar is not None and parameter.scalar.value == "float"
            sources = frozenset((Source.FLOAT_PARAMETER,)) if is_float else frozenset[Source]()
            self._define(parameter.name, Symbol(parameter_type(parameter), op.at.line, sources), parameter.at)
        seen: set[str] = set()
        for result in op.results:
            if result in seen or result in self.scope.symbols:
                self._problem(Code.NAME_TAKEN, op.at, f"the result `{result}` has a name in use", "rename the result")
            elif result in words.TAKEN:
                self._problem(
                    Code.NAME_TAKEN, op.at, f"the result `{result}` is a word of the plan", "rename the result"
                )
            seen.add(result)
        if not op.results and not any(parameter.in_place for parameter in op.parameters):
            remedy = "name its results after `->`, or mark the tensor it changes with `!`"
            self._problem(Code.OUT, op.at, f"the op {op.name} yields nothing", remedy)

    def _define(self, name: str, symbol: Symbol, at: Place, is_out: bool = False) -> None:
        known = self.scope.symbols.get(name)
        if known is not None:
            remedy = "choose another name; a name is defined once"
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is defined on line {known.line} already", remedy)
            return
        if name in words.TAKEN:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a word of the plan", "choose another name")
        elif self.op is not None and name in self.op.results and not is_out:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a result of the op", "choose another name")
        self.scope.symbols[name] = symbol

    def _constant(self, name: str, at: Place, directive: str) -> None:
        if not words.CONSTANT_NAME.match(name):
            upper = name.upper().lstrip("_")
            self._problem(Code.CONST, at, f"the {directive} `{name}`", f"write it in upper case: {upper}")
        elif words.MACRO_NAME.match(name):
            self._problem(Code.CONST, at, f"`{name}` is a macro of the C++ headers", "choose another name")
        self.uses.required[name] = (directive, at)

    # -- definitions --

    def _const(self, const: Const) -> None:
        found = self.inference.start()
        type_ = self.inference.require(const.value, "a const", Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.DTYPE)
        if Source.FLOAT_PARAMETER in found.sources:
            remedy = "pass the value as a launch argument; a const would mean one build per value"
            self._problem(Code.CONST, const.at, f"the const `{const.name}` depends on a float parameter", remedy)
        self._constant(const.name, const.at, "const")
        self._define(const.name, Symbol(type_.present, const.at.line, frozenset(found.sources)), const.at)

    def _tune(self, tune: Tune) -> None:
        self._constant(tune.name, tune.at, "tune")
        before = self.combinations
        self.combinations *= len(tune.choices)
        limit = words.MAX_TUNE_COMBINATIONS
        if before <= limit < self.combinations:
            found = f"{self.combinations} combinations of tune choices"
            self._problem(Code.LIMIT, tune.at, found, f"at most {limit}; drop choices or constants")
        type_ = BOOL if isinstance(tune.choices[0], bool) else INT
        self._define(tune.name, Symbol(type_, tune.at.line, frozenset((Source.TUNE,))), tune.at)

    def _buffer(self, buffer: BufferDirective) -> None:
        found = self.inference.start()
        self.inference.require(buffer.dtype, "an element type", Kind.DTYPE)
        self._integers(buffer.sizes, "a size", lists=True)
        self._integers(buffer.stride or (), "a stride", lists=True)
        if buffer.role is BufferRole.OUT:
            self._out(buffer, found.sources)
        elif self.op is not None and buffer.name in self.op.results:
            found_text = f"`{buffer.role.value}` of the result `{buffer.name}`"
            self._problem(Code.OUT, buffer.at, found_text, "a result is declared with `out`")
            self.outs.add(buffer.name)
        if buffer.role is BufferRole.SCRATCH:
            self._scratch(buffer)
        sources = frozenset(found.sources)
        self.uses.required[buffer.name] = (buffer.role.value, buffer.at)
        is_result = self.op is not None and buffer.name in self.op.results
        self._define(buffer.name, Symbol(TENSOR, buffer.at.line, sources), buffer.at, is_out=is_result)
        self.buffers.setdefault(buffer.name, buffer)

    def _out(self, buffer: BufferDirective, sources: Iterable[Source]) -> None:
        if self.op is not None and buffer.name not in self.op.results:
            results = words.quoted(self.op.results) or "none"
            near = words.near_names(buffer.name, self.op.results)
            mend = Mend(buffer.at.line, buffer.at.column, buffer.at.length, near[0]) if len(near) == 1 else None
            remedy = f"the results of the op line are: {results}"
            self._problem(Code.OUT, buffer.at, f"`{buffer.name}` is no result of the op", remedy, mend)
        refused = [source.value for source in (Source.TUNE, Source.DEVICE) if source in sources]
        if refused:
            remedy = "an output is the same for every tuning and device; use parameters and `let` only"
            found = f"the output `{buffer.name}` depends on {' and '.join(refused)}"
            self._problem(Code.OUT, buffer.at, found, remedy)
        self.outs.add(buffer.name)

    def _scratch(self, buffer: BufferDirective) -> None:
        self.scratches += 1
        limit = words.MAX_SCRATCH_BUFFERS
        if self.scratches == limit + 1:
            self._problem(Code.LIMIT, buffer.at, f"more than {limit} scratch buffers", "share one buffer between uses")
        if buffer.clearing is not Clearing.COUNTER or not isinstance(buffer.dtype, Literal):
            return
        dtype = buffer.dtype.value
        if isinstance(dtype, DType) and (dtype.is_float or dtype is DType.BOOL):
            remedy = "counters are integers: i32, i64, i16, i8 or u8"
            self._problem(Code.TYPE, buffer.dtype.at, f"a counter of {dtype}", remedy)

    def _integers(self, expressions: Iterable[Expr], what: str, *, lists: bool = False) -> None:
        for expression in expressions:
            type_ = self.inference.type_of(expression)
            if not type_.is_unknown and (type_.kind is not Kind.INT or (type_.is_list and not lists)):
                remedy = f"{what} is an int" + (" or a list of int" if lists else "")
                self._problem(Code.TYPE, expression.at, f"{type_} for {what}", remedy)

    def _accept(self, accept: Accept) -> None:
        symbol = self.scope.symbols.get(accept.name)
        if accept.name in self.accepted:
            found = f"a second accept of `{accept.name}`"
            remedy = f"write it on line {self.accepted[accept.name]}: `accept {accept.name}: strided, unaligned`"
            self._problem(Code.NAME_TAKEN, accept.at, found, remedy)
        self.accepted.setdefault(accept.name, accept.at.line)
        if self.op is None:
            return
        tensors = [parameter.name for parameter in self.op.parameters if parameter.scalar is None]
        if accept.name in tensors:
            return
        remedy = f"accept takes a tensor parameter: {words.quoted(tensors) or 'the op has none'}"
        if symbol is not None:
            self._problem(Code.TYPE, accept.at, f"`{accept.name}` is {symbol.type}, no tensor parameter", remedy)
        elif accept.name not in self.lost.names:
            near = words.near_names(accept.name, tensors)
            mend = Mend(accept.at.line, accept.at.column, accept.at.length, near[0]) if len(near) == 1 else None
            self._problem(Code.UNKNOWN_NAME, accept.at, f"unknown name `{accept.name}`", remedy, mend)

    def _map(self, map_: MapDirective) -> None:
        found = self.inference.start()
        self._tensor_of_map(map_)
        for key, value in map_.options:
            if key in ("box", "shape", "stride", "step"):
                type_ = self.inference.type_of(value)
                if not type_.is_unknown and not (type_.is_list and type_.kind is Kind.INT):
                    remedy = f"write a list of int, outermost first: {key}=[64, 64]"
                    self._problem(Code.TYPE, value.at, f"{type_} for `{key}`", remedy)
            else:
                self.inference.require(value, f"`{key}`", Kind.INT)
                self._map_choice(key, value)
        self.uses.required[map_.name] = ("map", map_.at)
        self._define(map_.name, Symbol(MAP, map_.at.line, frozenset(found.sources)), map_.at)

    def _tensor_of_map(self, map_: MapDirective) -> None:
        symbol = self.scope.symbols.get(map_.tensor)
        self.uses.passed.add(map_.tensor)
        if symbol is None:
            if map_.tensor in self.lost.names or self.op is None:
                return
            tensors = [name for name, known in self.scope.symbols.items() if known.type.kind is Kind.TENSOR]
            near = words.near_names(map_.tensor, tensors)
            remedy = f"tiled takes a tensor defined above: {words.quoted(tensors) or 'there is none'}"
            if len(near) == 1:
                remedy = f"write {near[0]}; {remedy}"
            found = f"unknown name `{map_.tensor}` in the map `{map_.name}`"
            self._problem(Code.UNKNOWN_NAME, map_.at, found, remedy)
        elif not symbol.type.is_a(Kind.TENSOR):
            found = f"`{map_.tensor}` in tiled() is {symbol.type}"
            self._problem(Code.TYPE, map_.at, found, "tiled takes a tensor, an out or a scratch")

    def _map_choice(self, key: str, value: Expr) -> None:
        choices = {"swizzle": (0, 32, 64, 128), "fill": (0, 1), "l2": (0, 64, 128, 256)}[key]
        if isinstance(value, Literal) and isinstance(value.value, int) and value.value not in choices:
            allowed = " ".join(str(choice) for choice in choices)
            self._problem(Code.MAP, value.at, f"{key}={value.value}", f"{key} is one of {allowed}")

    # -- steps --

    def _library(self, library: Library) -> None:
        if not self.allow_library:
            remedy = "this task permits no vendor steps; write a kernel"
            self._problem(Code.LIBRARY, library.at, f"a library step ({library.function})", remedy)
        elif library.function not in words.LIBRARY_FUNCTIONS:
            known = words.quoted(words.LIBRARY_FUNCTIONS)
            self._problem(Code.LIBRARY, library.at, f"`{library.function}` is no library function", f"known: {known}")
        self._library_target(library)
        for argument in library.arguments:
            type_ = self.inference.type_of(argument)
            if type_.kind in (Kind.MAP, Kind.DEVICE):
                remedy = "pass tensors, numbers, dtypes, lists or none"
                self._problem(Code.TYPE, argument.at, f"a {type_} as library argument", remedy)
        self.uses.passed |= self.inference.found.names | {library.target}
        self.previous_step = library

    def _library_target(self, library: Library) -> None:
        buffer = self.buffers.get(library.target)
        if buffer is None:
            if library.target not in self.lost.names and not self.scope.is_open:
                found = f"`{library.target}` is no out or scratch declared above"
                self._problem(
                    Code.LIBRARY, library.at, found, f"declare `scratch {library.target}: dtype[sizes]` first"
                )
        elif buffer.role is BufferRole.SAVE:
            self._problem(
                Code.LIBRARY, library.at, f"`{library.target}` is a save", "the target is an out or a scratch"
            )
        elif buffer.clearing is not Clearing.UNDEFINED:
            found = f"`{library.target}` is {buffer.clearing.value} and also a library result"
            self._problem(Code.LIBRARY, library.at, found, f"drop `{buffer.clearing.value}` on line {buffer.at.line}")

    def _launch(self, launch: LaunchDirective) -> None:
        self.launches += 1
        limit = words.MAX_LAUNCHES
        if self.launches == limit + 1:
            self._problem(Code.LIMIT, launch.at, f"more than {limit} launches", "do more work in one kernel")
        self._kernel_name(launch)
        for argument in launch.template or ():
            self.inference.require(argument, "a template argument", Kind.INT, Kind.BOOL, Kind.DTYPE)
        self._integers(launch.grid, "a grid size")
        self._integers(launch.block, "a block size")
        self._integers(launch.cluster or (), "a cluster size")
        self._integers((launch.smem,) if launch.smem is not None else (), "shared memory")
        if launch.when is not None:
            self.inference.require(launch.when, "`when`", Kind.BOOL)
        self.uses.named |= self.inference.found.names
        self.inference.start()
        for argument in launch.arguments:
            self._argument(argument)
        self.uses.passed |= self.inference.found.names
        self._pdl(launch)
        self.previous_step = launch

    def _argument(self, argument: Expr) -> None:
        type_ = self.inference.type_of(argument)
        if type_.is_unknown or type_.kind in (Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.TENSOR, Kind.MAP):
            return
        remedy = "arguments are tensors, maps, numbers, bools and lists of them"
        if type_.kind is Kind.DTYPE:
            remedy = "pass a dtype as template argument: kernel<x.dtype><<<...>>>(...)"
        elif type_.kind is Kind.NONE:
            remedy = "pass the optional tensor itself; an absent one is a null pointer"
        self._problem(Code.TYPE, argument.at, f"{type_} as launch argument", remedy)

    def _kernel_name(self, launch: LaunchDirective) -> None:
        name = launch.kernel.rpartition("::")[2]
        if name in self.code.identifiers or self.code.incomplete:
            return
        near = words.near_names(name, self.code.kernels)
        mend = None
        if len(near) == 1 and launch.kernel == name:
            mend = Mend(launch.at.line, launch.at.column, launch.at.length, near[0])
        kernels = words.quoted(self.code.kernels) or "none"
        remedy = f"define `__global__ void {name}(...)` below; the code has: {kernels}"
        self._problem(Code.UNKNOWN_NAME, launch.at, f"the code has no kernel `{launch.kernel}`", remedy, mend)

    def _pdl(self, launch: LaunchDirective) -> None:
        if not launch.pdl:
            return
        if launch.cooperative:
            self._problem(Code.PDL, launch.at, "`pdl` together with `cooperative`", "drop one of them")
        lost_step = self.lost.words & {"launch", "library"}
        if not isinstance(self.previous_step, LaunchDirective) and not lost_step:
            remedy = "pdl overlaps the launch just before it; drop it here"
            self._problem(Code.PDL, launch.at, "`pdl` without a launch just before", remedy)

    # -- the plan as a whole --

    def _whole(self) -> None:
        if self.op is None:
            return
        if self.previous_step is None and not self.lost.words & {"launch", "library"}:
            remedy = "end the plan with `//! launch kernel<<<grid, block>>>(...)`"
            self._problem(Code.NO_LAUNCH, self.op.at, "the plan launches nothing", remedy)
        if "out" not in self.lost.words:
            for result in self.op.results:
                if result not in self.outs and result not in self.lost.names:
                    remedy = f"add `//! out {result}: dtype[sizes]`"
                    self._problem(Code.OUT, self.op.at, f"the result `{result}` has no out line", remedy)
        if not self.lost.words:
            self._unused()

    def _unused(self) -> None:
        for name, (directive, at) in self.uses.required.items():
            if directive in ("const", "tune"):
                used = name in self.uses.named | self.uses.passed or name in self.code.identifiers
                used = used or self.code.incomplete
                remedy = "use it in the code or in the plan, or drop the line"
            else:
                used = name in self.uses.passed
                remedy = "pass it to a launch, or drop the line"
            if not used:
                self._problem(Code.UNUSED, at, f"nothing uses the {directive} `{name}`", remedy)
