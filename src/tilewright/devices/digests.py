"""What a run answered, in a few numbers computed where the answer lies, so that runs can be compared without moving it.

The bits are a weighted sum of the words modulo 2^64 with odd weights: one changed word always changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from tilewright.records import Digest

_AT_ONCE = 1 << 22  # words or elements; bounds the temporary memory
_WORD_BYTES = 8
# Odd numbers whose products are spread evenly (Weyl's and splitmix's), as signed 64-bit ones.
_STEP, _MIX, _NEXT = -0x61C8864680B583EB, -0x4B47D0C5A1A6E493, -0x6B2FB644ECCEEE15


def digest_of(tensors: Sequence[torch.Tensor], beside: Digest | None = None) -> Digest:
    """The digest of these tensors; without sums where it is `beside` to the bit."""
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
    """The elements in row-major order as pieces of 64-bit words, the last filled up with zeros."""
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
    """Of the finite elements: their sum with signs, the sum of their squares, how many there are."""
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
