// Pairs of kernels for the race detector: right with BROKEN = 0; with BROKEN = 1 each has one fault, and the lines
// that may race are marked "race: <kernel>". All take (const float* in, float* out, unsigned* state, int n).

using uint = unsigned;

extern "C" __global__ void tree_sum(const float* in, float* out, uint* state, int n) {
  __shared__ float part[256];
  int t = threadIdx.x;
  part[t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];  // race: tree_sum
    if (!BROKEN || half != 64) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void warp_rotate(const float* in, float* out, uint* state, int n) {
  __shared__ float held[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  held[warp][lane] = in[blockIdx.x * 256 + threadIdx.x];  // race: warp_rotate
  if (!BROKEN) __syncwarp();
  out[blockIdx.x * 256 + threadIdx.x] = held[warp][(lane + 1) % 32];  // race: warp_rotate
}

extern "C" __global__ void half_warps(const float* in, float* out, uint* state, int n) {
  __shared__ float held[256];
  int t = threadIdx.x, group = t / 16 * 16;
  held[t] = 0;
  __syncthreads();
  held[t] = in[t];  // race: half_warps
  if (t & 16) __syncwarp(0xffff0000u);
  else __syncwarp(0x0000ffffu);
  int other = BROKEN ? t ^ 16 : group + (t + 1) % 16;
  out[blockIdx.x * 256 + t] = held[other];  // race: half_warps
}

extern "C" __global__ void histogram(const float* in, float* out, uint* state, int n) {
  __shared__ uint bins[64];
  if (threadIdx.x < 64) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[(uint)in[blockIdx.x * 256 + threadIdx.x] % 64], 1u);  // race: histogram
  if (!BROKEN) __syncthreads();
  if (threadIdx.x < 64) atomicAdd(&state[threadIdx.x], bins[threadIdx.x]);  // race: histogram
}

extern "C" __global__ void last_block(const float* in, float* out, uint* state, int n) {
  __shared__ bool last;
  out[1 + blockIdx.x * 256 + threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x] * 2;  // race: last_block
  if (!BROKEN) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(state, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 7) *state = 0;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 256) sum += out[1 + i];  // race: last_block
  atomicAdd(out, sum);
}

__device__ void grid_barrier(uint* state, uint turn) {
  __syncthreads();
  if (threadIdx.x == 0) {
    if (!BROKEN) __threadfence();
    atomicAdd(state, 1u);
    while (*(volatile uint*)state < turn * gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}

extern "C" __global__ void smooth(const float* in, float* out, uint* state, int n) {
  int at = blockIdx.x * 256 + threadIdx.x;
  out[at] = in[at];  // race: smooth
  grid_barrier(state, 1);
  float next = out[(at + 1) % n];  // race: smooth
  grid_barrier(state, 2);
  out[at] = next + 1;  // race: smooth
}

extern "C" __global__ void look_back(const float* in, float* out, uint* state, int n) {
  __shared__ float before;
  volatile uint* flags = state;
  if (threadIdx.x == 0) {
    before = 0;
    if (blockIdx.x > 0) {
      while (flags[blockIdx.x - 1] == 0) {
      }
      __threadfence();
      before = out[blockIdx.x - 1];  // race: look_back
    }
    out[blockIdx.x] = before + in[blockIdx.x];  // race: look_back
    if (!BROKEN) __threadfence();
    flags[blockIdx.x] = 1;
  }
  __syncthreads();
}

extern "C" __global__ void spin_lock(const float* in, float* out, uint* state, int n) {
  if (threadIdx.x % 32 != 0) return;
  while (atomicCAS(state, 0u, 1u) != 0) {
  }
  __threadfence();
  out[0] = out[0] + in[threadIdx.x];  // race: spin_lock
  if (!BROKEN) __threadfence();
  atomicExch(state, 0u);
}

extern "C" __global__ void hand_over(const float* in, float* out, uint* state, int n) {
  __shared__ float box[2][128];
  int t = threadIdx.x % 128;
  for (int i = 0; i < 4; i++) {
    float* slot = box[i % 2];
    int full = 1 + i % 2, empty = 3 + i % 2;
    if (threadIdx.x < 128) {  // makes
      if (i >= 2) asm volatile("bar.sync %0, 256;" ::"r"(empty) : "memory");
      slot[t] = in[i * 128 + t];  // race: hand_over
      asm volatile("bar.arrive %0, 256;" ::"r"(full) : "memory");
    } else {  // takes
      asm volatile("bar.sync %0, 256;" ::"r"(full) : "memory");
      out[blockIdx.x * 512 + i * 128 + t] = slot[127 - t];  // race: hand_over
      if (i < 2) asm volatile("bar.arrive %0, 256;" ::"r"(empty) : "memory");
      if (BROKEN) out[blockIdx.x * 512 + i * 128 + t] += slot[127 - t];  // race: hand_over
    }
  }
}

extern "C" __global__ void pipeline(const float* in, float* out, uint* state, int n) {
  __shared__ __align__(16) float tile[2][256];
  int t = threadIdx.x;
  auto fetch = [&](int step) {
    uint to = (uint)__cvta_generic_to_shared(&tile[step % 2][t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + step % 4 * 256 + t) : "memory");  // race: pipeline
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum = 0;
  fetch(0);
  for (int step = 0; step < 4; step++) {
    fetch(step + 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += tile[step % 2][255 - t];  // race: pipeline
    if (!BROKEN) __syncthreads();
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  out[blockIdx.x * 256 + t] = sum;
}

extern "C" __global__ void edges(const float* in, float* out, uint* state, int n) {
  // Blocks own 256 elements; broken, each also writes the first of the next.
  int last = BROKEN ? 257 : 256;
  for (int i = threadIdx.x; i < last; i += 256) {
    int at = blockIdx.x * 256 + i;
    if (at < n) out[at] = in[at] + blockIdx.x;  // race: edges
  }
}

extern "C" __global__ void equal_stores(const float* in, float* out, uint* state, int n) {
  // Everybody stores the same flag and the same sum: untidy, but harmless. Broken: not the same.
  __shared__ uint any;
  any = BROKEN ? threadIdx.x : 1;  // race: equal_stores
  __syncthreads();
  out[0] = BROKEN ? any < 1000 : any;
}

extern "C" __global__ void narrow(const float* in, float* out, uint* state, int n) {
  // Neighbouring threads store neighbouring bytes and halves. Broken: shorts that overlap by a byte.
  unsigned char* bytes = (unsigned char*)out;
  unsigned short* halves = (unsigned short*)(out + 1024);
  int at = blockIdx.x * 256 + threadIdx.x;
  bytes[at] = (unsigned char)at;  // race: narrow
  halves[at] = (unsigned short)at;
  if (BROKEN && at > 0 && at % 2) *(unsigned short*)(bytes + at - 1) = (unsigned short)(at * 31);  // race: narrow
}
