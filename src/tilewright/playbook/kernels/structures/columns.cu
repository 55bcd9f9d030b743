//# Reductions over the first or the middle dimensions: neighbours in memory belong to different rows.

//@ team_reduce
// The values of the teams that share rows combined, the same in each. `room` is free again when it returns.
template <typename T, typename Combine>
__device__ __forceinline__ void team_reduce(T (&value)[WIDTH], void* room, Combine combine) {
  if constexpr (TEAMS == 1) return;
  auto* exchanged = static_cast<T*>(room) + threadIdx.x * WIDTH;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) exchanged[threadIdx.y * LANES * WIDTH + i] = value[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) value[i] = exchanged[i];
#pragma unroll
  for (int team = 1; team < TEAMS; ++team) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value[i] = combine(value[i], exchanged[team * LANES * WIDTH + i]);
  }
  __syncthreads();
}

//@ renew
// Makes f32 values of a 16-bit vector be found again in the next step: kept, they would not fit the registers.
template <typename T>
__device__ __forceinline__ void renew(Vector<T>& held) {
  if constexpr (sizeof(held) % 4 == 0) {
    auto* words = reinterpret_cast<unsigned*>(&held);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(held)) / 4; ++i) asm volatile("" : "+r"(words[i]));
  }
}
