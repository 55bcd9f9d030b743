"""What a launch asks of the schedulers, read off the machine code: issue slots by unit, and one warp's time alone.

The emulator counts PTX; what runs is what the assembler made of it. Both know the lines of the kernel file, so each
machine instruction is given the executions of the PTX of its line: the deepest in loops the most frequent ones. The
warp then walks the code in order, every loop a few times, and waits where a register, a barrier or a group of copies
is not there yet. Latencies are Hopper's, in cycles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.records import KERNEL_FILE_NAME, Build, GpuProfile, InstructionRecord
from tilewright.records.emulation import kernel_line
from tilewright.toolchain import SassInstruction, ToolchainError, disassemble

_PASSES = 3  # through a loop, until what it copies ahead is there when it is needed
_FOLDED = re.compile(r"(?:@!?\S+\s+)?(?:mov|ld\.param|cvta|ret|exit|bra)\b")  # PTX that stands for little or nothing
_OPERAND = re.compile(r"\b(UP|UR|R|P)(\d+)(\.64)?")
_BESIDE = re.compile(r"\s*U?R?P?\d+, U?P\d")
_PENDING = re.compile(r"DEPBAR\.LE SB0, (0x[0-9a-f]+)")
_COUNTED_BARRIER = re.compile(r"BAR\.\S+ \S+, (0x[0-9a-f]+)")
_WAY_TO_CALL = 12  # instructions, from a branch over it or back behind it
_EACH_LANE = "BRA.U.ANY"
_POLL = re.compile(r"LDG?\.\S*STRONG|SYNCS\.PHASECHK|NANOSLEEP")
_WIDE = {"128": 4, "64": 2, "WIDE": 2}

# Cycles from issue until a result can be used, by the first part of the opcode; others take `_PLAIN`.
_PLAIN = 4.5
_LATENCY = {
    **dict.fromkeys(("LDS", "LDSM", "ATOMS"), 30.0),
    **dict.fromkeys(("SHFL", "S2R", "REDUX"), 24.0),
    **dict.fromkeys(("LDC", "ULDC", "S2UR", "R2UR"), 12.0),
    **dict.fromkeys(("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO"), 20.0),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA"), 33.0),
    **dict.fromkeys(("DFMA", "DADD", "DMUL", "DSETP"), 9.0),
    **dict.fromkeys(("VOTE", "MATCH", "R2P"), 12.0),
    "LDL": 40.0,
}
_LOADS = ("LDG", "LD")
_GLOBAL_LOAD = re.compile(r"(?:@!?\S+\s+)?ld\.(?!param|shared|local|const)")
_TENSOR = ("HMMA", "IMMA")
_ATOMICS = ("ATOMG", "ATOM")
_WRITES = ("STG", "ST", "RED", "REDG", *_ATOMICS)
_NO_RESULT = ("ST", "STG", "STS", "STL", "RED", "BRA", "BAR", "EXIT", "BSSY", "BSYNC", "WARPSYNC", "NOP", "LDGSTS")
_BARRIERS = ("BAR", "SYNCS", "UCGABAR_WAIT", "WARPSYNC")
_ENGINE_COPIES = ("UTMALDG", "UBLKCP")
_READS_SHARED = ("LDS", "LDSM", "HGMMA")
_FETCHES = (*_LOADS, "LDGSTS", *_ENGINE_COPIES)
_WORK_NAMES = "LDS LDSM STS STG ST RED REDG ATOMG ATOMS SHFL HMMA HGMMA BAR"
_WORK = (*_WORK_NAMES.split(), *_ENGINE_COPIES)
BARRIER_CYCLES = 30.0
BRANCH_CYCLES = 8.0
_NEAR, _FAR = 400.0, 800.0  # latencies of memory between which a walk is compared

# Cycles of a scheduler's unit that an instruction holds; units work side by side, each instruction takes one slot.
_UNITS = {
    "special": (8.0, re.compile(r"MUFU|F2F\b|F2I|I2F|FRND|POPC|FLO|BREV")),
    "integer": (
        2.0,
        re.compile(
            r"I(?:ADD3?|SETP|MNMX|ABS)|LOP3|SHF|SHL|SHR|LEA|SEL|FSEL|FSETP|FMNMX|PRMT|VIADD|VIMNMX|PLOP3|SGXT|BMSK|F2FP|CS2R|H(?:SETP|MNMX)2?"
        ),
    ),
    "multiply": (2.0, re.compile(r"IMAD|HFMA2\.MMA")),
}
_F32 = re.compile(r"F(?:FMA|ADD|MUL)\b")
_F64 = re.compile(r"D(?:FMA|ADD|MUL|SETP)")
_WIDE_F64 = (80, 90, 100)  # elsewhere two lanes of a multiprocessor do f64


@dataclass(frozen=True)
class CodeCost:
    """One launch of the sampled blocks. Slots are summed over its warps; `alone` is of a mean warp."""

    slots: float
    unit_cycles: dict[str, float]  # of one scheduler's units
    waits: float  # of a warp, in which it does nothing but wait for global memory
    loads: float  # of a warp, from global memory
    alone_cycles: float  # of a warp that has the multiprocessor to itself, beside those waits
    together: float  # warps that meet at a barrier, on average; 1 where nobody waits for others
    stages: int  # groups of copies to shared memory that are on their way while one is worked on, and that one

    @property
    def in_flight(self) -> float:
        """Loads of a warp that are on their way when it waits."""
        return self.loads / self.waits if self.waits > 0 else max(self.loads, 1.0)


@lru_cache(maxsize=64)
def _listings(build: Build) -> dict[str, tuple[SassInstruction, ...]]:
    try:
        return {listing.kernel: listing.instructions for listing in disassemble(build)}
    except ToolchainError:
        return {}


def f32_cycles(gpu: GpuProfile) -> float:
    """Of a scheduler's units for one instruction: 64 lanes of a multiprocessor do f32 on some."""
    lanes = gpu.f32_tflops * 1e3 / (2 * gpu.sms * gpu.clock_ghz) if gpu.clock_ghz else 128.0
    return max(1.0, 128.0 / max(lanes, 1.0))


def f64_cycles(gpu: GpuProfile) -> float:
    return 2.0 if gpu.cc in _WIDE_F64 else 64.0


def code_cost(
    build: Build, kernel: str, counted: Sequence[InstructionRecord], warps: float, block_warps: int, gpu: GpuProfile
) -> CodeCost | None:
    """Of the counts of so many warps; None where there is no disassembler."""
    code = _listings(build).get(kernel)
    if not code:
        return None
    executions = without_polling(code, without_copies(code, spread_executions(code, counted), counted, warps))
    executions = lane_by_lane(code, executions, counted)
    in_double = {kernel_line(one.places) for one in counted if ".f64" in one.ptx_text}
    known = {**_UNITS, "f32": (f32_cycles(gpu), _F32), "f64": (f64_cycles(gpu), _F64)}
    units = dict.fromkeys(known, 0.0)
    for one, ran in zip(code, executions, strict=True):
        for name, (cycles, pattern) in known.items():
            if pattern.match(one.opcode) and (name != "f64" or one.line in in_double):
                units[name] += cycles * ran

    def executed(*names: str) -> float:
        return sum(ran for one, ran in zip(code, executions, strict=True) if _name(one) in names)

    waits, alone = one_warp(code, [ran / warps for ran in executions])
    return CodeCost(
        slots=sum(executions),
        unit_cycles=units,
        waits=waits,
        loads=executed(*_LOADS, "LDGSTS") / warps,
        alone_cycles=alone,
        together=_together(code, executions, block_warps),
        stages=_stages(code, executions),
    )


def _together(code: Sequence[SassInstruction], executions: Sequence[float], block_warps: int) -> float:
    """Warps that a barrier is for: all of the block, or as many as it names. Those that meet less often than they load,
    at the end of a loop, say, are apart between; those for whom another warp has the engine copy, never."""
    copied = any(_name(one) in _ENGINE_COPIES and ran for one, ran in zip(code, executions, strict=True))
    if copied and not _awaited_copies(code):
        return float(block_warps)
    met = [(one, ran) for one, ran in zip(code, executions, strict=True) if _name(one) == "BAR" and ran]
    if not met:
        return 1.0
    counts = [(_COUNTED_BARRIER.search(one.text), ran) for one, ran in met]
    sizes = [(min(block_warps, int(found.group(1), 16) / 32) if found else block_warps, ran) for found, ran in counts]
    mean = sum(size * ran for size, ran in sizes) / sum(ran for _, ran in sizes)
    loaded = max((ran for one, ran in zip(code, executions, strict=True) if _name(one) in _FETCHES), default=0.0)
    often = min(1.0, max(ran for _, ran in met) / loaded) if loaded else 1.0
    return math.pow(max(1.0, mean), often)


def _stages(code: Sequence[SassInstruction], executions: Sequence[float]) -> int:
    """Of what is copied ahead: as many groups as may be pending, or for the copy engine half the barriers that are set
    up, one of two for what has come and one for room."""
    ran = {_name(one) for one, times in zip(code, executions, strict=True) if times}
    if ran & set(_ENGINE_COPIES):
        return max(2, sum(one.opcode.startswith("SYNCS.EXCH") for one in code) // 2)
    pending = [int(found.group(1), 16) for one in code if (found := _PENDING.search(one.text))]
    return 1 + max(pending, default=0) if "LDGSTS" in ran else 1


_SHARED = re.compile(r"(?:@!?\S+\s+)?(?:ld|st)\.shared\.(?:v(\d)\.)?[a-z]+(\d+)")


def merged_lines(build: Build | None, kernel: str, counted: Iterable[InstructionRecord]) -> frozenset[int]:
    """Lines of the kernel file whose accesses to shared memory the assembler made wider, several into one: they do not
    collide as they would one by one."""
    code = _listings(build).get(kernel, ()) if build is not None else ()
    made: dict[int, int] = {}
    for one in code:
        if _name(one) in ("LDS", "STS") and one.line is not None:
            width = next((int(form) for form in one.opcode.split(".") if form in ("64", "128")), 32)
            made[one.line] = max(made.get(one.line, 0), width)
    asked: dict[int, int] = {}
    for record in counted:
        line, found = kernel_line(record.places), _SHARED.match(record.ptx_text)
        if found and line is not None:
            asked[line] = max(asked.get(line, 0), int(found.group(1) or 1) * int(found.group(2)))
    return frozenset(line for line, width in asked.items() if made.get(line, 0) > max(width, 32))


# -- how often each machine instruction runs --


_Place = tuple[int | None, ...]  # a line of the kernel file, and those it was inlined at


def spread_executions(code: Sequence[SassInstruction], counted: Iterable[InstructionRecord]) -> list[float]:
    """For each machine instruction, the warps that came to it: of the PTX of its place, by depth in loops."""
    real: dict[_Place, list[int]] = {}
    folded: dict[_Place, list[int]] = {}
    for one in counted:
        lines = [place.line for place in one.places if place.file == KERNEL_FILE_NAME]
        chain: _Place = tuple(dict.fromkeys(lines)) or (None,)
        for place in {chain, chain[:1]}:
            (folded if _FOLDED.match(one.ptx_text) else real).setdefault(place, []).append(one.executions)
    by_place = {**folded, **real}
    depth, called = loop_depths(code), _called(code)
    places: dict[_Place, list[int]] = {}
    for number, instruction in enumerate(code):
        chain = (instruction.line, *instruction.callers)
        if number not in called:
            places.setdefault(chain if chain in by_place else chain[:1], []).append(number)
    executions = [-1.0] * len(code)
    for place, numbers in places.items():
        ran = sorted(by_place.get(place, ()), reverse=True)
        for rank, number in enumerate(sorted(numbers, key=lambda number: -depth[number])):
            if ran:
                executions[number] = float(ran[int((rank + 0.5) / len(numbers) * len(ran))])
    last = 0.0
    for number, ran_here in enumerate(executions):  # code of no known place runs as what stands before it
        last = executions[number] = 0.0 if number in called else ran_here if ran_here >= 0 else last
    return executions


def without_copies(
    code: Sequence[SassInstruction], executions: Sequence[float], counted: Sequence[InstructionRecord], warps: float
) -> list[float]:
    """Loops that the assembler unrolled further than the compiler did: each of so many copies of the body runs as much
    less often, and what takes the rest of the loop runs less than so often for a warp.

    They are known by their global loads, of which there are more in the loop than in all PTX of those lines."""
    lines = [kernel_line(one.places) for one in counted if _GLOBAL_LOAD.match(one.ptx_text)]
    made, back = list(executions), _backward(code)
    for end, start in back.items():
        if any(start <= other_start and other_end < end for other_end, other_start in back.items()):
            continue  # only innermost loops are unrolled
        loaded = [one.line for one in code[start : end + 1] if _name(one) in _LOADS]
        copies = min((loaded.count(line) // max(lines.count(line), 1) for line in loaded if line in lines), default=1)
        if copies < 2 or not set(loaded) <= set(lines):
            continue
        body = {(one.line, *one.callers) for one in code[start : end + 1]}
        for number, one in enumerate(code):
            if start <= number <= end:
                made[number] /= copies
            elif (one.line, *one.callers) in body:
                made[number] = min(made[number], warps * (copies - 1) / 2.0)
    return made


def without_polling(code: Sequence[SassInstruction], executions: Sequence[float]) -> list[float]:
    """Loops that only look whether others have come run once for each time they are entered: how often they are passed
    in an emulator says how long it made them wait, not what they cost."""
    made = list(executions)
    for end, start in _backward(code).items():
        body = code[start : end + 1]
        if any(_POLL.match(one.opcode) for one in body) and not any(_name(one) in _WORK for one in body):
            entered = (
                made[start - 1] if start and code[start - 1].text.partition(" ")[0] not in ("BRA", "EXIT") else 0.0
            )
            made[start : end + 1] = [min(ran, entered) for ran in made[start : end + 1]]
    return made


def lane_by_lane(
    code: Sequence[SassInstruction], executions: Sequence[float], counted: Sequence[InstructionRecord]
) -> list[float]:
    """Loops that the assembler made of an instruction that takes one lane's operands at a time, a copy by the engine or
    the setting up of a barrier: once for each lane that comes to it."""
    made = list(executions)
    for end, start in _backward(code).items():
        if code[end].opcode.startswith(_EACH_LANE):
            here = [one for one in counted if one.executions and kernel_line(one.places) == code[end].line]
            lanes = max((one.active_lanes / one.executions for one in here), default=1.0)
            made[start : end + 1] = [lanes * ran for ran in made[start : end + 1]]
    return made


def _called(code: Sequence[SassInstruction]) -> set[int]:
    """Routines behind the end, for operands that are hardly ever met, those of a division, say; and what only leads to
    them and back, which a branch passes over."""
    ends = [number for number, one in enumerate(code) if one.text == "EXIT"]
    returns = [number for number, one in enumerate(code) if _name(one) == "RET"]
    if not returns or not ends:
        return set()
    start = max((end for end in ends if end < returns[0]), default=len(code)) + 1
    found = set(range(start, len(code)))
    at = {one.address: number for number, one in enumerate(code)}
    for call in (number for number in range(start) if _name(code[number]) == "CALL"):
        for before in range(call - 1, max(call - _WAY_TO_CALL, 0), -1):
            if _name(code[before]) == "BRA" and call < at.get(code[before].target or -1, -1) <= call + _WAY_TO_CALL:
                found |= set(range(before + 1, at[code[before].target or -1]))
                break
    return found


def loop_depths(code: Sequence[SassInstruction]) -> list[int]:
    depth = [0] * len(code)
    for end, target in _backward(code).items():
        for number in range(target, end + 1):
            depth[number] += 1
    return depth


def _backward(code: Sequence[SassInstruction]) -> dict[int, int]:
    """Branches to an earlier place: where they stand and where they lead."""
    at = {one.address: number for number, one in enumerate(code)}
    found = {}
    for number, one in enumerate(code):
        if _name(one) == "BRA" and one.target is not None and one.target in at and at[one.target] < number:
            found[number] = at[one.target]
    return found


# -- one warp alone --


def one_warp(code: Sequence[SassInstruction], executions: Sequence[float]) -> tuple[float, float]:
    """Waits for global memory, and cycles beside them, of a warp that runs each instruction so often."""
    near, far = (
        sum(gap * ran for gap, ran in zip(_Walk(code, cycles).gaps(), executions, strict=True))
        for cycles in (_NEAR, _FAR)
    )
    waits = (far - near) / (_FAR - _NEAR)
    return waits, near - _NEAR * waits


class _Walk:
    """A warp on its way through the code, in order."""

    def __init__(self, code: Sequence[SassInstruction], memory_cycles: float) -> None:
        self._code = code
        self._memory = memory_cycles
        self._clock = 0.0
        self._ready: dict[str, float] = {}
        self._copied = 0.0  # when the copies since the last commit are there
        self._stored = 0.0  # when everybody sees what was written
        self._groups: list[float] = []
        self._batches: list[float] = []  # of the copy engine, when each is there
        self._begun = False  # whether the last of them may grow
        self._awaited = _awaited_copies(code)

    def gaps(self) -> list[float]:
        """For each instruction, the cycles from the one before to it, as they were when it was last passed."""
        gaps = [0.0] * len(self._code)
        parsed = [_operands(one) for one in self._code]
        back, taken = _backward(self._code), dict[int, int]()
        number = 0
        while number < len(self._code):
            before = self._clock
            self._step(self._code[number], *parsed[number])
            if number in self._awaited and self._batches:
                self._clock = max(self._clock, self._batches.pop(0))
            gaps[number] = self._clock - before
            if number in back and taken.get(number, 0) < _PASSES:
                taken[number] = taken.get(number, 0) + 1
                number = back[number]
            else:
                number += 1
        return gaps

    def _step(self, one: SassInstruction, results: tuple[str, ...], needed: tuple[str, ...]) -> None:
        name = _name(one)
        clock = max(self._clock + 1.0, *(self._ready.get(register, 0.0) for register in needed), 0.0)
        if name == "LDGSTS":
            self._copied = clock + self._memory
        elif name == "LDGDEPBAR":
            self._groups.append(self._copied)
        elif name == "DEPBAR" and (found := _PENDING.search(one.text)):
            done = self._groups[: len(self._groups) - int(found.group(1), 16)]
            clock = max(clock, *done, 0.0)
        elif name in _ENGINE_COPIES:
            self._batches[len(self._batches) - self._begun :] = [clock + self._memory]
            self._begun = True
        elif name in _BARRIERS:
            clock += BARRIER_CYCLES
            self._begun = False
        elif name == "MEMBAR":
            clock = max(clock, self._stored)
        elif name == "BRA":
            clock += BRANCH_CYCLES
        elif name in _WRITES:
            self._stored = clock + self._memory
        self._clock = clock
        latency = self._memory if name in _LOADS or name in _ATOMICS else _LATENCY.get(name, _PLAIN)
        for register in results:
            self._ready[register] = clock + latency


def _awaited_copies(code: Sequence[SassInstruction]) -> set[int]:
    """Where a warp that has the engine copy for it waits until the oldest copies are there. Of other warps' copies
    nobody knows how far they are ahead."""
    found, copies, reads = set(), set(_ENGINE_COPIES), set(_READS_SHARED)
    loops = sorted(((start, end) for end, start in _backward(code).items()), key=lambda loop: loop[1] - loop[0])
    for place in (number for number, one in enumerate(code) if one.opcode.startswith("SYNCS.PHASECHK")):
        around = ({_name(one) for one in code[start : end + 1]} for start, end in loops if start <= place <= end)
        names = next((names for names in around if names & (copies | reads)), set())
        if names & copies and names & reads:
            found.add(place)
    return found


def _name(one: SassInstruction) -> str:
    return one.opcode.split(".")[0]


def _operands(one: SassInstruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Registers that it writes, and those it needs."""
    name, *forms = one.opcode.split(".")
    body = one.text.partition(one.opcode)[2]
    guard = _OPERAND.findall(one.text.partition(one.opcode)[0])
    found = [_expanded(kind, number, wide, name) for kind, number, wide in _OPERAND.findall(body)]
    needed = [f"{kind}{number}" for kind, number, _ in guard]
    if name in _NO_RESULT or not found:
        return (), (*needed, *(register for each in found for register in each))
    words = 4 if name in _TENSOR else next((_WIDE[form] for form in forms if form in _WIDE), 1)
    letters, first = found[0][0].rstrip("0123456789"), int(found[0][0].lstrip("UPR"))
    results = [f"{letters}{first + place}" for place in range(words)]
    rest = found[1:]
    if rest and _BESIDE.match(body):  # a predicate beside the result
        results += rest.pop(0)
    return tuple(results), (*needed, *(register for each in rest for register in each))


def _expanded(kind: str, number: str, wide: str, name: str) -> list[str]:
    words = 4 if name in _TENSOR and kind == "R" else 2 if wide else 1
    return [f"{kind}{int(number) + place}" for place in range(words)]
