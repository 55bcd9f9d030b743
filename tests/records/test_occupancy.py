"""Resident blocks against the numbers of NVIDIA's own occupancy header (cuda_occupancy.h of CUDA 13.0)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.records import PROFILES, Limiter, occupancy

# GPU, registers, threads, shared bytes -> blocks and the factor the header names (where several, any of them).
HEADER_SAYS = [
    ("T4", 32, 256, 0, 4, {Limiter.THREADS}),
    ("T4", 64, 1024, 0, 1, {Limiter.THREADS, Limiter.REGISTERS}),
    ("T4", 255, 128, 0, 2, {Limiter.REGISTERS}),
    ("T4", 40, 128, 16384, 4, {Limiter.SHARED_MEMORY}),
    ("A100", 127, 256, 49152, 2, {Limiter.REGISTERS}),
    ("A100", 128, 512, 0, 1, {Limiter.REGISTERS}),
    ("A100", 168, 384, 166912, 1, {Limiter.REGISTERS, Limiter.SHARED_MEMORY}),
    ("A100", 32, 32, 0, 32, {Limiter.BLOCKS}),
    ("A100", 255, 1024, 0, 0, {Limiter.REGISTERS}),
    ("A10", 64, 256, 33000, 3, {Limiter.SHARED_MEMORY}),
    ("A10", 40, 768, 0, 2, {Limiter.THREADS, Limiter.REGISTERS}),
    ("L4", 24, 64, 0, 24, {Limiter.THREADS, Limiter.BLOCKS}),
    ("RTX 4090", 96, 256, 101376, 1, {Limiter.SHARED_MEMORY}),
    ("H100", 168, 384, 232448, 1, {Limiter.REGISTERS, Limiter.SHARED_MEMORY}),
    ("H100", 168, 384, 232449, 0, {Limiter.SHARED_MEMORY}),
    ("H200", 32, 1024, 0, 2, {Limiter.THREADS, Limiter.REGISTERS}),
    ("H200", 65, 128, 30000, 7, {Limiter.REGISTERS, Limiter.SHARED_MEMORY}),
    ("H200", 33, 96, 1024, 16, {Limiter.REGISTERS}),
    ("B200", 255, 256, 65536, 1, {Limiter.REGISTERS}),
    ("B300", 48, 160, 90000, 2, {Limiter.SHARED_MEMORY}),
    ("RTX 5090", 40, 1000, 5000, 1, {Limiter.THREADS, Limiter.REGISTERS}),
    ("GB10", 16, 32, 1, 24, {Limiter.BLOCKS}),
]


@pytest.mark.parametrize(("gpu", "registers", "threads", "smem_bytes", "blocks", "factors"), HEADER_SAYS)
def test_blocks_and_limiter_match_the_header(
    gpu: str, registers: int, threads: int, smem_bytes: int, blocks: int, factors: set[Limiter]
) -> None:
    found = occupancy(PROFILES[gpu], registers, threads, smem_bytes)
    assert found.blocks_per_sm == blocks
    assert found.limiter in factors


def test_warps_and_fraction_follow_from_blocks() -> None:
    found = occupancy(PROFILES["A100"], registers=127, threads=250, smem_bytes=0)
    assert (found.blocks_per_sm, found.warps_per_sm, found.fraction) == (2, 16, 0.25)


def test_full_occupancy_is_said_to_be_limited_by_threads() -> None:
    found = occupancy(PROFILES["H200"], registers=32, threads=256, smem_bytes=0)
    assert found.fraction == 1.0
    assert found.limiter is Limiter.THREADS


@pytest.mark.parametrize(
    ("gpu", "barriers", "blocks"),
    [("H200", 1, 16), ("H200", 5, 12), ("H200", 16, 4), ("RTX 5090", 5, 4), ("A100", 16, 16)],
)
def test_barriers_limit_blocks_since_hopper(gpu: str, barriers: int, blocks: int) -> None:
    found = occupancy(PROFILES[gpu], registers=32, threads=128, smem_bytes=0, barriers=barriers)
    assert found.blocks_per_sm == blocks
    assert (found.limiter is Limiter.BARRIERS) == (blocks < 16)


def test_a_block_of_too_many_threads_does_not_fit() -> None:
    found = occupancy(PROFILES["H200"], registers=16, threads=1025, smem_bytes=0)
    assert (found.blocks_per_sm, found.limiter) == (0, Limiter.THREADS)


@pytest.mark.parametrize(("registers", "threads", "smem_bytes"), [(1, 0, 0), (-1, 32, 0), (1, 32, -1)])
def test_nonsense_is_refused(registers: int, threads: int, smem_bytes: int) -> None:
    with pytest.raises(ValueError, match="threads must be at least 1"):
        occupancy(PROFILES["T4"], registers, threads, smem_bytes)


def test_the_launch_check_counts_partitions_as_if_they_were_full() -> None:
    """25 warps of 2560 registers are 64,000, but 28 of them are more than a block may have, whatever the multiprocessor
    has."""
    larger = replace(PROFILES["H200"], registers_sm=2 * 65536)
    assert occupancy(larger, registers=80, threads=25 * 32, smem_bytes=0).blocks_per_sm == 0
    assert occupancy(larger, registers=80, threads=24 * 32, smem_bytes=0).blocks_per_sm == 2
    assert occupancy(larger, registers=64, threads=1024, smem_bytes=0).blocks_per_sm == 2  # 65,536 are not too many
