"""The cost of a launch from its machine code (SASS): issue slots by functional unit, and the latency of a single warp.

The emulator counts PTX, but the assembler's output is what runs. Both carry source lines, so each machine instruction
gets the executions of the PTX of its line, the deepest in loops the most frequent. A warp is then simulated in program
order, each loop a few times; it stalls on registers, barriers and groups of copies. Latencies are Hopper's, in cycles.
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

_PASSES = 3  # iterations of a loop until its prefetch is in steady state
_FOLDED = re.compile(
    r"(?:@!?\S+\s+)?(?:mov|ld\.param|cvta|ret|exit|bra)\b"
)  # PTX that becomes little or no machine code
_OPERAND = re.compile(r"\b(UP|UR|R|P)(\d+)(\.64)?")
_BESIDE = re.compile(r"\s*U?R?P?\d+, U?P\d")
_PENDING = re.compile(r"DEPBAR\.LE SB0, (0x[0-9a-f]+)")
_COUNTED_BARRIER = re.compile(r"BAR\.\S+ \S+, (0x[0-9a-f]+)")
_WAY_TO_CALL = 12  # instructions between a call and the branch around it
_EACH_LANE = "BRA.U.ANY"
_POLL = re.compile(r"LDG?\.\S*STRONG|SYNCS\.PHASECHK|NANOSLEEP")
_WIDE = {"128": 4, "64": 2, "WIDE": 2}

# Cycles from issue until a result can be used, by the first part of the opcode; by default `_PLAIN`.
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
_NEAR, _FAR = 400.0, 800.0  # memory latencies of the two simulations that are compared

# Cycles that an instruction occupies its functional unit. Units run in parallel; each instruction takes one issue slot.
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
_WIDE_F64 = (80, 90, 100)  # compute capabilities with full-rate f64; others have two lanes per multiprocessor


@dataclass(frozen=True)
class CodeCost:
    """The cost of the sampled blocks of one launch. Slots are summed over warps; `alone_cycles` is of an average
    warp."""

    slots: float
    unit_cycles: dict[str, float]  # of one scheduler's units
    waits: float  # stalls of a warp on global memory
    loads: float  # of a warp from global memory
    alone_cycles: float  # of a warp alone on its multiprocessor, without those stalls
    together: float  # warps that meet at a barrier, on average; 1 without barriers
    stages: int  # pipeline stages of copies to shared memory

    @property
    def in_flight(self) -> float:
        """Loads of a warp in flight when it stalls."""
        return self.loads / self.waits if self.waits > 0 else max(self.loads, 1.0)


@lru_cache(maxsize=64)
def _listings(build: Build) -> dict[str, tuple[SassInstruction, ...]]:
    try:
        return {listing.kernel: listing.instructions for listing in disassemble(build)}
    except ToolchainError:
        return {}


def f64_cycles(gpu: GpuProfile) -> float:
    return 2.0 if gpu.cc in _WIDE_F64 else 64.0


def code_cost(
    build: Build, kernel: str, counted: Sequence[InstructionRecord], warps: float, block_warps: int, gpu: GpuProfile
) -> CodeCost | None:
    """The cost of `warps` counted warps; None where there is no disassembler."""
    code = _listings(build).get(kernel)
    if not code:
        return None
    executions = without_polling(code, without_copies(code, spread_executions(code, counted), counted, warps))
    executions = lane_by_lane(code, executions, counted)
    in_double = {kernel_line(one.places) for one in counted if ".f64" in one.ptx_text}
    f32_lanes = gpu.f32_tflops * 1e3 / (2 * gpu.sms * gpu.clock_ghz) if gpu.clock_ghz else 128.0
    known = {**_UNITS, "f32": (max(1.0, 128.0 / max(f32_lanes, 1.0)), _F32), "f64": (f64_cycles(gpu), _F64)}
    units = dict.fromkeys(known, 0.0)
    for one, ran in zip(code, executions, strict=True):
        for name, (cycles, pattern) in known.items():
            if pattern.match(one.opcode) and (name != "f64" or one.line in in_double):
                units[name] += cycles * ran

    def executed(*names: str) -> float:
        return sum(ran for one, ran in zip(code, executions, strict=True) if _name(one) in names)

    waits, alone = single_warp_cycles(code, [ran / warps for ran in executions])
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
    """Warps that a barrier synchronises: the block, or as many as it names. Warps that synchronise less often than they
    load, for instance after a loop, run apart in between. Warps whose copies are issued by another warp (producer and
    consumer) count as the whole block."""
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
    """Pipeline stages: the pending cp.async groups and one, or half the mbarriers of bulk copies (full and empty)."""
    ran = {_name(one) for one, times in zip(code, executions, strict=True) if times}
    if ran & set(_ENGINE_COPIES):
        return max(2, sum(one.opcode.startswith("SYNCS.EXCH") for one in code) // 2)
    pending = [int(found.group(1), 16) for one in code if (found := _PENDING.search(one.text))]
    return 1 + max(pending, default=0) if "LDGSTS" in ran else 1


_SHARED = re.compile(r"(?:@!?\S+\s+)?(?:ld|st)\.shared\.(?:v(\d)\.)?[a-z]+(\d+)")


def merged_lines(build: Build | None, kernel: str, counted: Iterable[InstructionRecord]) -> frozenset[int]:
    """Lines whose shared memory accesses the assembler merged into wider ones, so that they do not conflict one by
    one."""
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


# -- executions of each machine instruction --


_Place = tuple[int | None, ...]  # a line of the kernel file and its inlining call sites


def spread_executions(code: Sequence[SassInstruction], counted: Iterable[InstructionRecord]) -> list[float]:
    """Executions of each machine instruction: those of the PTX at the same place, by loop depth."""
    real: dict[_Place, list[int]] = {}
    folded: dict[_Place, list[int]] = {}
    for one in counted:
        lines = [place.line for place in one.places if place.file == KERNEL_FILE_NAME]
        chain: _Place = tuple(dict.fromkeys(lines)) or (None,)
        for place in {chain, chain[:1]}:
            (folded if _FOLDED.match(one.ptx_text) else real).setdefault(place, []).append(one.executions)
    by_place = {**folded, **real}
    depth, called = [0] * len(code), _called(code)
    for end, target in _backward(code).items():
        for number in range(target, end + 1):
            depth[number] += 1
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
    for number, ran_here in enumerate(executions):  # code without a line runs as often as what precedes it
        last = executions[number] = 0.0 if number in called else ran_here if ran_here >= 0 else last
    return executions


def without_copies(
    code: Sequence[SassInstruction], executions: Sequence[float], counted: Sequence[InstructionRecord], warps: float
) -> list[float]:
    """Correct loops that the assembler unrolled further: each copy of the body runs less often, and the remainder loop
    less than that often per warp.

    They are recognised by having more global loads than the PTX of their lines.
    """
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
    """Count polling loops once per entry: emulated iterations tell how long they waited, not what they cost."""
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
    """Loops that the assembler makes of instructions with one lane's operands, such as bulk copies and mbarrier set-up:
    once per active lane."""
    made = list(executions)
    for end, start in _backward(code).items():
        if code[end].opcode.startswith(_EACH_LANE):
            here = [one for one in counted if one.executions and kernel_line(one.places) == code[end].line]
            lanes = max((one.active_lanes / one.executions for one in here), default=1.0)
            made[start : end + 1] = [lanes * ran for ran in made[start : end + 1]]
    return made


def _called(code: Sequence[SassInstruction]) -> set[int]:
    """Subroutines behind the end, for rare operands such as those of a division, and the code around their calls."""
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


def _backward(code: Sequence[SassInstruction]) -> dict[int, int]:
    at = {one.address: number for number, one in enumerate(code)}
    found = {}
    for number, one in enumerate(code):
        if _name(one) == "BRA" and one.target is not None and one.target in at and at[one.target] < number:
            found[number] = at[one.target]
    return found


# -- simulation of a single warp --


def single_warp_cycles(code: Sequence[SassInstruction], executions: Sequence[float]) -> tuple[float, float]:
    """Stalls on global memory, and other cycles, of a warp that executes each instruction so often."""
    near, far = (
        sum(gap * ran for gap, ran in zip(_WarpSimulation(code, cycles).gaps(), executions, strict=True))
        for cycles in (_NEAR, _FAR)
    )
    waits = (far - near) / (_FAR - _NEAR)
    return waits, near - _NEAR * waits


class _WarpSimulation:
    def __init__(self, code: Sequence[SassInstruction], memory_cycles: float) -> None:
        self._code = code
        self._memory = memory_cycles
        self._clock = 0.0
        self._ready: dict[str, float] = {}
        self._copied = 0.0  # when the copies since the last commit arrive
        self._stored = 0.0  # when the last store is visible
        self._groups: list[float] = []
        self._batches: list[float] = []  # when each batch of bulk copies arrives
        self._begun = False  # whether the last of them may grow
        self._awaited = _awaited_copies(code)

    def gaps(self) -> list[float]:
        """Cycles from the previous instruction to each one, in its last iteration."""
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
    """Where a warp that issues bulk copies waits for the oldest of them. How far another warp's copies are ahead is
    unknown."""
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
