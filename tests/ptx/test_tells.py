"""What a kernel could tell the emulator from a GPU by: each value is as on a GPU, and differs from run to run as there.

Kernel files may not read clocks, %smid, %warpid, %gridid and %envreg; imported PTX may.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from tests.ptx.cuda_kernels import program_of

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest

PLACES = range(40)
SMALL, LARGE = 4096, 3 << 20
ASM = 'asm volatile("{0}" : "=l"(v));'
SPECIAL_32 = 'unsigned w; asm volatile("mov.u32 %0, {0};" : "=r"(w)); v = w;'
SPECIAL_64 = 'asm volatile("mov.u64 %0, {0};" : "=l"(v));'
GENERIC = "(unsigned long long)&"
OPTIONS = LaunchOptions(workers=1, instruction_budget=1_000_000)


def values(body: str, place: int, *, packed: bool = False, arch: str = "sm_90") -> np.ndarray:
    """What `body` leaves in `v`, for each thread of two blocks of 64."""
    source = f"""
    __constant__ float table[4] = {{1, 2, 3, 4}};
    extern "C" __global__ void k(unsigned long long* y, const float* x, const float* large, const float* small) {{
      __shared__ float first[33];
      __shared__ float second[33];
      extern __shared__ float more[];
      volatile float own[8];
      own[threadIdx.x % 8] = 1.0f;
      ((volatile float*)first)[0] = ((volatile float*)second)[0] = ((volatile float*)more)[0] = 1.0f;
      unsigned long long v = 0;
      {body}
      y[blockIdx.x * 64 + threadIdx.x] = v;
    }}"""
    memory = GlobalMemory(place, packed=packed)
    sizes = {"y": 1024, "x": SMALL, "large": LARGE, "small": SMALL}
    addresses = [memory.add(name, size) for name, size in sizes.items()]
    request = LaunchRequest("k", (2, 1, 1), (64, 1, 1), 500, struct.pack("<QQQQ", *addresses), options=OPTIONS)
    result = program_of(source, arch).launch(memory, request)
    assert result.completed, result.findings
    return memory.bytes("y").view(np.uint64).copy()


@dataclass(frozen=True)
class Tell:
    name: str
    body: str
    is_a_gpus: Callable[[int], bool]
    least: int = 1  # different values among the runs
    packed: bool = False
    arch: str = "sm_90"


def mapped(address: int) -> bool:
    """Where Linux maps a GPU's memory; some drivers give low addresses."""
    return address >> 40 in (0x7C, 0x7D, 0x7E, 0x7F) or 0x2_0000_0000 <= address < 0x100_0000_0000


def of(text: str) -> str:
    return f"v = (unsigned long long)({text});"


FIRST = "(int)__cvta_generic_to_shared(first)"
TELLS = (
    Tell("a tensor's high bits", of("x"), mapped, 8),
    Tell("the part of an address that a page is chosen by", of("x") + "v >>= 21;", lambda v: v > 0, 8),
    Tell("a small tensor's alignment", of("x"), lambda v: v % 512 == 0, 8, packed=True),
    Tell("a large tensor's alignment", of("large"), lambda v: v % (2 << 20) == 0, 8, packed=True),
    Tell("how far two small tensors are apart", of("x - (float*)y"), lambda v: 0 < v * 4 < 2 << 20, packed=True),
    Tell("how far a large one is", of("large - x"), lambda v: 0 < v * 4 < 1 << 30, packed=True),
    Tell("a constant's generic address", of("table + threadIdx.x % 4"), mapped),
    Tell("shared memory's generic address", of("&first[0]"), mapped, 8),
    Tell("its low bits", of("&first[0]") + "v &= 0xffffff;", lambda v: v == 1024),
    Tell(
        "beside a tensor's", of("&first[0]") + "v = v >> 41 == (unsigned long long)x >> 41;", lambda v: v in (0, 1), 2
    ),
    Tell("the first address in shared memory", of(FIRST), lambda v: v == 1024),
    Tell("the first address before Hopper", of(FIRST), lambda v: v == 0, arch="sm_80"),
    Tell(
        "how far two variables in shared memory are apart",
        of("abs((int)((char*)second - (char*)first))"),
        lambda v: v in (132, 136, 144),
        packed=True,
    ),
    Tell(
        "how far dynamic shared memory is",
        of("(char*)more - (char*)(first < second ? first : second)"),
        lambda v: 264 <= v <= 304,
        packed=True,
    ),
    Tell("local memory's generic address", of("&own[0]"), mapped, 8),
    Tell(
        "local memory's address",
        ASM.format("cvta.to.local.u64 %0, %1;").replace("(v))", '(v) : "l"(&own[0]))'),
        lambda v: 0xFF0000 < v < 0x1000000,
    ),
    Tell("shared and local memory apart", of("(long long)&own[0] - (long long)&first[0]"), lambda v: v != 0, 8),
    Tell(
        "a parameter's generic address",
        'asm volatile("{.reg .u64 a; mov.u64 a, k_param_0; cvta.param.u64 %0, a;}" : "=l"(v));',
        mapped,
        8,
    ),
    Tell(
        "isspacep",
        "int s[5]; const void* at[5] = {first, (const void*)own, x, table, more};"
        "for (int k = 0; k < 5; ++k) s[k] = (__isShared(at[k]) ? 1 : 0) + (__isLocal(at[k]) ? 2 : 0)"
        " + (__isGlobal(at[k]) ? 4 : 0); v = s[0] + 8 * s[1] + 64 * s[2] + 512 * s[4];",
        lambda v: v == 1 + 8 * 2 + 64 * 4 + 512,
    ),
    Tell("%dynamic_smem_size", SPECIAL_32.format("%%dynamic_smem_size"), lambda v: v == 500),
    Tell("%total_smem_size", SPECIAL_32.format("%%total_smem_size"), lambda v: v % 128 == 0 and 764 <= v <= 1024),
    Tell("%aggr_smem_size", SPECIAL_32.format("%%aggr_smem_size"), lambda v: v % 128 == 0 and 1788 <= v <= 2048),
    Tell("%clock", SPECIAL_32.format("%%clock"), lambda v: v < 1 << 32, 8),
    Tell("%clock64", SPECIAL_64.format("%%clock64"), lambda v: v > 1 << 32, 8),
    Tell("%clock_hi", SPECIAL_32.format("%%clock_hi"), lambda v: v > 0, 8),
    Tell("two readings of a clock", of("-clock64()") + "v += clock64();", lambda v: 0 < v < 1000, 8),
    Tell("a clock around a sleep", of("-clock64()") + "__nanosleep(20); v += clock64();", lambda v: v > 0),
    Tell("%globaltimer", SPECIAL_64.format("%%globaltimer"), lambda v: 1.6e18 < v < 2.2e18 and v % 32 == 0, 8),
    Tell("%globaltimer_hi", SPECIAL_32.format("%%globaltimer_hi"), lambda v: 0x1600_0000 < v < 0x1F00_0000),
    Tell("%smid", SPECIAL_32.format("%%smid"), lambda v: v < 132, 8),
    Tell("%nsmid", SPECIAL_32.format("%%nsmid"), lambda v: v == 132),
    Tell("%warpid", SPECIAL_32.format("%%warpid"), lambda v: v < 64, 8),
    Tell("%nwarpid", SPECIAL_32.format("%%nwarpid"), lambda v: v == 64),
    Tell("%gridid", SPECIAL_64.format("%%gridid"), lambda v: v > 0, 8),
    Tell("%lanemask", SPECIAL_32.format("%%lanemask_le"), lambda v: v & (v + 1) == 0 and v > 0),
    Tell("the mask of active lanes", of("__activemask()"), lambda v: v == 0xFFFFFFFF),
)


@pytest.mark.parametrize("tell", TELLS, ids=[tell.name for tell in TELLS])
def test_a_value_that_tells_a_gpu(tell: Tell) -> None:
    runs = [values(tell.body, place, packed=tell.packed, arch=tell.arch) for place in PLACES]
    found = {int(one) for run in runs for one in run}
    assert all(tell.is_a_gpus(one) for one in found), sorted(map(hex, found))[:8]
    assert len({run.tobytes() for run in runs}) >= tell.least, sorted(map(hex, found))[:8]


def test_two_blocks_and_two_launches_differ() -> None:
    for name in ("%%smid", "%%clock"):
        runs = [values(SPECIAL_32.format(name), place) for place in PLACES]
        assert any(run[0] != run[64] for run in runs)
