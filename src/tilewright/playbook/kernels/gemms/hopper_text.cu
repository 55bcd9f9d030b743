//# Device functions of Hopper's products, as text: barriers, TMA, wgmma, and the walk over tiles.

//@ barriers
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
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
               ::"r"(barrier), "r"(parity) : "memory");
}
// The 128 threads of a consumer wait for each other.
__device__ __forceinline__ void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
}

//@ tma
// ---- TMA: the box of `map` at x, y, z
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

//@ store_box
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
               "cp.async.bulk.commit_group;"
               ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}

//# What is written first leaves L2 first: results that are more than it holds would take the operands' places.
//@ store_row
__device__ __forceinline__ void store_row(float* to, uint32_t from, int bytes) {
  uint64_t policy; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\n"
               "cp.async.bulk.commit_group;"
               ::"l"(to), "r"(from), "r"(bytes), "l"(policy) : "memory");
}

//@ wait
// Until all but PENDING stores have read what they store.
template <int PENDING> __device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_until_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

//@ show
// What threads wrote to shared memory, TMA and wgmma may read.
__device__ __forceinline__ void show_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

//@ wgmma
// ---- wgmma
// Where an operand lies: address and two strides in units of 16 bytes, and its swizzle. Contiguous along k: `stride`
// leads to the next 8 rows. Contiguous along m or n: `stride` leads to the next 8 of k, `lead` to the next 64 columns.
@swizzles
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t lead, uint32_t stride, uint64_t swizzle) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | swizzle;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d (64 x columns, f32, in the registers of a warpgroup) = a (64 x 16) * b (16 x columns) + (add ? d : 0), operands
// named by descriptors of shared memory. The instruction lists every register of d, so each width has a text of its
// own. Its last two numbers: whether a is contiguous along m, and b along n.
