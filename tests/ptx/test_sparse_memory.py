"""Memory as long as a tensor and as large as what is written of it."""

from __future__ import annotations

import gc
import resource

import numpy as np
import pytest

from tilewright.ptx import sparse_memory
from tilewright.ptx.sparse_memory import LARGE

HUGE = 5 << 30


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("block_bytes", [1, 3, 4096, 61 * 128, 61 * 131072])
@pytest.mark.parametrize("nbytes", [10, LARGE, LARGE + 1, 3 * LARGE + 5])
def test_a_block_over_and_over(block_bytes: int, nbytes: int) -> None:
    block = np.random.default_rng(block_bytes).integers(0, 256, block_bytes, dtype=np.uint8)
    found = sparse_memory.repeated(block, nbytes)
    assert len(found) == nbytes
    for place in (0, nbytes // 3, nbytes - 1):
        assert found[place] == block[place % block_bytes]
    part = found[-min(nbytes, 1 << 20) :]
    assert (part == block[np.arange(nbytes - len(part), nbytes) % block_bytes]).all()


def test_what_is_written_stays_in_its_place() -> None:
    before = resident_bytes()
    found = sparse_memory.repeated(np.arange(256, dtype=np.uint8), HUGE)
    found[HUGE - 3] = 7
    found[0] = 9
    assert (found[HUGE - 3], found[253], found[0], found[256]) == (7, 253, 9, 0)
    assert resident_bytes() - before < 64 << 20
    assert (sparse_memory.filled(HUGE, 0x7B)[[0, HUGE - 1]] == 0x7B).all()
    assert [len(sparse_memory.filled(0, byte)) for byte in (0, 0x7B)] == [0, 0]


def test_addresses_do_not_count_against_the_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        limit = int(statm.read().split()[0]) * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        made = sparse_memory.zeros(HUGE)
        made[HUGE - 1] = 1
        with pytest.raises(MemoryError):
            np.zeros(HUGE, dtype=np.uint8)
        del made
        gc.collect()
        assert resource.getrlimit(resource.RLIMIT_AS) == (limit, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
