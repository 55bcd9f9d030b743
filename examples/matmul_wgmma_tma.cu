// c = a @ b on Hopper: tensor copies by TMA, a ring of mbarriers, asynchronous wgmma, warp-specialised and persistent.
//
// A block is three warpgroups. One thread of the first is the producer: it walks over all the tiles the block will compute
// and keeps up to STAGES steps of BK along K on their way into shared memory. The two others are consumers: each multiplies
// 64 rows of a by the BN columns of b straight from shared memory, its 64 x BN sums in registers, and stores its half of
// the tile through shared memory, again by TMA. They meet only at barriers: `full[s]` (the bytes of slot s have arrived)
// and `empty[s]` (every consumer warp has read slot s). As the producer runs ahead across tiles, the loads of the next tile
// run under the stores of the last.
//
// With CLUSTER = 2, two blocks, one above the other, use the same columns of b: each loads half of them for both.
// TMA fills what lies outside the matrices with zeros and clips what would be stored there, so tails need no code.
//
//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: a.dtype[M, N]
//! need    device.cc == 90 and a.dtype in [f16, bf16] and b.dtype == a.dtype
//! need    K % 8 == 0 and N % 8 == 0 and K > 0             # TMA: rows are multiples of 16 bytes, none is empty
//! need    max(M, max(N, K)) <= 2000000000                 # coordinates, rounded up to a tile, fit an int
//! const   T = a.dtype, BM = 128, BK = 64
//! tune    BN = 256 | 128 | 64
//! tune    STAGES = 8 | 6 | 4 | 3
//! tune    CLUSTER = 1 | 2
//! need    BN / 64 % CLUSTER == 0                          # the blocks of a cluster share the 64-column boxes of b
//! let     smem = STAGES * (BM + BN) * BK * 2 + 4 * 64 * 64 * 2 + STAGES * 16
//! need    smem <= device.smem_block
//! let     jobs = ceil_div(M, BM * CLUSTER) * ceil_div(N, BN)
//! need    BN == 64 or jobs * CLUSTER >= device.sms * 3 / 4    # narrower tiles where wide ones leave too much of the GPU idle
//! map     a_map = tiled(a, box=[BM, BK], swizzle=128)
//! map     b_map = tiled(b, box=[BK, 64], swizzle=128)
//! map     c_map = tiled(c, box=[64, 64], swizzle=128)
//! launch  matmul_wgmma<<<min(jobs, device.sms / CLUSTER) * CLUSTER, 384, smem>>>(a_map, b_map, c_map, M, N, K) cluster(CLUSTER)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, SLOT_BYTES = A_BYTES + B_BYTES;
constexpr int BOX_BYTES = BK * 64 * 2;                  // a box of b: BK rows of 64 columns, 128 bytes
constexpr int C_BYTES = 64 * 64 * 2, C_BUFFERS = 2;     // per consumer: one buffer is filled while the other is stored
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // 128 * 40 + 256 * 232 fit the 65536 of a multiprocessor
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that the blocks in flight share their operands in L2

// ---- barriers: a phase ends when the announced arrivals and bytes have come; waiters name the phase by its parity
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t block) {  // the same barrier of another block of the cluster
  asm volatile("{ .reg .u32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ uint32_t rank_in_cluster() { uint32_t r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }

// ---- TMA: the box of `map` at column x and row y
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void load_box_for_cluster(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;"
               ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// ---- wgmma
// Where an operand lies: address and two strides in units of 16 bytes, and the 128-byte swizzle (1 << 62). Along k, a is
// contiguous: `stride` leads to the next 8 rows. b is contiguous along n: `stride` leads to the next 8 rows of k,
// `lead` to the next 64 columns.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t lead, uint32_t stride) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// wgmma: d (64 x COLUMNS, f32, in the registers of a warpgroup) = a (64 x 16) * b (16 x COLUMNS) + (add ? d : 0), the
// operands named by descriptors of shared memory. The instruction lists every accumulator register, so each width needs
// its own text; the macros below only write those lists. The final 0, 1: a is contiguous along k, b is along n.
#define REGISTERS_32  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128 REGISTERS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32 SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
#define SUMS_64 SUMS_32, SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56)
#define SUMS_128 SUMS_64, SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88), SUMS_8(96), SUMS_8(104), SUMS_8(112), SUMS_8(120)
#define WGMMA(COLUMNS, TYPE, NAME, REGISTERS, SUMS, A, B, ADD)                                                            \
  __device__ __forceinline__ void wgmma(float (&d)[COLUMNS / 2], uint64_t a, uint64_t b, int add, TYPE) {                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32."       \
                 NAME "." NAME " {" REGISTERS "}, " A ", " B ", p, 1, 1, 0, 1; }"                                         \
                 : SUMS : "l"(a), "l"(b), "r"(add));                                                                      \
  }
WGMMA(64, __half, "f16", REGISTERS_32, SUMS_32, "%32", "%33", "%34")
WGMMA(128, __half, "f16", REGISTERS_64, SUMS_64, "%64", "%65", "%66")
WGMMA(256, __half, "f16", REGISTERS_128, SUMS_128, "%128", "%129", "%130")
WGMMA(64, __nv_bfloat16, "bf16", REGISTERS_32, SUMS_32, "%32", "%33", "%34")
WGMMA(128, __nv_bfloat16, "bf16", REGISTERS_64, SUMS_64, "%64", "%65", "%66")
WGMMA(256, __nv_bfloat16, "bf16", REGISTERS_128, SUMS_128, "%128", "%129", "%130")

__device__ __forceinline__ uint32_t pack(float low, float high, __half) {
  uint32_t r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16) {
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}

// The walk over tiles, the same for producer and consumers. A job is one tile of a block: CLUSTER tiles of a cluster.
struct Walk {
  int tiles_m, tiles_n, job, jobs;
  int m0, n0;
  __device__ __forceinline__ Walk(int M, int N) {
    tiles_m = (M + BM * CLUSTER - 1) / (BM * CLUSTER), tiles_n = (N + BN - 1) / BN;
    job = blockIdx.x / CLUSTER, jobs = tiles_m * tiles_n;
  }
  __device__ __forceinline__ bool next(uint32_t rank) {
    if (job >= jobs) return false;
    const int group = job / (TILE_GROUP * tiles_n), in_group = job % (TILE_GROUP * tiles_n);
    const int rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);
    m0 = ((group * TILE_GROUP + in_group % rows) * CLUSTER + rank) * BM;
    n0 = in_group / rows * BN;
    job += gridDim.x / CLUSTER;
    return true;
  }
};

__global__ void __launch_bounds__(384, 1) matmul_wgmma(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                                                       const __grid_constant__ CUtensorMap c_map, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases; so does every size before them
  const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared), c_buffers = slots + STAGES * SLOT_BYTES;
  const uint32_t full = c_buffers + 2 * C_BUFFERS * C_BYTES, empty = full + STAGES * 8;
  const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;
  const uint32_t rank = CLUSTER > 1 ? rank_in_cluster() : 0;

  if (threadIdx.x == 0) {
    if (slots % 1024) __trap();
    prefetch(&a_map), prefetch(&b_map), prefetch(&c_map);
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + s * 8, 1);
      barrier_init(empty + s * 8, 2 * 4 * CLUSTER);  // every consumer warp, of both blocks where they fill each other's slots
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (CLUSTER > 1) cluster_sync(); else __syncthreads();

  const int steps = (K + BK - 1) / BK;
  Walk tile(M, N);
  int slot = 0;
  auto advance = [&](uint32_t& parity) {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  };

  if (warpgroup == 0) {  // ---- producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    if (thread == 0) {
      uint32_t parity = 1;  // the phase "before the first": a fresh barrier counts as just completed
      while (tile.next(rank)) {
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          const uint32_t at = slots + slot * SLOT_BYTES, arrived = full + slot * 8;
          barrier_wait(empty + slot * 8, parity);
          barrier_arrive_expecting(arrived, SLOT_BYTES);
          load_box(&a_map, arrived, at, step * BK, tile.m0);
#pragma unroll
          for (int i = 0; i < BN / 64 / CLUSTER; ++i) {
            const int box = i * CLUSTER + rank;
            const uint32_t to = at + A_BYTES + box * BOX_BYTES;
            if constexpr (CLUSTER > 1) load_box_for_cluster(&b_map, arrived, to, tile.n0 + box * 64, step * BK);
            else load_box(&b_map, arrived, to, tile.n0 + box * 64, step * BK);
          }
          advance(parity);
        }
      }
    }
  } else {  // ---- consumers
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    const int consumer = warpgroup - 1, lane = thread % 32, warp = thread / 32;
    const uint64_t a_slots = descriptor(slots + consumer * 64 * BK * 2, 16, 8 * BK * 2);
    const uint64_t b_slots = descriptor(slots + A_BYTES, BOX_BYTES, 8 * 128);
    auto release = [&](int s) {
      if constexpr (CLUSTER > 1) { if (lane < CLUSTER) barrier_arrive_at(empty + s * 8, lane); }
      else if (lane == 0) barrier_arrive(empty + s * 8);
    };

    uint32_t parity = 0;
    while (tile.next(rank)) {
      float sum[BN / 2];
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        barrier_wait(full + slot * 8, parity);
        wgmma_fence();
        const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4), b_slot = b_slots + (slot * SLOT_BYTES >> 4);
#pragma unroll
        for (int k = 0; k < BK / 16; ++k)  // 16 of k: 32 bytes along a row of a, 16 rows of 128 bytes of b
          wgmma(sum, a_slot + (k * 32 >> 4), b_slot + (k * 16 * 128 >> 4), step > 0 || k > 0, T());
        wgmma_commit();
        wgmma_wait<1>();  // the products of the step before are done: its slot may be filled again
        if (step > 0) release(before);
        before = slot;
        advance(parity);
      }
      wgmma_wait<0>();
      release(before);

      // Sums 4j .. 4j+3 of a lane are two columns, 8j + 2(lane % 4), of rows lane / 4 and lane / 4 + 8 of its warp's 16.
      // stmatrix writes them as 16-byte chunks of 64 x 64 buffers, swizzled as TMA expects.
      const uint32_t buffers = c_buffers + consumer * C_BUFFERS * C_BYTES;
      const int row = warp * 16 + lane % 16;
#pragma unroll
      for (int q = 0; q < BN / 64; ++q) {
        const uint32_t buffer = buffers + q % C_BUFFERS * C_BYTES;
        if (thread == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(C_BUFFERS - 1) : "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");  // the buffer's last store has read it
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* v = sum + q * 32 + j * 8;
          const uint32_t to = buffer + row * 128 + ((j * 2 + lane / 16) ^ row % 8) * 16;
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                       "r"(pack(v[0], v[1], T())), "r"(pack(v[2], v[3], T())), "r"(pack(v[4], v[5], T())), "r"(pack(v[6], v[7], T())) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what threads wrote, TMA may read
        asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
        if (thread == 0) store_box(&c_map, buffer, tile.n0 + q * 64, tile.m0 + consumer * 64);
      }
    }
    if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  if constexpr (CLUSTER > 1) cluster_sync();  // nobody leaves while the other may still write or arrive here
}
