//! op      unpack4(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1], n = x.numel
//! out     y: i8[rows, 2 * cols]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const unsigned char* x, char2* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = make_char2((signed char)((int)x[i] << 28 >> 28), (signed char)((int)x[i] >> 4));
}
