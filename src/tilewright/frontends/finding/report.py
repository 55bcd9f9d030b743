"""What was found in a model, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RegionKind(str, Enum):
    MODULE = "module"  # the whole of a module
    FUNCTION = "function"  # the whole of a function
    CHAIN = "chain"  # a part of a module's forward


@dataclass(frozen=True)
class FoundRegion:
    """A part of a model that could be one kernel. Times are of all its calls in one call of the model."""

    number: int  # from 1, the most to be gained first
    name: str  # of the op, as a kernel of it would be called
    title: str  # for people
    kind: RegionKind
    places: tuple[str, ...]  # paths of modules
    calls: int
    inputs: dict[str, str]  # "1x128x4096:bf16"
    outputs: tuple[str, ...]
    kernels: int  # that PyTorch launches for one call
    time_us: float
    share: float  # of the model's time
    expected_us: float  # with one kernel, near what the memory allows
    speedup: float  # of the whole model, with this alone
    author: str  # "playbook", or "model" where the playbook cannot
    why: str  # what the playbook says where it cannot
    source: str = ""  # of the function that would become a kernel; "" of a module


@dataclass(frozen=True)
class FoundModel:
    """A model's regions, the most to be gained first."""

    model: str
    gpu: str
    measured: bool  # else times are modelled from bytes and products at the GPU's roofline
    time_us: float  # of one call
    kernels: int
    products_share: float  # of matrix products, convolutions and attention: the vendor's libraries do those
    regions: tuple[FoundRegion, ...]
    speedup: float  # with a kernel for each
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class SwapReport:
    """What became of kernels in a model."""

    replaced: dict[str, int]  # places of each region
    refused: dict[str, str]
    agreement: str
    before_us: float | None = None  # of one call, on a GPU
    after_us: float | None = None


@dataclass(frozen=True)
class FindReport:
    """What `tilewright find --json` prints."""

    found: FoundModel
    kernels: dict[str, str] = field(default_factory=dict)  # file of each region, by its number
    swap: SwapReport | None = None
