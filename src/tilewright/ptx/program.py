"""Loads PTX programs into the compiled core and launches their kernels."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import os
import time
import weakref
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from tilewright.ptx.address_notes import AddressNotes
from tilewright.ptx.control_flow import flow
from tilewright.ptx.global_memory import Bytes, GlobalMemory, MemoryRegion
from tilewright.ptx.launching import LaunchRequest, LaunchResult, cluster_extents, clusters_of
from tilewright.ptx.lower import MOST_SHARED_BYTES, LoweredKernel, lower_kernel, module_layout
from tilewright.ptx.native import (
    FunctionInfo,
    ProgramSource,
    RawCount,
    RawFinding,
    RawLaunch,
    RawRegion,
    RawTouch,
    core,
)
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.reporting import Reporter, missed_sentences
from tilewright.ptx.syntax import Instruction, Module, PtxError, Space, UnsupportedPtx, Variable
from tilewright.ptx.undefined_registers import undefined_reads
from tilewright.records import KERNEL_FILE_NAME, Check, CountsRecord, CoverageRecord, CoveredSite, InstructionRecord
from tilewright.records.emulation import LOOP
from tilewright.records.gpu import MAX_THREADS_PER_BLOCK
from tilewright.records.steps import Dim3

# -- coverage by source line --

_Rows = list[list[int]]  # of each instruction, those of the core's table


@dataclass(frozen=True)
class CoveredSites:
    """The rows of the core's coverage table per source site of a kernel."""

    program: str
    sites: tuple[tuple[tuple[int, ...], str, int], ...]  # lines, opcode, count
    rows: npt.NDArray[np.int64]  # of all instructions, in the order of the sites
    starts: npt.NDArray[np.int64]  # of each instruction, among these

    @staticmethod
    def of(kernel: LoweredKernel) -> CoveredSites:
        rows: dict[tuple[tuple[int, ...], str], _Rows] = {}
        digest = hashlib.sha256()
        for loop in kernel.loops:
            rows.setdefault((_lines(loop.branch), LOOP), []).append([loop.mark])
        last: Instruction | None = None
        for row, origin in enumerate(kernel.origins):
            if origin is None:
                continue
            lines = _lines(origin)
            known = rows.setdefault((lines, origin.opcode), [])
            if origin is last:
                known[-1].append(row)
            else:
                known.append([row])
                digest.update(f"{lines} {origin.text}\n".encode())
            last = origin
        return CoveredSites(
            digest.hexdigest(),
            tuple((lines, what, len(found)) for (lines, what), found in rows.items()),
            np.array([row for found in rows.values() for one in found for row in one], np.int64),
            np.cumsum([0, *(len(one) for found in rows.values() for one in found)], dtype=np.int64)[:-1],
        )

    def coverage(self, request: LaunchRequest, seen: Bytes) -> CoverageRecord:
        each = np.bitwise_or.reduceat(seen[self.rows], self.starts).tobytes().hex() if self.sites else ""
        sites, at = [], 0
        for lines, what, count in self.sites:
            sites.append(CoveredSite(lines, what, each[at : at + 2 * count]))
            at += 2 * count
        return CoverageRecord(request.shown_as or request.kernel, request.launch_line, self.program, tuple(sites))


def _lines(origin: Instruction) -> tuple[int, ...]:
    return tuple(place.line for place in origin.places if place.file == KERNEL_FILE_NAME)


# -- counters by instruction --

_OF_THE_FIRST = 2  # columns (executions, lanes) taken from an instruction's first row; the others are summed


@dataclass(frozen=True)
class CountedInstructions:
    """The consecutive rows of the core's counter table per PTX instruction of a kernel."""

    instructions: tuple[Instruction, ...]
    rows: npt.NDArray[np.int64]  # all that belong to an instruction
    starts: npt.NDArray[np.int64]  # of each instruction, among these

    @staticmethod
    def of(kernel: LoweredKernel) -> CountedInstructions:
        instructions: list[Instruction] = []
        rows: list[int] = []
        starts: list[int] = []
        for row, origin in enumerate(kernel.origins):
            if origin is None:
                continue
            if not instructions or origin is not instructions[-1]:
                instructions.append(origin)
                starts.append(len(rows))
            rows.append(row)
        return CountedInstructions(tuple(instructions), np.array(rows, np.int64), np.array(starts, np.int64))

    def counts(
        self, request: LaunchRequest, raw: ctypes.Array[RawCount], launch: RawLaunch, cluster: Dim3
    ) -> CountsRecord:
        grid_blocks = math.prod(request.grid)
        blocks = request.options.blocks
        return CountsRecord(
            kernel=request.shown_as or request.kernel,
            launch_line=request.launch_line,
            blocks=grid_blocks if blocks is None else launch.block_count * math.prod(cluster),
            grid_blocks=grid_blocks,
            warp_instructions=launch.warp_instructions,
            thread_instructions=launch.thread_instructions,
            instructions=tuple(
                _instruction_record(one, row) for one, row in zip(self.instructions, self._sums(raw), strict=True)
            ),
        )

    def _sums(self, raw: ctypes.Array[RawCount]) -> list[list[int]]:
        if not self.instructions:
            return []
        table = np.frombuffer(memoryview(raw).cast("B"), dtype=np.uint64).reshape(len(raw), -1)[self.rows]
        sums = np.add.reduceat(table, self.starts, axis=0)
        sums[:, :_OF_THE_FIRST] = table[self.starts, :_OF_THE_FIRST]
        listed: list[list[int]] = sums.tolist()
        return listed


_FIELDS = tuple(field.name for field in fields(InstructionRecord))


def _instruction_record(one: Instruction, row: list[int]) -> InstructionRecord:
    """Twice as fast as the frozen dataclass's constructor: a launch makes thousands."""
    made = object.__new__(InstructionRecord)
    vars(made).update(zip(_FIELDS, (one.ptx_line, one.text, one.places, *row), strict=True))
    return made


# -- programs --

_FIRST_MODULE_ADDRESS = 0x7FF0_0000_0000  # above all tensors
_MODULE_BYTES, _MODULES = 1 << 30, 32
_module_numbers = itertools.count()
_MOST_FINDINGS = 512
_MOST_PRINTED_BYTES = 1 << 20
_MOST_MESSAGE_BYTES = 1 << 14
_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCK = (MAX_THREADS_PER_BLOCK, MAX_THREADS_PER_BLOCK, 64)
_CHECK_BITS = {check: 1 << bit for bit, check in enumerate(Check)}  # the core's TW_CHECK_*
_WRITABLE, _INPUT = 1, 2
_WORKSPACE_ADDRESS = 0x7FF8_0000_0000  # above all other regions
_SHARED_UNIT = 128  # bytes that shared memory is given out in
_SYSTEM_SHARED_BYTES = 1024  # of each block, from sm_80 on
_FIRST_OVERLAPPING = 90  # of compute capabilities
_NOTHING = np.zeros(0, dtype=np.uint8)
_COMPLETED, _OUT_OF_MEMORY = 0, 2  # how `tw_run` ends; 1: stopped


@dataclass(frozen=True)
class _Loaded:
    """A kernel in the core. Freed with its program."""

    lowered: LoweredKernel
    counted: CountedInstructions
    covered: CoveredSites
    handle: int


class Program:
    """A module whose kernels are lowered on first launch."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.number = next(_module_numbers)  # separates the variables of programs in one memory
        base = _FIRST_MODULE_ADDRESS + self.number % _MODULES * _MODULE_BYTES
        self._layout, placed = module_layout(module, base)
        self._variables = {variable.name: variable for variable in placed}
        self._loaded: dict[tuple[str, bool], _Loaded] = {}
        self._undefined: dict[str, tuple[Instruction, ...]] = {}

    @property
    def overlaps_launches(self) -> bool:
        """Whether launches may overlap (programmatic dependent launch): from sm_90 on."""
        return self.module.compute_capability >= _FIRST_OVERLAPPING

    def prepare(self, kernel: str) -> LoweredKernel:
        """Lowers a kernel. Raises `UnsupportedPtx` or `PtxError` naming the line."""
        return self._load(kernel).lowered

    def undefined_reads(self, kernel: str) -> tuple[Instruction, ...]:
        """Instructions of a kernel that read a register which nothing can have written."""
        if kernel not in self._undefined:
            function = self.module.functions[kernel]
            self._undefined[kernel] = undefined_reads(function, flow(function))
        return self._undefined[kernel]

    def launch(self, memory: GlobalMemory, request: LaunchRequest, notes: AddressNotes | None = None) -> LaunchResult:
        """Run one kernel to its end, or to a fatal finding. With `notes` it is a slice, whose addresses are noted."""
        loaded = self._load(request.kernel)
        if memory.packed and loaded.lowered.has_guard_zones:
            loaded = self._load(request.kernel, guarded=False)
        _validate(loaded.lowered, request)
        cluster = cluster_extents(request.kernel, loaded.lowered.cluster, request.cluster, request.grid)
        for name in loaded.lowered.globals:
            variable = self._variables.get(name)
            if variable is not None:
                is_writable = variable.space is Space.GLOBAL
                address, initial = self._layout.addresses[name], self._initial(variable)
                memory.add_module_variable(self.number, name, address, initial, is_writable)
        if loaded.lowered.reads_only:
            memory.remember_touches()
        order = memory.begin_launch(overlaps=request.overlaps)
        regions = memory.regions(self.number)
        launch, held = _prepared(loaded, memory, regions, request, cluster)
        if notes is not None:
            launch.notes = notes.attached([one.name for one in _in_order(regions)], len(loaded.lowered.origins))
        started = time.perf_counter()
        launch.open_at_start, launch.open_when_awaited = order
        ending = core().tw_run(ctypes.byref(launch))
        memory.end_launch(awaited=bool(launch.awaited), awaited_first=bool(launch.awaited_first))
        seconds = time.perf_counter() - started
        if ending == _OUT_OF_MEMORY:
            raise MemoryError(f"the emulator ran out of memory in `{request.kernel}`; use a smaller grid or shape")
        reporter = Reporter(
            loaded.lowered, replace(request, cluster=cluster), lambda address: memory.describe(self.number, address)
        )
        messages = held.messages.raw[: launch.message_bytes].decode("ascii", "replace")
        return LaunchResult(
            completed=ending == _COMPLETED,
            findings=reporter.findings(held.findings[: launch.finding_count], messages),
            counts=None if held.counts is None else loaded.counted.counts(request, held.counts, launch, cluster),
            coverage=None if held.coverage is None else loaded.covered.coverage(request, held.coverage),
            touches=() if held.touches is None else reporter.touches(held.touches, memory.regions(self.number)),
            printed=held.printed.raw[: launch.printed_bytes].decode("utf-8", "replace"),
            thread_instructions=launch.thread_instructions,
            seconds=seconds,
            incomplete=missed_sentences(launch.missed),
        )

    def _load(self, kernel: str, *, guarded: bool = True) -> _Loaded:
        loaded = self._loaded.get((kernel, guarded))
        if loaded is None:
            lowered = lower_kernel(self.module, kernel, self._layout, guarded=guarded)
            loaded = self._loaded[kernel, guarded] = _Loaded(
                lowered, CountedInstructions.of(lowered), CoveredSites.of(lowered), _upload(lowered)
            )
            weakref.finalize(self, core().tw_program_free, loaded.handle)
        return loaded

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
        address = self._layout.addresses.get(symbol, self._layout.function_address(symbol))
        if address is None:
            raise UnsupportedPtx(f"not supported by the emulator: the address of `{symbol}` in an initialiser")
        return address


def load_program(ptx_text: str) -> Program:
    """Parse a module. Unsupported instructions are reported when their kernel is prepared."""
    return Program(parse_ptx(ptx_text))


def _pointer(data: bytes) -> ctypes.c_void_p:
    """The address of bytes, which the caller must keep alive."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)


def _upload(lowered: LoweredKernel) -> int:
    absent = FunctionInfo(entry=-1)
    functions = (FunctionInfo * len(lowered.functions))(*(one or absent for one in lowered.functions))
    extra = (ctypes.c_int32 * len(lowered.extra))(*lowered.extra)
    marks = (ctypes.c_int32 * max(len(lowered.loops), 1))(*(loop.mark for loop in lowered.loops))
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
        loop_count=len(lowered.loops),
        loop_marks=ctypes.cast(marks, ctypes.c_void_p),
        has_guard_zones=int(lowered.has_guard_zones),
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
    threads = math.prod(request.block)
    if threads > MAX_THREADS_PER_BLOCK:
        raise PtxError(f"`{kernel.name}`: {threads} threads per block; {MAX_THREADS_PER_BLOCK} is the most")
    blocks = math.prod(request.grid)
    if blocks >= 2**31:
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
    if request.options.blocks is not None and any(not 0 <= index < blocks for index in request.options.blocks):
        raise PtxError(f"`{kernel.name}`: a block outside the grid of {blocks} was asked for")


@dataclass(frozen=True)
class _Buffers:
    """Buffers of the core, which must outlive the call."""

    findings: ctypes.Array[RawFinding]
    counts: ctypes.Array[RawCount] | None
    coverage: Bytes | None
    touches: ctypes.Array[RawTouch] | None
    printed: ctypes.Array[ctypes.c_char]
    messages: ctypes.Array[ctypes.c_char]
    others: tuple[object, ...]


def _prepared(
    loaded: _Loaded, memory: GlobalMemory, regions: list[MemoryRegion], request: LaunchRequest, cluster: Dim3
) -> tuple[RawLaunch, _Buffers]:
    """The core's launch structure for a request, and its buffers."""
    options = request.options
    workspace = np.zeros(256, dtype=np.uint8)
    table = _region_table(regions, workspace)
    parameters = ctypes.create_string_buffer(request.parameters, max(len(request.parameters), 1))
    fill, remains = ctypes.create_string_buffer(options.fill, len(options.fill)), memory.remains
    shared = -(-(loaded.lowered.reserved_shared_bytes + request.dynamic_smem_bytes) // _SHARED_UNIT) * _SHARED_UNIT
    clusters = None if options.blocks is None else clusters_of(options.blocks, request.grid, cluster)
    chosen = None if clusters is None else (ctypes.c_int32 * max(len(clusters), 1))(*clusters)
    held = _Buffers(
        findings=(RawFinding * _MOST_FINDINGS)(),
        counts=(RawCount * len(loaded.lowered.origins))() if Check.COUNTERS in options.checks else None,
        coverage=np.zeros(len(loaded.lowered.origins), np.uint8) if Check.COVERAGE in options.checks else None,
        touches=(RawTouch * len(loaded.lowered.origins))() if Check.TOUCHES in options.checks else None,
        printed=ctypes.create_string_buffer(_MOST_PRINTED_BYTES if loaded.lowered.prints else 1),
        messages=ctypes.create_string_buffer(_MOST_MESSAGE_BYTES),
        others=(workspace, table, parameters, chosen, fill, remains),
    )
    launch = RawLaunch(
        program=loaded.handle,
        regions=ctypes.cast(table, ctypes.c_void_p),
        region_count=len(table),
        grid=(ctypes.c_int32 * 3)(*request.grid),
        block=(ctypes.c_int32 * 3)(*request.block),
        cluster=(ctypes.c_int32 * 3)(*cluster),
        explicit_cluster=int((request.cluster or loaded.lowered.cluster) is not None),
        parameters=ctypes.cast(parameters, ctypes.c_void_p),
        parameter_bytes=len(request.parameters),
        dynamic_shared_bytes=request.dynamic_smem_bytes,
        checks=sum(_CHECK_BITS[check] for check in set(options.checks)),
        cooperative=int(request.cooperative),
        overlaps=int(request.overlaps),
        inherits=int(options.inherits),
        seeded=(2 if options.many else 1) if options.seed is not None else 0,
        seed=(options.seed or 0) & (2**64 - 1),
        **memory.windows,
        circumstance=memory.circumstance(),
        total_shared_bytes=shared,
        aggregate_shared_bytes=shared + _SYSTEM_SHARED_BYTES,
        workspace=_WORKSPACE_ADDRESS if request.cooperative else 0,
        instruction_budget=options.instruction_budget,
        race_bytes=options.race_bytes,
        fill=ctypes.cast(fill, ctypes.c_void_p),
        fill_bytes=len(options.fill),
        remains=remains.ctypes.data,
        remains_bytes=len(remains),
        workers=options.workers or os.cpu_count() or 1,
        max_findings=_MOST_FINDINGS,
        blocks=ctypes.cast(chosen, ctypes.c_void_p) if chosen is not None else None,
        block_count=len(clusters) if clusters is not None else 0,
        findings=ctypes.cast(held.findings, ctypes.c_void_p),
        counts=ctypes.cast(held.counts, ctypes.c_void_p) if held.counts is not None else None,
        coverage=held.coverage.ctypes.data if held.coverage is not None else None,
        touches=ctypes.cast(held.touches, ctypes.c_void_p) if held.touches is not None else None,
        printed=ctypes.cast(held.printed, ctypes.c_void_p),
        printed_capacity=len(held.printed),
        messages=ctypes.cast(held.messages, ctypes.c_void_p),
        message_capacity=_MOST_MESSAGE_BYTES,
    )
    return launch, held


def _in_order(regions: list[MemoryRegion], workspace: Bytes = _NOTHING) -> list[MemoryRegion]:
    """By address, with the workspace, whose name is empty."""
    workspaces = [MemoryRegion("", _WORKSPACE_ADDRESS, workspace, None, 1, (), (), True)]
    return sorted([*regions, *workspaces], key=lambda one: one.address)


def _region_table(regions: list[MemoryRegion], workspace: Bytes) -> ctypes.Array[RawRegion]:
    table = (RawRegion * (len(regions) + 1))()
    for entry, region in zip(table, _in_order(regions, workspace), strict=True):
        entry.address = region.address
        entry.bytes = len(region.data)
        entry.data = region.data.ctypes.data
        entry.state = region.state.ctypes.data if region.state is not None else None
        entry.recent = region.recent.ctypes.data if region.recent is not None else None
        entry.flags = _WRITABLE if region.writable else _INPUT
    return table
