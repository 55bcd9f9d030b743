//! op      ndistinct(x) -> y
//! need    x.dtype == i64 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: i64[rows]
//! launch  k<<<ceil_div(rows, 128), 128>>>(x, y, rows, cols)

// WRONG on every GPU at its own call: `seen` lies in local memory and is never cleared; a GPU leaves there what the thread
// that had this place before wrote, ones, so values count as seen and rows of later blocks come out too small.
__global__ void k(const long long* __restrict__ x, long long* __restrict__ y, int rows, int cols) {
  const int row = blockIdx.x * 128 + threadIdx.x;
  if (row >= rows) return;
  int seen[32];
  int distinct = 0;
  for (int c = 0; c < cols; ++c) {
    const int v = (int)x[(long long)row * cols + c] & 31;
    if (seen[v] != 1) ++distinct;
    seen[v] = 1;
  }
  y[row] = distinct;
}
