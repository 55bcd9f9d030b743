"""Address slices: what a call writes and reads, followed for all blocks, one after the other and all at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tilewright.devices.emulation import address_run
from tilewright.devices.emulation.address_run import follow_addresses
from tilewright.kernel_file import parse
from tilewright.ptx.program import load_program
from tilewright.ptx.slicing import slice_kernel
from tilewright.records import (
    PROFILES,
    DType,
    Emulation,
    FindingKind,
    FollowedAddresses,
    InputTensor,
    Integers,
    Limits,
    TensorSpec,
)
from tilewright.toolchain import BuiltPlan, build_plan

N = 100_003
H100 = PROFILES["H100"]


@pytest.fixture(params=("one by one", "at once"))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(address_run, "_MANY_THREADS", 1 if request.param == "at once" else 1 << 60)
    return str(request.param)


def vector(n: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(dtype, (n,), (1,))


def followed(text: str, given: Mapping[str, np.ndarray] | None = None, **specs: TensorSpec) -> FollowedAddresses:
    """With contents for the inputs that are `given` only."""
    built = build_plan(parse(text), specs, H100, None, isolated=False)
    assert isinstance(built, BuiltPlan), str(built)
    assert built.build is not None
    inputs = tuple(InputTensor(name, spec, Integers(1, 0, 1)) for name, spec in specs.items())
    contents = {name: array.reshape(-1).view(np.uint8).copy() for name, array in (given or {}).items()}
    unknown = tuple(name for name in specs if name not in contents)
    how = Emulation(addresses=True, unknown=unknown, seed=3)
    job = built.job("slice", inputs, returns=(), limits=Limits(30.0), emulation=how)
    assert job.ptx is not None
    return follow_addresses(job, load_program(job.ptx), contents)


def by_elements(launch: str, body: str, out: str = "y: f32[x.shape]") -> str:
    return f"""\
//! op      scale(x) -> y
//! out     {out}
//! let     n = x.numel
//! launch  run<<<{launch}>>>(x, y, n)
__global__ void run(const float* __restrict__ x, float* __restrict__ y, int n) {{
{body}
}}
"""


PLAIN = "int i = blockIdx.x * 128 + threadIdx.x; if (i < n) y[i] = tanhf(x[i]);"


def test_every_element_is_written_and_read(way: str) -> None:
    found = followed(by_elements("ceil_div(n, 128), 128", PLAIN), x=vector(N))
    assert str(found) == f"written: all {N:,} elements of y by 1 launch; read: all of x"
    assert not found.findings
    assert not found.twice
    assert {one.blocks for one in found.paths} == {1, N // 128}  # the tail is a way of its own
    assert next(one.example for one in found.paths if one.blocks == 1) == N // 128


@pytest.mark.parametrize(
    ("launch", "body", "written", "first"),
    [
        ("min(ceil_div(n, 128), 700), 128", PLAIN, 700 * 128, 700 * 128),
        ("ceil_div(n, 256), 128", PLAIN, (N // 256 + 1) * 128, (N // 256 + 1) * 128),
        ("ceil_div(n, 128), 128", PLAIN.replace("i < n", "i < n - 1"), N - 1, N - 1),
        ("ceil_div(n, 128), 128", PLAIN.replace("i < n", "i < n && i % 7 != 3"), N - (N + 3) // 7, 3),
        (
            "ceil_div(n, 16), 16",
            "unsigned short i = blockIdx.x * 16 + threadIdx.x; if (i < n) y[i] = x[i];",
            65536,
            65536,
        ),
        ("ceil_div(n, 128), 128", PLAIN.replace("int i", "if (blockIdx.x == 5) return; int i"), N - 128, 640),
        (
            "40, 128",
            "for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += 41 * 128) y[i] = x[i];",
            N - sum(max(0, min(128, N - at)) for at in range(40 * 128, N, 41 * 128)),
            40 * 128,
        ),
    ],
)
def test_what_is_left_out_is_counted(way: str, launch: str, body: str, written: int, first: int) -> None:
    found = followed(by_elements(launch, body), x=vector(N))
    (one,) = found.written
    assert (one.touched, one.first_left) == (written, (first,))
    (finding,) = found.findings
    assert finding.kind is FindingKind.OUTPUT_NOT_WRITTEN
    assert finding.where == f"y[{first}]"
    assert f"{N - written:,} of {N:,} elements of y" in finding.detail


def test_an_index_through_a_float_leaves_elements() -> None:
    n = (1 << 24) + 4000
    body = "int i = (int)(blockIdx.x * 128.f + (float)threadIdx.x); if (i < n) y[i] = x[i];"
    (one,) = followed(by_elements("ceil_div(n, 128), 128", body), x=vector(n)).written
    assert one.first_left == ((1 << 24) + 1,)
    assert one.touched == (1 << 24) + 2000


def test_outside_is_said_with_its_line(way: str) -> None:
    found = followed(by_elements("ceil_div(n, 128), 128", PLAIN.replace("i < n", "i <= n")), x=vector(N))
    assert {one.kind for one in found.findings} == {FindingKind.OUT_OF_BOUNDS_GLOBAL}
    assert found.findings[0].where.endswith("after the end of y") or found.findings[0].where.endswith(
        "after the end of x"
    )


def test_a_grid_stride_loop_and_a_tail_that_is_shifted_inwards(way: str) -> None:
    stride = "for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) y[i] = x[i];"
    assert followed(by_elements("132, 128", stride), x=vector(N)).written[0].whole
    shifted = "int i = min((int)blockIdx.x * 128, n - 128) + threadIdx.x; y[i] = 2.f * x[i];"
    found = followed(by_elements("ceil_div(n, 128), 128", shifted), x=vector(N))
    assert found.written[0].whole
    (twice,) = found.twice
    assert (twice.count, twice.blocks) == (128 - N % 128, (N // 128 - 1, N // 128))


def test_a_thread_that_writes_again_is_no_other(way: str) -> None:
    body = "int i = blockIdx.x * 128 + threadIdx.x; if (i < n) { y[i] = 0.f; __threadfence(); y[i] += x[i]; }"
    found = followed(by_elements("ceil_div(n, 128), 128", body), x=vector(N))
    assert found.written[0].whole
    assert not found.twice


MATRIX = """\
//! op      mm(a, b) -> c
//! let     m = a.shape[0], k = a.shape[1], n = b.shape[1]
//! out     c: f32[m, n]
//! launch  run<<<GRID, dim3(16, 16)>>>(a, b, c, m, n, k)
__global__ void run(const float* a, const float* b, float* c, int m, int n, int k) {
  int tiles = (n + 15) / 16, row = blockIdx.x / tiles * 16 + threadIdx.y, col = blockIdx.x % tiles * 16 + threadIdx.x;
  if (row >= m || col >= n) return;
  float sum = 0.f;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
  c[row * n + col] = sum;
}
"""


def test_tiles_by_a_quotient(way: str) -> None:
    specs = {"a": TensorSpec(DType.F32, (150, 40), (40, 1)), "b": TensorSpec(DType.F32, (40, 90), (90, 1))}
    found = followed(MATRIX.replace("GRID", "ceil_div(m, 16) * ceil_div(n, 16)"), **specs)
    assert all(one.whole for one in (*found.written, *found.read))
    few = followed(MATRIX.replace("GRID", "50"), **specs)
    assert few.written[0].touched == 8 * 16 * 90 + 2 * 16 * 16
    assert few.written[0].first_left == (128, 32)


SCATTER = """\
//! op      place(x, at) -> y
//! let     n = x.numel
//! out     y: f32[n]
//! launch  run<<<ceil_div(n, 128), 128>>>(x, at, y, n)
__global__ void run(const float* x, const int* at, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[at[i]] = x[i];
}
"""


def test_an_index_in_an_input() -> None:
    specs = {"x": vector(1000), "at": vector(1000, DType.I32)}
    assert followed(SCATTER, **specs).needs == ("at",)
    order = np.random.default_rng(1).permutation(1000).astype(np.int32)
    found = followed(SCATTER, {"at": order}, **specs)
    assert found.written[0].whole
    assert not found.twice
    lost = order.copy()
    lost[17] = lost[900]
    found = followed(SCATTER, {"at": lost}, **specs)
    assert found.written[0].first_left == (int(order[17]),)
    assert found.twice[0].index == (int(order[900]),)
    assert found.twice[0].blocks == (0, 7)


def test_tickets_give_out_all_tiles() -> None:
    text = by_elements(
        "17, 128",
        """\
  __shared__ int tile;
  for (;;) {
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();
    int mine = tile;
    __syncthreads();
    if (mine * 128 >= n) return;
    int i = mine * 128 + threadIdx.x;
    if (i < n) y[i] = x[i] * 2.f;
  }""",
    )
    text = text.replace("//! launch", "//! scratch next: i32[1] zeroed\n//! launch").replace(
        "(x, y, n)", "(x, y, next, n)"
    )
    text = text.replace("float* __restrict__ y, int n", "float* __restrict__ y, int* next, int n")
    found = followed(text, x=vector(N))
    assert not found.reason
    assert all(one.whole for one in (*found.written, *found.read))


LAST_BLOCK = """\
//! op      total(x) -> y
//! let     n = x.numel, blocks = ceil_div(x.numel, 256)
//! out     y: f32[1]
//! scratch parts: f32[blocks]
//! scratch done: i32[1] counter
//! launch  run<<<blocks, 256>>>(x, y, parts, done, n)
__global__ void run(const float* x, float* y, float* parts, unsigned* done, int n) {
  __shared__ bool last;
  __shared__ float sums[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  sums[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  for (int o = 128; o; o /= 2) { if (threadIdx.x < o) sums[threadIdx.x] += sums[threadIdx.x + o]; __syncthreads(); }
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sums[0];
    __threadfence();
    last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0.f;
  for (int k = 0; k < gridDim.x; ++k) sum += ((volatile float*)parts)[k];
  y[0] = sum;
}
"""


def test_the_last_block_writes() -> None:
    found = followed(LAST_BLOCK, x=vector(10_000))
    assert found.written[0].whole
    assert not found.findings
    assert sorted(one.blocks for one in found.paths) == [1, 39]
    never = LAST_BLOCK.replace("== gridDim.x - 1;", "== gridDim.x;")
    assert followed(never, x=vector(10_000)).findings[0].kind is FindingKind.OUTPUT_NOT_WRITTEN


def test_values_that_another_launch_stores() -> None:
    """Where a launch writes is counted by the launch before it: its values are followed too."""
    text = """\
//! op      kept(x) -> y
//! let     n = x.numel
//! out     y: f32[n]
//! scratch to: i32[n]
//! launch  count<<<ceil_div(n, 128), 128>>>(to, n)
//! launch  place<<<ceil_div(n, 128), 128>>>(x, to, y, n)
__global__ void count(int* to, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) to[i] = n - 1 - i;
}
__global__ void place(const float* x, const int* to, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[to[i]] = x[i];
}
"""
    found = followed(text, x=vector(5000))
    assert not found.reason
    assert all(one.whole for one in (*found.written, *found.read))
    found = followed(text.replace("to[i] = n - 1 - i", "to[i] = (n - 1 - i) / 2 * 2"), x=vector(5000))
    assert found.written[0].touched == 2500


def test_scratch_that_no_launch_writes() -> None:
    text = """\
//! op      twice(x) -> y
//! let     n = x.numel
//! out     y: f32[n]
//! scratch held: f32[n]
//! launch  first<<<ceil_div(n, 128) - 1, 128>>>(x, held, n)
//! launch  then<<<ceil_div(n, 128), 128>>>(held, y, n)
__global__ void first(const float* x, float* held, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) held[i] = x[i];
}
__global__ void then(const float* held, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2.f * held[i];
}
"""
    found = followed(text, x=vector(1000))
    assert [one.kind for one in found.findings] == [FindingKind.UNINITIALISED_GLOBAL]
    assert found.findings[0].where == "held[896]"


def test_zeroed_outputs_need_no_stores(way: str) -> None:
    body = "int i = blockIdx.x * 128 + threadIdx.x; if (i < n && i % 2) atomicAdd(y + i / 2, x[i]);"
    found = followed(by_elements("ceil_div(n, 128), 128", body, "y: f32[x.shape] zeroed"), x=vector(N))
    assert not found.written
    assert not found.findings
    assert found.read[0].touched == N // 2


def test_loops_that_only_compute_vanish() -> None:
    built = build_plan(
        parse(MATRIX.replace("GRID", "50")),
        {"a": TensorSpec(DType.F32, (150, 40), (40, 1)), "b": TensorSpec(DType.F32, (40, 90), (90, 1))},
        H100,
        None,
        isolated=False,
    )
    assert isinstance(built, BuiltPlan)
    assert built.build is not None
    program = load_program(built.build.ptx)
    (kernel,) = (name for name, one in program.module.functions.items() if one.is_entry)
    writes, reads = (slice_kernel(program.module, kernel, reads=reads) for reads in (False, True))
    assert not writes.loops
    assert reads.loops
    assert writes.size < 40 < len(program.module.functions[kernel].body)


BULK = """\
//! op      double(v) -> out
//! out     out: f32[v.shape]
//! let     n = v.numel
//! launch  run<<<ceil_div(n, 1024), 1024>>>(v, out, n)
__global__ void run(const float* v, float* out, int n) {
  __shared__ __align__(16) float held[1024];
  const int first = blockIdx.x * 1024, here = min(1024, n - first);
  if (threadIdx.x < here) held[threadIdx.x] = 2.f * v[first + threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(out + first), "r"((unsigned)__cvta_generic_to_shared(held)), "r"(here / 4 * 16) : "memory");
}
"""


def test_bulk_copies_out_of_shared_memory() -> None:
    assert followed(BULK, v=vector(10_000)).written[0].whole
    assert followed(BULK, v=vector(10_003)).written[0].first_left == (10_000,)


def test_clusters_and_their_ranks() -> None:
    text = by_elements(
        "ceil_div(n, 512) * 4, 128",
        """\
  unsigned rank, which;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(which));
  int i = (which * 4 + rank) * 128 + threadIdx.x;
  if (i < n) y[i] = x[i];""",
    ).replace("(x, y, n)\n", "(x, y, n) cluster(4)\n", 1)
    found = followed(text, x=vector(N))
    assert not found.reason
    assert all(one.whole for one in (*found.written, *found.read))


RESCUED = """\
//! op      scale(x) -> y
//! out     y: f32[x.shape]
//! scratch wide: i32[1] zeroed
//! let     n = x.numel
//! launch  quick<<<ceil_div(n, 128), 128>>>(x, y, wide, n)
//! launch  again<<<ceil_div(n, 128), 128>>>(x, y, wide, n)
#include <mma.h>
__global__ void quick(const float* __restrict__ x, float* __restrict__ y, int* wide, int n) {
  using namespace nvcuda::wmma;
  __shared__ __half tile[256];
  __shared__ float sums[256];
  int i = blockIdx.x * 128 + threadIdx.x;
  tile[threadIdx.x] = tile[threadIdx.x + 128] = i < n ? x[i] : 0.f;
  __syncthreads();
  fragment<matrix_a, 16, 16, 16, __half, row_major> a;
  fragment<matrix_b, 16, 16, 16, __half, row_major> b;
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 0.f);
  load_matrix_sync(a, tile, 16);
  load_matrix_sync(b, tile, 16);
  mma_sync(c, a, b, c);
  store_matrix_sync(sums, c, 16, mem_row_major);
  __syncthreads();
  if (sums[threadIdx.x] > 1e30f) wide[0] = 1;
  QUICK
}
__global__ void again(const float* __restrict__ x, float* __restrict__ y, const int* wide, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (wide[0] && i < n) y[i] = x[i];
}
"""


def test_where_products_decide_both_ways_are_followed() -> None:
    found = followed(RESCUED.replace("QUICK", "if (i < n) y[i] = sums[threadIdx.x];"), x=vector(3000))
    assert (found.reason, found.ways) == ("", 2)
    assert found.written[0].whole
    assert "whichever way values decide" in str(found)
    left = followed(RESCUED.replace("QUICK", "if (i < n && sums[threadIdx.x] < 1e30f) y[i] = 1;"), x=vector(3000))
    assert left.reason.startswith("they depend on what products of matrices come to; if all values decided one way")
    assert not left.findings  # which are no proof


CHAIN = """\
//! op      chain(x) -> y
//! let     n = x.numel
//! out     y: f32[n]
//! need    device.cc >= 90
//! scratch top: f32[n]
//! launch  first<<<ceil_div(n, 128), 128>>>(x, top, n)
//! launch  second<<<ceil_div(n, 128), 128>>>(x, top, y, n) pdl
__global__ void first(const float* x, float* top, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) top[i] = x[i] + 1.f;
}
__global__ void second(const float* x, const float* top, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  float own = i < n ? x[i] : 0.f, before = AHEAD;
  WAIT
  if (i < n) y[i] = own + before + *(volatile const float*)&top[i];
}
"""
ALL_WAIT = "cudaGridDependencySynchronize();"
ONE_WAITS = "if (threadIdx.x == 0) cudaGridDependencySynchronize(); __syncthreads();"


@pytest.mark.parametrize("waits", [ALL_WAIT, ONE_WAITS])
def test_what_is_read_ahead_of_the_wait(way: str, waits: str) -> None:
    text = CHAIN.replace("WAIT", waits)
    assert followed(text.replace("AHEAD", "0.f"), x=vector(N)).findings == ()
    early = "n > 5000 && i == 4321 ? *(volatile const float*)&top[i] : 0.f"
    (finding,) = followed(text.replace("AHEAD", early), x=vector(N)).findings
    assert (finding.kind, finding.where) == (FindingKind.NOT_AWAITED, "top[4321]")


def test_copies_and_divisions_of_long_numbers_for_all_blocks_at_once() -> None:
    body = "long long i = blockIdx.x * 128ll + threadIdx.x, m = n; if (i / m == 0) y[i % m] = x[i % m];"
    text = by_elements("ceil_div(n, 128), 128", body)
    assert followed(text, x=vector(1 << 20)).thread_instructions < 10_000  # evaluated, not run
