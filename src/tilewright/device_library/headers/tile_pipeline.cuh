// Tiles of a GEMM's operands in shared memory: how they lie there, how threads fill them, and the ring of slots in which
// those of later steps arrive while the tensor cores work on the present one.
#pragma once
#include <tilewright/cp_async.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/vector_access.cuh>

namespace tw {

// N elements of 16 bits, 8 or 1, from `place` of a tensor of `count` elements, which begins at a multiple of 16 bytes and,
// for N = 8, has a multiple of 8 of them; zeros where it has none. `place` may be any.
// cost: for 8 elements two loads of 16 bytes and eight shifts
// arch: sm_80
template <int N, typename T> __device__ __forceinline__ Packed<T, N> load_shifted(const T* tensor, long long place, long long count) {
  static_assert(sizeof(T) == 2 && (N == 8 || N == 1), "a vector of 16-bit elements, or one");
  Packed<T, N> packed;
  if constexpr (N == 1) {
    packed.at[0] = place >= 0 && place < count ? tensor[place] : T(0.f);
    return packed;
  }
  const long long first = place & ~7ll;
  const int ahead = int(place) & 7, words = ahead / 2;
  uint32_t read[8], moved[4];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const long long at = first + part * 8;
    const bool is_needed = (part == 0 || ahead != 0) && at >= 0 && at < count;
    const uint4 bits = is_needed ? *reinterpret_cast<const uint4*>(tensor + at) : make_uint4(0, 0, 0, 0);
    read[part * 4] = bits.x, read[part * 4 + 1] = bits.y, read[part * 4 + 2] = bits.z, read[part * 4 + 3] = bits.w;
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int i = 0; i + step < 8; ++i) read[i] = (words & step) ? read[i + step] : read[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) moved[i] = __funnelshift_r(read[i], read[i + 1], (ahead & 1) * 16);
  memcpy(&packed, moved, sizeof(packed));
  return packed;
}

// A tile of LINES lines of INNER elements in chunks of 16 bytes, placed so that neither the stores of chunks nor the reads
// of fragments meet bank conflicts. IS_TURNED: k goes down the lines, and not along them.
// cost: one exclusive-or per address
// arch: sm_80
template <typename T, int LINES, int INNER, bool IS_TURNED> struct SharedTile {
  using Element = T;
  static constexpr int CHUNK = 16 / int(sizeof(T)), CHUNKS = INNER / CHUNK, PIECES = LINES * CHUNKS, BYTES = PIECES * 16;
  // The offset in bytes of a chunk of a line.
  __device__ static __forceinline__ int offset(int line, int chunk) {
    // Fragments of f32 are read element by element: of four lines, two chunks each.
    if constexpr (sizeof(T) == 4 && IS_TURNED) return (line * CHUNKS + (chunk ^ (line & 3) << 1)) * 16;
    else return swizzled_chunk<CHUNKS>(line, chunk);
  }
  // The offset in bytes of an element.
  __device__ static __forceinline__ int element(int line, int inner) {
    return offset(line, inner / CHUNK) + inner % CHUNK * int(sizeof(T));
  }
};

// Starts copies of a whole tile by THREADS threads. `from(line, inner)` answers where the WIDTH elements that begin there
// lie, aligned to their size, or null: then they are zero.
// cost: one cp.async per WIDTH elements and thread
// arch: sm_80
template <typename Tile, int THREADS, int WIDTH, typename From>
__device__ __forceinline__ void fill_async(unsigned char* tile, From from) {
  constexpr int COPIES = Tile::CHUNKS * (Tile::CHUNK / WIDTH), ALL = Tile::PIECES * (Tile::CHUNK / WIDTH);
#pragma unroll
  for (int first = 0; first < ALL; first += THREADS) {
    const int piece = first + threadIdx.x;
    if (ALL % THREADS != 0 && piece >= ALL) break;
    const int line = piece / COPIES, inner = piece % COPIES * WIDTH;
    const typename Tile::Element* at = from(line, inner);
    const uint32_t to = shared_address(tile + Tile::element(line, inner));
    if constexpr (WIDTH == Tile::CHUNK) cp_async_16(to, at, at != nullptr);
    else cp_async_small<WIDTH * int(sizeof(*at))>(to, at, at != nullptr);
  }
}

// A tile whose elements are computed: THREADS threads load what they need of it into registers, and store it later.
// cost: a thread's share of the tile in registers
// arch: sm_80
template <typename Tile, int THREADS> struct StagedTile {
  using T = typename Tile::Element;
  Vector<T> held[(Tile::PIECES + THREADS - 1) / THREADS];
  // `values(line, inner, v)` gives the elements of the chunk that begins there as f32.
  template <typename Values> __device__ __forceinline__ void load(Values values) {
#pragma unroll
    for (int first = 0; first < Tile::PIECES; first += THREADS) {
      const int piece = first + threadIdx.x;
      if (Tile::PIECES % THREADS != 0 && piece >= Tile::PIECES) break;
      float v[Tile::CHUNK];
      values(piece / Tile::CHUNKS, piece % Tile::CHUNKS * Tile::CHUNK, v);
      held[first / THREADS] = pack<T>(v);
    }
  }
  __device__ __forceinline__ void store(unsigned char* tile) const {
#pragma unroll
    for (int first = 0; first < Tile::PIECES; first += THREADS) {
      const int piece = first + threadIdx.x;
      if (Tile::PIECES % THREADS != 0 && piece >= Tile::PIECES) break;
      store_vector(reinterpret_cast<T*>(tile + Tile::offset(piece / Tile::CHUNKS, piece % Tile::CHUNKS)), held[first / THREADS]);
    }
  }
};

// Goes along `steps` steps with STAGES slots. `start(step, slot)` begins to fetch a step's tiles, by cp.async or into
// registers; `finish(slot)` stores what came into registers; `multiply(step, slot)` uses them. `start` is called for STAGES - 1
// steps past the last too, whose tiles are zeros. Behind it all threads are done with all slots. The whole block calls it.
// cost: one __syncthreads per step
// arch: sm_80
template <int STAGES, typename Start, typename Finish, typename Multiply>
__device__ __forceinline__ void tile_pipeline(int steps, Start start, Finish finish, Multiply multiply) {
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) {
    start(step, step), finish(step);
    cp_async_commit();
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // sync: the step's slot has arrived for all threads, and all have read the one before
    const int next = step + STAGES - 1;
    start(next, next % STAGES);  // without a branch, so that what is loaded is waited for behind the product
    multiply(step, step % STAGES);
    finish(next % STAGES);
    cp_async_commit();
  }
  cp_async_wait<0>();
  __syncthreads();  // sync: the slots may be written over
}

}  // namespace tw
