// Kernels of clusters, each right, and wrong at the lines marked BUG when BROKEN is 1.
typedef unsigned int u32;
typedef unsigned long long u64;
#define READ(register, value) asm volatile("mov.u32 %0, %%" register ";" : "=r"(value))

__device__ u32 offset_of(const void* at) { return (u32)__cvta_generic_to_shared(at); }
__device__ u32 rank() { u32 r; READ("cluster_ctarank", r); return r; }
__device__ u32 ranks() { u32 r; READ("cluster_nctarank", r); return r; }
__device__ u32 peer(u32 at, u32 r) {
  u32 d;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(at), "r"(r));
  return d;
}
__device__ u64 peer_generic(const void* at, u32 r) {
  u64 d;
  asm("mapa.u64 %0, %1, %2;" : "=l"(d) : "l"(at), "r"(r));
  return d;
}
__device__ int load(u32 at) {
  int v;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ void store(u32 at, int v) {
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ void meet() { arrive(); wait(); }

extern "C" __global__ void specials(u32* out) {
  u32 v[15];
  READ("cluster_ctaid.x", v[0]); READ("cluster_ctaid.y", v[1]); READ("cluster_ctaid.z", v[2]);
  READ("cluster_nctaid.x", v[3]); READ("cluster_nctaid.y", v[4]); READ("cluster_nctaid.z", v[5]);
  READ("clusterid.x", v[6]); READ("clusterid.y", v[7]); READ("clusterid.z", v[8]);
  READ("nclusterid.x", v[9]); READ("nclusterid.y", v[10]); READ("nclusterid.z", v[11]);
  READ("cluster_ctarank", v[12]); READ("cluster_nctarank", v[13]);
  asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v[14]));
  u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x == 0)
    for (int k = 0; k < 15; k++) out[block * 15 + k] = v[k];
}

// Every way to a place in the next block's shared memory; all of them are one place.
extern "C" __global__ void forms(u32* out) {
  __shared__ u32 held[8];
  __shared__ u64 wide;
  u32 next = (rank() + 1) % ranks(), t = threadIdx.x, at = offset_of(held);
  if (t < 8) held[t] = 100 * rank() + t;
  if (t == 0) wide = rank();
  meet();
  u32 v[10] = {};
  if (t == 0) {
    u32 there = peer(at, next), is_cta, is_cluster, is_mine;
    u64 generic = peer_generic(held, next), shared;
    asm("mapa.shared::cluster.u64 %0, %1, %2;" : "=l"(shared) : "l"((u64)at), "r"(next));
    v[0] = load(there + 4);
    v[1] = *(volatile u32*)(generic + 8);
    asm volatile("ld.shared::cluster.u32 %0, [%1+12];" : "=r"(v[2]) : "l"(shared));
    asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(v[3]) : "r"(there));
    asm("getctarank.u64 %0, %1;" : "=r"(v[4]) : "l"(generic));
    asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(v[5]) : "r"(at));
    asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(is_cta) : "l"(generic));
    asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(is_cluster) : "l"(generic));
    asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(is_mine)
        : "l"(peer_generic(held, rank())));
    v[6] = is_cta | is_cluster << 1 | is_mine << 2;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4+16];"
                 : "=r"(v[7]), "=r"(v[8]), "=r"(v[9]), "=r"(is_cta) : "r"(there));
  }
  meet();
  // The first word of every block counts: once by each, in two ways, and twice through a pointer.
  for (u32 r = 0; r < ranks(); r++) {
    u32 old;
    asm volatile("atom.add.relaxed.cluster.shared::cluster.u32 %0, [%1], 1;" : "=r"(old) : "r"(peer(at, r)) : "memory");
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(peer(at, r)) : "memory");
    atomicAdd((u32*)peer_generic(held, r), 2);
    asm volatile("red.relaxed.cluster.shared::cluster.add.u64 [%0], 1;" ::"r"(peer(offset_of(&wide), r)) : "memory");
  }
  meet();
  if (t == 0) {
    for (int k = 0; k < 10; k++) out[blockIdx.x * 12 + k] = v[k];
    out[blockIdx.x * 12 + 10] = held[0];
    out[blockIdx.x * 12 + 11] = (u32)wide;
  }
}

// Each block hands its values to the next, and reads what it got.
extern "C" __global__ void ring(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
#if !BROKEN
  meet();
#endif
  store(peer(offset_of(&held[t]), (rank() + 1) % ranks()), in[at]);  // BUG ring: before the other has begun
  meet();
  out[at] = held[t];
}

extern "C" __global__ void gather(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t, sum = 0;
  held[t] = in[at];
#if !BROKEN
  meet();
#endif
  for (u32 r = 0; r < ranks(); r++) sum += load(peer(offset_of(&held[t]), r));  // BUG gather
  meet();
  out[at] = sum;
}

// The last barrier keeps a block from ending while another reads.
extern "C" __global__ void last(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
  held[t] = in[at];
  meet();
  out[at] = load(peer(offset_of(&held[63 - t]), (rank() + 1) % ranks()));  // BUG last
#if !BROKEN
  meet();
#endif
}

extern "C" __global__ void outside(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
  held[t] = in[at];
  meet();
  out[at] = load(peer(offset_of(&held[t]), rank() + BROKEN == ranks() ? ranks() : rank()));  // BUG outside
  meet();
}

// A peer's address is none of shared::cta.
extern "C" __global__ void narrow(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t, v;
  held[t] = in[at];
  meet();
#if BROKEN
  asm volatile("ld.shared::cta.s32 %0, [%1];" : "=r"(v) : "r"(peer(offset_of(&held[t]), rank() ^ 1)));  // BUG narrow
#else
  v = load(peer(offset_of(&held[t]), rank() ^ 1));
#endif
  meet();
  out[at] = v;
}

// Who arrives without releasing passes on only what it has fenced.
extern "C" __global__ void fenced(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
  held[t] = in[at];
#if !BROKEN
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
  arrive_relaxed();
  wait();
  out[at] = load(peer(offset_of(&held[t]), rank() ^ 1));  // BUG fenced
  meet();
}

// A flag in place of a barrier: the value is stored first, and the flag is released.
extern "C" __global__ void flag(const int* in, int* out) {
  __shared__ int held, ready;
  if (threadIdx.x == 0) ready = 0;
  meet();
  if (threadIdx.x == 0) {
    u32 to = (rank() + 1) % ranks();
    store(peer(offset_of(&held), to), in[blockIdx.x]);
#if BROKEN
    asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], 1;" ::"r"(peer(offset_of(&ready), to)) : "memory");
#else
    asm volatile("st.release.cluster.shared::cluster.u32 [%0], 1;" ::"r"(peer(offset_of(&ready), to)) : "memory");
#endif
    int seen = 0;
    while (!seen) asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(offset_of(&ready)) : "memory");
    out[blockIdx.x] = held;  // BUG flag
  }
  meet();
}

// What a thread does between arriving and waiting is not ordered.
extern "C" __global__ void split(const int* in, int* out) {
  __shared__ int held[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
  held[t] = in[at];
  arrive();
#if BROKEN
  held[t] = in[at] + 1;  // BUG split
#endif
  wait();
  int v = load(peer(offset_of(&held[t]), rank() ^ 1));  // BUG split
  meet();
  out[at] = v;
}

extern "C" __global__ void twice(const int* in, int* out) {
  out[blockIdx.x * 64 + threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
#if BROKEN
  arrive();
  asm volatile("barrier.cluster.arrive;" ::: "memory");  // BUG twice
#else
  arrive();
#endif
  wait();
}

extern "C" __global__ void unasked(const int* in, int* out) {
  out[blockIdx.x * 64 + threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
#if BROKEN
  asm volatile("barrier.cluster.wait;" ::: "memory");  // BUG unasked
#endif
}

// One warp of one block waits for the rest of its block, which waits for the cluster.
extern "C" __global__ void stuck(const int* in, int* out) {
  out[blockIdx.x * 64 + threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
#if BROKEN
  if (rank() == 1 && threadIdx.x < 32) asm volatile("barrier.sync 1, 64;" ::: "memory");  // BUG stuck
#endif
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");  // BUG stuck
}
