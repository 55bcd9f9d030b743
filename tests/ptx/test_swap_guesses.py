"""Which plain loads count as the guess of a compare-and-swap loop: CUDA's own, and none that only look like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ptx.cuda_kernels import Argument, In, clean, ptx_of, run

from tilewright.ptx.control_flow import flow
from tilewright.ptx.launching import LaunchOptions
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.swap_guesses import swap_guesses
from tilewright.records import FindingKind

HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
PAIR = "__nv_bfloat162"


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of small whole numbers."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def guesses_in(source: str, arch: str = "sm_80") -> list[tuple[str, str]]:
    """The loads and their swaps, as text, of the kernel `k`."""
    function = parse_ptx(ptx_of(source, arch)).functions["k"]
    found = swap_guesses(function, flow(function))
    return [(function.body[load].text, swap.text) for load, swap in found.items()]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("used", ["", "o[blockIdx.x * 64 + threadIdx.x] = "], ids=["alone", "returned"])
@pytest.mark.parametrize("kind", ["__nv_bfloat162", "__nv_bfloat16", "__half2", "__half"])
def test_atomic_add_of_halves_is_clean(kind: str, used: str, seed: int | None) -> None:
    source = f"""{HEADERS}extern "C" __global__ void k({kind}* y, {kind}* o, const {kind}* x) {{
      {used}atomicAdd(y + 2 + threadIdx.x % 2, x[threadIdx.x]);
    }}"""
    width = 2 if kind.endswith("2") else 1
    ones = np.ones(64 * width)
    bits = bf16(ones) if "bf" in kind else ones.astype(np.float16).view(np.uint16)
    arguments: dict[str, Argument] = {"y": np.zeros(4 * width, np.uint16), "o": np.zeros(256 * width, np.uint16)}
    arguments["x"] = In(bits)
    ran = clean(source, arguments, block=(64,), grid=(4,), options=LaunchOptions(seed=seed, workers=1))
    total = np.full(2 * width, 128.0)
    expected = bf16(total) if "bf" in kind else total.astype(np.float16).view(np.uint16)
    assert ran["y"][2 * width :].tolist() == expected.tolist()
    if used:
        given = np.sort(ran["o"].astype(np.int64))[: 2 * width]
        assert given.tolist() == [0] * (2 * width), "exactly one thread found each element at zero"


def test_several_os_threads_are_clean_too() -> None:
    source = f"""{HEADERS}extern "C" __global__ void k({PAIR}* y) {{
      atomicAdd(y, __floats2bfloat162_rn(1, 2));
    }}"""
    for _ in range(3):
        ran = clean(source, {"y": np.zeros(2, np.uint16)}, block=(64,), grid=(2,), options=LaunchOptions(workers=2))
        assert ran["y"].tolist() == bf16(np.array([128, 256])).tolist()


@pytest.mark.parametrize("pointer", ["shared", "n ? shared : y"], ids=["shared", "generic"])
def test_in_shared_memory_and_through_generic_addresses(pointer: str) -> None:
    source = f"""{HEADERS}extern "C" __global__ void k({PAIR}* y, int n) {{
      __shared__ {PAIR} shared[8];
      if (threadIdx.x < 8) shared[threadIdx.x] = y[threadIdx.x];
      __syncthreads();
      {PAIR}* p = {pointer};
      for (int i = 0; i < 3; ++i) atomicAdd(p + threadIdx.x % 4 + i, __floats2bfloat162_rn(1, 1));
      __syncthreads();
      if (n && threadIdx.x < 8) y[threadIdx.x] = shared[threadIdx.x];
    }}"""
    for n in (1, 0) if "n ?" in pointer else (1,):
        ran = clean(source, {"y": np.zeros(16, np.uint16), "n": n}, block=(128,))
        assert ran["y"][::2].tolist() == bf16(np.array([32, 64, 96, 96, 64, 32, 0, 0])).tolist()


# -- by hand --

LOOP = """extern "C" __global__ void k(int* p, int* out, int n) {{
  int* at = p + blockIdx.x % 2;
  {body}
}}"""
RIGHT = {
    "as in the manual": "int old = *at, seen; do { seen = old; old = atomicCAS(at, seen, seen * 3 + n); }"
    " while (old != seen);",
    "with a branch": "int old = *at, seen; do { seen = old; int next = seen > 7 ? seen / n : seen + n;"
    " old = atomicCAS(at, seen, next); } while (old != seen);",
    "what was there is kept": "int old = *at, seen; do { seen = old; old = atomicCAS(at, seen, seen + n); }"
    " while (old != seen); out[blockIdx.x * 32 + threadIdx.x] = old;",
    "for each of several": "for (int i = 0; i < n; ++i) { int old = at[i], seen; do { seen = old;"
    " old = atomicCAS(at + i, seen, seen + 1); } while (old != seen); }",
}
WRONG = {
    "no swap": "atomicAdd(at, 1); out[blockIdx.x * 32 + threadIdx.x] = *at;",
    "left early": "int old = *at, seen; while (old < n * 1000) { seen = old; old = atomicCAS(at, seen, seen + n);"
    " if (old == seen) break; }",
    "kept before the swap": "int old = *at, seen; out[blockIdx.x * 32 + threadIdx.x] = old; do { seen = old;"
    " old = atomicCAS(at, seen, seen + n); } while (old != seen);",
    "an address": "int old = *at, seen; int more = out[old & 63]; do { seen = old;"
    " old = atomicCAS(at, seen, seen + more); } while (old != seen);",
    "something is done about it": "int old = *at, seen; if (old > n) out[blockIdx.x * 32 + threadIdx.x] = 1;"
    " do { seen = old; old = atomicCAS(at, seen, seen + n); } while (old != seen);",
    "kept after the swap": "int first = *at, old = first, seen; do { seen = old; old = atomicCAS(at, seen, seen + n); }"
    " while (old != seen); out[blockIdx.x * 32 + threadIdx.x] = first;",
    "given up": "int old = *at, seen, rounds = 0; do { seen = old; old = atomicCAS(at, seen, seen + n); }"
    " while (old != seen && ++rounds < n); out[blockIdx.x * 32 + threadIdx.x] = seen;",
    "read anew each round": "int seen; do { seen = *at; } while (atomicCAS(at, seen, seen + n) != seen);",
    "compared with something else": "int old = *at; atomicCAS(at, n, old + n);",
    "tried once": "int old = *at; out[blockIdx.x * 32 + threadIdx.x] = atomicCAS(at, old, old + n) + old;",
    "compared as numbers": "float old = *(float*)at, seen; do { seen = old; old = __int_as_float(atomicCAS(at,"
    " __float_as_int(seen), __float_as_int(seen + n))); } while (old != seen);",
    "told to the warp": "int old = *at, seen; n = __shfl_xor_sync(~0u, old, 1); do { seen = old;"
    " old = atomicCAS(at, seen, seen + n); } while (old != seen);",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loop_by_hand_is_clean(name: str) -> None:
    source = LOOP.format(body=RIGHT[name])
    assert guesses_in(source)
    for seed in (None, 3):
        arguments: dict[str, Argument] = {"p": np.zeros(8, np.int32), "out": np.zeros(256, np.int32), "n": 3}
        clean(source, arguments, grid=(8,), options=LaunchOptions(seed=seed, workers=1))


@pytest.mark.parametrize("name", WRONG)
def test_a_plain_read_among_atomics_is_still_a_race(name: str) -> None:
    source = LOOP.format(body=WRONG[name])
    assert guesses_in(source) == []
    arguments: dict[str, Argument] = {"p": np.zeros(8, np.int32), "out": np.zeros(256, np.int32), "n": 3}
    finding = run(source, arguments, grid=(8,), options=LaunchOptions(seed=3, workers=1)).only(FindingKind.RACE_GLOBAL)
    assert finding.where.startswith("p[")


def test_a_guess_that_others_write_plainly_is_a_race() -> None:
    body = "if (blockIdx.x == 3 && threadIdx.x == 5) at[0] = n; else { " + RIGHT["as in the manual"] + " }"
    source = LOOP.format(body=body)
    assert guesses_in(source)
    arguments: dict[str, Argument] = {"p": np.zeros(8, np.int32), "out": np.zeros(256, np.int32), "n": 3}
    found = run(source, arguments, grid=(8,))
    assert found.kinds == {FindingKind.RACE_GLOBAL}


def test_the_swap_of_a_block_guesses_for_its_block() -> None:
    body = RIGHT["as in the manual"].replace("atomicCAS", "atomicCAS_block")
    source = LOOP.format(body=body)
    arguments: dict[str, Argument] = {"p": np.zeros(8, np.int32), "out": np.zeros(256, np.int32), "n": 3}
    clean(source, arguments, grid=(2,), block=(64,))  # a place for each block
    assert run(source, arguments, grid=(4,)).kinds == {FindingKind.RACE_GLOBAL}
