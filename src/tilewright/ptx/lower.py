"""Lowers a kernel and its callees to the interpreter's arrays."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tilewright.ptx import (
    lower_asynchronous,
    lower_control,
    lower_float,
    lower_integer,
    lower_memory,
    lower_wgmma,
    syntax,
)
from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.control_flow import flow
from tilewright.ptx.lower_builder import CONTROL, FrameVariable, FunctionBuilder, Opcode, Placed, ProgramCode
from tilewright.ptx.lower_control import Parameters
from tilewright.ptx.native import FUNCTION_WINDOW, FunctionInfo
from tilewright.ptx.operands import unsupported
from tilewright.ptx.swap_guesses import swap_guesses
from tilewright.ptx.syntax import Function, Instruction, Module, Operand, PtxError, Space, SymbolOperand, Variable
from tilewright.ptx.wgmma_registers import wgmma_registers
from tilewright.records.gpu import WARP_LANES

MOST_SHARED_BYTES = 227 * 1024
MOST_LOCAL_BYTES = 512 * 1024
_GUARD_BYTES = 128  # between variables in shared memory
_RECURSIVE_STACK_BYTES = 16 * 1024
_RESERVED_SHARED_BYTES = 1024  # by CUDA, at the start, from sm_90 on
_OUTSIDE = 3

NOTE = "note"  # before an instruction's own opcode: only its addresses are noted


def _note(b: FunctionBuilder, i: Instruction) -> None:
    b.noted = True
    try:
        OPCODES[i.modifiers[0]].lower(b, replace(i, opcode=i.modifiers[0], modifiers=i.modifiers[1:]))
    finally:
        b.noted = False


OPCODES: dict[str, Opcode] = {
    **lower_integer.OPCODES,
    **lower_integer.BIT_OPCODES,
    **lower_float.OPCODES,
    **lower_float.COMPARE_OPCODES,
    **lower_memory.OPCODES,
    **lower_asynchronous.MBARRIER_OPCODES,
    **lower_asynchronous.OPCODES,
    **lower_control.WARP_OPCODES,
    **lower_asynchronous.CLUSTER_OPCODES,
    **lower_wgmma.OPCODES,
    **lower_control.OPCODES,
    NOTE: Opcode(_note, InstructionClass.OTHER, writes=False),
}
_NO_RESULT = frozenset(name for name, opcode in OPCODES.items() if not opcode.writes)


def classify(parts: tuple[str, ...]) -> InstructionClass:
    """The class of an instruction, from what `classes.opcode_of` gives."""
    opcode = OPCODES.get(parts[0])
    if opcode is None:
        return InstructionClass.OTHER
    return opcode.kind if isinstance(opcode.kind, InstructionClass) else opcode.kind(parts)


@dataclass(frozen=True)
class SharedVariable:
    name: str
    offset: int
    size_bytes: int  # 0: dynamic, up to the end


@dataclass(frozen=True)
class Loop:
    mark: int  # its `loop_enter`
    branch: Instruction  # that leads back: the line of its condition


@dataclass(frozen=True)
class LoweredKernel:
    """A lowered kernel: the core's input, and what reports need."""

    name: str
    encoded: bytes
    extra: tuple[int, ...]
    constants: bytes
    functions: tuple[FunctionInfo | None, ...]  # by number in the module; None: not called by this kernel
    kernel: int
    origins: tuple[Instruction | None, ...]  # the source of each decoded instruction
    shared: tuple[SharedVariable, ...]
    reserved_shared_bytes: int  # as declared, without guard zones
    shared_state: bytes  # per byte of static shared memory, with guard zones
    has_guard_zones: bool
    local_bytes: int
    parameter_bytes: int
    globals: tuple[str, ...]  # module variables it names
    max_threads: tuple[int, ...] | None
    cluster: tuple[int, ...] | None  # the compiled-in cluster dimensions, if any
    prints: bool  # printf or assert
    reads_only: bool  # it loads through the read-only cache
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class ModuleLayout:
    """Addresses shared by all kernels of a module."""

    addresses: dict[str, int]  # of module variables in global and constant memory
    function_numbers: dict[str, int]

    def function_address(self, name: str) -> int | None:
        number = self.function_numbers.get(name)
        return None if number is None else FUNCTION_WINDOW + 16 * number


def lower_kernel(module: Module, name: str, layout: ModuleLayout, *, guarded: bool = True) -> LoweredKernel:
    """Lower a kernel, `guarded`: with gaps between variables in shared memory. Raises `UnsupportedPtx` for unsupported
    and `PtxError` for invalid PTX."""
    kernel = module.functions.get(name)
    if kernel is None or not kernel.is_entry:
        known = ", ".join(f.name for f in module.functions.values() if f.is_entry) or "none"
        raise PtxError(f"no kernel `{name}` in this module; it has: {known}")
    return _KernelLowering(module, kernel, layout, guarded).run()


def symbols_of(operand: Operand | None) -> Iterator[str]:
    if isinstance(operand, SymbolOperand):
        yield operand.name
    elif isinstance(operand, syntax.Address):
        if isinstance(operand.base, SymbolOperand):
            yield operand.base.name
    elif isinstance(operand, (syntax.Vector, syntax.Tuple_)):
        for item in operand.items:
            yield from symbols_of(item)


@dataclass
class _KernelLowering:
    module: Module
    kernel: Function
    layout: ModuleLayout
    guarded: bool
    _code: ProgramCode = field(default_factory=ProgramCode)
    _shared: dict[str, SharedVariable] = field(default_factory=dict)
    _shared_state: bytearray = field(default_factory=bytearray)
    _lowered: dict[str, FunctionInfo] = field(default_factory=dict)
    _calls: list[tuple[int, str]] = field(default_factory=list)
    _globals: dict[str, None] = field(default_factory=dict)
    _loops: list[Loop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._variables = {variable.name: variable for variable in self.module.variables}
        self._reserved = _RESERVED_SHARED_BYTES if self.module.compute_capability >= 90 else 0

    def run(self) -> LoweredKernel:
        functions = self._reachable()
        self._place_shared(functions)
        for function in functions:
            self._lowered[function.name] = self._function(function)
        for position, name in self._calls:
            self._code.patch(position, self.layout.function_numbers[name], 40)
        numbers = self.layout.function_numbers
        table = [self._lowered.get(name) for name in numbers]
        static = sum(v.size_bytes for v in self._shared.values())
        return LoweredKernel(
            name=self.kernel.name,
            encoded=bytes(self._code.encoded),
            extra=tuple(self._code.extra) or (0,),
            constants=bytes(self._code.constants.data),
            functions=tuple(table),
            kernel=numbers[self.kernel.name],
            origins=tuple(self._code.origins),
            shared=tuple(self._shared.values()),
            reserved_shared_bytes=static,
            shared_state=bytes(self._shared_state),
            has_guard_zones=_OUTSIDE in self._shared_state[self._reserved :],
            local_bytes=self._local_stack(functions),
            parameter_bytes=Parameters.of_kernel(self.kernel.parameters).total_bytes,
            globals=tuple(self._globals),
            max_threads=self.kernel.max_threads,
            prints=any(name in self.module.externals for name in ("vprintf", "__assertfail")),
            reads_only=any(
                i is not None and i.opcode in ("ld", "ldu") and "nc" in i.modifiers for i in self._code.origins
            ),
            loops=tuple(self._loops),
            cluster=self.kernel.cluster,
        )

    # -- reachable functions and variables --

    def _reachable(self) -> list[Function]:
        """The kernel and the functions it names, in bodies or in initialisers of variables."""
        found: dict[str, Function] = {}
        waiting = [self.kernel.name]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            function = self.module.functions.get(name)
            if function is not None and (not function.is_entry or function is self.kernel):
                found[name] = function
                local = {v.name for v in function.variables} | {p.name for p in function.parameters}
                for instruction in function.body:
                    for operand in instruction.operands:
                        waiting += [symbol for symbol in symbols_of(operand) if symbol not in local]
                waiting += [r.symbol for variable in function.variables for r in variable.relocations]
            variable = self._variables.get(name)
            if variable is not None:
                if variable.space in (Space.GLOBAL, Space.CONST):
                    self._globals[name] = None
                waiting += [relocation.symbol for relocation in variable.relocations]
        return list(found.values())

    def _place_shared(self, functions: list[Function]) -> None:
        """Place static variables with guard zones between, then dynamic shared memory."""
        named = {symbol for f in functions for i in f.body for o in i.operands for symbol in symbols_of(o)}
        variables = [v for v in self.module.variables if v.space is Space.SHARED and v.name in named]
        variables += [v for f in functions for v in f.variables if v.space is Space.SHARED]
        static = [v for v in variables if v.size_bytes]
        dynamic = [v for v in variables if not v.size_bytes]
        self._shared_state.extend([_OUTSIDE] * self._reserved)
        for variable in static:
            apart = bool(self._shared) and self.guarded
            self._shared_state.extend([_OUTSIDE] * (_GUARD_BYTES if apart else 0))
            self._align_shared(max(variable.align, 128 if apart else 1))
            if len(self._shared_state) + variable.size_bytes > MOST_SHARED_BYTES + _GUARD_BYTES * 2 * len(static):
                raise PtxError(f"`{self.kernel.name}` declares more shared memory than any GPU has")
            self._shared[variable.name] = SharedVariable(variable.name, len(self._shared_state), variable.size_bytes)
            self._shared_state.extend(bytes(variable.size_bytes))
        if dynamic:
            apart = bool(static) and self.guarded
            self._shared_state.extend([_OUTSIDE] * (_GUARD_BYTES if apart else 0))
            self._align_shared(max(128 if apart else 16, *(v.align for v in dynamic)))
        for variable in dynamic:
            self._shared[variable.name] = SharedVariable(variable.name, len(self._shared_state), 0)

    def _align_shared(self, align: int) -> None:
        self._shared_state.extend([_OUTSIDE] * (-len(self._shared_state) % align))

    def _local_stack(self, functions: list[Function]) -> int:
        own: int = self._lowered[self.kernel.name].local_bytes
        if len(functions) > 1:
            own += sum(self._lowered[f.name].local_bytes for f in functions[1:]) + _RECURSIVE_STACK_BYTES
        if own > MOST_LOCAL_BYTES:
            raise PtxError(
                f"`{self.kernel.name}` needs {own} bytes of local memory per thread; {MOST_LOCAL_BYTES} is the most"
            )
        return own

    # -- one function --

    def _function(self, function: Function) -> FunctionInfo:
        graph = flow(function)
        places: dict[str, Placed] = {}
        builder = FunctionBuilder(
            self._code,
            self.module,
            function,
            graph,
            lambda name: places.get(name) or self._global(name),
            swap_guesses(function, graph),
            _NO_RESULT,
            wgmma_registers(function, graph, _NO_RESULT),
        )
        layout = self._place_parameters(builder, function, places)
        local = _place_locals(function, places)
        meetings = {meeting for meeting in graph.reconvergence.values() if meeting is not None}
        entry = self._code.position
        positions: list[int] = []
        inside: dict[int, int] = {}  # positions after a loop's entry mark
        for index, instruction in enumerate(function.body):
            positions.append(self._code.position)
            builder.begin_nothing()
            if index in graph.loops:
                mark = builder.emit("loop_enter", imm=len(self._loops), guarded=False)
                self._loops.append(Loop(mark, function.body[min(graph.loops[index])]))
            inside[index] = self._code.position
            if index in meetings:
                builder.emit("join", flags=CONTROL, guarded=False)
            if index in graph.loops:
                builder.emit("loop_trip", imm=len(self._loops) - 1, guarded=False)
            _lower_instruction(builder, index, instruction)
        positions.append(self._code.position)
        builder.begin_nothing()
        if len(function.body) in meetings:
            builder.emit("join", flags=CONTROL, guarded=False)
        builder.emit("exit" if function.is_entry else "ret", flags=CONTROL, guarded=False)
        for position, field_offset, target in builder.fixups.targets:
            branch = bisect.bisect_right(positions, position) - 1
            back = branch in graph.loops.get(target, ()) or field_offset == lower_control.MEET_FIELD
            at = inside.get(target, positions[target]) if back else positions[target]
            self._code.patch(position, at, field_offset)
        for start, indices in builder.fixups.tables:
            for number, target in enumerate(indices):
                self._code.extra[start + number] = positions[target]
        self._calls += builder.fixups.calls
        parameters, results = layout
        return FunctionInfo(
            entry=entry,
            frame_bytes=max(builder.frame_bytes, 64),
            local_bytes=local,
            parameter_at=parameters[0],
            parameter_stride=parameters[1],
            result_at=results[0],
            result_stride=results[1],
            parameter_bytes=parameters[2],
        )

    def _place_parameters(
        self, builder: FunctionBuilder, function: Function, places: dict[str, Placed]
    ) -> tuple[tuple[int, int, int], tuple[int, int]]:
        for variable in function.variables:
            if variable.space is Space.PARAM:
                stride = -(-max(variable.size_bytes, 1) // 16) * 16
                frame = FrameVariable(builder.allocate(stride * WARP_LANES), stride, 0, variable.size_bytes)
                places[variable.name] = Placed("frame", frame=frame)
        if function.is_entry:
            layout = Parameters.of_kernel(function.parameters)
            for parameter, offset in zip(function.parameters, layout.offsets, strict=True):
                places[parameter.name] = Placed("parameter", offset, size_bytes=parameter.size_bytes)
            return (0, 0, layout.total_bytes), (0, 0)
        layout = Parameters.of_function(tuple(p.size_bytes for p in function.parameters))
        at = builder.allocate(layout.stride * WARP_LANES) if layout.stride else 0
        for parameter, offset in zip(function.parameters, layout.offsets, strict=True):
            frame = FrameVariable(at, layout.stride, offset, parameter.size_bytes)
            places[parameter.name] = Placed("frame", frame=frame)
        results = Parameters.of_function(tuple(p.size_bytes for p in function.results))
        result_at = builder.allocate(results.stride * WARP_LANES) if results.stride else 0
        for result, offset in zip(function.results, results.offsets, strict=True):
            frame = FrameVariable(result_at, results.stride, offset, result.size_bytes)
            places[result.name] = Placed("frame", frame=frame)
        return (at, layout.stride, layout.total_bytes), (result_at, results.stride)

    def _global(self, name: str) -> Placed | None:
        shared = self._shared.get(name)
        if shared is not None:
            return Placed("shared", shared.offset, size_bytes=shared.size_bytes)
        address = self.layout.addresses.get(name)
        if address is not None:
            return Placed("address", address, size_bytes=self._variables[name].size_bytes)
        function = self.layout.function_address(name)
        if function is not None:
            return Placed("function", function)
        variable = self._variables.get(name)
        if variable is not None and variable.external:
            raise syntax.UnsupportedPtx(
                f"not supported by the emulator: the external variable `{name}`, defined in another module"
            )
        return None


def _lower_instruction(builder: FunctionBuilder, index: int, instruction: Instruction) -> None:
    opcode = OPCODES.get(instruction.opcode)
    if opcode is None:
        raise unsupported(instruction, f"the instruction {instruction.opcode}")
    builder.begin(index, instruction)
    builder.watch_registers()
    try:
        opcode.lower(builder, instruction)
    except (IndexError, ValueError) as error:
        if isinstance(error, PtxError):
            raise
        raise unsupported(instruction, "its operands") from error
    builder.end()


def _place_locals(function: Function, places: dict[str, Placed]) -> int:
    at = 0
    for variable in function.variables:
        if variable.space is not Space.LOCAL:
            continue
        at = -(-at // max(variable.align, 1)) * max(variable.align, 1)
        places[variable.name] = Placed("local", at, size_bytes=variable.size_bytes)
        at += variable.size_bytes
        if at > MOST_LOCAL_BYTES:
            raise PtxError(f"`{function.name}` declares more than {MOST_LOCAL_BYTES} bytes of local memory per thread")
    return -(-at // 16) * 16


def module_layout(module: Module, base: int) -> tuple[ModuleLayout, list[Variable]]:
    """Addresses for the module's variables from `base` on, and the placed variables in order."""
    addresses: dict[str, int] = {}
    placed: list[Variable] = []
    at = base
    for variable in module.variables:
        if variable.space in (Space.GLOBAL, Space.CONST) and not variable.external:
            addresses[variable.name] = at
            placed.append(variable)
            at += -(-variable.size_bytes // 256) * 256 + (1 << 16)
    numbers = {name: number for number, name in enumerate(module.functions)}
    return ModuleLayout(addresses, numbers), placed
