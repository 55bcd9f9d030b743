"""GPU profiles, and the occupancy calculation."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

KIB = 1024
MIB = 1024 * KIB

# The same on every GPU.
WARP_LANES = 32
SECTOR_BYTES = 32  # unit of global memory transactions
MAX_THREADS_PER_BLOCK = 1024

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")


def arch_of(cc: int) -> str:
    """The architecture of a compute capability: `sm_90a` for 90."""
    return f"sm_{cc}a" if cc >= 90 else f"sm_{cc}"


def cc_of(arch: str) -> int:
    """90 for `sm_90a`."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def runs_on(arch: str, cc: int) -> bool:
    """Whether a cubin for `arch` loads on a compute capability: `sm_90a` on 90 alone, `sm_80` on 80 to 89."""
    if arch.endswith("a"):
        return cc_of(arch) == cc
    return cc_of(arch) // 10 == cc // 10 and cc_of(arch) <= cc


@dataclass(frozen=True)
class GpuProfile:
    """A GPU model. Plans see the first block as `device`; the rest is for occupancy and the roofline."""

    name: str
    cc: int
    sms: int
    smem_block: int  # most dynamic bytes a block may ask for
    smem_sm: int
    l2: int

    registers_sm: int = 65536
    threads_sm: int = 2048
    blocks_sm: int = 32
    reserved_smem_block: int = KIB
    max_cluster: int = 1
    memory_bytes: int = 0
    bandwidth_gbs: float = 0.0  # vendor's figure for device memory, GB/s; 0 where unknown

    # Vendor's figures, for rooflines and models; 0 where unknown.
    clock_ghz: float = 0.0  # of the multiprocessors, boosted
    f64_tflops: float = 0.0  # with tensor cores where they take f64
    f32_tflops: float = 0.0  # without tensor cores
    tf32_tflops: float = 0.0  # tensor cores, as all below: dense, with f32 sums
    half_tflops: float = 0.0  # f16 and bf16
    byte_tflops: float = 0.0  # 8-bit floats or, before them, 8-bit integers
    # (blocks of a cluster, clusters resident at once with one block per multiprocessor), if known
    clusters: tuple[tuple[int, int], ...] = ()

    @property
    def arch(self) -> str:
        return arch_of(self.cc)

    def sms_reached(self, cluster: int) -> int:
        """The multiprocessors that clusters of this size can use: a cluster stays inside one GPC."""
        return cluster * dict(self.clusters).get(cluster, max(self.sms // cluster, 1))


def _profile(name: str, cc: int, sms: int, l2_mib: int, memory_gb: int, bandwidth_gbs: float) -> GpuProfile:
    smem_kib, threads, blocks = _PER_SM[cc]
    clock_ghz, f64, f32, tf32, half, byte = _RATES[name]
    reserved = KIB if cc >= 80 else 0
    return GpuProfile(
        name=name,
        cc=cc,
        sms=sms,
        smem_block=smem_kib * KIB - reserved,
        smem_sm=smem_kib * KIB,
        l2=l2_mib * MIB,
        threads_sm=threads,
        blocks_sm=blocks,
        reserved_smem_block=reserved,
        max_cluster=16 if cc in (90, 100, 103) else 8 if cc >= 120 else 1,
        memory_bytes=memory_gb * 10**9,
        bandwidth_gbs=bandwidth_gbs,
        clock_ghz=clock_ghz,
        f64_tflops=f64,
        f32_tflops=f32,
        tf32_tflops=tf32,
        half_tflops=half,
        byte_tflops=byte,
        clusters=_CLUSTERS.get(name, ()),
    )


# From the driver of an H200; an H100 has the same GPCs.
_CLUSTERS = dict.fromkeys(("H100", "H200"), ((4, 30), (8, 15), (16, 7)))

# compute capability -> (shared memory per SM in KiB, threads per SM, blocks per SM)
_PER_SM = {
    75: (64, 1024, 16),
    80: (164, 2048, 32),
    86: (100, 1536, 16),
    89: (100, 1536, 24),
    90: (228, 2048, 32),
    100: (228, 2048, 32),
    103: (228, 2048, 32),
    120: (100, 1536, 24),
    121: (100, 1536, 24),
}

# name -> (clock in GHz, TFLOP/s of f64, f32, TF32, 16 bits, 8 bits)
_RATES = {
    "T4": (1.59, 0.25, 8.1, 0.0, 65.0, 130.0),
    "A100": (1.41, 19.5, 19.5, 156.0, 312.0, 624.0),
    "A10": (1.695, 0.49, 31.2, 62.5, 125.0, 250.0),
    "L4": (2.04, 0.49, 30.3, 60.0, 121.0, 242.0),
    "L40S": (2.52, 1.43, 91.6, 183.0, 362.0, 733.0),
    "RTX 4090": (2.52, 1.29, 82.6, 82.6, 165.2, 330.3),
    "H100": (1.98, 67.0, 67.0, 494.0, 989.0, 1979.0),
    "H200": (1.98, 67.0, 67.0, 494.0, 989.0, 1979.0),
    "B200": (1.965, 37.0, 75.0, 1125.0, 2250.0, 4500.0),
    "B300": (1.965, 1.25, 75.0, 1125.0, 2250.0, 4500.0),
    "RTX 5090": (2.407, 1.64, 104.8, 104.8, 209.5, 419.0),
    "GB10": (2.42, 0.5, 31.0, 62.0, 125.0, 250.0),
}

PROFILES: dict[str, GpuProfile] = {
    p.name: p
    for p in (
        _profile("T4", 75, 40, 4, 16, 320.0),
        _profile("A100", 80, 108, 40, 80, 2039.0),
        _profile("A10", 86, 72, 6, 24, 600.0),
        _profile("L4", 89, 58, 48, 24, 300.0),
        _profile("L40S", 89, 142, 96, 48, 864.0),
        _profile("RTX 4090", 89, 128, 72, 24, 1008.0),
        _profile("H100", 90, 132, 50, 80, 3350.0),
        _profile("H200", 90, 132, 60, 141, 4800.0),
        _profile("B200", 100, 148, 126, 180, 8000.0),
        _profile("B300", 103, 148, 126, 270, 8000.0),
        _profile("RTX 5090", 120, 170, 96, 32, 1792.0),
        _profile("GB10", 121, 48, 24, 128, 273.0),
    )
}

# The profile used for an architecture.
TYPICAL = {
    "sm_75": PROFILES["T4"],
    "sm_80": PROFILES["A100"],
    "sm_86": PROFILES["A10"],
    "sm_89": PROFILES["RTX 4090"],
    "sm_90a": PROFILES["H200"],
    "sm_100a": PROFILES["B200"],
    "sm_103a": PROFILES["B300"],
    "sm_120a": PROFILES["RTX 5090"],
    "sm_121a": PROFILES["GB10"],
}


def known_gpu(name: str, cc: int) -> GpuProfile | None:
    """The known GPU with this driver name and compute capability; None if there is none."""
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    return next((one for one in PROFILES.values() if one.cc == cc and set(one.name.split()) <= words), None)


# -- occupancy --

MAX_REGISTERS_PER_THREAD = 256  # of the allocation rule; the compiler uses at most 255
REGISTERS_PER_BLOCK = 65536
REGISTER_GRANULARITY = 256  # per warp
PARTITIONS_PER_SM = 4


class Limiter(str, Enum):
    """The resource that limits resident blocks."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    THREADS = "threads"
    BLOCKS = "blocks"
    BARRIERS = "barriers"


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of a kernel per multiprocessor. A launch with 0 blocks is refused."""

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float  # of the warps the multiprocessor can hold
    limiter: Limiter


def occupancy(gpu: GpuProfile, registers: int, threads: int, smem_bytes: int, barriers: int = 0) -> Occupancy:
    """Occupancy of blocks with `threads` threads of `registers` each, and `smem_bytes` of static and dynamic memory."""
    if threads < 1 or registers < 0 or smem_bytes < 0 or barriers < 0:
        raise ValueError(
            f"occupancy of {threads} threads, {registers} registers, {smem_bytes} shared bytes, {barriers} barriers; "
            "threads must be at least 1, the others at least 0"
        )
    warps = _ceil_div(threads, WARP_LANES)
    # Of equal limits the first is reported: THREADS is full occupancy, and a kernel cannot change BLOCKS.
    limits = {
        Limiter.THREADS: gpu.threads_sm // WARP_LANES // warps if threads <= MAX_THREADS_PER_BLOCK else 0,
        Limiter.BLOCKS: gpu.blocks_sm,
        Limiter.REGISTERS: _blocks_by_registers(gpu, registers, warps),
        Limiter.SHARED_MEMORY: _blocks_by_shared_memory(gpu, smem_bytes),
        Limiter.BARRIERS: _blocks_by_barriers(gpu, barriers),
    }
    limiter = min(limits, key=lambda limit: limits[limit])
    blocks = limits[limiter]
    resident_warps = blocks * warps
    return Occupancy(blocks, resident_warps, resident_warps / (gpu.threads_sm // WARP_LANES), limiter)


def _blocks_by_registers(gpu: GpuProfile, registers: int, warps: int) -> int:
    if registers > MAX_REGISTERS_PER_THREAD:
        return 0
    per_warp = _round_up(max(registers, 1) * WARP_LANES, REGISTER_GRANULARITY)
    # The launch check counts a block's warps as if they filled all partitions evenly.
    if per_warp * _round_up(warps, PARTITIONS_PER_SM) > REGISTERS_PER_BLOCK:
        return 0
    warps_per_partition = gpu.registers_sm // PARTITIONS_PER_SM // per_warp
    return warps_per_partition * PARTITIONS_PER_SM // warps


def _blocks_by_shared_memory(gpu: GpuProfile, smem_bytes: int) -> int:
    granularity = 128 if gpu.cc >= 80 else 256
    allocated = _round_up(smem_bytes + gpu.reserved_smem_block, granularity)
    if allocated > gpu.smem_block + gpu.reserved_smem_block:
        return 0
    return gpu.smem_sm // allocated if allocated else gpu.blocks_sm


def _blocks_by_barriers(gpu: GpuProfile, barriers: int) -> int:
    """Since Hopper a multiprocessor has two barriers per resident block, or one on smaller GPUs.

    A kernel that selects a barrier by a register needs all 16.
    """
    if gpu.cc < 90 or not barriers:
        return gpu.blocks_sm
    each = 1 if gpu.cc in (101, 110) or gpu.cc // 10 == 12 else 2
    return each * gpu.blocks_sm // barriers


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def _round_up(value: int, to: int) -> int:
    return _ceil_div(value, to) * to


# -- reachability in a graph --

_T = TypeVar("_T", bound=Hashable)


def reached(starts: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """The starts and everything reachable from them."""
    found: set[_T] = set()
    waiting = list(starts)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += following(one)
    return found
