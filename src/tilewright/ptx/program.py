"""PTX text to something that can be launched, and launching it."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import time
import weakref
from dataclasses import dataclass

import numpy as np

from tilewright.ptx.counting import CountedInstructions, launch_counts
from tilewright.ptx.launching import Checks, LaunchRequest
from tilewright.ptx.lower import MOST_SHARED_BYTES, LoweredKernel, lower_kernel, module_layout
from tilewright.ptx.memory import Bytes, Memory, Region
from tilewright.ptx.native import Count, FunctionInfo, Launch, ProgramSource, RawFinding, core
from tilewright.ptx.native import Region as RawRegion
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.reporting import Reporter, missed_sentences
from tilewright.ptx.results import Ending, LaunchResult
from tilewright.ptx.syntax import Module, PtxError, Space, Unsupported, Variable

_FIRST_MODULE_ADDRESS = 0x6000_0000_0000
_MODULE_BYTES = 1 << 34
_module_numbers = itertools.count()
_MOST_FINDINGS = 512
_MOST_PRINTED_BYTES = 1 << 20
_MOST_MESSAGE_BYTES = 1 << 14
_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCK = (1024, 1024, 64)
_CHECK_BITS = {Checks.UNINITIALISED: 1, Checks.RACES: 2, Checks.WARP: 4, Checks.COUNTERS: 8}
_WRITABLE, _INPUT = 1, 2


@dataclass(frozen=True)
class _Loaded:
    """A kernel in the core. Freed with its program."""

    lowered: LoweredKernel
    counted: CountedInstructions
    handle: int


class Program:
    """A module whose kernels are lowered when they are first launched."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.number = next(_module_numbers)  # a memory keeps the variables of each program apart
        base = _FIRST_MODULE_ADDRESS + self.number % 1024 * _MODULE_BYTES
        self._layout, placed = module_layout(module, base)
        self._variables = {variable.name: variable for variable in placed}
        self._loaded: dict[str, _Loaded] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.module.functions.values() if function.is_entry)

    def prepare(self, kernel: str) -> LoweredKernel:
        """Lowers a kernel. Raises `Unsupported` or `PtxError` naming the line."""
        return self._load(kernel).lowered

    def launch(self, memory: Memory, request: LaunchRequest) -> LaunchResult:
        """Runs one kernel to its end, or to what stopped it."""
        loaded = self._load(request.kernel)
        _validate(loaded.lowered, request)
        self._place_variables(memory, loaded.lowered)
        regions = memory.regions(self.number)
        launch, held = _Prepared(loaded, regions, request).build()
        started = time.perf_counter()
        ending = core().tw_run(ctypes.byref(launch))
        seconds = time.perf_counter() - started
        if ending == 2:
            raise MemoryError(f"the emulator ran out of memory in `{request.kernel}`; use a smaller grid or shape")
        reporter = Reporter(loaded.lowered, request, lambda address: memory.describe(self.number, address))
        findings = reporter.findings(held.findings[: launch.finding_count], held.message_text(launch))
        counts = None
        if held.counts is not None:
            counts = launch_counts(loaded.counted, request, held.counts, launch)
        return LaunchResult(
            kernel=request.kernel,
            ending=Ending.COMPLETED if ending == 0 else Ending.STOPPED,
            findings=findings,
            counts=counts,
            printed=held.printed_text(launch),
            thread_instructions=launch.thread_instructions,
            seconds=seconds,
            incomplete=missed_sentences(launch.missed),
        )

    def _load(self, kernel: str) -> _Loaded:
        loaded = self._loaded.get(kernel)
        if loaded is None:
            lowered = lower_kernel(self.module, kernel, self._layout)
            loaded = self._loaded[kernel] = _Loaded(lowered, CountedInstructions.of(lowered), _upload(lowered))
            weakref.finalize(self, core().tw_program_free, loaded.handle)
        return loaded

    def _place_variables(self, memory: Memory, lowered: LoweredKernel) -> None:
        for name in lowered.globals:
            variable = self._variables.get(name)
            if variable is not None:
                memory.add_module_variable(
                    self.number,
                    name,
                    self._layout.addresses[name],
                    self._initial(variable),
                    variable.space is Space.GLOBAL,
                )

    def _initial(self, variable: Variable) -> Bytes:
        data = bytearray(variable.size_bytes)
        if variable.initial is not None:
            data[: len(variable.initial)] = variable.initial
        for relocation in variable.relocations:
            value = self._address_of(relocation.symbol) + relocation.addend
            value &= (1 << (8 * relocation.size)) - 1
            data[relocation.offset : relocation.offset + relocation.size] = value.to_bytes(relocation.size, "little")
        return np.frombuffer(data, dtype=np.uint8)

    def _address_of(self, symbol: str) -> int:
        address = self._layout.addresses.get(symbol)
        if address is not None:
            return address
        number = self._layout.function_numbers.get(symbol)
        if number is None:
            raise Unsupported(f"not supported by the emulator: the address of `{symbol}` in an initialiser")
        return 0x7B0000000000 + 16 * number


def load_program(ptx_text: str) -> Program:
    """Parses a module. What a kernel uses that is not supported is only found when that kernel is prepared."""
    return Program(parse_ptx(ptx_text))


def _pointer(data: bytes) -> ctypes.c_void_p:
    """The address of bytes; the caller keeps them alive."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)


def _upload(lowered: LoweredKernel) -> int:
    functions = (FunctionInfo * len(lowered.functions))()
    for number, function in enumerate(lowered.functions):
        if function is None:
            functions[number].entry = -1
            continue
        for name, _ in FunctionInfo._fields_:
            setattr(functions[number], name, getattr(function, name))
    extra = (ctypes.c_int32 * len(lowered.extra))(*lowered.extra)
    source = ProgramSource(
        code=_pointer(lowered.encoded),
        code_count=len(lowered.origins),
        extra=ctypes.cast(extra, ctypes.c_void_p),
        extra_count=len(lowered.extra),
        constants=_pointer(lowered.constants),
        constant_bytes=len(lowered.constants),
        functions=ctypes.cast(functions, ctypes.c_void_p),
        function_count=len(lowered.functions),
        kernel=lowered.kernel,
        static_shared_bytes=len(lowered.shared_state),
        local_bytes=lowered.local_bytes,
        has_guard_zones=int(3 in lowered.shared_state),
        shared_state=_pointer(lowered.shared_state),
    )
    handle: int | None = core().tw_program_new(ctypes.byref(source))
    if not handle:
        raise MemoryError(f"the emulator ran out of memory loading `{lowered.name}`")
    return handle


def _validate(kernel: LoweredKernel, request: LaunchRequest) -> None:
    for what, extents, most in (("grid", request.grid, _LARGEST_GRID), ("block", request.block, _LARGEST_BLOCK)):
        if any(not 1 <= extent <= limit for extent, limit in zip(extents, most, strict=True)):
            raise PtxError(f"`{kernel.name}`: a {what} of {extents} is not allowed; from 1 to {most} is")
    threads = request.block[0] * request.block[1] * request.block[2]
    if threads > 1024:
        raise PtxError(f"`{kernel.name}`: {threads} threads per block; 1024 is the most")
    if request.grid[0] * request.grid[1] * request.grid[2] >= 2**31:
        raise PtxError(f"`{kernel.name}`: the emulator takes at most 2**31 - 1 blocks")
    if kernel.max_threads is not None:
        most_threads = math.prod(kernel.max_threads)
        if threads > most_threads:
            raise PtxError(f"`{kernel.name}` was built for {most_threads} threads per block at most, not {threads}")
    shared = kernel.reserved_shared_bytes + request.dynamic_smem_bytes
    if request.dynamic_smem_bytes < 0 or shared > MOST_SHARED_BYTES:
        raise PtxError(f"`{kernel.name}` asks for {shared} bytes of shared memory; {MOST_SHARED_BYTES} is the most")
    if len(request.parameters) < kernel.parameter_bytes:
        raise PtxError(
            f"`{kernel.name}` has {kernel.parameter_bytes} bytes of parameters, {len(request.parameters)} were given"
        )
    cluster = request.cluster is not None and request.cluster != (1, 1, 1)
    if cluster or kernel.is_cluster:
        raise Unsupported(f"not supported by the emulator: thread block clusters (kernel `{kernel.name}`)")
    blocks = request.grid[0] * request.grid[1] * request.grid[2]
    if request.options.blocks is not None and any(not 0 <= index < blocks for index in request.options.blocks):
        raise PtxError(f"`{kernel.name}`: a block outside the grid of {blocks} was asked for")


@dataclass
class _Held:
    """Buffers the core writes to; they must outlive the call."""

    findings: ctypes.Array[RawFinding]
    counts: ctypes.Array[Count] | None
    printed: ctypes.Array[ctypes.c_char]
    messages: ctypes.Array[ctypes.c_char]
    others: list[object]

    def printed_text(self, launch: Launch) -> str:
        return self.printed.raw[: launch.printed_bytes].decode("utf-8", "replace")

    def message_text(self, launch: Launch) -> str:
        return self.messages.raw[: launch.message_bytes].decode("ascii", "replace")


class _Prepared:
    """Turns a request into the core's structure."""

    def __init__(self, loaded: _Loaded, regions: list[Region], request: LaunchRequest) -> None:
        self._loaded = loaded
        self._regions = regions
        self._request = request

    def build(self) -> tuple[Launch, _Held]:
        request, options = self._request, self._request.options
        count = len(self._loaded.lowered.origins)
        printed_bytes = _MOST_PRINTED_BYTES if self._loaded.lowered.prints else 1
        held = _Held(
            findings=(RawFinding * _MOST_FINDINGS)(),
            counts=(Count * count)() if Checks.COUNTERS in options.checks else None,
            printed=ctypes.create_string_buffer(printed_bytes),
            messages=ctypes.create_string_buffer(_MOST_MESSAGE_BYTES),
            others=[],
        )
        workspace = np.zeros(256, dtype=np.uint8)
        table = self._region_table(workspace)
        parameters = ctypes.create_string_buffer(request.parameters, max(len(request.parameters), 1))
        blocks = None
        if options.blocks is not None:
            blocks = (ctypes.c_int32 * max(len(options.blocks), 1))(*options.blocks)
        held.others += [workspace, table, parameters, blocks]
        launch = Launch(
            program=self._loaded.handle,
            regions=ctypes.cast(table, ctypes.c_void_p),
            region_count=len(table),
            grid=(ctypes.c_int32 * 3)(*request.grid),
            block=(ctypes.c_int32 * 3)(*request.block),
            parameters=ctypes.cast(parameters, ctypes.c_void_p),
            parameter_bytes=len(request.parameters),
            dynamic_shared_bytes=request.dynamic_smem_bytes,
            checks=sum(bit for check, bit in _CHECK_BITS.items() if check in options.checks),
            cooperative=int(request.cooperative),
            seeded=int(options.seed is not None),
            seed=(options.seed or 0) & (2**64 - 1),
            workspace=_WORKSPACE_ADDRESS if request.cooperative else 0,
            instruction_budget=options.instruction_budget,
            race_bytes=options.race_bytes,
            workers=options.workers or os.cpu_count() or 1,
            max_findings=_MOST_FINDINGS,
            blocks=ctypes.cast(blocks, ctypes.c_void_p) if blocks is not None else None,
            block_count=len(options.blocks) if options.blocks is not None else 0,
            findings=ctypes.cast(held.findings, ctypes.c_void_p),
            counts=ctypes.cast(held.counts, ctypes.c_void_p) if held.counts is not None else None,
            printed=ctypes.cast(held.printed, ctypes.c_void_p),
            printed_capacity=printed_bytes,
            messages=ctypes.cast(held.messages, ctypes.c_void_p),
            message_capacity=_MOST_MESSAGE_BYTES,
        )
        return launch, held

    def _region_table(self, workspace: Bytes) -> ctypes.Array[RawRegion]:
        table = (RawRegion * (len(self._regions) + 1))()
        for entry, region in zip(table, self._regions, strict=False):
            entry.address = region.address
            entry.bytes = len(region.data)
            entry.data = region.data.ctypes.data
            entry.state = region.state.ctypes.data if region.state is not None else None
            entry.flags = _WRITABLE if region.writable else _INPUT
        last = table[len(self._regions)]  # the highest address of all
        last.address, last.bytes, last.data, last.flags = (
            _WORKSPACE_ADDRESS,
            len(workspace),
            workspace.ctypes.data,
            _WRITABLE,
        )
        return table


_WORKSPACE_ADDRESS = 0x7A00_0000_0000
