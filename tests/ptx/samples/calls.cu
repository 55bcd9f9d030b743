// Calls of every sort: recursion, through a pointer, printf, assert, and a jump table.
__device__ float scale = 2.0f;
__device__ float* where = &scale;
__constant__ int primes[4] = {2, 3, 5, 7};
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ float twice(float x) { return 2 * x; }
__device__ float thrice(float x) { return 3 * x; }
__device__ float (*table[2])(float) = {twice, thrice};
extern "C" __global__ void calls(float* out, int n) {
  assert(n > 0);
  int i = threadIdx.x;
  float local[8];
  for (int j = 0; j < 8; j++) local[(i + j) & 7] = j;
  float value = table[n & 1](local[n & 7]) * *where;
  switch (i % 9) {
    case 0: value += fibonacci(n); break;
    case 1: value *= primes[n & 3]; break;
    case 2: value = sinf(value); break;
    case 3: printf("%d %f\n", i, value); break;
    case 4: out[9] = value; break;
    case 5: asm volatile("{ .reg .pred p; .reg .b32 t; L: mov.u32 t, %laneid; setp.gt.u32 p, t, 40; @p bra L; }"); break;
    case 6: asm volatile("{ .reg .pred p; .reg .b32 t; L: mov.u32 t, %warpid; setp.gt.u32 p, t, 40; @p bra L; }"); break;
    case 7: __trap();
    case 8: return;
  }
  out[i] = value;
}
