"""A plan's tensors in the emulator's memory, poisoned until written. Only the last two functions need torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilewright.devices.contents import POISON_BYTE, misalignment
from tilewright.ptx import sparse_memory
from tilewright.ptx.global_memory import Bytes, GlobalMemory
from tilewright.records import Buffer, BufferRole, Clearing, Job, TensorSpec, WrittenPart

if TYPE_CHECKING:
    import torch


_MOST_ODD = 12  # places of an axis


@dataclass(frozen=True)
class Perturbation:
    """Conditions that a correct kernel does not depend on, varied between runs."""

    seed: int | None = None  # of the schedule of warps and blocks; None: in order
    place: int | None = None  # of the tensors' addresses; None: consecutive
    poison: int = POISON_BYTE  # the byte that fills unwritten registers and memory
    fill: bytes = b""  # of registers, shared and local memory instead, repeated
    inherits: bool = False  # they hold what earlier blocks left
    many: bool = False  # with a seed: as many blocks side by side as a GPU may have
    packed: bool = False  # tensors and shared variables lie side by side


class PlanMemory:
    """The tensors of one run of a plan."""

    def __init__(self, circumstances: Perturbation | None = None) -> None:
        circumstances = circumstances or Perturbation()
        self.memory = GlobalMemory(circumstances.place, packed=circumstances.packed)
        self._poison = circumstances.poison
        self._specs: dict[str, TensorSpec] = {}

    def add_input(self, name: str, spec: TensorSpec, content: Bytes, *, writable: bool) -> None:
        """A tensor of the caller; `content` is its storage, used without a copy."""
        self._add(name, spec, content, writable=writable, initialised=True)

    def add_buffer(self, buffer: Buffer, *, initialised: bool = False, cleared: bool = False) -> None:
        """An output or scratch; with `initialised`, reads are unchecked and the poison does not vary."""
        cleared = cleared or buffer.clearing is not Clearing.UNDEFINED
        poison = POISON_BYTE if initialised else self._poison
        content = sparse_memory.filled(buffer.spec.storage_bytes, 0 if cleared else poison)
        self._add(buffer.name, buffer.spec, content, writable=True, initialised=cleared or initialised)

    def _add(self, name: str, spec: TensorSpec, content: Bytes, *, writable: bool, initialised: bool) -> None:
        self._specs[name] = spec
        self.memory.add(
            name,
            spec.storage_bytes,
            element_bytes=spec.dtype.itemsize,
            shape=spec.shape,
            stride=spec.stride,
            writable=writable,
            initialised=initialised,
            data=content,
            misaligned_by=misalignment(spec),
        )

    def inherit(self, used: PlanMemory, buffers: tuple[Buffer, ...]) -> None:
        """Take over the state that an earlier call leaves: counters, uncleared scratch, module variables.

        Such scratch still counts as uninitialised.
        """
        for buffer in buffers:
            if buffer.role is BufferRole.SCRATCH and buffer.clearing is not Clearing.ZEROED:
                self.content(buffer.name)[...] = used.content(buffer.name)
        self.memory.inherit_modules(used.memory)

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def spec(self, name: str) -> TensorSpec:
        return self._specs[name]

    def address(self, name: str) -> int:
        return self.memory.address(name)

    def content(self, name: str) -> Bytes:
        """The tensor's storage, not a copy."""
        return self.memory.bytes(name)

    def write(self, name: str, content: Bytes) -> None:
        """Write the elements from outside a kernel, as a library step does."""
        self.memory.bytes(name)[...] = content
        self.memory.mark_initialised(name)

    def written_part(self, name: str, most: int, periods: tuple[int, ...] = ()) -> WrittenPart | None:
        """The written part of a tensor; None where nothing was. Above `most` elements the longest axes are thinned out,
        but indices are kept where elements differ from those one period before."""
        spec = self._specs[name]
        places, elements, written = self._touched(name)
        if not written.any():
            return None
        axes = range(len(spec.shape))
        others = [tuple(other for other in axes if other != axis) for axis in axes]
        indices = [np.flatnonzero(written.any(axis=rest) if rest else written) for rest in others]
        odd = [_odd(elements, written, axis, places[axis], one) for axis, one in zip(axes, periods, strict=False)]
        odd += [np.zeros(0, np.int64)] * (len(indices) - len(odd))
        while math.prod(map(len, indices)) > most:
            longest = max(axes, key=lambda axis: len(indices[axis]))
            count = len(indices[longest])
            kept = indices[longest][np.linspace(0, count - 1, (count + 1) // 2).astype(np.int64)]
            indices[longest] = np.union1d(kept, odd[longest])
            if len(indices[longest]) == count:
                break
        at = np.ix_(*indices) if indices else ()
        return WrittenPart(
            name,
            tuple(tuple(places[axis][indices[axis]].tolist()) for axis in axes),
            np.ascontiguousarray(elements[at]).tobytes(),
            np.ascontiguousarray(written[at]).tobytes(),
            tuple(tuple(places[axis][odd[axis]].tolist()) for axis in axes),
        )

    def _touched(self, name: str) -> tuple[list[npt.NDArray[np.int64]], Any, Any]:
        """The indices of each axis (only written rows of the first), the elements as integers, and written flags."""
        spec = self._specs[name]
        size, content = spec.dtype.itemsize, self.content(name)
        places = [np.arange(extent) for extent in spec.shape]
        if not spec.shape or not spec.is_contiguous or not spec.numel:
            strides = tuple(step * size for step in spec.stride)
            written: Any = np.lib.stride_tricks.as_strided(self.memory.written(name), spec.shape, strides)
            return places, np.lib.stride_tricks.as_strided(content.view(f"u{size}"), spec.shape, strides), written
        row_bytes = spec.storage_bytes // spec.shape[0]
        places[0] = self.memory.written_rows(name, row_bytes)
        shape = (len(places[0]), *spec.shape[1:])
        elements = content.reshape(-1, row_bytes)[places[0]].view(f"u{size}").reshape(shape)
        return places, elements, self.memory.written_of(name, places[0], row_bytes)[:, ::size].reshape(shape)

    def unwritten(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """The number of unwritten elements and the index of the first; None where all were written."""
        spec = self._specs[name]
        if spec.numel == 0:
            return None
        written = self.memory.written(name)
        if written.all():
            return None
        size = spec.dtype.itemsize
        strides = tuple(step * size for step in spec.stride)
        elements: Any = np.lib.stride_tricks.as_strided(written, (*spec.shape, size), (*strides, 1))
        missing = ~elements.all(axis=-1)
        count = int(missing.sum())
        return None if count == 0 else (count, tuple(int(i) for i in np.argwhere(missing)[0]))


def _odd(elements: Any, written: Any, axis: int, places: npt.NDArray[np.int64], period: int) -> npt.NDArray[np.int64]:
    """A few indices of an axis whose written elements differ from those a multiple of the period before."""
    if not period or not len(places):
        return np.zeros(0, np.int64)
    first = np.minimum(np.searchsorted(places, places % period), len(places) - 1)
    known = (places[first] == places % period).reshape([-1 if one == axis else 1 for one in range(elements.ndim)])
    both = written & np.take(written, first, axis=axis) & known
    differs = both & (elements != np.take(elements, first, axis=axis))
    others = tuple(other for other in range(elements.ndim) if other != axis)
    found = np.flatnonzero(differs.any(axis=others) if others else differs)
    return found[np.linspace(0, len(found) - 1, min(len(found), _MOST_ODD)).astype(np.int64)]


def job_memory(job: Job, contents: dict[str, Bytes], circumstances: Perturbation) -> PlanMemory:
    """New memory for one run. Only inputs that are returned are writable: they are changed in place."""
    memory = PlanMemory(circumstances)
    for one in job.inputs:
        content = contents[one.name]
        if one.name in job.returns or not content.flags.writeable:
            content = content.copy()  # it may be changed, and the plan runs again
        memory.add_input(one.name, one.spec, content, writable=one.name in job.returns)
    sampled = job.emulation.sampled_blocks is not None
    if not job.emulation.written_elements:
        add_buffers(memory, job.plan.buffers, sampled=sampled)
    for buffer in job.plan.buffers if job.emulation.written_elements else ():
        scratch = buffer.role is BufferRole.SCRATCH  # other blocks would have written it; zeros are harmless
        memory.add_buffer(buffer, initialised=scratch, cleared=scratch)
    return memory


def add_buffers(memory: PlanMemory, buffers: tuple[Buffer, ...], *, sampled: bool) -> None:
    """Outputs and scratch. With sampled blocks, reads of unwritten memory are not reported."""
    for buffer in buffers:
        memory.add_buffer(buffer, initialised=sampled)


def written_parts(job: Job, memory: PlanMemory) -> tuple[WrittenPart, ...]:
    """The written part of each output; all of it for outputs that start cleared."""
    most = job.emulation.written_elements
    outputs = [one.name for one in job.plan.buffers if one.role is not BufferRole.SCRATCH and one.spec.numel]
    periods = dict(job.emulation.written_periods)
    parts = (memory.written_part(name, most, periods.get(name, ())) for name in outputs if most)
    return tuple(part for part in parts if part is not None)


def tensor_copy(memory: PlanMemory, name: str) -> torch.Tensor:
    """A CPU tensor copied from the emulator's memory, with the same strides."""
    import torch

    from tilewright.devices.inputs import TORCH_DTYPE

    spec = memory.spec(name)
    raw = torch.empty(spec.storage_bytes, dtype=torch.uint8)
    if spec.storage_bytes:
        raw.copy_(torch.from_numpy(memory.content(name)))
    return raw.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)


def storage_bytes(tensor: torch.Tensor, size: int) -> Bytes:
    """A copy of the first `size` bytes of the tensor's storage, from its first element."""
    import torch

    elements = size // tensor.element_size()
    flat = tensor.detach().as_strided((elements,), (1,))
    copied: Bytes = flat.clone().view(torch.uint8).numpy()
    return copied
