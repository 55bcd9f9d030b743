"""Runs a slice for many blocks at once: every register as a number plus a multiple of the block's place in the grid.

Exact: where such a form does not hold for all blocks of a range (a comparison turns, a number leaves its width, a
quotient steps), the range is cut there and each part runs again. Threads part and meet as in the interpreter, which
does what is beyond this: exchanges between threads, floating-point indices, very many cuts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tilewright.ptx.address_notes import Bits, TensorNotes
from tilewright.ptx.affine_numbers import FAR, Array, Beyond, Cut, Linear, Numbers
from tilewright.ptx.global_memory import MemoryRegion
from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.lower import NOTE
from tilewright.ptx.lower_control import Parameters
from tilewright.ptx.native import core
from tilewright.ptx.operands import TYPE_BYTES, items_of
from tilewright.ptx.slicing import Slice
from tilewright.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Register,
    Special,
    SymbolOperand,
)

_MOST_RANGES = 4096
_MOST_OTHERS = 512  # places along the axes of the grid that do not vary in a range
_MOST_MARKS = 30_000_000
_COMPARED = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"}
_ORDERS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@dataclass(frozen=True)
class _Run:
    """Bytes that threads access in each block of a range."""

    region: int
    starts: Array  # of stretches, sorted, in the first block
    lengths: Array
    slope: int
    times: int
    how: str  # "read", "write", "atomic"
    index: int  # of the instruction in the slice


@dataclass(frozen=True)
class AffineOutcome:
    runs: tuple[_Run, ...]
    paths: tuple[tuple[int, int], ...]  # blocks, and one of them
    evaluated: int


@dataclass
class _Block(Numbers):
    """One range of blocks, evaluated."""

    grid: _Grid
    fixed: tuple[int, int, int]
    rank: int  # in its cluster
    first: int
    count: int
    registers: dict[str, Any] = field(default_factory=dict)
    either_of: dict[str, tuple[Linear, Linear]] = field(default_factory=dict)  # registers that are one `or` the other
    runs: list[_Run] = field(default_factory=list)
    seen: dict[tuple[int, bool, bool], None] = field(default_factory=dict)

    def run(self) -> None:
        """Threads at the earliest instruction go first, so that those that parted meet."""
        threads = self.grid.threads
        waiting: dict[int, Array] = {0: np.ones(threads, np.bool_)}
        body = self.grid.function.body
        while waiting:
            pc = min(waiting)
            mask = waiting.pop(pc)
            while pc < len(body):
                self.grid.spend()
                step = self._step(pc, body[pc], mask)
                if step is not None:
                    target, gone = step
                    if target is not None and gone.any():
                        known = waiting.get(target)
                        waiting[target] = gone if known is None else known | gone
                    mask = mask & ~gone
                    if not mask.any():
                        break
                pc += 1
                if pc in waiting:
                    mask = mask | waiting.pop(pc)
                elif waiting and min(waiting) < pc:
                    waiting[pc] = mask
                    break

    def _step(self, pc: int, one: Instruction, mask: Array) -> tuple[int | None, Array] | None:
        active = mask
        if one.guard is not None:
            guard = self.registers.get(one.guard.name)
            if guard is None:
                raise Beyond
            active = mask & (~guard if one.guard_negated else guard)
        some, each = bool(active.any()), bool((active == mask).all())
        self.seen[pc, some, each] = None
        if not some:
            return None
        if one.opcode == "bra":
            label = one.operands[-1]
            assert isinstance(label, Label)
            return self.grid.function.labels[label.name], active
        if one.opcode in ("ret", "exit"):
            return None, active
        if one.opcode == NOTE:
            self._note(pc, one, active)
        else:
            self._compute(one, active)
        return None

    # -- numbers --

    def value(self, operand: Any, width: int, mask: Array) -> Linear:
        if isinstance(operand, Register):
            found = self.registers.get(operand.name)
            if not isinstance(found, Linear):
                raise Beyond
            return found
        if isinstance(operand, Immediate) and operand.width == 0:
            return Linear(np.int64(_signed(operand.bits, width)), np.int64(0))
        if isinstance(operand, Special):
            return self._special(operand.name)
        raise Beyond

    def _special(self, name: str) -> Linear:
        grid, more = self.grid, int(self.count > 1)  # a range of one has no slopes
        axis = "xyz".find(name[-1])
        stem = name[:-2]
        if stem == "%ctaid" and axis == grid.axis:
            return Linear(np.int64(self.rank + grid.step * self.first), np.int64(grid.step * more))
        if stem == "%clusterid" and axis == grid.axis:
            return Linear(np.int64(self.first), np.int64(more))
        along = [axis == grid.axis for axis in range(3)]
        found = {
            "%ctaid": self.fixed,
            "%clusterid": self.fixed,
            "%cluster_ctaid": [self.rank * one for one in along],
            "%cluster_nctaid": [grid.step if one else 1 for one in along],
            "%tid": grid.tid,
            "%ntid": grid.block,
            "%nctaid": grid.extents,
        }
        alone = {"%cluster_ctarank": self.rank, "%cluster_nctarank": grid.step}
        value = alone[name] if name in alone else found[stem][axis] if stem in found else None
        if value is None:
            raise Beyond
        return Linear(np.asarray(value, np.int64), np.int64(0))

    # -- instructions --

    def _compute(self, one: Instruction, mask: Array) -> None:
        kind = one.modifiers[-1] if one.modifiers else ""
        if kind == "pred":
            self._logic(one, mask)
            return
        if one.opcode == "setp":
            self._compare(one, kind, mask)
            return
        if one.opcode == "ld":
            self._parameter(one, kind, mask)
            return
        width = 8 * TYPE_BYTES.get(kind, 0)
        if kind[:1] not in ("u", "s", "b") or width not in (16, 32, 64) or "cc" in one.modifiers:
            raise Beyond
        target = one.operands[0]
        if isinstance(target, Register):
            self.either_of.pop(target.name, None)
        try:
            made = self._arithmetic(one, kind, width, mask)
        except Beyond:
            if one.opcode != "or" or not isinstance(target, Register) or not mask.all():
                raise
            a, b = (self.value(operand, width, mask) for operand in one.operands[1:3])
            self.either_of[target.name] = (a, b)
            self.registers.pop(target.name, None)
            return
        self._set(target, made, mask)

    def _arithmetic(self, one: Instruction, kind: str, width: int, mask: Array) -> Linear:
        wide = "wide" in one.modifiers
        is_unsigned = kind[0] == "u"

        def operand(position: int, bits: int = width, *, natural: bool = False) -> Linear:
            found = self.value(one.operands[position], bits, mask)
            return self.unsigned(found, bits, mask) if natural and is_unsigned else found

        name = one.opcode
        if name in ("mov", "cvta"):
            return operand(1)
        if name == "cvt":
            return self._convert(one, kind, width, mask)
        if name in ("add", "sub"):
            a, b = operand(1), operand(2)
            sign = 1 if name == "add" else -1
            return self.fit(a.base + sign * b.base, a.slope + sign * b.slope, width, mask)
        if name in ("mul", "mad"):
            if not wide and "lo" not in one.modifiers:
                raise Beyond
            a, b = operand(1, natural=wide), operand(2, natural=wide)
            if not (a.fixed or b.fixed):
                raise Beyond if self.count == 1 else Cut(self.count // 2)
            bits = 2 * width if wide else width
            product = self.fit(*self.product(a, b), bits, mask)
            if name == "mul":
                return product
            c = operand(3, bits)
            return self.fit(product.base + c.base, product.slope + c.slope, bits, mask)
        if name == "neg":
            a = operand(1)
            return self.fit(-a.base, -a.slope, width, mask)
        if name == "not":
            a = operand(1)
            return Linear(-1 - a.base, -a.slope)
        if name in ("min", "max"):
            a, b = operand(1, natural=True), operand(2, natural=True)
            less = self.below(a.base - b.base, a.slope - b.slope, mask)
            return self.either(less if name == "min" else ~less, a, b)
        if name == "selp":
            chosen = self._predicate(one.operands[3], mask)
            return self.either(chosen, operand(1), operand(2))
        return self._bits(one, kind, width, mask)

    def _bits(self, one: Instruction, kind: str, width: int, mask: Array) -> Linear:
        name = one.opcode
        either = self.either_of.get(one.operands[1].name) if isinstance(one.operands[1], Register) else None
        if either is not None and name in ("and", "shr"):
            return self._high_bits(one, either, width, mask)
        a = self.value(one.operands[1], width, mask)
        b = self.value(one.operands[2], 32 if name in ("shl", "shr") else width, mask)
        if name in ("shl", "shr") and np.ndim(b.base) == 0 and b.fixed and 0 <= int(b.base) < width:
            by = 1 << int(b.base)
            if name == "shl" and by > FAR:
                raise Beyond
            if name == "shl":
                return self.fit(*self.product(Linear(np.int64(by), np.int64(0)), a), width, mask)
            a = self.unsigned(a, width, mask) if kind[0] != "s" else a
            if by > FAR:  # only the sign is left
                return Linear(np.where(self.below(a.base, a.slope, mask), -1, 0), np.int64(0))
            return self.divided(a, by, mask)[0]
        if name in ("div", "rem") and np.ndim(b.base) == 0 and b.fixed and int(b.base) > 0:
            a = self.unsigned(a, width, mask) if kind[0] == "u" else a
            if self.below(a.base, a.slope, mask)[mask].any():
                raise Beyond
            return self.divided(a, int(b.base), mask)[name == "rem"]
        if name == "and" and b.fixed and np.ndim(b.base) == 0:
            ones = int(b.base)
            if 0 <= ones < FAR and ones & (ones + 1) == 0:
                return self.divided(a, ones + 1, mask)[1]
        if name == "or":
            return self.joined(a, b, width, mask)
        if not (a.fixed and b.fixed) or name not in ("and", "xor"):
            raise Beyond
        return Linear(a.base & b.base if name == "and" else a.base ^ b.base, np.int64(0))

    def _high_bits(self, one: Instruction, either: tuple[Linear, Linear], width: int, mask: Array) -> Linear:
        """Bits above some, of two numbers that have none there: so 64-bit divisions look for a short way."""
        by = self.value(one.operands[2], 32 if one.opcode == "shr" else width, mask)
        if not by.fixed or np.ndim(by.base):
            raise Beyond
        low = 1 << int(by.base) if one.opcode == "shr" else -int(by.base)
        if low <= 0 or low & (low - 1) or low > FAR:
            raise Beyond
        for number in either:
            found = self.unsigned(number, width, mask)
            if not (self.below(found.base - low, found.slope, mask) | ~mask).all():
                raise Beyond
        return Linear(np.int64(0), np.int64(0))

    def _convert(self, one: Instruction, source: str, bits: int, mask: Array) -> Linear:
        target = one.modifiers[-2] if len(one.modifiers) > 1 else ""
        width = 8 * TYPE_BYTES.get(target, 0)
        if len(one.modifiers) != 2 or target[:1] not in ("u", "s") or width not in (16, 32, 64):
            raise Beyond
        found = self.value(one.operands[1], bits, mask)
        if width > bits:
            return self.unsigned(found, bits, mask) if source[0] == "u" else found
        return self.fit(found.base + np.int64(0), found.slope, width, mask)

    def _compare(self, one: Instruction, kind: str, mask: Array) -> None:
        test = next((part for part in one.modifiers if part in _COMPARED), "")
        width = 8 * TYPE_BYTES.get(kind, 0)
        plain = len(one.modifiers) == 2 and isinstance(one.operands[0], Register)
        if not test or kind[:1] not in ("u", "s", "b") or not plain:
            raise Beyond
        a, b = (self.value(operand, width, mask) for operand in one.operands[1:3])
        if kind[0] == "u":
            a, b = self.unsigned(a, width, mask), self.unsigned(b, width, mask)
        base, slope = a.base - b.base, a.slope - b.slope
        name = _ORDERS.get(test, test)
        if name in ("lt", "ge"):
            found = self.below(base, slope, mask)
        elif name in ("le", "gt"):
            found = self.below(base - 1, slope, mask)
        else:
            found = ~self.below(base, slope, mask) & self.below(base - 1, slope, mask)
        self._set(one.operands[0], ~found if name in ("ge", "gt", "ne") else found, mask)

    def _predicate(self, operand: Any, mask: Array) -> Array:
        if isinstance(operand, Negated):
            return ~self._predicate(operand.register, mask)
        found = self.registers.get(operand.name) if isinstance(operand, Register) else None
        if found is None or isinstance(found, Linear):
            raise Beyond
        return found

    def _logic(self, one: Instruction, mask: Array) -> None:
        parts = [self._predicate(operand, mask) for operand in one.operands[1:]]
        made = {
            "and": lambda: parts[0] & parts[1],
            "or": lambda: parts[0] | parts[1],
            "xor": lambda: parts[0] ^ parts[1],
            "not": lambda: ~parts[0],
            "mov": lambda: parts[0],
        }.get(one.opcode)
        if made is None:
            raise Beyond
        self._set(one.operands[0], made(), mask)

    def _parameter(self, one: Instruction, kind: str, mask: Array) -> None:
        place = one.operands[1]
        if one.modifiers[0] != "param" or kind[:1] not in ("u", "s", "b") or not isinstance(place, Address):
            raise Beyond
        if not isinstance(place.base, SymbolOperand):
            raise Beyond
        at, size = self.grid.parameters.get(place.base.name), TYPE_BYTES[kind]
        if at is None or size < 2:
            raise Beyond
        at += place.offset + place.base.offset
        for number, item in enumerate(items_of(one.operands[0])):
            data = self.grid.request.parameters[at + number * size : at + (number + 1) * size]
            if not isinstance(item, Register):
                raise Beyond
            held = TYPE_BYTES[self.grid.function.registers[item.name]]
            if held < size:
                raise Beyond
            is_signed = held == size or kind[0] == "s"  # a wider register takes it extended
            self._set(item, Linear(np.int64(int.from_bytes(data, "little", signed=is_signed)), np.int64(0)), mask)

    def _set(self, target: Any, made: Any, mask: Array) -> None:
        if not isinstance(target, Register):
            raise Beyond
        before = self.registers.get(target.name)
        if before is not None and not mask.all():
            if isinstance(made, Linear):
                made = self.either(mask, made, before)
            else:
                made = np.where(mask, made, before)
        self.registers[target.name] = made

    # -- accesses --

    def _note(self, pc: int, one: Instruction, mask: Array) -> None:
        opcode, parts = one.modifiers[0], one.modifiers[1:]
        place = next((operand for operand in one.operands if isinstance(operand, Address)), None)
        if opcode == "cp":
            self._note_copy(pc, one, mask)
            return
        if opcode not in ("ld", "ldu", "st", "atom", "red") or place is None:
            raise Beyond
        count = next((int(part[1]) for part in parts if part in ("v2", "v4", "v8")), 1)
        how = "read" if opcode in ("ld", "ldu") else "write" if opcode == "st" else "atomic"
        self._run(pc, place, count * TYPE_BYTES[parts[-1]], how, mask)

    def _note_copy(self, pc: int, one: Instruction, mask: Array) -> None:
        """An asynchronous copy without a tensor map."""
        parts = one.modifiers
        outwards, bulk = isinstance(one.operands[1], Address) and one.operands[1].base == Immediate(0), "bulk" in parts
        place, number = one.operands[0 if outwards else 1], one.operands[-1 if not bulk else 2]
        if "tensor" in parts or "prefetch" in parts or "reduce" in parts or not isinstance(place, Address):
            raise Beyond
        size = self.value(number, 32, mask)
        sizes = np.unique(np.broadcast_to(size.base, mask.shape)[mask])
        if not size.fixed or len(sizes) != 1 or sizes[0] < 0 or (sizes[0] % 16 and bulk):
            raise Beyond
        if sizes[0]:
            self._run(pc, place, int(sizes[0]), "write" if outwards else "read", mask, 16 if bulk else 4)

    def _run(self, pc: int, place: Address, size: int, how: str, mask: Array, alignment: int = 0) -> None:
        if not isinstance(place.base, Register):
            raise Beyond
        alignment = alignment or size
        found = self.value(place.base, 64, mask)
        address = np.broadcast_to(found.base + place.offset, mask.shape)[mask]
        slopes = np.unique(np.broadcast_to(found.slope, mask.shape)[mask])
        if len(slopes) != 1:
            raise Beyond
        slope = int(slopes[0])
        ends = (int(address.min()), int(address.max()))
        far = slope * (self.count - 1)
        low, high = ends[0] + min(far, 0), ends[1] + max(far, 0) + size
        region = self.grid.region_of(low, high)
        if np.any(address % alignment) or slope % alignment or region is None:
            raise Beyond  # misaligned, or outside: the interpreter says where
        starts = np.unique(address) - self.grid.regions[region].address
        if how == "write" and len(starts) != len(address):
            raise Beyond
        if how != "read" and not self.grid.regions[region].writable:
            raise Beyond
        breaks = np.flatnonzero(np.diff(starts) != size)
        heads = np.concatenate([[0], breaks + 1])
        lengths = np.diff(np.concatenate([heads, [len(starts)]])) * size
        self.runs.append(_Run(region, starts[heads], lengths, slope, self.count, how, pc))


def _signed(bits: int, width: int) -> int:
    half = 1 << (width - 1)
    return ((bits + half) & ((1 << width) - 1)) - half


@dataclass
class _Grid:
    function: Function
    request: LaunchRequest
    regions: Sequence[MemoryRegion]
    budget: int  # of evaluated instructions
    evaluated: int = 0
    axis: int = 0
    step: int = 1  # blocks of a cluster, which lie along that axis
    extents: tuple[int, int, int] = (1, 1, 1)
    threads: int = 0
    tid: tuple[Array, ...] = ()
    block: tuple[int, int, int] = (1, 1, 1)
    parameters: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extents, self.block = self.request.grid, self.request.block
        self.axis = max(range(3), key=lambda axis: (self.extents[axis], -axis))
        cluster = self.request.cluster or (1, 1, 1)
        self.step = cluster[self.axis]
        if math.prod(cluster) != self.step:
            raise Beyond
        self.threads = math.prod(self.block)
        thread = np.arange(self.threads)
        x, y, _ = self.block
        self.tid = (thread % x, thread // x % y, thread // x // y)
        offsets = Parameters.of_kernel(self.function.parameters).offsets
        self.parameters = {one.name: at for one, at in zip(self.function.parameters, offsets, strict=True)}

    def spend(self) -> None:
        self.evaluated += 1
        if self.evaluated > self.budget:
            raise Beyond

    def region_of(self, low: int, high: int) -> int | None:
        for number, one in enumerate(self.regions):
            if one.address <= low and high <= one.end:
                return number
        return None


def run_affine(
    sliced: Slice, request: LaunchRequest, regions: Sequence[MemoryRegion], budget: int, seed: int
) -> AffineOutcome:
    """Raises `Beyond`; then nothing was noted."""
    function = sliced.module.functions[request.kernel]
    if sliced.shared or sliced.real:
        raise Beyond
    grid = _Grid(function, request, regions, budget)
    others = [axis for axis in range(3) if axis != grid.axis]
    if math.prod(request.grid[axis] for axis in others) * grid.step > _MOST_OTHERS:
        raise Beyond
    runs: list[_Run] = []
    paths: dict[frozenset[tuple[int, bool, bool]], tuple[int, int]] = {}
    drawing, ranges = Random(seed), 0
    for rank, *place in np.ndindex(grid.step, *(request.grid[axis] for axis in others)):
        fixed = [0, 0, 0]
        for axis, at in zip(others, place, strict=True):
            fixed[axis] = at
        waiting = [(0, request.grid[grid.axis] // grid.step)]
        while waiting:
            first, count = waiting.pop()
            ranges += 1
            if ranges > _MOST_RANGES:
                raise Beyond
            block = _Block(grid, (fixed[0], fixed[1], fixed[2]), rank, first, count)
            try:
                block.run()
            except Cut as cut:
                if not 0 < cut.at < count:
                    raise Beyond from cut
                waiting += [(first + cut.at, count - cut.at), (first, cut.at)]
                continue
            runs += block.runs
            if sum(len(one.starts) * one.times for one in block.runs) > _MOST_MARKS:
                raise Beyond
            key = frozenset(block.seen)
            known, example = paths.get(key, (0, 0))
            if drawing.randrange(known + count) < count:
                fixed[grid.axis] = rank + grid.step * (first + drawing.randrange(count))
                example = fixed[0] + request.grid[0] * (fixed[1] + request.grid[1] * fixed[2])
            paths[key] = (known + count, example)
    return AffineOutcome(tuple(runs), tuple(paths.values()), grid.evaluated)


def note_runs(
    outcome: AffineOutcome, sliced: Slice, regions: Sequence[MemoryRegion], tensors: dict[str, TensorNotes]
) -> tuple[dict[str, int], dict[str, set[int]]]:
    """Mark what was accessed. How many units of each tensor were written again, and which instructions stored to it."""
    again: dict[str, int] = {}
    stored: dict[str, set[int]] = {}
    for run in outcome.runs:
        name = regions[run.region].name
        notes = tensors.get(name)
        if notes is None:
            continue
        unit = notes.unit_bytes
        starts, lengths = run.starts.tolist(), run.lengths.tolist()
        if run.how != "read":
            origin = sliced.origins[run.index]
            stored.setdefault(name, set()).update(() if origin is None else (origin,))
            notes.misfit |= any(at % unit for at in (*starts, *lengths, run.slope))
            notes.hollowed |= notes.hollow is None
        kept = {"read": (notes.read,), "write": (notes.written, notes.hollow), "atomic": (notes.written, notes.hollow)}
        for bits in kept[run.how]:
            before = _mark(bits, starts, lengths, run, unit)
            if bits is notes.written and notes.fresh is notes.written and run.how == "write" and before:
                again[name] = again.get(name, 0) + before
        if run.how == "write" and notes.fresh is not None and notes.fresh is not notes.written:
            before = _mark(notes.fresh, starts, lengths, run, unit)
            again[name] = again.get(name, 0) + before
    return {name: count for name, count in again.items() if count}, stored


def _mark(bits: Bits | None, starts: list[int], lengths: list[int], run: _Run, unit: int) -> int:
    if bits is None:
        return 0
    mark, words = core().tw_mark, bits.words.ctypes.data
    return sum(
        mark(words, at // unit, -(-(at % unit + length) // unit), run.slope // unit, run.times)
        for at, length in zip(starts, lengths, strict=True)
    )
