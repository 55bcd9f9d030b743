"""What a build may not contain, found in the PTX of real compilations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.records import Build, BuildFailure, FailureReason

Compiled = Callable[..., Build]
Refused = Callable[..., BuildFailure]


@pytest.mark.parametrize(
    ("source", "symbol", "line"),
    [
        ('__global__ void k(float* x) {\n  printf("%d", 3);\n}', "vprintf", 2),
        ("__global__ void k(float* x) {\n  int* p = (int*)malloc(8);\n  p[0] = 1; x[0] = p[1];\n}", "malloc", 2),
        ("__global__ void k(int* x) {\n  free(x);\n}", "free", 2),
        (
            'extern "C" __device__ float other(float);\n__global__ void k(float* x) {\n\n  x[0] = other(x[1]);\n}',
            "other",
            4,
        ),
    ],
)
def test_functions_that_nothing_defines(refused: Refused, source: str, symbol: str, line: int) -> None:
    failure = refused(source)
    assert failure.reason is FailureReason.EXTERNAL
    assert failure.diagnostics[0].line == line
    assert symbol in failure.diagnostics[0].message


def test_assertions_are_allowed(compiled: Compiled) -> None:
    build = compiled("__global__ void k(float* x) { assert(x[0] > 3); x[1] = 1; }")
    assert "__assertfail" in build.ptx


KERNEL = "__global__ void k(int* x) {\n"
STATE = [
    ("__device__ int g;\n" + KERNEL + "  g = x[0];\n}", "g", 3),
    ("#define D __device__\nD int g;\n" + KERNEL + "  x[0] = atomicAdd(&g, 1);\n}", "g", 4),
    ("#define CAT(a, b) a##b\nCAT(__dev, ice__) int g;\n" + KERNEL + "  g = x[0];\n}", "g", 4),
    ("int g;\n" + KERNEL + "  if (x[0]) g = 1;\n}", "g", 3),
    ("namespace a { int g[4]; }\n" + KERNEL + "  a::g[x[0]] = 1;\n}", "_ZN1a1gE", 3),
    (KERNEL + "  static int calls;\n  x[0] = calls++;\n}", "_ZZ1kPiE5calls", 3),
    ("struct S { static int g; };\nint S::g;\n" + KERNEL + "  S::g = x[0];\n}", "_ZN1S1gE", 4),
    ("__device__ int g;\n__global__ void k(int** x) {\n  x[0] = &g;\n}", "g", 3),
    ("__device__ int g;\n__device__ int* p = &g;\n" + KERNEL + "  p[0] = x[0];\n}", "g", 0),
    ("__device__ __managed__ int g;\n" + KERNEL + "  g = x[0];\n}", "g", 3),
    (KERNEL + '  asm volatile("{ .global .u32 g; st.global.u32 [g], 1; }");\n}', "g", 2),
    ("const int t[4] = {1, 2, 3, 4};\n" + KERNEL + "  const_cast<int*>(t)[x[0]] = 1;\n}", "t", 3),
    ("__device__ float4 g;\n__global__ void k(float4* x) {\n  g = x[0];\n}", "g", 3),
    (
        "__device__ int g;\n__device__ __noinline__ void put(int* p, int v) { *p = v; }\n"
        + KERNEL
        + "  put(&g, x[0]); put(x, 3);\n}",
        "g",
        4,
    ),
    ("__device__ int g;\n__device__ __noinline__ void put(int v) {\n  g = v;\n}\n" + KERNEL + "  put(x[0]); }", "g", 3),
    (KERNEL + '  asm volatile("{ .global .u32 g, h; st.global.u32 [g], 1; }");\n}', "g", 2),
    (KERNEL + '  asm volatile("{ .global .u32 h[2] = {1, 2}, g; st.global.u32 [g], 1; }");\n}', "g", 2),
    (
        KERNEL + """  asm volatile(R"({ .pragma "/*"; .global .u32 g; st.global.u32 [g], 1; .pragma "*/"; })");\n}""",
        "g",
        2,
    ),
    (KERNEL + """  asm volatile(R"({ .global .u32 g; .pragma "}}"; st.global.u32 [g], 1; })");\n}""", "g", 2),
    (
        "__constant__ int t[2] = {1, 2};\n"
        + KERNEL
        + '  long long a;\n  asm volatile("cvta.const.u64 %0, t;" : "=l"(a)); *(volatile int*)a = x[0];\n}',
        "t",
        4,
    ),
    # A reduction writes as a store does, though nothing comes back.
    (KERNEL + '  asm volatile("{ .global .u32 g; red.global.add.u32 [g], 1; }");\n}', "g", 2),
    (
        "__device__ int g;\n" + KERNEL + '  asm volatile("red.global.max.s32 [%0], %1;" ::"l"(&g), "r"(x[0]));\n}',
        "g",
        3,
    ),
    # An address put together again from its bits: by comparisons, by a carry, by look-ups.
    (
        "const int t[2] = {1, 2};\n"
        + KERNEL
        + "  long long a = 0;\n  for (int i = 0; i < 64; ++i) {\n    long long v;\n"
        + '    asm volatile("{ .reg .pred p; .reg .b64 b; and.b64 b, %1, %2; setp.ne.u64 p, b, 0;"'
        + ' "selp.u64 %0, %2, 0, p; }" : "=l"(v) : "l"(t), "l"(1ll << i));\n    a |= v;\n  }\n'
        + "  *(volatile int*)a = x[0];\n}",
        "t",
        6,
    ),
    (
        "const int t[2] = {1, 2};\n"
        + KERNEL
        + '  long long v;\n  asm volatile("{ .reg .b64 b; add.cc.u64 b, %1, %2; addc.u64 %0, 0, 0; }"'
        + ' : "=l"(v) : "l"(t), "l"(1ll << 63));\n  *x = v;\n}',
        "t",
        4,
    ),
    (
        "const int t[2] = {1, 2};\n"
        + KERNEL
        + "  __shared__ volatile int same[256]; same[threadIdx.x] = threadIdx.x;\n"
        + "  x[0] = same[(long long)t >> 4 & 255];\n}",
        "t",
        4,
    ),
]


@pytest.mark.parametrize(("source", "symbol", "line"), STATE)
def test_writes_to_module_globals(refused: Refused, source: str, symbol: str, line: int) -> None:
    failure = refused(source)
    assert failure.reason is FailureReason.DEVICE_STATE
    assert any(f"module global {symbol}," in d.message and d.line == line for d in failure.diagnostics)


READ_ONLY = [
    "__device__ const float t[4] = {1, 2, 3, 4};\n__global__ void k(float* x, int n) { x[0] = t[n]; }",
    "constexpr float t[4] = {1, 2, 3, 4};\n__global__ void k(float* x, int n) { x[0] = t[n]; }",
    "__constant__ float t[4] = {1, 2, 3, 4};\n__global__ void k(float* x, int n) { x[0] = t[n]; }",
    "__device__ float t[4] = {1, 2, 3, 4};\n__global__ void k(float* x, int n) { x[0] = t[n]; }",
    "__global__ void k(float* x, int n) { static const float t[4] = {1, 2, 3, 4}; x[0] = t[n] + t[n + 1]; }",
    "__device__ const float4 t[2] = {{1, 2, 3, 4}};\n__global__ void k(float4* x, int n) { x[0] = t[n]; }",
    "__device__ int g;\n__global__ void other(int* x) { g = 1; }\n__global__ void k(int* x) { x[0] = g; }",
    "__global__ void k(float* x) { __shared__ float s[64]; s[threadIdx.x] = x[0]; __syncthreads(); x[0] = s[1]; }",
    "__global__ void k(double* x, float* y) { x[0] = sin(x[0]) + pow(x[1], x[2]); y[0] = sinf(y[1] * 1e10f); }",
    "__device__ const char text[3] = {1, 2, 3};\n__global__ void k(int* x) { assert(x[0]); x[1] = text[x[2]]; }",
]


@pytest.mark.parametrize("source", READ_ONLY)
def test_tables_that_are_only_read_are_fine(compiled: Compiled, source: str) -> None:
    compiled(source)


@pytest.mark.parametrize(
    ("expression", "register"),
    [
        ("clock()", "%clock"),
        ("clock64()", "%clock64"),
        ('([] { long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; })()', "%globaltimer"),
        ('([] { int t; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t)); return t; })()', "%globaltimer_lo"),
        ('([] { long long t; asm volatile("mov.u64 %0, %%gridid;" : "=l"(t)); return t; })()', "%gridid"),
        ('([] { int t; asm volatile("mov.u32 %0, %%smid;" : "=r"(t)); return t; })()', "%smid"),
        (
            '([] { long long t; asm("mov.u64 %0, %%current_graph_exec;" : "=l"(t)); return t; })()',
            "%current_graph_exec",
        ),
        ('([] { int t; asm volatile("mov.u32 %0, %%pm0;" : "=r"(t)); return t; })()', "%pm0"),
    ],
)
def test_clocks_and_marks_of_the_call(refused: Refused, expression: str, register: str) -> None:
    failure = refused(f"__global__ void k(long long* x) {{\n  x[0] = {expression};\n}}")
    assert failure.reason is FailureReason.DEVICE_CALL
    assert failure.diagnostics[0].line == 2
    assert register in failure.diagnostics[0].message


BARRIER = """#include <cuda/barrier>
__global__ void k(float* x) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  WAIT;
  x[threadIdx.x] = 1;
}
"""


def test_a_library_barrier_may_back_off_by_the_clock(compiled: Compiled) -> None:
    assert "%globaltimer" in compiled(BARRIER.replace("WAIT", "bar.arrive_and_wait()")).ptx


def test_a_timed_wait_may_not(refused: Refused) -> None:
    wait = "bar.try_wait_for(bar.arrive(), cuda::std::chrono::nanoseconds(100))"
    assert refused(BARRIER.replace("WAIT", wait)).reason is FailureReason.DEVICE_CALL


@pytest.mark.slow
def test_a_place_forged_in_assembly_is_no_excuse(compiled: Compiled, refused: Refused) -> None:
    ptx = compiled(BARRIER.replace("WAIT", "bar.arrive_and_wait()")).ptx
    place = next(line for line in reversed(ptx[: ptx.index("%globaltimer;")].splitlines()) if ".loc" in line).strip()
    head, tail = place[:4], place[4:]
    assert head == ".loc"
    forged = f'long long t; asm volatile(".lo" OC "{tail}\\n mov.u64 %0, %%globaltimer;" : "=l"(t)); x[0] = t'
    wait = f"bar.arrive_and_wait(); {forged}"
    failure = refused('#define OC "c"\n' + BARRIER.replace("WAIT", wait))
    assert failure.reason is FailureReason.DEVICE_CALL
    written_out = wait.replace('".lo" OC "', '".loc')
    assert refused(BARRIER.replace("WAIT", written_out)).reason is FailureReason.DEVICE_CALL


def test_a_barrier_beside_plain_assembly_may_back_off(compiled: Compiled) -> None:
    wait = 'bar.arrive_and_wait(); int lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane)); x[0] = lane'
    assert "%globaltimer" in compiled(BARRIER.replace("WAIT", wait)).ptx


def test_parameters_that_are_stored_through_are_told_from_those_only_read(compiled: Callable[..., Build]) -> None:
    build = compiled(
        """__device__ __noinline__ void put(float* at) { *at = 1.f; }
        __global__ void k(float* read, float* written, float* added, float* called, float* hidden, int n,
            float** table) {
          float* either = n > 3 ? read : hidden;
          written[n] = read[n] + reinterpret_cast<float4*>(read)[1].x + either[2];
          atomicAdd(added + n, 1.f);
          put(called);
          table[0] = hidden;
        }"""
    )
    only_read = [parameter.only_read for parameter in build.kernels[0].parameters]
    assert only_read == [True, False, False, False, False, False, False]
