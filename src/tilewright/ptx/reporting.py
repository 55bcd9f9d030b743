"""Converts the core's findings to records with source lines, threads, tensors and indices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from tilewright.ptx.global_memory import MemoryRegion
from tilewright.ptx.launching import LaunchRequest, peer_block
from tilewright.ptx.lower import LoweredKernel
from tilewright.ptx.native import (
    LOCAL_WINDOW,
    PARAMETER_WINDOW,
    SHARED_WINDOW,
    RawFinding,
    RawTouch,
)
from tilewright.records import (
    FindingKind,
    FindingRecord,
    SourcePlace,
    ThreadRecord,
    TouchRecord,
)
from tilewright.records.emulation import kernel_line
from tilewright.records.gpu import WARP_LANES
from tilewright.records.steps import Dim3

_WINDOW_BYTES = 1 << 32
_KINDS = tuple(FindingKind)  # by the core's number
_RACE_KINDS = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)
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
        FindingKind.STALE_READ,
        FindingKind.NOT_AWAITED,
        FindingKind.PEER_ABSENT,
        FindingKind.MBARRIER,
        FindingKind.NO_PROXY_FENCE,
        FindingKind.BULK_COPY,
    )
)
_STATES = (
    *("runs", "waits at a barrier", "waits for lanes of its warp", "waits for", "waits at the cluster's barrier"),
    "waits for a wgmma of its warpgroup",
)
_AT_BARRIER, _AT_MBARRIER, _AT_CLUSTER = 1, 3, 4
_PROXY_THREAD = 1023  # marks bulk copies, in blocks without such a thread
_MOST_WAITS = 64
_RANK_SHIFT = 24  # of a shared::cluster address; cluster.h has the same
_CLUSTER_MISUSE = {
    6: "it arrives again and has not waited since it last did",
    7: "it waits and has not arrived",
}
_FLIGHTS = {
    1: "reads an accumulator of the wgmma",
    2: "writes an accumulator of the wgmma",
    3: "writes a register that the wgmma reads",
}
_NOT_FENCED = (
    "wgmma.fence must come before the first wgmma of a warp",
    "wgmma.fence must come after its registers were last written",
)
_RACES = {
    1: "reads what the other wrote",
    2: "writes over what the other read",
    3: "writes what the other wrote, and not the same",
    4: "reads what the other's asynchronous copy has yet to bring",
    5: "writes where the other's asynchronous copy has yet to bring something",
    6: "never waits for its cp.async",
    7: "copies in bulk what the other wrote",
}
# By the core's TW_MBARRIER_* and its TW_BULK_*.
_MBARRIER = {
    1: "nothing has initialised it",
    2: "it is initialised for {} arrivals; from 1 to 1048575 is allowed",
    3: "{} arrivals, which is more than its phase still waits for",
    4: "{} bytes still to come, more than it can count: 1048575",
    5: "something wrote over it",
    6: "its phase ended while {} bytes that this copy brings were under way: expect_tx names too few",
    7: "a .noComplete arrival that ends the phase",
    8: "it is to count {} bytes that go to another block than its own",
    9: "no fence.mbarrier_init or fence.proxy.async since its initialisation, so a bulk copy need not see it",
}
_BULK = {
    1: "addresses and size must be multiples of 16; the size is {}",
    2: "{} bytes are more than shared memory has",
    3: "there is no tensor map at that address, or not at a multiple of 64",
    4: "the map has {} dimensions or another mode than the instruction",
    5: "the map's elements cannot be reduced so (of 64-bit signed ones there are only min and max)",
    6: "a map cannot have {} there",
    7: "the innermost coordinate, {}, is not at a multiple of 16 bytes",
    8: "a store cannot begin before the tensor, at {}, though a load can",
}
# By bit of the core's TW_MISSED_*.
_MISSED = (
    "races in shared memory: more accesses than the detector has memory for; a race may have been missed",
    "races in global memory: more accesses than the detector has memory for; a race may have been missed",
    "races: more barriers, fences and atomics than the detector can keep track of; a race may have been missed",
)


def missed_sentences(bits: int) -> tuple[str, ...]:
    """The limits that the race detector reached, as sentences."""
    return tuple(sentence for bit, sentence in enumerate(_MISSED) if bits >> bit & 1)


class Reporter:
    """Builds the records of one launch."""

    def __init__(self, kernel: LoweredKernel, request: LaunchRequest, describe: Callable[[int], str]) -> None:
        self._kernel = kernel
        self._request = request
        self._describe = describe

    def findings(self, raw: Iterable[RawFinding], messages: str) -> tuple[FindingRecord, ...]:
        ordered = sorted(raw, key=lambda item: (self._origin(item.instruction)[0], item.kind))
        return tuple(self._finding(item, messages) for item in ordered)

    def _finding(self, raw: RawFinding, messages: str) -> FindingRecord:
        kind = _KINDS[raw.kind]
        line, text, places = self._origin(raw.instruction)
        other = raw.other_instruction >= 0
        return FindingRecord(
            kind=kind,
            kernel=self._request.shown_as or self._kernel.name,
            launch_line=self._request.launch_line,
            line=kernel_line(places),
            column=0,
            thread=self._thread(raw.block, raw.thread),
            where=self._where(kind, raw),
            detail=self._detail(kind, raw, messages),
            count=raw.count,
            other_line=kernel_line(self._origin(raw.other_instruction)[2]) if other else None,
            other_thread=self._thread(raw.other_block, raw.other_thread) if other and not self._is_proxy(raw) else None,
            ptx_line=line,
            ptx_text=text,
            places=places,
        )

    def touches(self, raw: Iterable[RawTouch], regions: list[MemoryRegion]) -> tuple[TouchRecord, ...]:
        """The touches within one tensor, as nearly all are."""
        made = []
        for instruction, one in enumerate(raw):
            lanes = [lane for lane in range(WARP_LANES) if one.lanes >> lane & 1]
            region = next((r for r in regions if lanes and r.address <= one.address[lanes[0]] < r.end), None)
            if region is None or any(not region.address <= one.address[lane] < region.end for lane in lanes):
                continue
            offsets = tuple((lane, one.address[lane] - region.address) for lane in lanes)
            _, text, places = self._origin(instruction)
            made.append(
                TouchRecord(
                    kernel=self._request.shown_as or self._kernel.name,
                    launch_line=self._request.launch_line,
                    line=kernel_line(places),
                    ptx_text=text,
                    tensor=region.name,
                    reads=one.how != 1,
                    writes=one.how != 0,
                    bytes=one.size,
                    offsets=offsets,
                )
            )
        return tuple(made)

    def _origin(self, instruction: int) -> tuple[int, str, tuple[SourcePlace, ...]]:
        origins = self._kernel.origins
        if 0 <= instruction < len(origins):
            for origin in origins[instruction:]:  # a reconvergence point belongs to the next instruction
                if origin is not None:
                    return origin.ptx_line, origin.text, origin.places
        return 0, "", ()

    def _at_line(self, instruction: int, otherwise: str = "") -> str:
        places = self._origin(instruction)[2]
        return f" at line {places[0].line}" if places else otherwise

    def _thread(self, block: int, thread: int) -> ThreadRecord:
        return ThreadRecord(_unravel(block, self._request.grid), _unravel(thread, self._request.block))

    # -- where --

    def _where(self, kind: FindingKind, raw: RawFinding) -> str:
        if kind in _ADDRESSED:
            return readable(self._address(raw.address, raw.block))
        if kind is FindingKind.BARRIER_DIVERGENCE and raw.detail in _CLUSTER_MISUSE:
            return "the cluster's barrier"
        if kind is FindingKind.DEADLOCK and raw.detail in (_AT_MBARRIER, _AT_CLUSTER):
            return "mbarrier" if raw.detail == _AT_MBARRIER else "the cluster's barrier"
        if kind in (FindingKind.DEADLOCK, FindingKind.BARRIER_DIVERGENCE):
            return "barrier" if kind is FindingKind.BARRIER_DIVERGENCE else f"barrier {raw.address}"
        if kind is FindingKind.BAD_CALL:
            return f"branch table entry {raw.address}" if raw.detail else f"function address {raw.address:#x}"
        if kind is FindingKind.STACK:
            return f"call depth {raw.address}"
        return ""

    def _address(self, address: int, block: int) -> str:
        if 0 <= address - SHARED_WINDOW < _WINDOW_BYTES:
            return self._cluster_place(block, address - SHARED_WINDOW)
        if 0 <= address - LOCAL_WINDOW < _WINDOW_BYTES:
            return f"local byte {address - LOCAL_WINDOW}"
        if 0 <= address - PARAMETER_WINDOW < _WINDOW_BYTES:
            return f"parameter byte {address - PARAMETER_WINDOW}"
        return self._describe(address)

    def _cluster_place(self, block: int, address: int) -> str:
        """A shared address may name a block of the cluster by its rank plus one."""
        rank, offset = (address >> _RANK_SHIFT) - 1, address % (1 << _RANK_SHIFT)
        extents = self._request.cluster or (1, 1, 1)
        if rank < 0:
            return self._shared_place(offset)
        if rank >= math.prod(extents):
            return f"shared memory of a block of rank {rank}, in a cluster of {math.prod(extents)}"
        peer = _unravel(peer_block(block, rank, self._request.grid, extents), self._request.grid)
        return f"{self._shared_place(offset)} of block {peer}, rank {rank} of the cluster"

    def _shared_place(self, offset: int) -> str:
        end = len(self._kernel.shared_state) + self._request.dynamic_smem_bytes
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
        if kind in _RACE_KINDS or (kind is FindingKind.ASYNC_NOT_WAITED and raw.other_instruction >= 0):
            return self._race(raw)
        if kind is FindingKind.NO_PROXY_FENCE:
            other = self._thread(raw.other_block, raw.other_thread)
            at = self._at_line(raw.other_instruction)
            return f"thread {other.thread} wrote it{at}, and no fence.proxy.async stands between the two"
        if kind is FindingKind.MBARRIER:
            at = self._at_line(raw.other_instruction) if raw.other_instruction >= 0 else ""
            return _MBARRIER[raw.detail].format(raw.size) + at
        if kind is FindingKind.BULK_COPY:
            return _BULK[raw.detail].format(raw.size)
        if kind in (FindingKind.DEADLOCK, FindingKind.BUDGET):
            return self._waits(messages)
        if kind is FindingKind.SHUFFLE_MASK:
            return {
                1: f"the thread is not in its own mask {raw.address:#010x}",
                2: f"lanes {raw.address:#010x} of the mask never came",
            }.get(raw.detail, f"it reads lane {raw.address}, which takes no part")
        if kind is FindingKind.BARRIER_DIVERGENCE:
            return self._barrier_detail(raw)
        if kind is FindingKind.PEER_ABSENT:
            end = f"before its block ends{self._at_line(raw.other_instruction)}"
            when = "after its block began" if raw.detail else end
            return f"an access of {raw.size} bytes that nothing orders {when}; a cluster barrier would"
        if kind is FindingKind.TRAP:
            return "breakpoint" if raw.detail else ""
        if kind is FindingKind.LATER_BLOCK:
            return "blocks that wait for each other need a `cooperative` launch, or must wait for earlier ones only"
        if kind is FindingKind.WGMMA_IN_FLIGHT:
            return f"{_FLIGHTS[raw.detail]}{self._at_line(raw.other_instruction)} before wgmma.wait_group"
        if kind is FindingKind.WGMMA_NOT_FENCED:
            return _NOT_FENCED[raw.detail]
        if kind is FindingKind.WARPGROUP:
            return self._warpgroup_detail(raw)
        if kind is FindingKind.NOT_AWAITED and raw.detail:
            return "it waited for the launch before, which did not wait for the earlier launch that uses these bytes"
        if kind in _ADDRESSED and raw.size:
            return f"an access of {raw.size} bytes"
        return ""

    def _race(self, raw: RawFinding) -> str:
        other = self._thread(raw.other_block, raw.other_thread)
        what = _RACES.get(raw.detail, "meets the other")
        if self._is_proxy(raw):
            return f"{what}: the bulk copy{self._at_line(raw.other_instruction)}, and no wait stands between the two"
        where = f"thread {other.thread}" + (f" of block {other.block}" if raw.other_block != raw.block else "")
        return f"{what}: {where}{self._at_line(raw.other_instruction)}, and nothing orders the two"

    def _is_proxy(self, raw: RawFinding) -> bool:
        return raw.other_thread == _PROXY_THREAD and math.prod(self._request.block) <= _PROXY_THREAD

    def _barrier_detail(self, raw: RawFinding) -> str:
        if raw.detail == 4:
            return f"barrier {raw.other_thread} does not exist; there are 16"
        if raw.detail in _CLUSTER_MISUSE:
            return _CLUSTER_MISUSE[raw.detail]
        if raw.detail == 5:
            return f"a count of {raw.other_thread} threads is not a multiple of 32"
        other = _unravel(raw.other_thread, self._request.block)
        if raw.detail == 8:
            at = self._at_line(raw.other_instruction)
            return f"thread {other} came there with another number of threads to wait for{at}"
        if raw.detail == 3:
            return f"thread {other} ended without reaching it"
        whose = "of the same warp" if raw.detail == 1 else "of the block"
        return f"thread {other} {whose} waits at another barrier{self._at_line(raw.other_instruction)}"

    def _warpgroup_detail(self, raw: RawFinding) -> str:
        other = raw.other_thread // WARP_LANES
        return {
            1: "a warpgroup is 128 threads of the block, from a multiple of 128 on",
            2: f"warp {other} of the same warpgroup executes another one{self._at_line(raw.other_instruction)}",
            3: f"warp {other} of the same warpgroup ended without it",
            4: "its descriptors and scale-d must be the same in all threads",
            5: f"the block's threads would hold {raw.address} registers; a multiprocessor has 65,536",
        }[raw.detail]

    def _waits(self, messages: str) -> str:
        warps: dict[tuple[int, ...], list[int]] = {}
        for text in messages.splitlines():
            block, warp, *same = (int(number) for number in text.split())
            warps.setdefault((block, *same), []).append(warp)
        return "; ".join(self._wait(which, *wait) for wait, which in list(warps.items())[:_MOST_WAITS])

    def _wait(self, warps: list[int], block: int, mask: int, pc: int, state: int, barrier: int, *further: int) -> str:
        """The state of some warps of a block; `further` describes what they wait for."""
        doing = _STATES[state] + (f" {barrier}" if state == _AT_BARRIER else "")
        doing += self._at_line(pc, f" at PTX line {self._origin(pc)[0]}")
        if state == _AT_MBARRIER:
            doing = f"{_STATES[state]} {self._mbarrier_wait(*further)}{doing.removeprefix(_STATES[state])}"
        elif further:
            doing += f", where {further[0]} of {further[1]} threads have come"
        lanes = "all lanes" if mask == 0xFFFFFFFF else f"lanes {mask:#010x}"
        which = f"warp {warps[0]}" if len(warps) == 1 else f"warps {', '.join(map(str, warps))}"
        return f"block {_unravel(block, self._request.grid)} {which} ({lanes}) {doing}"

    def _mbarrier_wait(self, offset: int, init: int, expected: int, pending: int, size: int, phase: int) -> str:
        """What an mbarrier still waits for."""
        missing = [f"{pending} of {expected} arrivals"] if pending else []
        missing += [f"{size} bytes"] if size > 0 else []
        what = " and ".join(missing) + " missing" if missing else "nothing is missing: that phase has passed"
        if size < 0:
            what = f"{-size} bytes came that no expect_tx announced"
        made = self._at_line(init)
        return f"phase {phase} of the mbarrier at {readable(self._shared_place(offset))}, initialised{made} ({what})"


def _unravel(index: int, extents: Dim3) -> Dim3:
    index = max(index, 0)
    return index % extents[0], index // extents[0] % extents[1], index // extents[0] // extents[1]


def _short(name: str) -> str:
    return name.split("#")[0]


_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_]+")
_NUMBER = re.compile(r"\d+")


def readable(text: str) -> str:
    """The text with demangled variable names."""

    def last_name(mangled: re.Match[str]) -> str:  # `partial` of `_ZZ1fPfE7partial`
        for found in reversed(list(_NUMBER.finditer(mangled.group()))):
            size, rest = int(found.group()), mangled.group()[found.end() :]
            if 0 < size <= len(rest) and rest[size : size + 1] in ("", "_", "E"):
                return rest[:size]
        return mangled.group()

    return _MANGLED.sub(last_name, text)
