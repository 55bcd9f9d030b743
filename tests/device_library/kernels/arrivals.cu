// Each warp hands a value to the next: by a named barrier, by an mbarrier that is polled, and by one that is waited for.
//! op      hand_on(x) -> y
//! need    device.cc == 90 and x.dtype == f32 and x.shape == [128]
//! out     y: f32[128]
//! launch  hand_on<<<1, 128>>>(x, y)
#include <tilewright/mbarrier.cuh>
#include <tilewright/shared_memory.cuh>

__global__ void hand_on(const float* x, float* y) {
  __shared__ float held[128];
  __shared__ __align__(8) uint64_t barriers[2];
  const uint32_t first = tw::shared_address(barriers), second = first + 8;
  const int t = threadIdx.x, warp = t / 32;
  if (t == 0) tw::mbarrier_init(first, 32), tw::mbarrier_init(second, 32), tw::mbarrier_init_fence();
  __syncthreads();
  if (warp == 0) {
    held[t] = x[t] + 1.f;
    tw::named_barrier_arrive(1, 64);
    y[t] = x[t];
  } else if (warp == 1) {
    tw::named_barrier_sync(1, 64);
    held[t] = x[t] + held[t - 32];
    tw::mbarrier_arrive(first);
    y[t] = held[t];
  } else if (warp == 2) {
    while (!tw::mbarrier_test(first, 0)) {
    }
    held[t] = x[t] + held[t - 32];
    tw::mbarrier_arrive(second);
    y[t] = held[t];
  } else {
    tw::mbarrier_wait(second, 0);
    y[t] = x[t] + held[t - 32];
  }
}
