"""Drives the race detector without an interpreter: compiles core/races*.c and feeds it events."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

import tilewright.ptx

CORE = Path(tilewright.ptx.__file__).parent / "core"
LANES = 32


class Kind(IntEnum):
    READ = 0
    WRITE = 1
    ATOMIC = 2


class Order(IntEnum):
    WEAK = 0
    VOLATILE = 1
    RELAXED = 2
    ACQUIRE = 3
    RELEASE = 4
    ACQ_REL = 5
    GUESS = 6


class Scope(IntEnum):
    GPU = 0
    CTA = 8


class Race(IntEnum):
    NONE = 0
    READ_AFTER_WRITE = 1
    WRITE_AFTER_READ = 2
    WRITE_AFTER_WRITE = 3
    ASYNC_NOT_WAITED = 4
    ASYNC_OVERWRITTEN = 5
    ASYNC_NOT_CONSUMED = 6


class Missed(IntFlag):
    NOTHING = 0
    SHARED = 1
    GLOBAL = 2
    ORDER = 4


class RawReport(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("is_shared", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("cta", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("instr", ctypes.c_int32),
        ("other_cta", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32),
        ("other_instr", ctypes.c_int32),
        ("is_atomic", ctypes.c_uint8),
        ("other_is_atomic", ctypes.c_uint8),
        ("is_async", ctypes.c_uint8),
        ("other_is_async", ctypes.c_uint8),
    )


@dataclass(frozen=True)
class Report:
    """What one call said: how many conflicts, and the first pair of instructions not told before."""

    conflicts: int
    kind: Race = Race.NONE
    shared: bool = False
    address: int = 0
    here: tuple[int, int] = (0, 0)  # block, thread
    instr: int = 0
    other: tuple[int, int] = (0, 0)
    other_instr: int = 0
    atomic: tuple[bool, bool] = (False, False)  # this side, the other
    is_async: tuple[bool, bool] = (False, False)


@functools.cache
def library() -> ctypes.CDLL:
    """The detector alone. TILEWRIGHT_RACES_CFLAGS adds flags, such as those of a sanitizer."""
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    flags += os.environ.get("TILEWRIGHT_RACES_CFLAGS", "").split()
    sources = [str(path) for path in sorted(CORE.glob("races*.c"))]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "races.so"
        subprocess.run(["cc", *flags, "-o", str(target), *sources], check=True)
        loaded = ctypes.CDLL(str(target))
    loaded.tw_races_create.restype = ctypes.c_void_p
    loaded.tw_races_create.argtypes = [ctypes.c_int, ctypes.c_size_t]
    loaded.tw_cta_races_create.restype = ctypes.c_void_p
    loaded.tw_cta_races_create.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    for name in ("tw_race_publish", "tw_race_join"):
        getattr(loaded, name).restype = ctypes.c_void_p
    for name in ("tw_races_destroy", "tw_races_missed", "tw_cta_races_destroy"):
        getattr(loaded, name).argtypes = [ctypes.c_void_p]
    return loaded


class Launch:
    """One launch. `with` frees it and its blocks."""

    def __init__(self, workers: int = 1, budget_bytes: int = 0) -> None:
        self.library = library()
        self.handle = ctypes.c_void_p(self.library.tw_races_create(workers, budget_bytes))
        self.blocks: list[Block] = []

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        for block in self.blocks:
            self.library.tw_cta_races_destroy(block.handle)
        self.library.tw_races_destroy(self.handle)

    @property
    def missed(self) -> Missed:
        return Missed(self.library.tw_races_missed(self.handle))

    def block(self, index: int = 0, threads: int = 64, shared_bytes: int = 4096) -> Block:
        made = Block(self, shared_bytes)
        self.blocks.append(made)
        made.begin(index, threads)
        return made


class Block:
    """One block (CTA). Lanes are given as {lane: address}; instructions as any small number."""

    def __init__(self, launch: Launch, shared_bytes: int) -> None:
        self.launch = launch
        self.library = launch.library
        self.handle = ctypes.c_void_p(self.library.tw_cta_races_create(launch.handle, shared_bytes))
        self.threads = 0

    def begin(self, index: int, threads: int) -> None:
        self.threads = threads
        self.library.tw_cta_races_begin(self.handle, ctypes.c_uint32(index), threads)

    def access(
        self,
        kind: Kind,
        warp: int,
        lanes: Mapping[int, int],
        *,
        instr: int,
        shared: bool = True,
        size: int = 4,
        order: Order = Order.WEAK,
        scope: Scope = Scope.GPU,
        values: Mapping[int, bytes] | None = None,
    ) -> Report:
        width = ctypes.c_uint32 if shared else ctypes.c_uint64
        addresses = (width * LANES)(*[lanes.get(lane, 0) for lane in range(LANES)])
        stored = None
        if values is not None:
            stored = b"".join(values.get(lane, b"").ljust(size, b"\0")[:size] for lane in range(LANES))
        raw = RawReport()
        head = [self.handle] if shared else [self.launch.handle, self.handle]
        function = self.library.tw_race_shared if shared else self.library.tw_race_global
        mask = ctypes.c_uint32(mask_of(lanes))
        rest = (int(kind), int(order) | int(scope), stored, size, instr, ctypes.byref(raw))
        return _report(function(*head, warp, mask, addresses, size, *rest), raw)

    def observe(self, warp: int, lanes: Mapping[int, int], *, size: int = 4, order: Order = Order.RELAXED) -> None:
        addresses = (ctypes.c_uint64 * LANES)(*[lanes.get(lane, 0) for lane in range(LANES)])
        mask = ctypes.c_uint32(mask_of(lanes))
        self.library.tw_race_observe_global(self.launch.handle, self.handle, warp, mask, addresses, size, int(order))

    def barrier(self, lane_masks: Sequence[int] | None = None, number: int = 0) -> None:
        if lane_masks is None:
            lane_masks = [0xFFFFFFFF] * ((self.threads + 31) // 32)
        masks = (ctypes.c_uint32 * len(lane_masks))(*lane_masks)
        self.library.tw_race_barrier(self.handle, number, masks, len(lane_masks))

    def arrive(self, number: int, warp: int, mask: int = 0xFFFFFFFF) -> None:
        self.library.tw_race_barrier_arrive(self.handle, number, warp, ctypes.c_uint32(mask))

    def publish(self, warp: int, mask: int, so_far: int | None) -> int | None:
        """What an object holds once these lanes have told it all they know."""
        told: int | None = self.library.tw_race_publish(
            self.handle, warp, ctypes.c_uint32(mask), ctypes.c_void_p(so_far)
        )
        return told

    def join(self, one: int | None, other: int | None) -> int | None:
        both: int | None = self.library.tw_race_join(self.handle, ctypes.c_void_p(one), ctypes.c_void_p(other))
        return both

    def learn(self, warp: int, mask: int, told: int | None) -> None:
        self.library.tw_race_learn(self.handle, warp, ctypes.c_uint32(mask), ctypes.c_void_p(told))

    def syncwarp(self, warp: int, mask: int = 0xFFFFFFFF) -> None:
        self.library.tw_race_syncwarp(self.handle, warp, ctypes.c_uint32(mask))

    def fence(self, warp: int, mask: int = 0xFFFFFFFF, scope: Scope = Scope.GPU) -> None:
        self.library.tw_race_fence(self.handle, warp, ctypes.c_uint32(mask), int(scope))

    def copy(
        self,
        warp: int,
        lanes: Mapping[int, int],
        *,
        instr: int,
        size: int = 16,
        values: Mapping[int, bytes] | None = None,
    ) -> Report:
        """Issue of a cp.async."""
        addresses = (ctypes.c_uint32 * LANES)(*[lanes.get(lane, 0) for lane in range(LANES)])
        stored = None
        if values is not None:
            stored = b"".join(values.get(lane, b"").ljust(size, b"\0")[:size] for lane in range(LANES))
        raw = RawReport()
        mask = ctypes.c_uint32(mask_of(lanes))
        issue = self.library.tw_race_async_issue
        return _report(issue(self.handle, warp, mask, addresses, size, stored, size, instr, ctypes.byref(raw)), raw)

    def copied(self, warp: int, lanes: Mapping[int, int], size: int = 16) -> None:
        """The wait for a cp.async."""
        addresses = (ctypes.c_uint32 * LANES)(*[lanes.get(lane, 0) for lane in range(LANES)])
        self.library.tw_race_async_complete(self.handle, warp, ctypes.c_uint32(mask_of(lanes)), addresses, size)

    def exit(self, warp: int, mask: int = 0xFFFFFFFF) -> Report:
        raw = RawReport()
        left = self.library.tw_race_exit(self.handle, warp, ctypes.c_uint32(mask), ctypes.byref(raw))
        return _report(left, raw)

    def read(self, warp: int, lanes: Mapping[int, int], **options: object) -> Report:
        return self.access(Kind.READ, warp, lanes, **options)  # type: ignore[arg-type]

    def write(self, warp: int, lanes: Mapping[int, int], **options: object) -> Report:
        return self.access(Kind.WRITE, warp, lanes, **options)  # type: ignore[arg-type]

    def atomic(self, warp: int, lanes: Mapping[int, int], **options: object) -> Report:
        return self.access(Kind.ATOMIC, warp, lanes, **options)  # type: ignore[arg-type]


def mask_of(lanes: Mapping[int, int]) -> int:
    return sum(1 << lane for lane in lanes)


def _report(conflicts: int, raw: RawReport) -> Report:
    return Report(
        conflicts,
        Race(raw.kind),
        bool(raw.is_shared),
        raw.address,
        (raw.cta, raw.thread),
        raw.instr,
        (raw.other_cta, raw.other_thread),
        raw.other_instr,
        (bool(raw.is_atomic), bool(raw.other_is_atomic)),
        (bool(raw.is_async), bool(raw.other_is_async)),
    )
