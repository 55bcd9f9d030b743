"""Identifies GPUs: the profile `H200` and the driver's `NVIDIA H200` are one product.

A name is not enough: an H100 PCIe has fewer multiprocessors than an H100 SXM, and a MIG instance fewer still. So a GPU
is identified by product, compute capability and number of multiprocessors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from tilewright.records.gpu import PROFILES, GpuProfile, arch_of

# Words of a name that do not identify the product: vendor, brand, board, memory.
_NO_PART = re.compile(r"nvidia|tesla|geforce|tensor|core|gpu|sxm\d?|pcie|nvl|hbm\d?e?|\d+(g|gb|gib)")
_SIMILAR = 0.8  # of the larger number of multiprocessors


class GpuLikeness(Enum):
    """How useful constants tuned on one GPU are for another; the value is for users."""

    SAME = "the same GPU"
    SIMILAR = "of the same architecture and similar size"
    RELATED = "of the same compute capability"


@dataclass(frozen=True)
class GpuIdentity:
    """`cc` and `sms` are 0 if unknown."""

    product: str
    cc: int = 0
    sms: int = 0

    @classmethod
    def of(cls, gpu: GpuProfile) -> GpuIdentity:
        return cls(product_of(gpu.name), gpu.cc, gpu.sms)

    @classmethod
    def named(cls, name: str, cc: int = 0, sms: int = 0) -> GpuIdentity:
        """From a name; `cc` and `sms` of a product in `PROFILES` are filled in."""
        product = product_of(name)
        known_cc, known_sms = _known().get(product, (0, 0))
        if not known_cc:  # part of a known GPU, or a smaller one named after it
            words = set(product.split())
            known_cc = next((found for one, (found, _) in _known().items() if set(one.split()) <= words), 0)
        return cls(product, cc or known_cc, sms or known_sms)

    def likeness(self, other: GpuIdentity) -> GpuLikeness | None:
        """None if constants tuned on one are useless for the other."""
        is_product = self.product == other.product
        if self.cc != other.cc and (not is_product or (self.cc and other.cc)):
            return None
        if not is_product and not self.cc:
            return None
        if not (self.sms and other.sms):
            return GpuLikeness.SAME if is_product else GpuLikeness.RELATED
        if is_product and self.sms == other.sms:
            return GpuLikeness.SAME
        small, large = sorted((self.sms, other.sms))
        return GpuLikeness.SIMILAR if small >= _SIMILAR * large else GpuLikeness.RELATED

    @property
    def arch(self) -> str:
        """`sm_90`; "" if unknown."""
        return arch_of(self.cc).rstrip("a") if self.cc else ""


@cache
def product_of(name: str) -> str:
    """`h100` of `NVIDIA H100 80GB HBM3`, `rtx 4090 laptop` of `NVIDIA GeForce RTX 4090 Laptop GPU`.

    A MIG instance is a product of its own: `h100 mig 3g.40gb`.
    """
    whole, mig, part = name.lower().partition(" mig ")
    words = re.split(r"[\s\-_/()]+", re.sub(r"(\d) +(gi?b)\b", r"\1\2", whole))
    kept = [word for word in words if word and not _NO_PART.fullmatch(word)]
    return " ".join([*kept, *([f"mig {part.strip()}"] if mig else [])]) or name.lower().strip()


@cache
def _known() -> dict[str, tuple[int, int]]:
    return {product_of(one.name): (one.cc, one.sms) for one in PROFILES.values()}
