"""What NVRTC writes for real kernels, for every generation of GPU: nothing lost, nothing added, and quickly read."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from pathlib import Path

import pytest

from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import Register, Relocation, Space, SymbolOperand, Tuple_
from tilewright.toolchain import find_toolkit
from tilewright.toolchain.nvrtc import load_nvrtc

SAMPLES = Path(__file__).parent / "samples"

KERNELS = {
    "elementwise": """
        __global__ void k(float4* y, const float4* x) {
            float4 v = x[threadIdx.x]; v.x = __expf(v.x); y[threadIdx.x] = v; }""",
    "halves": """#include <cuda_fp16.h>
        __global__ void k(__half2* y, const __half2* x, __half s) { y[0] = __hfma2(x[0], x[1], __half2half2(s)); }""",
    "brains": """#include <cuda_bf16.h>
        __global__ void k(__nv_bfloat16* y, float s) { y[threadIdx.x] = __float2bfloat16(s) * y[threadIdx.x + 1]; }""",
    "doubles": """
        __global__ void k(double* y, const double* x, int n) {
            for (int i = 0; i < n; i++) y[i] = sqrt(x[i]) / 3.0; }""",
    "atomics": """
        __global__ void k(int* y, unsigned long long* z, float* f) {
            atomicAdd(y, 1); atomicCAS(z, 1ull, 2ull); atomicMax(y + 1, 3); atomicAdd(f, 1.f); __threadfence(); }""",
    "warps": """
        __global__ void k(int* y) {
            int v = y[threadIdx.x];
            v += __shfl_up_sync(~0u, v, 1) + __ballot_sync(~0u, v) + __any_sync(~0u, v) + __match_any_sync(~0u, v);
            y[threadIdx.x] = v + __popc(__activemask()); }""",
    "shared": """extern __shared__ float dynamic[];
        __global__ void k(float* y) {
            __shared__ float tile[32][33];
            tile[threadIdx.x][threadIdx.y] = y[0];
            __syncthreads(); dynamic[threadIdx.x] = tile[threadIdx.y][threadIdx.x]; __syncthreads();
            y[1] = dynamic[0]; }""",
    "parameters": """struct S { int a; double b; float* c; char d[5]; };
        __global__ void k(const __grid_constant__ S s, S t, bool b, short h, unsigned char c, long long l) {
            s.c[b] = s.a + t.b + t.d[h & 3] + c + l; }""",
    "locals": """
        __global__ void k(int* y, int n) {
            int a[64];
            for (int i = 0; i < 64; i++) a[(i * n) & 63] = y[i];
            for (int i = 0; i < n; i++) y[i] = a[i & 63]; }""",
    "spins": """
        __global__ void k(volatile int* flag, int* y) {
            while (*flag == 0) __nanosleep(100);
            if (threadIdx.x > 3) return;
            y[0] = clock64(); }""",
    "tables": """
        __constant__ float weights[4] = {1.f, 2.f, -3.f, 0.5f};
        __device__ int counter;
        __device__ int* where = &counter;
        __global__ void k(float* y, int i) { y[0] = weights[i & 3]; atomicAdd(where, 1); }""",
    "assembly": """
        __global__ void k(float* y, const unsigned* x) {
            float d[4] = {0, 0, 0, 0};
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]));
            asm volatile("ld.global.L2::128B.f32 %0, [%1+4]; prefetch.global.L2 [%1];" : "=f"(d[1]) : "l"(y));
            asm volatile("{ .reg .pred p; .reg .b32 a, b; mov.b64 {a, b}, %1; setp.ne.b32 p, a, 0;\\n"
                "@p st.global.b32 [%0], b; }" :: "l"(y), "l"((long long)x));
            y[0] = d[0] + d[1]; }""",
}


@lru_cache(maxsize=64)
def compiled(source: str, arch: str) -> str:
    toolkit = find_toolkit()
    nvrtc = load_nvrtc(toolkit.library, toolkit.builtins)
    options = (
        f"-arch=compute_{arch}",
        "-std=c++17",
        "-lineinfo",
        "-default-device",
        *(f"-I{folder}" for folder in toolkit.search_path),
    )
    result = nvrtc.compile(source.replace("__global__", 'extern "C" __global__'), "/kernel.cu", options, ())
    assert result.ptx, result.log
    return result.ptx


def instructions_in(text: str) -> list[str]:
    """The instructions of kernel `k`, found by cutting the text at semicolons: another way than the parser's."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text[text.index(".entry k") :], flags=re.DOTALL)
    plain = plain[plain.index("{") + 1 : plain.rindex("\n}", 0, plain.index(".file"))]
    before = re.compile(r"^(\s*[{}]|\s*\.loc[^\n]*\n|\s*[\w$]+:(?!:))*")
    statements = [before.sub("", statement).strip() for statement in plain.split(";")]
    return [" ".join(each.split()) for each in statements if each and each[0] != "." and each != "}"]


@pytest.mark.parametrize("arch", ["75", "80", "90a", "100a", "121a"])
@pytest.mark.parametrize("name", KERNELS)
def test_what_nvrtc_writes(name: str, arch: str) -> None:
    text = compiled(KERNELS[name], arch)
    module = parse_ptx(text)
    function = module.functions["k"]
    assert module.target == f"sm_{arch}"
    assert [instruction.text for instruction in function.body] == instructions_in(text)
    assert function.body[-1].opcode in ("ret", "bra", "trap")
    placed = [instruction.places for instruction in function.body if instruction.places]
    assert len(placed) > len(function.body) // 2
    assert {places[-1].file for places in placed} == {"/kernel.cu"}


def test_a_place_inlined_twice_has_the_whole_chain() -> None:
    source = """__device__ float inner(float x) { return x * x + 1.f; }
        __device__ float middle(float x) {
            return inner(x) * 3.f; }
        __global__ void k(float* y) {
            y[0] = middle(y[1]); }"""
    body = parse_ptx(compiled(source, "80")).functions["k"].body
    fma = next(instruction for instruction in body if instruction.opcode == "fma")
    file = "/kernel.cu"
    assert [(place.file, place.line) for place in fma.places] == [(file, 1), (file, 3), (file, 5)]


def test_a_kernel_with_calls_of_every_sort() -> None:
    for name in ("calls_sm75.ptx", "calls_sm100a.ptx"):
        module = parse_ptx((SAMPLES / name).read_text())
        assert set(module.externals) == {"__assertfail", "vprintf"}
        assert "_Z9fibonaccii" in module.functions
        table = next(variable for variable in module.variables if variable.name == "table")
        assert [relocation.symbol for relocation in table.relocations] == ["_Z5twicef", "_Z6thricef"]
        where = next(variable for variable in module.variables if variable.name == "where")
        assert where.relocations == (Relocation(0, 8, "scale", 0, generic=True),)
        body = module.functions["calls"].body
        called = [i.operands for i in body if i.opcode == "call"]
        assert any(isinstance(operands[1], Register) for operands in called)
        assert SymbolOperand("vprintf") in {operands[1] for operands in called}
        labels = module.functions["calls"].labels
        assert {"L", "L#2"} <= set(labels)
        parameters = {v.name for v in module.functions["calls"].variables if v.space is Space.PARAM}
        for operands in called:
            for item in operands:
                if isinstance(item, Tuple_):
                    assert {each.name for each in item.items if isinstance(each, SymbolOperand)} <= parameters


def test_plain_kernels_are_read_quickly() -> None:
    text = (SAMPLES / "row_sum_sm80.ptx").read_text()
    parse_ptx(text)
    assert min(_seconds(text) for _ in range(5)) < 0.1
    # a thousand constants of headers, as CuTe leaves them
    globals_ = "".join(f".global .align 4 .u32 constant_{i} = {i};\n" for i in range(1200))
    assert min(_seconds(text.replace(".visible", globals_ + ".visible")) for _ in range(3)) < 0.5


def _seconds(text: str) -> float:
    started = time.process_time()
    parse_ptx(text)
    return time.process_time() - started
