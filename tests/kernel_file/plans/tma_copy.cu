//! op      copy(x) -> y
//! need    x.ndim == 2 and device.cc >= 90 and x.dtype in [bf16, f16]
//! out     y: x.dtype[x.shape]
//! tune    BOX = 64 | 32
//! const   WIDTH = 64
//! need    x.shape[0] % BOX == 0 and x.shape[1] % WIDTH == 0
//! let     smem = 1024 + BOX * WIDTH * x.itemsize
//! map     source = tiled(x, box=[BOX, WIDTH], swizzle=128, fill=0, l2=128)
//! map     target = tiled(y, shape=x.shape, stride=x.stride, box=[BOX, WIDTH], step=[1, 1], swizzle=128)
//! launch  copy_tile<<<dim3(x.shape[1] / WIDTH, x.shape[0] / BOX), 128, smem>>>(source, target) cluster(1)
#include <cuda/barrier>
#include <cuda/std/utility>

__device__ __inline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__global__ void __cluster_dims__(1, 1, 1) __launch_bounds__(128) copy_tile(
    const __grid_constant__ CUtensorMap source, const __grid_constant__ CUtensorMap target) {
  extern __shared__ __align__(1024) unsigned char tile[];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned bar = shared_address(&barrier), data = shared_address(tile);
  int column = blockIdx.x * WIDTH, row = blockIdx.y * BOX;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(BOX * WIDTH * 2) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(data),
        "l"(&source), "r"(column), "r"(row), "r"(bar)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra wait;\n}" ::"r"(bar)
      : "memory");
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&target),
                 "r"(column), "r"(row), "r"(data)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
