"""Follows the addresses of a whole call: runs the slice of every launch for all of its blocks.

Tensors take no memory but where an address depends on their contents. Where the slice turns out to need more than it
was given (values that an earlier launch stores, who wrote an element twice), the call starts again with that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.devices.contents import misalignment
from tilewright.devices.emulation.plan_run import launch_finding, launch_request
from tilewright.ptx import sparse_memory
from tilewright.ptx.address_notes import AddressNotes, Bits, Content, TensorNotes
from tilewright.ptx.affine_blocks import AffineOutcome, note_runs, run_affine
from tilewright.ptx.affine_numbers import Beyond
from tilewright.ptx.global_memory import Bytes, GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchResult, cluster_extents
from tilewright.ptx.program import Program
from tilewright.ptx.slicing import NotSliced, Slice, slice_kernel
from tilewright.ptx.syntax import Module, PtxError
from tilewright.ptx.value_decisions import Assumed
from tilewright.records import (
    BoundPlan,
    BufferRole,
    Check,
    Clearing,
    FindingKind,
    FindingRecord,
    InputTensor,
    Job,
    LibraryCall,
    PackedLaunch,
    TensorSpec,
)
from tilewright.records.addresses import FollowedAddresses, LaunchPath, Touched, WrittenTwice

_MOST_ROUNDS = 6
_MOST_OWNED = 1 << 27  # units of which it is kept who wrote them
_MOST_BYTES = 1 << 29  # of a tensor noted byte by byte
_MOST_STRIDED = 1 << 26  # elements of a tensor with gaps
_MOST_THREADS = 1 << 32
_TRIED_BLOCKS = 3  # to estimate what following all loads takes
_READ_BUDGET = 3_000_000_000  # thread instructions
_MANY_THREADS = 1 << 18  # of a launch, to try all blocks at once
_EVALUATED = 60_000  # instructions of all blocks at once
_CHECKS = (Check.WARP, Check.COVERAGE)
_ASSUMED_BUDGET = 12_000_000_000  # thread instructions of each way
_ASSUMED_SECONDS = 8.0  # after which no further way is begun
_TOO_LONG = "following them takes too long"


class _Again(Exception):
    """Start again: more is needed from the start."""


class _Left(Exception):
    """Why the addresses cannot be followed, a clause."""


@dataclass
class _Wanted:
    """What a round found to be needed."""

    owned: set[str] = field(default_factory=set)
    by_byte: set[str] = field(default_factory=set)
    valued: dict[str, set[int]] = field(default_factory=dict)  # of a kernel: stores whose values are needed


_Slices = dict[tuple[str, bool, bool, Assumed | None, frozenset[int]], tuple[Slice, Program]]
_slices: WeakKeyDictionary[Program, _Slices] = WeakKeyDictionary()


def follow_addresses(job: Job, program: Program, contents: dict[str, Bytes]) -> FollowedAddresses:
    """`contents`: of the inputs that are given. Where values that would take too long decide what is accessed, it is
    followed as if every comparison of values failed, and as if it held."""
    exact = _followed(job, program, contents, None, _Wanted())
    if exact.followed or (exact.needs and not job.emulation.assumed) or exact.reason == _TOO_LONG:
        return exact
    less = replace(job, emulation=replace(job.emulation, instruction_budget=_ASSUMED_BUDGET))
    needed: FollowedAddresses | None = None
    began = time.process_time()
    for loads in (False, True):
        wanted = _Wanted()
        ways: list[FollowedAddresses] = []
        for holds in (False, True):
            if time.process_time() - began < _ASSUMED_SECONDS:
                ways.append(_followed(less, program, contents, Assumed(holds, loads), wanted))
        needed = needed or next((one for one in ways if one.needs), None)
        told = next((str(one.findings[0]) for one in ways if one.findings), "")
        if told:
            return replace(exact, reason=f"{exact.reason}; if all values decided one way: {told}")
        through = [one for one in ways if one.followed]
        if through:
            # Not all that is assumed can happen, and loops that values end have run once.
            return replace(through[0], ways=len(through), twice=(), read=(), reads_left="values decide them")
    return needed or exact


def _followed(
    job: Job, program: Program, contents: dict[str, Bytes], assumed: Assumed | None, wanted: _Wanted
) -> FollowedAddresses:
    slices = _slices.setdefault(program, {})
    for _ in range(_MOST_ROUNDS):
        run = _Run(job, program.module, contents, slices, job.emulation.seed, wanted, assumed)
        try:
            return run.whole()
        except _Again:
            continue
        except _Missing as missing:
            return FollowedAddresses(needs=(missing.tensor,))
        except (_Left, NotSliced, PtxError) as error:
            return FollowedAddresses(reason=str(error), thread_instructions=run.used)
    return FollowedAddresses(reason="its addresses depend on values in too many ways")


class _Missing(Exception):
    def __init__(self, tensor: str) -> None:
        super().__init__(tensor)
        self.tensor = tensor


@dataclass
class _Run:
    job: Job
    module: Module
    contents: dict[str, Bytes]
    slices: _Slices
    seed: int
    wanted: _Wanted
    assumed: Assumed | None = None
    used: int = 0  # thread instructions
    _memory: GlobalMemory = field(default_factory=GlobalMemory)
    _notes: dict[str, TensorNotes] = field(default_factory=dict)
    _specs: dict[str, TensorSpec] = field(default_factory=dict)
    _findings: list[FindingRecord] = field(default_factory=list)
    _paths: list[LaunchPath] = field(default_factory=list)
    _twice: list[WrittenTwice] = field(default_factory=list)
    _by: dict[str, list[int]] = field(default_factory=dict)
    _reads_left: str = ""
    _past: list[tuple[str, Callable[[str], set[int]]]] = field(default_factory=list)  # per launch: stores to a tensor

    @property
    def _plan(self) -> BoundPlan:
        return self.job.plan

    def whole(self) -> FollowedAddresses:
        for one in self.job.inputs:
            self._add_input(one)
        for buffer in self._plan.buffers:
            cleared = buffer.clearing is not Clearing.UNDEFINED
            scratch = buffer.role is BufferRole.SCRATCH
            self._add(buffer.name, buffer.spec, Content.GIVEN if cleared else Content.WRITTEN, scratch=scratch)
        launches = 0
        for number, step in enumerate(self._plan.steps):
            if isinstance(step, LibraryCall):
                self._library(step, number)
            else:
                self._launch(step, number, launches)
                launches += 1
        return self._outcome()

    # -- tensors --

    def _add_input(self, one: InputTensor) -> None:
        given = self.contents.get(one.name)
        writable = one.name in self.job.returns
        data = given.copy() if given is not None and (writable or not given.flags.writeable) else given
        self._place(one.name, one.spec, sparse_memory.zeros(one.spec.storage_bytes) if data is None else data, writable)
        content = Content.MISSING if given is None else Content.GIVEN
        self._note(one.name, one.spec, content, written=writable)

    def _add(self, name: str, spec: TensorSpec, content: Content, *, scratch: bool) -> None:
        self._place(name, spec, sparse_memory.zeros(spec.storage_bytes), True)
        self._note(name, spec, content, written=True)
        if scratch:
            self._notes[name].hollow = Bits(self._notes[name].units)

    def _place(self, name: str, spec: TensorSpec, data: Bytes, writable: bool) -> None:
        shape, stride = (spec.shape, spec.stride) if spec.is_contiguous else (None, None)
        self._memory.add(
            name,
            spec.storage_bytes,
            element_bytes=spec.dtype.itemsize,
            writable=writable,
            data=data,
            misaligned_by=misalignment(spec),
            shape=shape,
            stride=stride,
        )
        self._specs[name] = spec

    def _note(self, name: str, spec: TensorSpec, content: Content, *, written: bool) -> None:
        size = 1 if name in self.wanted.by_byte else spec.dtype.itemsize
        if size == 1 and spec.dtype.itemsize > 1 and spec.storage_bytes > _MOST_BYTES:
            raise _Left(f"parts of elements of {name} are written, which is too large to follow byte by byte")
        units = -(-spec.storage_bytes // size)
        owned = name in self.wanted.owned
        notes = TensorNotes(name, size, units, content, Bits(units) if written else None, Bits(units), owned=owned)
        self._notes[name] = notes

    def _library(self, call: LibraryCall, number: int) -> None:
        notes = self._notes[call.target]
        if notes.written is not None:
            notes.written.fill()
        notes.hollow, notes.hollowed = None, True
        self._by.setdefault(call.target, []).append(number)

    # -- launches --

    def _launch(self, launch: PackedLaunch, number: int, position: int) -> None:
        watched = {name for name in self._plan.tensors_of(launch) if name in self._notes}
        if launch.pdl and number and isinstance(self._plan.steps[number - 1], PackedLaunch):
            self._check_ahead(launch, position, watched)
        before = {name: self._written_count(name) for name in watched}
        for name, notes in self._notes.items():
            notes.begin_launch(watched=name in watched)
            if notes.read is not None and self._is_scratch(name):
                notes.read.clear()
        self._follow(launch, position, watched)
        for name in watched:
            if self._written_count(name) != before[name]:
                self._by.setdefault(name, []).append(number)
        self._check_scratch(launch, watched, before)

    def _follow(self, launch: PackedLaunch, position: int, watched: set[str]) -> None:
        """All blocks at once where that can be; else one after the other, and loads only where that is affordable."""
        writes = self._slice(launch.symbol, reads=False)
        reads = self._slice(launch.symbol, reads=True)
        at_once = math.prod(launch.grid) * math.prod(launch.block) >= _MANY_THREADS
        at_once = at_once and not any(self._notes[name].owned for name in watched)
        if at_once and self._at_once(reads, launch, position):
            return
        if self._affordable(launch, writes, reads):
            self._one_by_one(reads, launch, position)
            return
        self._reads_left = self._reads_left or "too many loads"
        if not (at_once and self._at_once(writes, launch, position)):
            self._one_by_one(writes, launch, position)

    def _evaluated(
        self, chosen: tuple[Slice, Program], launch: PackedLaunch, position: int, notes: dict[str, TensorNotes]
    ) -> tuple[AffineOutcome, dict[str, int], dict[str, set[int]]] | None:
        """All blocks at once; None where that cannot be."""
        sliced = chosen[0]
        request = launch_request(launch, self._plan.maps, self._memory, LaunchOptions())
        built = chosen[1].prepare(launch.symbol).cluster
        request = replace(request, cluster=cluster_extents(launch.symbol, built, request.cluster, request.grid))
        regions = self._memory.regions(-1)
        try:
            found = run_affine(sliced, request, regions, _EVALUATED, self.seed + position)
        except Beyond:
            return None
        self.used += found.evaluated
        return found, *note_runs(found, sliced, regions, notes)

    def _at_once(self, chosen: tuple[Slice, Program], launch: PackedLaunch, position: int) -> bool:
        evaluated = self._evaluated(chosen, launch, position, self._notes)
        if evaluated is None:
            return False
        found, again, stored = evaluated
        self._past.append((launch.symbol, lambda tensor: stored.get(tensor, set())))
        self._again_by_byte()
        self._note_twice(None, again, launch, position)
        self._paths += [LaunchPath(position, blocks, example) for blocks, example in found.paths]
        return True

    def _one_by_one(self, chosen: tuple[Slice, Program], launch: PackedLaunch, position: int) -> None:
        budget = self.job.emulation.instruction_budget - self.used
        result, noted = self._ran(chosen, launch, budget, AddressNotes(self._notes, self.seed + position))
        self.used += result.thread_instructions
        self._past.append((launch.symbol, partial(self._stores, launch.symbol, noted, *chosen)))
        again = noted.settle()
        if noted.missing:
            self._bring(noted.missing)
        self._again_by_byte()
        self._findings += [one for one in result.findings if one.kind is not FindingKind.BUDGET]
        if not result.completed:
            self._stopped(result)
        self._note_twice(noted, again, launch, position)
        self._paths += [LaunchPath(position, blocks, example) for blocks, example in noted.paths]

    def _check_ahead(self, launch: PackedLaunch, position: int, watched: set[str]) -> None:
        """What a programmatic launch accesses ahead of its wait must not be what the launch before it writes."""
        written = {name: bits for name in watched if (bits := self._notes[name].fresh) is not None}
        notes = {
            name: replace(self._notes[name], written=Bits(bits.units), read=Bits(bits.units), owned=False, fresh=None)
            for name, bits in written.items()
        }
        if not notes:
            return
        chosen = self._slice(launch.symbol, reads=True, ahead=True)
        if self._evaluated(chosen, launch, position, notes) is None:
            self._ran(chosen, launch, _READ_BUDGET // 8, AddressNotes(notes, self.seed))
        for name, bits in written.items():
            for verb, touched in (("reads", notes[name].read), ("writes", notes[name].written)):
                first = None if touched is None else touched.first_common(bits)
                if first is not None:
                    where = f"{name}[{', '.join(map(str, self._index(name, first)))}]"
                    detail = f"it {verb} that ahead of griddepcontrol.wait, while the launch before it may write it"
                    self._findings.append(launch_finding(FindingKind.NOT_AWAITED, launch, where, detail, 1))

    def _written_count(self, name: str) -> int:
        written = self._notes[name].written
        return 0 if written is None else written.count

    def _is_scratch(self, name: str) -> bool:
        return any(one.name == name and one.role is BufferRole.SCRATCH for one in self._plan.buffers)

    def _slice(self, symbol: str, *, reads: bool, ahead: bool = False) -> tuple[Slice, Program]:
        valued = frozenset(self.wanted.valued.get(symbol, ()))
        key = (symbol, reads, ahead, self.assumed, valued)
        if key not in self.slices:
            made = slice_kernel(self.module, symbol, reads=reads, valued=valued, ahead=ahead, assumed=self.assumed)
            self.slices[key] = made, Program(made.module)
        if self.slices[key][0].products:
            raise _Left("they depend on what products of matrices come to")
        return self.slices[key]

    def _affordable(self, launch: PackedLaunch, writes: tuple[Slice, Program], reads: tuple[Slice, Program]) -> bool:
        """Whether all loads can be followed: where that takes further loops, or much, a few blocks tell."""
        total = math.prod(launch.grid)
        further = not reads[0].loops <= writes[0].loops
        if not further and (reads[0].real or total * math.prod(launch.block) * reads[0].size <= _READ_BUDGET):
            return True
        if reads[0].real or self._reads_left:
            return False
        blocks = tuple(sorted({part * (total - 1) // max(_TRIED_BLOCKS - 1, 1) for part in range(_TRIED_BLOCKS)}))
        result, _ = self._ran(reads, launch, _READ_BUDGET // 8, AddressNotes({}, 0), blocks)
        run = len(blocks) * math.prod(launch.cluster or (1, 1, 1))
        return result.completed and result.thread_instructions / run * total <= _READ_BUDGET

    def _ran(
        self,
        sliced: tuple[Slice, Program],
        launch: PackedLaunch,
        budget: int,
        noted: AddressNotes,
        blocks: tuple[int, ...] | None = None,
    ) -> tuple[LaunchResult, AddressNotes]:
        options = LaunchOptions(_CHECKS, None, max(budget, 1), 1, blocks)
        request = launch_request(launch, self._plan.maps, self._memory, options)
        shared = request.dynamic_smem_bytes if sliced[0].shared else 0
        request = replace(request, dynamic_smem_bytes=shared, overlaps=False)
        return sliced[1].launch(self._memory, request, noted), noted

    def _again_by_byte(self) -> None:
        misfit = {name for name, one in self._notes.items() if one.misfit}
        if misfit - self.wanted.by_byte:
            self.wanted.by_byte |= misfit
            raise _Again

    def _bring(self, missing: str) -> None:
        """An address depends on contents that are not there: ask for the input, or for the values of stores."""
        if missing in {one.name for one in self.job.inputs} and missing not in self.contents:
            raise _Missing(missing)
        more = False
        for symbol, stores in self._past:
            known = self.wanted.valued.setdefault(symbol, set())
            stored = stores(missing)
            more |= not stored <= known
            known |= stored
        if not more:
            raise _Left(f"they depend on values in {missing} that are not known")
        raise _Again

    def _stores(self, symbol: str, noted: AddressNotes, sliced: Slice, program: Program, tensor: str) -> set[int]:
        """The instructions of a kernel, by index, that stored to a tensor."""
        body = sliced.module.functions[symbol].body
        places = {id(one): origin for one, origin in zip(body, sliced.origins, strict=True)}
        rows = program.prepare(symbol).origins
        touched = {places.get(id(rows[at])) for at in noted.touching(tensor)}
        whole = self.module.functions[symbol].body
        return {index for index in touched if index is not None and whole[index].opcode not in ("ld", "ldu")}

    def _stopped(self, result: LaunchResult) -> None:
        if any(one.kind is FindingKind.BUDGET for one in result.findings):
            raise _Left(_TOO_LONG)
        kinds = ", ".join(dict.fromkeys(one.kind.value for one in result.findings)) or "it stopped"
        raise _Left(f"the slice did not run to its end: {kinds}")

    def _note_twice(
        self, noted: AddressNotes | None, again: dict[str, int], launch: PackedLaunch, position: int
    ) -> None:
        threads = math.prod(launch.grid) * math.prod(launch.block)
        fresh = {name for name in again if name not in self.wanted.owned}
        too_many = [name for name in fresh if self._notes[name].units > _MOST_OWNED or threads >= _MOST_THREADS]
        if too_many:
            raise _Left(f"elements of {too_many[0]} are written more than once, too many to follow by whom")
        if fresh:
            self.wanted.owned |= fresh
            raise _Again
        for name in again:
            first = next((one for one in (noted.twice if noted else ()) if one.tensor == name), None)
            if first is not None:
                blocks = tuple(one // math.prod(launch.block) for one in (first.first, first.second))
                index = self._index(name, first.unit)
                self._twice.append(WrittenTwice(name, index, position, (blocks[0], blocks[1]), again[name]))

    def _check_scratch(self, launch: PackedLaunch, watched: set[str], before: dict[str, int]) -> None:
        """Scratch that a launch only reads must have been written there."""
        for name in sorted(watched):
            notes = self._notes[name]
            undefined = notes.content is Content.WRITTEN and self._is_scratch(name)
            if not undefined or notes.read is None or notes.written is None:
                continue
            if self._written_count(name) != before[name] or (notes.hollowed and notes.hollow is None):
                continue
            first = notes.read.first_common(notes.written, apart=True)
            if first is not None:
                where = f"{name}[{', '.join(map(str, self._index(name, first)))}]"
                detail = f"no launch before it writes this element of {name}"
                self._findings.append(launch_finding(FindingKind.UNINITIALISED_GLOBAL, launch, where, detail, 1))

    def _index(self, name: str, unit: int) -> tuple[int, ...]:
        spec = self._specs[name]
        offset = unit * self._notes[name].unit_bytes
        if not spec.is_contiguous:
            return (offset // spec.dtype.itemsize,)
        return tuple(int(one) for one in np.unravel_index(offset // spec.dtype.itemsize, spec.shape or (1,)))[
            : len(spec.shape)
        ]

    # -- what it amounts to --

    def _outcome(self) -> FollowedAddresses:
        due = [
            one
            for one in self._plan.buffers
            if one.role is not BufferRole.SCRATCH and one.clearing is Clearing.UNDEFINED and one.spec.numel
        ]
        written = tuple(self._touched(one.name, self._notes[one.name].written) for one in due)
        given = set().union(*(self._plan.tensors_of(step) for step in self._plan.steps)) if self._plan.steps else set()
        inputs = [one for one in self.job.inputs if one.spec.numel and not self._reads_left]
        library = {
            name for step in self._plan.steps if isinstance(step, LibraryCall) for name in self._plan.tensors_of(step)
        }
        read = tuple(
            self._touched(one.name, self._notes[one.name].read)
            if one.name in given - library
            else Touched(one.name, one.spec.numel, one.spec.numel if one.name in library else 0)
            for one in inputs
        )
        for one in written:
            if not one.whole:
                self._findings.append(self._unwritten(one))
        return FollowedAddresses(
            written=written,
            read=read,
            reads_left=self._reads_left,
            twice=tuple(self._twice),
            paths=tuple(self._paths),
            findings=tuple(self._findings),
            thread_instructions=self.used,
        )

    def _touched(self, name: str, bits: Bits | None) -> Touched:
        spec, by = self._specs[name], tuple(self._by.get(name, ()))
        if bits is None:
            return Touched(name, spec.numel, 0, by=by)
        if spec.is_contiguous and bits.units == spec.numel:
            count, first = bits.count, bits.first_clear
        else:
            elements = self._elements(name, bits)
            count = int(elements.sum())
            left = np.flatnonzero(~elements.reshape(-1))
            first = int(left[0]) if len(left) else None
        shape = spec.shape or (1,)
        index = None if first is None else tuple(int(one) for one in np.unravel_index(first, shape))[: len(spec.shape)]
        return Touched(name, spec.numel, count, index, by)

    def _elements(self, name: str, bits: Bits) -> Any:
        """Whether each element of a tensor with gaps, or noted byte by byte, was touched."""
        spec = self._specs[name]
        if bits.units > _MOST_STRIDED * 8:
            raise _Left(f"{name} is too large to follow with its strides")
        size, unit = spec.dtype.itemsize, self._notes[name].unit_bytes
        per = size // unit
        steps = tuple(step * per for step in spec.stride)
        view: Any = np.lib.stride_tricks.as_strided(bits.flags, (*spec.shape, per), (*steps, 1))
        return view.all(axis=-1)

    def _unwritten(self, one: Touched) -> FindingRecord:
        last = self._plan.last_user(one.name)
        assert one.first_left is not None
        where = f"{one.name}[{', '.join(map(str, one.first_left))}]" if one.first_left else one.name
        left = one.elements - one.touched
        share = f"{100 * left / one.elements:.3g} %"
        detail = f"{left:,} of {one.elements:,} elements of {one.name} ({share}) are never written"
        if last is None:
            return FindingRecord(FindingKind.OUTPUT_NOT_WRITTEN, "", 0, None, 0, None, where, detail, left)
        grid = "x".join(map(str, _trimmed(last.grid)))
        block = "x".join(map(str, _trimmed(last.block)))
        detail += f" by the launch of {grid} blocks of {block} threads"
        return launch_finding(FindingKind.OUTPUT_NOT_WRITTEN, last, where, detail, left)


def _trimmed(extents: tuple[int, ...]) -> tuple[int, ...]:
    kept = list(extents)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return tuple(kept)
