"""The memory of one job: allocation, contents before a call, and checks of what a call must not change."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from tilewright.devices.contents import POISON_BYTE, ContentError
from tilewright.devices.cuda.driver import DriverError
from tilewright.devices.inputs import (
    GUARD_BYTE,
    AllocateBytes,
    PlacedTensor,
    allocate,
    bitwise_equal,
    clear,
    content_of,
    fill,
    free_bytes,
    guard_damage,
    poison,
)
from tilewright.devices.runner import JobFault
from tilewright.records import Clearing, Digest, FaultKind, Job, ReturnedTensor, SharedTensor

# Contents of outputs and scratch before the first of two calls: plausible old results.
_OLD_BYTES = (0x3F, 0x41, 0xBD, 0x00, 0xC2, 0x7B, 0x3C, 0x55)


class IpcAllocator(Protocol):
    """Memory that another process can open: `devices.cuda.ipc_memory`."""

    def allocate(self, size: int) -> torch.Tensor: ...

    def handle(self, address: int) -> tuple[bytes, int]: ...


@dataclass(frozen=True)
class JobTensors:
    """The tensors of a plan, by name."""

    inputs: dict[str, PlacedTensor]
    buffers: dict[str, PlacedTensor]

    @property
    def all(self) -> dict[str, PlacedTensor]:
        return self.inputs | self.buffers

    def named(self, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
        return tuple((self.inputs.get(name) or self.buffers[name]).tensor for name in names)

    def with_fresh(self, fresh: dict[str, PlacedTensor]) -> JobTensors:
        """A copy with some tensors replaced."""
        return JobTensors(
            {name: fresh.get(name, one) for name, one in self.inputs.items()},
            {name: fresh.get(name, one) for name, one in self.buffers.items()},
        )


class JobMemory:
    """Allocates and fills a job's tensors; raises `JobFault`."""

    def __init__(self, job: Job, device: torch.device, lender: IpcAllocator | None) -> None:
        self._job = job
        self._device = device
        self._lender = lender if job.share else None
        self._clearing = {one.name: one.clearing for one in job.plan.buffers}
        self._specs = {one.name: one.spec for one in job.inputs} | {one.name: one.spec for one in job.plan.buffers}
        self._kept: dict[str, torch.Tensor] = {}  # initial contents of inputs, where they are copied

    def allocate(self, *, guarded: bool) -> JobTensors:
        """All tensors. Results are allocated for export where the job shares them and they are returned from here."""
        lent = () if self._job.checked else self._job.returns
        return JobTensors(
            {one.name: self._place(one.name, guarded, one.name in lent) for one in self._job.inputs},
            {one.name: self._place(one.name, guarded, one.name in lent) for one in self._job.plan.buffers},
        )

    def fresh(self, names: Iterable[str], *, lent: bool = False) -> dict[str, PlacedTensor]:
        """New copies of some tensors, with their contents before a call."""
        made = {name: self._place(name, True, lent) for name in names}
        self.reset(made)
        return made

    def _place(self, name: str, guarded: bool, lent: bool) -> PlacedTensor:
        take: AllocateBytes | None = self._lender.allocate if self._lender is not None and lent else None
        guard_byte = GUARD_BYTE if name in self._clearing else POISON_BYTE
        try:
            return allocate(self._specs[name], self._device, guard_byte=guard_byte if guarded else None, take=take)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise JobFault(FaultKind.MEMORY, f"the device cannot hold the job's tensors: {error}") from error

    @property
    def old_byte(self) -> int:
        """What outputs and scratch hold before the first call; for checked jobs it varies with the job."""
        return _OLD_BYTES[zlib.crc32(self._job.id.encode()) % len(_OLD_BYTES)] if self._job.checked else POISON_BYTE

    def reset(self, placed: dict[str, PlacedTensor], byte: int = POISON_BYTE) -> None:
        """Initial contents: inputs as the job says, outputs and scratch `byte`, counters and zeroed scratch zero."""
        for one in self._job.inputs:
            if one.name not in placed:
                continue
            if one.name in self._kept:
                placed[one.name].storage.copy_(self._kept[one.name])
                continue
            try:
                fill(placed[one.name], one.content)
            except ContentError as error:
                raise JobFault(FaultKind.BROKEN_JOB, f"input {one.name!r}: {error}") from error
            except torch.OutOfMemoryError as error:
                raise JobFault(FaultKind.MEMORY, f"input {one.name!r}: the device cannot hold it: {error}") from error
        for name, clearing in self._clearing.items():
            if name in placed and clearing is Clearing.UNDEFINED:
                poison(placed[name], byte)
            elif name in placed:
                clear(placed[name])

    def keep_contents(self, inputs: dict[str, PlacedTensor]) -> None:
        """Let `reset` copy the inputs' contents, several times faster than drawing them, if memory allows."""
        storages = {name: placed.storage for name, placed in inputs.items()}
        if 2 * sum(one.numel() for one in storages.values()) < free_bytes(self._device):
            with contextlib.suppress(torch.OutOfMemoryError):  # then they are drawn again
                self._kept = {name: one.clone() for name, one in storages.items()}

    # -- after a call --

    def check_counters(self, tensors: JobTensors, how: str) -> None:
        for name, clearing in self._clearing.items():
            placed = tensors.buffers[name]
            if clearing is not Clearing.COUNTER or not bool(placed.storage.any().item()):
                continue
            left = placed.tensor.flatten()
            index = int(left.ne(0).nonzero()[0].item())
            raise JobFault(
                FaultKind.STATE,
                f"{how}, the plan left counter {name}[{index}] at {left[index].item()}; "
                "the last block that uses a counter must set it back to 0",
                self._job.plan.last_user(name),
            )

    def check_guards(self, tensors: JobTensors) -> None:
        """Raises `JobFault` where a guard zone was written."""
        for name, placed in tensors.all.items():
            at = guard_damage(placed)
            if at is not None:
                where = f"{-at} bytes before" if at < 0 else f"{at} bytes after the end of"
                raise JobFault(FaultKind.OUTSIDE, f"a byte {where} {name} was written; check indices against sizes")

    def check_inputs(self, tensors: JobTensors) -> None:
        """Raises `JobFault` where an input changed that is no result; compared with a new copy."""
        for one in self._job.inputs:
            if one.name not in self._job.returns and not bitwise_equal(
                self.fresh((one.name,))[one.name], tensors.inputs[one.name]
            ):
                message = f"the plan changed its input {one.name}; only what the op changes in place may be written to"
                raise JobFault(FaultKind.INPUT, message)

    def returned(self, tensors: JobTensors) -> tuple[ReturnedTensor | SharedTensor, ...]:
        """The results as bytes, or as IPC handles."""
        return tuple(self._returned(name, tensors.all[name]) for name in self._job.returns)

    def _returned(self, name: str, placed: PlacedTensor) -> ReturnedTensor | SharedTensor:
        if self._lender is not None:
            with contextlib.suppress(DriverError):  # some virtual machines lack IPC
                return SharedTensor(name, placed.spec, *self._lender.handle(placed.storage.data_ptr()))
        return ReturnedTensor(name, placed.spec, content_of(placed))


# -- digests: compare results without copying them to the host --

_AT_ONCE = 1 << 22  # words or elements; bounds the temporary memory
_WORD_BYTES = 8
# Odd multipliers of Weyl sequences and splitmix, as signed 64-bit integers.
_STEP, _MIX, _NEXT = -0x61C8864680B583EB, -0x4B47D0C5A1A6E493, -0x6B2FB644ECCEEE15


def digest_of(tensors: Sequence[torch.Tensor], beside: Digest | None = None) -> Digest:
    """The digest of these tensors; `beside` itself where the bits are equal."""
    bits = ".".join(f"{_bits(one):016x}" for one in tensors)
    if beside is not None and bits == beside.bits:
        return beside
    summed = [_sums(one) for one in tensors]
    return Digest(
        bits,
        tuple(total for total, _, _ in summed),
        tuple(square**0.5 for _, square, _ in summed),
        tuple(int(finite) for _, _, finite in summed),
    )


def _bits(tensor: torch.Tensor) -> int:
    weights = _weights(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for words in _words(tensor):
        total = total * _NEXT + (words * weights[: words.numel()]).sum()
    return int(total.item()) & 0xFFFF_FFFF_FFFF_FFFF


def _words(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The elements in row-major order as 64-bit words, zero-padded."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() // _WORD_BYTES * _WORD_BYTES
    pieces = [
        (piece if piece.data_ptr() % _WORD_BYTES == 0 and piece.storage_offset() % _WORD_BYTES == 0 else piece.clone())
        for piece in torch.split(flat[:whole], _AT_ONCE * _WORD_BYTES)
        if piece.numel()
    ]
    if whole < flat.numel():
        last = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=flat.device)
        last[: flat.numel() - whole] = flat[whole:]
        pieces.append(last)
    return [piece.view(torch.int64) for piece in pieces]


def _sums(tensor: torch.Tensor) -> tuple[float, float, float]:
    """The signed sum, sum of squares and count of the finite elements."""
    signs = 1.0 - 2.0 * (_weights(tensor.device) >> 17 & 1)
    totals = torch.zeros(3, dtype=torch.float64, device=tensor.device)
    for number, piece in enumerate(torch.split(tensor.contiguous().view(-1), _AT_ONCE)):
        wide = piece.to(torch.float64)
        finite = wide.isfinite()
        wide = torch.where(finite, wide, 0.0)
        signed = (wide * signs[: wide.numel()]).sum() * (-1) ** number.bit_count()
        totals += torch.stack((signed, wide.square().sum(), finite.sum().to(torch.float64)))
    first, second, third = totals.tolist()
    return first, second, third


@cache
def _weights(device: torch.device) -> torch.Tensor:
    mixed = torch.arange(1, _AT_ONCE + 1, dtype=torch.int64, device=device) * _STEP
    mixed = (mixed ^ (mixed >> 29)) * _MIX
    return (mixed ^ (mixed >> 32)) | 1
