//# Kernels for scans: a first version, a warp per short row, and one block per row with the next tile under way.

//@ warp_scan
// The values of the lanes up to this one combined; `combine` is given the earlier one first.
template <typename T, typename Combine>
__device__ __forceinline__ T scan_warp(T value, int lane, Combine combine) {
  unrolled for (int offset = 1; offset < 32; offset *= 2) {
    const T earlier = __shfl_up_sync(~0u, value, offset);
    if (lane >= offset) value = combine(earlier, value);
  }
  return value;
}

//@ before
// What lane 0 to the one before this have together, from the scan of the warp; `start` for lane 0.
template <typename T>
__device__ __forceinline__ T before_lane(T scanned, int lane, T start) {
  const T earlier = __shfl_up_sync(~0u, scanned, 1);
  return lane == 0 ? start : earlier;
}
