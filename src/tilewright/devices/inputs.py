"""A job's tensors on a torch device: memory laid out as their specs say, filled from a seed or from bytes.

The same seed, spec and kind of device give the same elements every time. Random elements are drawn in row-major order
of the tensor's shape whatever its strides, so a transposed tensor holds the same values as a contiguous one. Memory
that no element occupies, and outputs before a run, hold the poison: bytes of 0xFF, NaN in every float type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewright.devices.contents import POISON_BYTE, check_content, misalignment
from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.records import Content, Data, Integers, Normal, TensorSpec, Uniform

COLD_L2 = 3  # times the L2 cache: so much is written before a timed run, and tensors rotate over as much
_DRAWN_AT_ONCE = 1 << 24  # elements; bounds the temporary memory, and is part of what a seed means


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor and the bytes it lives in, from its first element to its last."""

    spec: TensorSpec
    storage: torch.Tensor  # uint8
    tensor: torch.Tensor


def allocation_bytes(spec: TensorSpec) -> int:
    """What `allocate` takes for a tensor, at most."""
    return -(-(spec.storage_bytes + misalignment(spec)) // 512) * 512


def allocate(spec: TensorSpec, device: torch.device) -> PlacedTensor:
    """Poisoned memory for a tensor, aligned exactly as its spec says and no better."""
    offset = misalignment(spec)
    raw = torch.empty(spec.storage_bytes + offset, dtype=torch.uint8, device=device)
    storage = raw[offset:]
    placed = PlacedTensor(spec, storage, storage.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride))
    poison(placed)
    return placed


def rotating_sets(set_bytes: int, l2_bytes: int, runs: int) -> int:
    """How many sets of tensors timed runs use in turn, until together they are larger than `COLD_L2` caches: what
    a kernel managed to keep there of one run is of no use to the next."""
    return min(runs, COLD_L2 * l2_bytes // max(set_bytes, 1) + 1)


def poison(placed: PlacedTensor) -> None:
    placed.storage.fill_(POISON_BYTE)


def clear(placed: PlacedTensor) -> None:
    placed.storage.zero_()


def content_of(placed: PlacedTensor) -> bytes:
    """The tensor's bytes in the order of its storage."""
    return bytes(placed.storage.cpu().numpy().tobytes())


def fill(placed: PlacedTensor, content: Content) -> None:
    """Put the elements in. Raises `ContentError` when they do not fit the tensor."""
    check_content(placed.spec, content)
    if isinstance(content, Data):
        if content.content:
            placed.storage.copy_(torch.frombuffer(bytearray(content.content), dtype=torch.uint8))
        return
    poison(placed)
    if 0 in placed.spec.shape:
        return
    target = _without_repeats(placed)
    generator = torch.Generator(device=placed.storage.device)
    generator.manual_seed(content.seed)
    if target.is_contiguous():
        _draw(target.view(-1), content, generator)
    else:
        drawn = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        _draw(drawn.view(-1), content, generator)
        target.copy_(drawn)


def _without_repeats(placed: PlacedTensor) -> torch.Tensor:
    """The tensor with every address once: repeated (stride 0) dimensions cut to one, overlapping windows laid flat."""
    spec = placed.spec
    shape = tuple(1 if step == 0 else size for size, step in zip(spec.shape, spec.stride, strict=True))
    reach = 1
    for step, size in sorted((step, size) for size, step in zip(shape, spec.stride, strict=True) if size > 1):
        if step < reach:
            return placed.storage.view(TORCH_DTYPE[spec.dtype])
        reach += (size - 1) * step
    return placed.tensor.as_strided(shape, spec.stride)


def _draw(target: torch.Tensor, content: Normal | Uniform | Integers, generator: torch.Generator) -> None:
    for piece in torch.split(target, _DRAWN_AT_ONCE):
        piece.copy_(_drawn(piece, content, generator))


def _drawn(piece: torch.Tensor, content: Normal | Uniform | Integers, generator: torch.Generator) -> torch.Tensor:
    shape, device = piece.shape, piece.device
    # Narrow floats are drawn wide and rounded, so every float type sees the same values.
    wide = torch.float64 if piece.dtype == torch.float64 else torch.float32
    if isinstance(content, Integers):
        whole = torch.randint(content.low, content.high, shape, generator=generator, dtype=torch.int64, device=device)
        return whole.to(wide) if piece.dtype.is_floating_point else whole
    if isinstance(content, Normal):
        drawn = torch.randn(shape, generator=generator, dtype=wide, device=device)
        return drawn.mul_(content.deviation).add_(content.mean)
    drawn = torch.rand(shape, generator=generator, dtype=wide, device=device)
    return drawn.mul_(content.high - content.low).add_(content.low)
