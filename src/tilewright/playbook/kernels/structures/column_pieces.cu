//# One reduction over the first or the middle dimensions: pieces of the columns, then all pieces of a row put together.

//@ load_rows
// Neighbouring rows of a column; where not all of them exist, those from `low` to `high`.
template <typename T>
__device__ __forceinline__ Vector<T> load_rows(const T* from, bool full, int low, int high) {
  if (full) return *reinterpret_cast<const Vector<T>*>(from);
  Vector<T> found = {};
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    if (i >= low && i < high) found.at[i] = from[i];
  }
  return found;
}
