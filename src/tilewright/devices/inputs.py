"""A job's tensors on a torch device: memory in the layout of their specs, filled from a seed or from bytes.

The same seed, spec and kind of device give the same elements. Random elements are drawn in row-major order whatever the
strides, so a transposed tensor holds the same values as a contiguous one. Gaps between elements, and outputs before a
run, hold the poison: bytes of 0xFF, NaN in every float type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tilewright.devices.contents import POISON_BYTE, ContentError, check_content, misalignment
from tilewright.records import Content, Data, DType, Integers, Normal, Part, Repeated, TensorSpec, Uniform

TORCH_DTYPE: dict[DType, torch.dtype] = {one: getattr(torch, one.torch_name) for one in DType}
DTYPE_OF_TORCH: dict[torch.dtype, DType] = {ours: name for name, ours in TORCH_DTYPE.items()}

COLD_L2 = 3  # L2 sizes written before a timed run, and covered by rotating tensors
GUARD_BYTES = 4096  # on either side of a guarded tensor: as far as a tile or vector reaches past its end
GUARD_BYTE = 0xFB  # around outputs and scratch; inputs use the poison, so that a copy of either guard shows
_DRAWN_AT_ONCE = 1 << 24  # elements; bounds temporary memory, and determines the values of a seed
_COMPARED_AT_ONCE = 1 << 28  # bytes
_HOST_SHARE = 1 << 30

AllocateBytes = Callable[[int], torch.Tensor]  # uninitialised memory of that size


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor, its storage from the first element to the last, and guard zones before and after it.

    The guards hold the guard byte as long as nothing is written outside the tensor.
    """

    spec: TensorSpec
    storage: torch.Tensor  # uint8
    tensor: torch.Tensor
    guards: tuple[torch.Tensor, ...] = ()
    guard_byte: int = 0


def allocation_bytes(spec: TensorSpec) -> int:
    """An upper bound of what `allocate` needs for a tensor without guards."""
    return -(-(spec.storage_bytes + misalignment(spec)) // 512) * 512


def allocate(
    spec: TensorSpec, device: torch.device, *, guard_byte: int | None = None, take: AllocateBytes | None = None
) -> PlacedTensor:
    """Poisoned memory for a tensor, with exactly the alignment of its spec.

    With a `guard_byte` there are guard zones on both sides. `take` allocates the memory, by default torch does.
    """
    guarded, byte = (0, 0) if guard_byte is None else (GUARD_BYTES, guard_byte)
    start = guarded + misalignment(spec)
    end = start + spec.storage_bytes
    raw = take(end + guarded) if take else torch.empty(end + guarded, dtype=torch.uint8, device=device)
    guards = (raw[:start], raw[end:]) if guarded else ()
    for one in guards:
        one.fill_(byte)
    storage = raw[start:end]
    tensor = storage.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)
    placed = PlacedTensor(spec, storage, tensor, guards, byte)
    poison(placed)
    return placed


def rotating_sets(set_bytes: int, l2_bytes: int, runs: int) -> int:
    """How many sets of tensors timed runs rotate over: more than `COLD_L2` caches, for a cold L2."""
    return min(runs, COLD_L2 * l2_bytes // max(set_bytes, 1) + 1)


def free_bytes(device: torch.device) -> int:
    """The free memory of a GPU; a fixed amount for the host."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _HOST_SHARE


def poison(placed: PlacedTensor, byte: int = POISON_BYTE) -> None:
    placed.storage.fill_(byte)


def guard_damage(placed: PlacedTensor) -> int | None:
    """The offset of the nearest guard byte that was written: negative before the tensor, from 0 on after its end."""
    for number, guard in enumerate(placed.guards):
        changed = guard != placed.guard_byte
        if bool(changed.any()):
            places = changed.nonzero().flatten()
            return int(places[0]) if number else int(places[-1]) - guard.numel()
    return None


def bitwise_equal(one: PlacedTensor, other: PlacedTensor) -> bool:
    """Whether two tensors of one spec are bitwise equal."""
    if one.tensor.is_contiguous():
        pieces = (torch.split(placed.storage, _COMPARED_AT_ONCE) for placed in (one, other))
        return all(torch.equal(_wide(mine), _wide(theirs)) for mine, theirs in zip(*pieces, strict=True))
    mine, theirs = (placed.tensor.contiguous().view(-1).view(torch.uint8) for placed in (one, other))
    return torch.equal(mine, theirs)


def _wide(content: torch.Tensor) -> torch.Tensor:
    """Bytes as int64 where alignment allows, which compares faster."""
    whole = content.numel() % 8 == 0 and content.data_ptr() % 8 == 0 and content.storage_offset() % 8 == 0
    return content.view(torch.int64) if whole else content


def clear(placed: PlacedTensor) -> None:
    placed.storage.zero_()


def content_of(placed: PlacedTensor) -> bytes:
    """The bytes of the tensor's storage."""
    return bytes(placed.storage.cpu().numpy().tobytes())


def fill(placed: PlacedTensor, content: Content) -> None:
    """Fill the tensor. Raises `ContentError` when the content does not fit it."""
    check_content(placed.spec, content)
    if isinstance(content, Data):
        if content.content:
            placed.storage.copy_(torch.frombuffer(bytearray(content.content), dtype=torch.uint8))
        return
    if isinstance(content, Repeated):
        raise ContentError("Repeated content is for emulated devices; use Data")
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
    if isinstance(content, (Normal, Uniform)) and content.part is not Part.WHOLE and target.ndim > 1:
        # 8-bit floats as bytes: torch has no triu for them.
        target = target.view(torch.uint8) if target.element_size() == 1 else target
        target.copy_(target.triu() if content.part is Part.UPPER else target.tril())


def _without_repeats(placed: PlacedTensor) -> torch.Tensor:
    """A view with every address once: stride-0 dimensions reduced to size 1, overlapping windows flattened."""
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
    # Narrow floats are drawn in f32 and rounded, so every float type gets the same values.
    wide = torch.float64 if piece.dtype == torch.float64 else torch.float32
    if isinstance(content, Integers):
        whole = torch.randint(content.low, content.high, shape, generator=generator, dtype=torch.int64, device=device)
        return whole.to(wide) if piece.dtype.is_floating_point else whole
    if isinstance(content, Normal):
        drawn = torch.randn(shape, generator=generator, dtype=wide, device=device)
        return drawn.mul_(content.deviation).add_(content.mean)
    drawn = torch.rand(shape, generator=generator, dtype=wide, device=device)
    return drawn.mul_(content.high - content.low).add_(content.low)
