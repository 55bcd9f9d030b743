// wgmma: products of 64 x N tiles by a warpgroup, operands in shared memory (a also in registers), f32 sums in registers.
// Sums 4j to 4j + 3 of a lane are columns 8j + 2(lane % 4) and the next one, of rows lane / 4 and lane / 4 + 8 of its warp's 16.
#pragma once

namespace tw {

// Names an operand in shared memory that is contiguous along k, with rows of 128 bytes in TMA's 128-byte swizzle: add
// 32 bytes (2 units) per k of 16 elements of 16 bits. `address` is aligned to 1024.
// cost: a few integer instructions, once per slot
// arch: sm_90a
__device__ __forceinline__ uint64_t wgmma_descriptor_k(uint32_t address) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

// Names an operand in shared memory that is contiguous along m or n: boxes of 64 elements of 16 bits (128 bytes, 128-byte
// swizzle) by the slot's depth, `box_bytes` apart: add 16 x 128 bytes (128 units) per k of 16.
// cost: a few integer instructions, once per slot
// arch: sm_90a
__device__ __forceinline__ uint64_t wgmma_descriptor_mn(uint32_t address, uint32_t box_bytes) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(box_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

// Orders this warpgroup's writes to registers of sums, and of an operand in registers, before the next wgmma.
// cost: none to speak of
// arch: sm_90a
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");  // sync: registers before the next wgmma
}

// Closes the group of the wgmmas issued since the last commit.
// cost: one instruction
// arch: sm_90a
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");  // sync: the group that is waited for
}

// Waits until all but the last PENDING groups are done: their sums may be used, their operands written over.
// cost: none where they are
// arch: sm_90a
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");  // sync: the products
}

// The registers of a wgmma's sums, as its text and as its operands.
#define TW_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TW_LIST_32 TW_LIST_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TW_LIST_64 TW_LIST_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TW_LIST_96 TW_LIST_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TW_LIST_128 TW_LIST_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TW_SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TW_SUMS_16 TW_SUMS_8(0), TW_SUMS_8(8)
#define TW_SUMS_32 TW_SUMS_16, TW_SUMS_8(16), TW_SUMS_8(24)
#define TW_SUMS_64 TW_SUMS_32, TW_SUMS_8(32), TW_SUMS_8(40), TW_SUMS_8(48), TW_SUMS_8(56)
#define TW_SUMS_96 TW_SUMS_64, TW_SUMS_8(64), TW_SUMS_8(72), TW_SUMS_8(80), TW_SUMS_8(88)
#define TW_SUMS_128 TW_SUMS_96, TW_SUMS_8(96), TW_SUMS_8(104), TW_SUMS_8(112), TW_SUMS_8(120)


// Defines NAME, one wgmma: d (64 x N) = a * b + (add ? d : 0). The instruction lists every register of d, so each width has
// a text of its own; LIST and SUMS are those lists, OPERANDS and ADD the numbers of the operands behind them.
#define TW_WGMMA(NAME, N, SHAPE, KIND, LIST, SUMS, ADD, OPERANDS)                                                       \
  template <int A_MN = 0, int B_MN = 0>                                                                               \
  __device__ __forceinline__ void NAME(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned." SHAPE ".f32." KIND "." KIND \
                 " {" LIST "}, " OPERANDS "; }" : SUMS : "l"(a), "l"(b), "r"(add), "n"(A_MN), "n"(B_MN));               \
  }

// As TW_WGMMA, with a (64 x 16) in registers: a[0] and a[1] are two elements of rows lane / 4 and lane / 4 + 8, a[2] and
// a[3] those eight columns on, as `ldmatrix_x4` and packed sums have them.
#define TW_WGMMA_RS(NAME, N, SHAPE, KIND, LIST, SUMS, ADD, OPERANDS)                                                    \
  template <int B_MN = 0>                                                                                             \
  __device__ __forceinline__ void NAME(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {               \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned." SHAPE ".f32." KIND "." KIND \
                 " {" LIST "}, " OPERANDS "; }" : SUMS                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_MN));                            \
  }

// d (64 x N) = a (64 x 16) * b (16 x N) + (add ? d : 0), bf16, N 32, 64, 128, 192 or 256, a and b named by descriptors. A_MN, B_MN: 1 where the
// operand is contiguous along m or n. Starts the product; `wgmma_commit` and `wgmma_wait` end it.
// signature: template <int A_MN = 0, int B_MN = 0> void wgmma_nN_bf16(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
// cost: one tensor core instruction of the warpgroup
// arch: sm_90a
TW_WGMMA(wgmma_n32_bf16, 32, "m64n32k16", "bf16", TW_LIST_16, TW_SUMS_16, "%18", "%16, %17, p, 1, 1, %19, %20")
TW_WGMMA(wgmma_n64_bf16, 64, "m64n64k16", "bf16", TW_LIST_32, TW_SUMS_32, "%34", "%32, %33, p, 1, 1, %35, %36")
TW_WGMMA(wgmma_n128_bf16, 128, "m64n128k16", "bf16", TW_LIST_64, TW_SUMS_64, "%66", "%64, %65, p, 1, 1, %67, %68")
TW_WGMMA(wgmma_n192_bf16, 192, "m64n192k16", "bf16", TW_LIST_96, TW_SUMS_96, "%98", "%96, %97, p, 1, 1, %99, %100")
TW_WGMMA(wgmma_n256_bf16, 256, "m64n256k16", "bf16", TW_LIST_128, TW_SUMS_128, "%130", "%128, %129, p, 1, 1, %131, %132")

// The same in f16.
// signature: template <int A_MN = 0, int B_MN = 0> void wgmma_nN_f16(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
// cost: one tensor core instruction
// arch: sm_90a
TW_WGMMA(wgmma_n32_f16, 32, "m64n32k16", "f16", TW_LIST_16, TW_SUMS_16, "%18", "%16, %17, p, 1, 1, %19, %20")
TW_WGMMA(wgmma_n64_f16, 64, "m64n64k16", "f16", TW_LIST_32, TW_SUMS_32, "%34", "%32, %33, p, 1, 1, %35, %36")
TW_WGMMA(wgmma_n128_f16, 128, "m64n128k16", "f16", TW_LIST_64, TW_SUMS_64, "%66", "%64, %65, p, 1, 1, %67, %68")
TW_WGMMA(wgmma_n192_f16, 192, "m64n192k16", "f16", TW_LIST_96, TW_SUMS_96, "%98", "%96, %97, p, 1, 1, %99, %100")
TW_WGMMA(wgmma_n256_f16, 256, "m64n256k16", "f16", TW_LIST_128, TW_SUMS_128, "%130", "%128, %129, p, 1, 1, %131, %132")

// The same in TF32: a is 64 x 8, b 8 x N, both contiguous along k.
// signature: void wgmma_nN_tf32(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
// cost: one tensor core instruction, half the rate of f16
// arch: sm_90a
TW_WGMMA(wgmma_n32_tf32, 32, "m64n32k8", "tf32", TW_LIST_16, TW_SUMS_16, "%18", "%16, %17, p, 1, 1")
TW_WGMMA(wgmma_n64_tf32, 64, "m64n64k8", "tf32", TW_LIST_32, TW_SUMS_32, "%34", "%32, %33, p, 1, 1")
TW_WGMMA(wgmma_n128_tf32, 128, "m64n128k8", "tf32", TW_LIST_64, TW_SUMS_64, "%66", "%64, %65, p, 1, 1")
TW_WGMMA(wgmma_n192_tf32, 192, "m64n192k8", "tf32", TW_LIST_96, TW_SUMS_96, "%98", "%96, %97, p, 1, 1")
TW_WGMMA(wgmma_n256_tf32, 256, "m64n256k8", "tf32", TW_LIST_128, TW_SUMS_128, "%130", "%128, %129, p, 1, 1")

// The same in bf16 with a in registers: a[0] and a[1] are two elements of rows lane / 4 and lane / 4 + 8, a[2] and a[3]
// those eight columns on, as `ldmatrix_x4` and packed sums have them.
// signature: template <int B_MN = 0> void wgmma_nN_bf16_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add)
// cost: one tensor core instruction
// arch: sm_90a
TW_WGMMA_RS(wgmma_n32_bf16_rs, 32, "m64n32k16", "bf16", TW_LIST_16, TW_SUMS_16, "%21", "{%16, %17, %18, %19}, %20, p, 1, 1, %22")
TW_WGMMA_RS(wgmma_n64_bf16_rs, 64, "m64n64k16", "bf16", TW_LIST_32, TW_SUMS_32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38")
TW_WGMMA_RS(wgmma_n128_bf16_rs, 128, "m64n128k16", "bf16", TW_LIST_64, TW_SUMS_64, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70")
TW_WGMMA_RS(wgmma_n192_bf16_rs, 192, "m64n192k16", "bf16", TW_LIST_96, TW_SUMS_96, "%101", "{%96, %97, %98, %99}, %100, p, 1, 1, %102")
TW_WGMMA_RS(wgmma_n256_bf16_rs, 256, "m64n256k16", "bf16", TW_LIST_128, TW_SUMS_128, "%133", "{%128, %129, %130, %131}, %132, p, 1, 1, %134")

// The same in f16 with a in registers.
// signature: template <int B_MN = 0> void wgmma_nN_f16_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add)
// cost: one tensor core instruction
// arch: sm_90a
TW_WGMMA_RS(wgmma_n32_f16_rs, 32, "m64n32k16", "f16", TW_LIST_16, TW_SUMS_16, "%21", "{%16, %17, %18, %19}, %20, p, 1, 1, %22")
TW_WGMMA_RS(wgmma_n64_f16_rs, 64, "m64n64k16", "f16", TW_LIST_32, TW_SUMS_32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38")
TW_WGMMA_RS(wgmma_n128_f16_rs, 128, "m64n128k16", "f16", TW_LIST_64, TW_SUMS_64, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70")
TW_WGMMA_RS(wgmma_n192_f16_rs, 192, "m64n192k16", "f16", TW_LIST_96, TW_SUMS_96, "%101", "{%96, %97, %98, %99}, %100, p, 1, 1, %102")
TW_WGMMA_RS(wgmma_n256_f16_rs, 256, "m64n256k16", "f16", TW_LIST_128, TW_SUMS_128, "%133", "{%128, %129, %130, %131}, %132, p, 1, 1, %134")

// The wgmma in bf16 of as many columns as d has sums for; a file that uses it has the text of all widths.
// cost: as the wgmma of that width
// arch: sm_90a
template <int A_MN, int B_MN, int SUMS> __device__ __forceinline__ void wgmma_bf16(float (&d)[SUMS], uint64_t a, uint64_t b, int add) {
  static_assert(SUMS == 16 || SUMS == 32 || SUMS == 64 || SUMS == 96 || SUMS == 128, "32, 64, 128, 192 or 256 columns");
  if constexpr (SUMS == 16) wgmma_n32_bf16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 32) wgmma_n64_bf16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 64) wgmma_n128_bf16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 96) wgmma_n192_bf16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 128) wgmma_n256_bf16<A_MN, B_MN>(d, a, b, add);
}

// The wgmma in f16 of as many columns as d has sums for; a file that uses it has the text of all widths.
// cost: as the wgmma of that width
// arch: sm_90a
template <int A_MN, int B_MN, int SUMS> __device__ __forceinline__ void wgmma_f16(float (&d)[SUMS], uint64_t a, uint64_t b, int add) {
  static_assert(SUMS == 16 || SUMS == 32 || SUMS == 64 || SUMS == 96 || SUMS == 128, "32, 64, 128, 192 or 256 columns");
  if constexpr (SUMS == 16) wgmma_n32_f16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 32) wgmma_n64_f16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 64) wgmma_n128_f16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 96) wgmma_n192_f16<A_MN, B_MN>(d, a, b, add);
  else if constexpr (SUMS == 128) wgmma_n256_f16<A_MN, B_MN>(d, a, b, add);
}

}  // namespace tw
