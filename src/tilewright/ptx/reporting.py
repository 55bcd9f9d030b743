"""What the core found, in the words of `results`: places, threads, tensors and indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.lower import LoweredKernel
from tilewright.ptx.native import RawFinding
from tilewright.ptx.results import Dim3, Finding, FindingKind, ThreadPlace
from tilewright.ptx.syntax import Place

_SHARED_WINDOW, _LOCAL_WINDOW, _PARAMETER_WINDOW = 0x7E0000000000, 0x7D0000000000, 0x7C0000000000
_WINDOW_BYTES = 1 << 32
_ADDRESSED = frozenset(
    (
        FindingKind.OUT_OF_BOUNDS_GLOBAL,
        FindingKind.OUT_OF_BOUNDS_SHARED,
        FindingKind.OUT_OF_BOUNDS_LOCAL,
        FindingKind.MISALIGNED,
        FindingKind.UNINITIALISED_SHARED,
        FindingKind.UNINITIALISED_GLOBAL,
        FindingKind.UNINITIALISED_LOCAL,
        FindingKind.RACE_SHARED,
        FindingKind.RACE_GLOBAL,
        FindingKind.ASYNC_NOT_WAITED,
        FindingKind.ASYNC_NOT_CONSUMED,
        FindingKind.INPUT_WRITTEN,
    )
)
_STATES = ("runs", "waits at a barrier", "waits for lanes of its warp")
_RACES = {
    1: "reads what the other wrote",
    2: "writes over what the other read",
    3: "writes what the other wrote, and not the same",
    4: "reads what the other's cp.async has yet to bring",
    5: "writes where the other's cp.async has yet to bring something",
    6: "never waits for its cp.async",
}
# By bit of the core's TW_MISSED_*.
_MISSED = (
    "races in shared memory: more accesses than the detector has memory for; a race may have been missed",
    "races in global memory: more accesses than the detector has memory for; a race may have been missed",
    "races: more barriers, fences and atomics than the detector can keep track of; a race may have been missed",
)


def missed_sentences(bits: int) -> tuple[str, ...]:
    """What the race detector could not see to the end."""
    return tuple(sentence for bit, sentence in enumerate(_MISSED) if bits >> bit & 1)


class Reporter:
    """Words for the findings of one launch."""

    def __init__(self, kernel: LoweredKernel, request: LaunchRequest, describe: Callable[[int], str]) -> None:
        self._kernel = kernel
        self._request = request
        self._describe = describe

    def findings(self, raw: Iterable[RawFinding], messages: str) -> tuple[Finding, ...]:
        found = [self._finding(item, messages) for item in raw]
        return tuple(sorted(found, key=lambda finding: (finding.ptx_line, finding.kind)))

    def _finding(self, raw: RawFinding, messages: str) -> Finding:
        kind = FindingKind(raw.kind)
        line, text, place = self._origin(raw.instruction)
        other = raw.other_instruction >= 0
        return Finding(
            kind=kind,
            kernel=self._kernel.name,
            place=place,
            ptx_line=line,
            ptx_text=text,
            thread=self._thread(raw.block, raw.thread),
            count=raw.count,
            where=self._where(kind, raw),
            detail=self._detail(kind, raw, messages),
            other_place=self._origin(raw.other_instruction)[2] if other else None,
            other_thread=self._thread(raw.other_block, raw.other_thread) if other else None,
        )

    def _origin(self, instruction: int) -> tuple[int, str, Place | None]:
        origins = self._kernel.origins
        if 0 <= instruction < len(origins):
            for index in range(instruction, len(origins)):  # a meeting point belongs to what follows it
                origin = origins[index]
                if origin is not None:
                    i = origin.instruction
                    return i.ptx_line, i.text, i.place
        return 0, "", None

    def _thread(self, block: int, thread: int) -> ThreadPlace:
        return ThreadPlace(_unravel(block, self._request.grid), _unravel(thread, self._request.block))

    # -- where --

    def _where(self, kind: FindingKind, raw: RawFinding) -> str:
        if kind in _ADDRESSED:
            return self.place_of(raw.address)
        if kind in (FindingKind.DEADLOCK, FindingKind.BARRIER_DIVERGENCE):
            return "barrier" if kind is FindingKind.BARRIER_DIVERGENCE else f"barrier {raw.address}"
        if kind is FindingKind.BAD_CALL:
            return f"branch table entry {raw.address}" if raw.detail else f"function address {raw.address:#x}"
        if kind is FindingKind.STACK:
            return f"call depth {raw.address}"
        return ""

    def place_of(self, address: int) -> str:
        if 0 <= address - _SHARED_WINDOW < _WINDOW_BYTES:
            return self._shared_place(address - _SHARED_WINDOW)
        if 0 <= address - _LOCAL_WINDOW < _WINDOW_BYTES:
            return f"local byte {address - _LOCAL_WINDOW}"
        if 0 <= address - _PARAMETER_WINDOW < _WINDOW_BYTES:
            return f"parameter byte {address - _PARAMETER_WINDOW}"
        return self._describe(address)

    def _shared_place(self, offset: int) -> str:
        end = self._kernel.static_shared_bytes + self._request.dynamic_smem_bytes
        for variable in self._kernel.shared:
            size = variable.size_bytes or max(end - variable.offset, 0)
            if variable.offset <= offset < variable.offset + size:
                return f"byte {offset - variable.offset} of {_short(variable.name)} in shared memory"
        below = [v for v in self._kernel.shared if v.offset <= offset]
        if below:
            last = max(below, key=lambda v: v.offset)
            size = last.size_bytes or max(end - last.offset, 0)
            return f"{offset - last.offset - size} bytes after the end of {_short(last.name)} in shared memory"
        return f"shared byte {offset}"

    # -- detail --

    def _detail(self, kind: FindingKind, raw: RawFinding, messages: str) -> str:
        if kind in (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL) or (
            kind is FindingKind.ASYNC_NOT_WAITED and raw.other_instruction >= 0
        ):
            return self._race(raw)
        if kind in (FindingKind.DEADLOCK, FindingKind.BUDGET):
            return self._waits(messages)
        if kind is FindingKind.SHUFFLE_MASK:
            return _shuffle_detail(raw)
        if kind is FindingKind.BARRIER_DIVERGENCE:
            return self._barrier_detail(raw)
        if kind is FindingKind.TRAP:
            return "breakpoint" if raw.detail else ""
        if kind in _ADDRESSED and raw.size:
            return f"an access of {raw.size} bytes"
        return ""

    def _race(self, raw: RawFinding) -> str:
        other = self._thread(raw.other_block, raw.other_thread)
        line = self._origin(raw.other_instruction)[2]
        at = f" at line {line.line}" if line is not None else ""
        what = _RACES.get(raw.detail, "meets the other")
        where = f"thread {other.thread}" + (f" of block {other.block}" if raw.other_block != raw.block else "")
        return f"{what}: {where}{at}, and nothing orders the two"

    def _barrier_detail(self, raw: RawFinding) -> str:
        if raw.detail == 4:
            return f"barrier {raw.other_thread} does not exist; there are 16"
        if raw.detail == 5:
            return f"a count of {raw.other_thread} threads is not a multiple of 32"
        other = _unravel(raw.other_thread, self._request.block)
        if raw.detail == 3:
            return f"thread {other} ended without reaching it"
        line = self._origin(raw.other_instruction)[2]
        at = f" at line {line.line}" if line is not None else ""
        whose = "of the same warp" if raw.detail == 1 else "of the block"
        return f"thread {other} {whose} waits at another barrier{at}"

    def _waits(self, messages: str) -> str:
        lines = []
        for text in messages.splitlines()[:64]:
            block, warp, mask, pc, state, barrier = (int(number) for number in text.split())
            place = self._origin(pc)[2]
            at = f" at line {place.line}" if place is not None else f" at PTX line {self._origin(pc)[0]}"
            doing = _STATES[state] + (f" {barrier}" if state == 1 else "")
            lanes = "all lanes" if mask == 0xFFFFFFFF else f"lanes {mask:#010x}"
            lines.append(f"block {_unravel(block, self._request.grid)} warp {warp} ({lanes}) {doing}{at}")
        return "; ".join(lines)


def _shuffle_detail(raw: RawFinding) -> str:
    if raw.detail == 1:
        return f"the thread is not in its own mask {raw.address:#010x}"
    if raw.detail == 2:
        return f"lanes {raw.address:#010x} of the mask never came"
    return f"it reads lane {raw.address}, which takes no part"


def _unravel(index: int, extents: Dim3) -> Dim3:
    index = max(index, 0)
    return index % extents[0], index // extents[0] % extents[1], index // extents[0] // extents[1]


def _short(name: str) -> str:
    return name.split("#")[0]
