//! op      histogram(x, bins: int) -> counts
//! out     counts: i32[bins] zeroed
//! need    x.dtype == u8 and bins == 256
//! scratch ticket: i32[1] counter
//! launch  histogram<<<device.sms * 4, 256>>>(x, counts, ticket, x.numel)
//! launch  check<<<1, 32>>>(counts, x.numel) pdl when x.numel % 16 != 0;

static const char* const kNote = "ld.global %clock is only text here";
struct Counter { int value; static __device__ int next(int v) { return v + 1; } };
enum class Mode : int { Plain = 0, Fancy };

__global__ void histogram(const unsigned char* x, int* counts, int* ticket, long long n) {
  static __shared__ int local[256];
  static_assert(sizeof(int) == 4, "int is 32 bits; don't worry");
  for (int i = threadIdx.x; i < 256; i += 256) local[i] = 0;
  __syncthreads();
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) atomicAdd(local + x[i], 1);
  __syncthreads();
  atomicAdd(counts + threadIdx.x, local[threadIdx.x]);
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  if (threadIdx.x == 0 && lane == 0 && atomicAdd(ticket, 1) == gridDim.x - 1) *ticket = 0;
}

__global__ void check(const int* counts, long long n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (counts[0] < 0 || n < 0) __trap();
}
