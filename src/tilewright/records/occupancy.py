"""How many blocks of a kernel fit on one multiprocessor, and what stops the next one.

Plain arithmetic on the hardware's allocation rules. It knows nothing of clusters or co-resident grids.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records.gpu import MAX_THREADS_PER_BLOCK, WARP_LANES, GpuProfile

MAX_REGISTERS_PER_THREAD = 256  # what the allocation rule admits; the compiler stops at 255
REGISTERS_PER_BLOCK = 65536
REGISTER_GRANULARITY = 256  # per warp
PARTITIONS_PER_SM = 4


class Limiter(str, Enum):
    """What stops one more block from being resident."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    THREADS = "threads"
    BLOCKS = "blocks"
    BARRIERS = "barriers"


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one kernel on one multiprocessor. No blocks: such a launch is refused."""

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float  # of the warps the multiprocessor can hold
    limiter: Limiter


def occupancy(gpu: GpuProfile, registers: int, threads: int, smem_bytes: int, barriers: int = 0) -> Occupancy:
    """Occupancy of blocks of `threads` threads with `registers` each and `smem_bytes`, static and dynamic together."""
    if threads < 1 or registers < 0 or smem_bytes < 0 or barriers < 0:
        raise ValueError(
            f"occupancy of {threads} threads, {registers} registers, {smem_bytes} shared bytes, {barriers} barriers; "
            "threads must be at least 1, the others at least 0"
        )
    warps = _ceil_div(threads, WARP_LANES)
    # Of equal limits the first is named: threads is full occupancy, and blocks the kernel cannot change.
    limits = {
        Limiter.THREADS: _blocks_by_threads(gpu, threads, warps),
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
    """Since Hopper a multiprocessor has two for each block that it can hold, or one on smaller GPUs. A kernel that
    names a barrier by a register takes all 16 that a block can have."""
    if gpu.cc < 90 or not barriers:
        return gpu.blocks_sm
    each = 1 if gpu.cc in (101, 110) or gpu.cc // 10 == 12 else 2
    return each * gpu.blocks_sm // barriers


def _blocks_by_threads(gpu: GpuProfile, threads: int, warps: int) -> int:
    if threads > MAX_THREADS_PER_BLOCK:
        return 0
    return gpu.threads_sm // WARP_LANES // warps


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def _round_up(value: int, to: int) -> int:
    return _ceil_div(value, to) * to
