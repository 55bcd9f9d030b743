//# f32 as parts in f16, as text: what differs in the kernels of a convolution whose f32 operands must be exact.

//@ parts_of_eight
// Eight channels of a position in k, three elements for each: the high part, the low one, and the high one again.
// Together they are x to 2^-22 of it, or to 2^-36.
struct Parts {
  uint4 packed[3];
  __device__ __forceinline__ Parts(const float (&x)[8]) {
    unrolled for (int chunk = 0; chunk < 3; ++chunk) {
      float v[8];
      unrolled for (int i = 0; i < 8; ++i) {
        const float whole = x[(chunk * 8 + i) / 3], low = (whole - __half2float(__float2half_rn(whole))) * 2048.f;
        v[i] = (chunk * 8 + i) % 3 == 1 ? low : whole;  // which is rounded to the high part when it is packed
      }
      packed[chunk] = Eight(v).packed;
    }
  }
};
