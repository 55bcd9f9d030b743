//# Reductions about an earlier one, such as squares of differences from the mean, by a piece of a row about its own.

//@ helpers
// The elements of the piece that begins with vector `first`.
__device__ __forceinline__ float count_of(long long first, long long vectors) {
  return static_cast<float>(min(vectors - first, static_cast<long long>(THREADS * STEPS)) * WIDTH);
}

//@ corrections_moments
// Squares of differences from `own` mean, as squares of differences from `mean`.
__device__ __forceinline__ double moved_squares(float squares, float own, float mean, float count) {
  const double difference = static_cast<double>(own) - mean;
  return squares + count * difference * difference;
}

//@ corrections_exponentials
// A sum of exponentials less `own` greatest, as one of exponentials less the `greatest` of all.
__device__ __forceinline__ double moved_exponentials(float sum, float own, float greatest) {
  return static_cast<double>(sum) * expf((own == -INFINITY ? 0.0f : own) - greatest);
}
