"""Regions and their words, loads and stores of every space and width, and what is found wrong with them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.ptx.cuda_kernels import QUICK, Fresh, In, clean, program_of, run

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchRequest
from tilewright.records import FindingKind

PLAIN = """extern "C" __global__ void k(const float* x, float* y, int n, int shift) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i + shift];
}"""


# -- regions --


def test_regions_lie_far_apart_and_are_named() -> None:
    memory = GlobalMemory()
    x = memory.add("x", 48, element_bytes=4, shape=(3, 4), data=bytes(range(48)))
    y = memory.add("y", 8, element_bytes=8, shape=())
    assert x % 256 == y % 256 == 0
    assert y - x >= 1 << 30
    assert memory.describe(0, x + 4 * 6) == "x[1, 2]"
    assert memory.describe(0, x + 4 * 6 + 1) == "x[1, 2] (its byte 1)"
    assert memory.describe(0, x + 48) == "0 bytes after the end of x"
    assert memory.describe(0, x - 1) == "1 byte before the start of x"
    assert memory.describe(0, y) == "y"
    assert "near no tensor" in memory.describe(0, 0x1234)
    assert list(memory.bytes("x")) == list(range(48))


def test_eight_places_have_every_low_part_of_an_address() -> None:
    """A kernel that looks at any three bits of where a tensor lies is given all that they can be."""
    placed = [GlobalMemory(place) for place in range(304, 312)]
    addresses = {name: [memory.add(name, 64) for memory in placed] for name in "xyz"}
    for found in addresses.values():
        assert all(one % 256 == 0 for one in found)
        for bit in range(8, 20):
            assert {one >> bit & 7 for one in found} == set(range(8)), bit
    apart = {y - x for x, y in zip(addresses["x"], addresses["y"], strict=True)}
    assert len(apart) == 8


def test_a_view_with_gaps_knows_its_elements() -> None:
    memory = GlobalMemory()
    x = memory.add("x", 4 * 20, element_bytes=4, shape=(3, 4), stride=(7, 1))
    assert memory.describe(0, x + 4 * (2 * 7 + 3)) == "x[2, 3]"
    assert memory.describe(0, x + 4 * 5) == "8 bytes after x[0, 3], between the elements of x"


def test_an_array_is_used_in_place_and_bytes_are_copied() -> None:
    memory, array = GlobalMemory(), np.zeros(16, np.uint8)
    memory.add("a", 16, data=array)
    memory.bytes("a")[3] = 7
    assert array[3] == 7
    with pytest.raises(ValueError, match="has 4 bytes, not 16"):
        memory.add("b", 16, data=b"1234")
    with pytest.raises(ValueError, match="already has a region"):
        memory.add("a", 16)
    with pytest.raises(ValueError, match="shape and stride reach 32"):
        memory.add("c", 16, element_bytes=4, shape=(2, 4))


# -- global: bounds, alignment, initialisation, inputs --


def test_an_overrun_is_found_with_its_thread_line_and_index() -> None:
    x = np.arange(100, dtype=np.float32)
    ran = run(PLAIN, {"x": In(x), "y": np.zeros(100, np.float32), "n": 100, "shift": 2}, grid=(4,))
    finding = ran.only(FindingKind.OUT_OF_BOUNDS_GLOBAL)
    assert finding.count == 2
    assert finding.where == "0 bytes after the end of x"
    assert (finding.thread.block, finding.thread.thread) == ((3, 0, 0), (2, 0, 0))
    assert finding.line == 3
    assert "ld.global" in finding.ptx_text
    assert list(ran["y"]) == [*range(2, 100), 0, 0]  # what was out of bounds reads as zero


def test_an_access_into_the_gap_between_rows_is_found() -> None:
    program = program_of(PLAIN)
    memory = GlobalMemory()
    x = memory.add("x", 4 * 64, element_bytes=4, shape=(8, 6), stride=(8, 1), writable=False)
    y = memory.add("y", 4 * 64, element_bytes=4, shape=(64,))
    request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), 0, struct.pack("<QQii", x, y, 7, 0), options=QUICK)
    (finding,) = program.launch(memory, request).findings
    assert finding.kind is FindingKind.OUT_OF_BOUNDS_GLOBAL
    assert finding.where == "4 bytes after x[0, 5], between the elements of x"
    assert finding.count == 1


def test_writing_an_input_changes_nothing_and_is_found() -> None:
    source = """extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }"""
    ran = run(source, {"x": In(np.zeros(32, np.float32))})
    assert ran.only(FindingKind.INPUT_WRITTEN).count == 32
    assert not ran["x"].any()


def test_reading_what_nothing_wrote_is_found_across_launches() -> None:
    program = program_of(PLAIN)
    memory = GlobalMemory()
    x = memory.add("x", 128, element_bytes=4, shape=(32,), initialised=False)
    y = memory.add("y", 128, element_bytes=4, shape=(32,), initialised=False)
    assert not memory.written("x").any()

    def launch(source: int, to: int, n: int) -> tuple[FindingKind, ...]:
        request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), 0, struct.pack("<QQii", source, to, n, 0), options=QUICK)
        return tuple(finding.kind for finding in program.launch(memory, request).findings)

    assert launch(x, y, 32) == (FindingKind.UNINITIALISED_GLOBAL,)
    memory.mark_initialised("x")
    y = memory.add("fresh", 128, element_bytes=4, shape=(32,), initialised=False)
    assert launch(x, y, 20) == ()
    assert memory.written("fresh").sum() == 80
    assert launch(y, x, 20) == ()
    assert launch(y, x, 21) == (FindingKind.UNINITIALISED_GLOBAL,)


@pytest.mark.parametrize(("kind", "bytes_"), [("float4", 16), ("float2", 8), ("double", 8), ("int", 4), ("short", 2)])
def test_a_misaligned_access_is_found(kind: str, bytes_: int) -> None:
    source = f"""extern "C" __global__ void k(const char* x, {kind}* y, int off) {{
      y[threadIdx.x] = *(const {kind}*)(x + off);
    }}"""
    arguments = {"x": In(np.zeros(64, np.uint8)), "y": np.zeros(32 * bytes_, np.uint8)}
    finding = run(source, {**arguments, "off": bytes_ // 2}).only(FindingKind.MISALIGNED)
    assert finding.detail == f"an access of {bytes_} bytes"
    clean(source, {**arguments, "off": bytes_})


def test_wild_pointers_touch_nothing() -> None:
    source = """extern "C" __global__ void k(unsigned long long* p, int* y) {
      int* a = (int*)p[threadIdx.x]; y[threadIdx.x] = *a; *a = 3; atomicAdd(a, 1);
    }"""
    wild = np.array(
        [0, 8, 2**63, 2**64 - 4, 0x7FFFFFFFF000, 0x7E0000000000, 0x7D0000000000, 0x7C0000000000] * 4, np.uint64
    )
    wild[8:] += np.arange(24, dtype=np.uint64) * np.uint64(0x123456788)
    ran = run(source, {"p": In(wild), "y": np.zeros(32, np.int32)})
    assert ran.kinds <= {
        FindingKind.OUT_OF_BOUNDS_GLOBAL,
        FindingKind.OUT_OF_BOUNDS_SHARED,
        FindingKind.OUT_OF_BOUNDS_LOCAL,
        FindingKind.INPUT_WRITTEN,
        FindingKind.MISALIGNED,
    }
    assert FindingKind.OUT_OF_BOUNDS_GLOBAL in ran.kinds


# -- widths, vectors, signs --


def test_every_width_and_sign_is_loaded_extended_and_stored() -> None:
    source = """template <typename T> __device__ void one(const void* x, long long* y, void* z, int at) {
      T v = ((const T*)x)[threadIdx.x]; y[at * 32 + threadIdx.x] = (long long)v; ((T*)z)[threadIdx.x] = v;
    }
    extern "C" __global__ void k(const void* x, long long* y, char* z) {
      one<signed char>(x, y, z, 0); one<unsigned char>(x, y, z + 32, 1); one<short>(x, y, z + 64, 2);
      one<unsigned short>(x, y, z + 128, 3); one<int>(x, y, z + 192, 4); one<unsigned>(x, y, z + 320, 5);
      one<long long>(x, y, z + 448, 6);
    }"""
    x = np.random.default_rng(0).integers(0, 256, 256, dtype=np.uint8)
    ran = clean(source, {"x": In(x), "y": np.zeros(224, np.int64), "z": np.zeros(704, np.uint8)})
    types = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)
    at = 0
    for number, dtype in enumerate(types):
        expected = x.view(dtype)[:32]
        assert (ran["y"][32 * number : 32 * number + 32] == expected.astype(np.int64)).all(), dtype
        size = 32 * np.dtype(dtype).itemsize
        assert (ran["z"][at : at + size] == x[:size]).all()
        at += size


def test_vectors_and_partial_warps() -> None:
    source = """extern "C" __global__ void k(const float4* x, float4* y, const short4* s, short4* t,
      const double2* d, double2* e, int n) {
      int i = threadIdx.x;
      if (i < n) { float4 v = x[n - 1 - i]; y[i] = make_float4(v.w, v.z, v.y, v.x); t[i] = s[i];
        double2 q = d[i]; e[i] = make_double2(q.y, q.x); }
    }"""
    n = 45
    x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
    s = np.arange(4 * n, dtype=np.int16)
    d = np.arange(2 * n, dtype=np.float64).reshape(n, 2)
    arguments = {"x": In(x), "y": Fresh(x), "s": In(s), "t": Fresh(s), "d": In(d), "e": Fresh(d), "n": n}
    ran = clean(source, arguments, block=(64,))
    assert (ran["y"].reshape(n, 4) == x[::-1, ::-1]).all()
    assert (ran["t"] == s).all()
    assert (ran["e"].reshape(n, 2) == d[:, ::-1]).all()


# -- shared, local, constant, parameters, generic --


def test_shared_memory_out_of_bounds_between_variables_and_uninitialised() -> None:
    source = """extern "C" __global__ void k(float* y, int i, int j) {
      __shared__ float a[16]; __shared__ float b[16]; extern __shared__ float c[];
      int t = threadIdx.x;
      if (t < 16) { a[t] = t; b[t] = 2 * t; }
      c[t] = 3 * t;
      __syncthreads();
      y[t] = a[i] + b[t % 16] + c[j];
    }"""
    y = np.zeros(32, np.float32)
    ran = clean(source, {"y": y, "i": 15, "j": 31}, smem=128)
    assert list(ran["y"]) == [15 + 2 * (t % 16) + 93 for t in range(32)]
    finding = run(source, {"y": y, "i": 16, "j": 0}, smem=128).only(FindingKind.OUT_OF_BOUNDS_SHARED)
    assert finding.where.startswith("0 bytes after the end of")
    assert "a" in finding.where
    run(source, {"y": y, "i": 0, "j": 32}, smem=128).only(FindingKind.OUT_OF_BOUNDS_SHARED)
    finding = run(source, {"y": y, "i": 0, "j": 32}, smem=132).only(FindingKind.UNINITIALISED_SHARED)
    assert finding.where.startswith("byte 128 of c")
    plain = run(source, {"y": y, "i": 0, "j": 32}, smem=132, checks=())
    assert not plain.result.findings


def test_local_arrays() -> None:
    source = """extern "C" __global__ void k(int* y, int n, int at) {
      int held[24];
      for (int i = 0; i < n; ++i) held[(i * 7) % 24] = i * threadIdx.x;
      y[threadIdx.x] = held[at];
    }"""
    y = np.zeros(64, np.int32)
    ran = clean(source, {"y": y, "n": 24, "at": 14}, block=(64,))
    assert list(ran["y"]) == [2 * t for t in range(64)]
    assert run(source, {"y": y, "n": 2, "at": 14}, block=(64,)).only(FindingKind.UNINITIALISED_LOCAL).count == 64
    run(source, {"y": y, "n": 24, "at": 400}, block=(64,)).only(FindingKind.OUT_OF_BOUNDS_LOCAL)


def test_constants_module_variables_and_large_parameters() -> None:
    source = """struct Big { int a[40]; double d; };
    __constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
    __device__ int counter = 5;
    __device__ int* where = &counter;
    extern "C" __global__ void k(float* y, Big big, int i) {
      int t = threadIdx.x;
      y[t] = table[t % 4] + big.a[(t * i) % 40] + big.d;
      if (t == 0) atomicAdd(where, 2);
    }"""
    program = program_of(source)
    memory = GlobalMemory()
    y = memory.add("y", 128, element_bytes=4)
    parameters = struct.pack("<Q40idi", y, *range(100, 140), 0.25, 3)
    for launch in (1, 2):
        request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), 0, parameters, options=QUICK)
        assert not program.launch(memory, request).findings
        table = [1.5, 2.5, 3.5, 4.5]
        expected = [table[t % 4] + 100 + (t * 3) % 40 + 0.25 for t in range(32)]
        assert list(memory.bytes("y").view(np.float32)) == expected
        counter = next(region for region in memory.regions(program.number) if region.name == "counter")
        assert counter.data.view(np.int32)[0] == 5 + 2 * launch


def test_generic_pointers_into_several_spaces_at_once() -> None:
    source = """extern "C" __global__ void k(int* x, int* y) {
      __shared__ int s[32]; int mine[4] = {1, 2, 3, threadIdx.x};
      int t = threadIdx.x;
      s[t] = 100 + t; __syncwarp();
      int* p = t % 3 == 0 ? x + t : t % 3 == 1 ? s + t : mine + y[t] % 4;
      y[t] = *p; *p = t;
      __syncwarp();
      y[32 + t] = s[t] + x[t] + mine[3];
      y[64 + t] = __isShared(p) * 4 + __isGlobal(p) * 2 + __isLocal(p);
    }"""
    y = np.zeros(96, np.int32)
    y[:32] = 3
    ran = clean(source, {"x": np.arange(32, dtype=np.int32) * 10, "y": y})
    assert list(ran["y"][:32]) == [(10 * t, 100 + t, t)[t % 3] for t in range(32)]
    assert list(ran["y"][32:64]) == [
        (100 + t if t % 3 != 1 else t) + (10 * t if t % 3 != 0 else t) + t for t in range(32)
    ]
    assert list(ran["y"][64:]) == [(2, 4, 1)[t % 3] for t in range(32)]
