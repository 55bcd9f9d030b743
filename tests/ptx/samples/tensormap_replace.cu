//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] == 64 and device.cc == 90
//! scratch place: u8[256]
//! map     source = tiled(x, box=[8, 32])
//! launch  prepare<<<1, 32>>>(source, x, place, x.shape[0])
//! launch  twice<<<dim3(2, ceil_div(x.shape[0], 4)), 128>>>(place, x, y, x.shape[0])
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__global__ void prepare(const __grid_constant__ CUtensorMap source, const float* x, unsigned char* place, int rows) {
  __shared__ __align__(128) unsigned long long map[16];
  if (threadIdx.x < 16) map[threadIdx.x] = reinterpret_cast<const unsigned long long*>(&source)[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(at(map)), "l"(x) : "memory");
    asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(at(map)), "r"(4) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(at(map)), "r"(rows) : "memory");
    asm volatile("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" ::"r"(at(map)) : "memory");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               ::"l"((place + 127 - ((size_t)place + 127) % 128)), "r"(at(map)) : "memory");
}
__global__ void twice(unsigned char* place, const float* x, float* y, int rows) {
  __shared__ __align__(128) float tile[4][32];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned char* map = place + 127 - ((size_t)place + 127) % 128;
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at(&barrier)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(at(tile)), "l"(map), "r"((int)blockIdx.x * 32), "r"((int)blockIdx.y * 4), "r"(at(&barrier)) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }" ::"r"(at(&barrier)) : "memory");
  int row = blockIdx.y * 4 + threadIdx.x / 32;
  if (row < rows) y[row * 64 + blockIdx.x * 32 + threadIdx.x % 32] = 2.0f * tile[threadIdx.x / 32][threadIdx.x % 32];
}
