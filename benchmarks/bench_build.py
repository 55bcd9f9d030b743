"""What a build costs: NVRTC to cubin in CPU seconds, a cache hit in milliseconds. Needs no GPU.

    python benchmarks/bench_build.py [--repeat 7] [--cute] [--out FILE]

Targets: a plain kernel takes at most 0.3 s of CPU, a cache hit at most 10 ms. CPU time is of this process, in which the
compiler runs; the first compilation, which loads the library, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from recording import write_result
from tilewright import __version__
from tilewright.records import Build, BuildRequest
from tilewright.toolchain import BuildCache, build, find_toolkit

TARGET_CPU_S = 0.3
TARGET_HIT_MS = 10.0
ARCH = "sm_90a"

SILU = BuildRequest(
    """
__global__ void silu(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = 4ll * (blockIdx.x * (long long)THREADS + threadIdx.x);
  if (i + 4 <= n) {
    float4 v = *(const float4*)(x + i);
    v.x /= 1.0f + __expf(-v.x); v.y /= 1.0f + __expf(-v.y); v.z /= 1.0f + __expf(-v.z); v.w /= 1.0f + __expf(-v.w);
    *(float4*)(y + i) = v;
  } else {
    for (; i < n; ++i) y[i] = x[i] / (1.0f + __expf(-x[i]));
  }
}
""",
    (("THREADS", 256),),
    ("silu",),
    ARCH,
)

SOFTMAX_BF16 = BuildRequest(
    """
#include <cuda_bf16.h>
__device__ float reduce(float v, bool largest) {
  for (int o = 16; o; o /= 2) {
    float w = __shfl_xor_sync(~0u, v, o);
    v = largest ? fmaxf(v, w) : v + w;
  }
  return v;
}
template <int WARPS> __global__ void softmax(const __nv_bfloat16* x, __nv_bfloat16* y, int cols) {
  __shared__ float part[WARPS];
  x += (long long)blockIdx.x * cols; y += (long long)blockIdx.x * cols;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += WARPS * 32) top = fmaxf(top, __bfloat162float(x[i]));
  top = reduce(top, true);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) top = fmaxf(top, part[w]);
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += WARPS * 32) sum += __expf(__bfloat162float(x[i]) - top);
  sum = reduce(sum, false);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < WARPS; ++w) sum += part[w];
  for (int i = threadIdx.x; i < cols; i += WARPS * 32)
    y[i] = __float2bfloat16(__expf(__bfloat162float(x[i]) - top) / sum);
}
""",
    (),
    ("softmax<4>", "softmax<8>"),
    ARCH,
)

TRANSPOSE = BuildRequest(
    """
template <class T> __global__ void transpose(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
  __shared__ T tile[32][33];
  int column = blockIdx.x * 32 + threadIdx.x;
  for (int r = threadIdx.y; r < 32; r += 8) {
    int row = blockIdx.y * 32 + r;
    if (row < rows && column < cols) tile[r][threadIdx.x] = x[(long long)row * cols + column];
  }
  __syncthreads();
  int row = blockIdx.y * 32 + threadIdx.x;
  for (int c = threadIdx.y; c < 32; c += 8) {
    int out = blockIdx.x * 32 + c;
    if (row < rows && out < cols) y[(long long)out * rows + row] = tile[threadIdx.x][c];
  }
}
""",
    (),
    ("transpose<float>", "transpose<__half>"),
    ARCH,
)

MMA = BuildRequest(
    """
#include <cuda_fp16.h>
__global__ void __launch_bounds__(32) tile(const __half* a, const __half* b, float* c, int k_size) {
  float acc[4] = {};
  int group = threadIdx.x / 4, lane = threadIdx.x % 4;
  for (int k = 0; k < k_size; k += 16) {
    unsigned fa[4], fb[2];
    for (int i = 0; i < 4; ++i)
      fa[i] = *(const unsigned*)(a + (group + i % 2 * 8) * k_size + k + lane * 2 + i / 2 * 8);
    for (int i = 0; i < 2; ++i) fb[i] = *(const unsigned*)(b + group * k_size + k + lane * 2 + i * 8);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  }
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + lane * 2 + i % 2] = acc[i];
}
""",
    (),
    ("tile",),
    ARCH,
)

CUTE = BuildRequest(
    """
#include <cute/tensor.hpp>
using namespace cute;
__global__ void reverse_tile(const float* x, float* y) {
  auto layout = make_layout(Shape<_64, _64>{}, LayoutRight{});
  auto in = make_tensor(make_gmem_ptr(x), layout);
  auto out = make_tensor(make_gmem_ptr(y), layout);
  for (int i = threadIdx.x; i < size(layout); i += blockDim.x) out(i) = in(size(layout) - 1 - i);
}
""",
    (),
    ("reverse_tile",),
    ARCH,
)

PLAIN = {"silu f32": SILU, "softmax bf16, two": SOFTMAX_BF16, "transpose, two": TRANSPOSE, "mma f16": MMA}


def compile_cpu_s(request: BuildRequest, repeat: int) -> list[float]:
    """CPU seconds of each of several whole builds: assemble, compile, read back, check."""
    samples = []
    for _ in range(repeat):
        started = time.process_time()
        result = build(request, isolated=False, cache=None)
        samples.append(time.process_time() - started)
        if not isinstance(result, Build):
            raise SystemExit(f"the benchmark's own kernel does not build: {result}")
    return samples


def hit_ms(request: BuildRequest, repeat: int) -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        cache = BuildCache(Path(directory))
        build(request, isolated=False, cache=cache)
        samples = []
        for _ in range(repeat):
            started = time.perf_counter()
            build(request, cache=cache)
            samples.append((time.perf_counter() - started) * 1e3)
        return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=7, help="builds per kernel (7)")
    parser.add_argument("--cute", action="store_true", help="also a small CuTe kernel: several seconds each")
    parser.add_argument("--out", type=Path, help="write the numbers to this file as JSON")
    options = parser.parse_args()
    compile_cpu_s(SILU, 1)
    rows = []
    requests = {**PLAIN, "cute copy": CUTE} if options.cute else PLAIN
    print(f"{'kernel':<20} {'CPU s, median':>14} {'worst':>8} {'target':>8} {'hit ms, median':>16} {'target':>8}")
    for name, request in requests.items():
        seconds = compile_cpu_s(request, options.repeat if name in PLAIN else 1)
        hits = hit_ms(request, 20)
        target = TARGET_CPU_S if name in PLAIN else None
        rows.append({"kernel": name, "cpu_s": seconds, "target_cpu_s": target, "hit_ms": hits})
        print(
            f"{name:<20} {statistics.median(seconds):>14.3f} {max(seconds):>8.3f} {target or '-':>8} "
            f"{statistics.median(hits):>16.2f} {TARGET_HIT_MS:>8}"
        )
    if options.out is not None:
        write_result(options.out, _report(rows))


def _report(rows: list[dict[str, object]]) -> dict[str, object]:
    toolkit = find_toolkit()
    return {
        "benchmark": "build",
        "versions": {
            "tilewright": __version__,
            "compiler": toolkit.compiler,
            "headers": toolkit.headers,
            "cutlass": toolkit.cutlass,
        },
        "arch": ARCH,
        "target_hit_ms": TARGET_HIT_MS,
        "results": rows,
    }


if __name__ == "__main__":
    main()
