"""Candidates for `double`, y = 2 x, of every kind an author may send."""

from __future__ import annotations

PLAN = """//! op      double(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
"""

SIMPLE = (
    PLAN
    + """//! launch  twice<<<max(1, ceil_div(n, 256)), 256>>>(x, y, n)

extern "C" __global__ void twice(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
)

# Every thread takes elements far from its neighbours': right, and slow.
STRIDED = (
    PLAN
    + """//! let     per = max(1, ceil_div(n, 1024))
//! launch  twice<<<4, 256>>>(x, y, n, per)

extern "C" __global__ void twice(const float* x, float* y, long long n, long long per) {
    const long long first = (blockIdx.x * 256ll + threadIdx.x) * per;
    for (long long i = first; i < first + per && i < n; ++i) y[i] = 2.0f * x[i];
}
"""
)

WRONG = SIMPLE.replace("2.0f * x[i]", "i % 7 == 3 ? x[i] : 2.0f * x[i]")
HANGING = SIMPLE.replace("if (i < n)", "volatile int go = 1; while (go) {}\n    if (i < n)")
CRASHING = SIMPLE.replace("if (i < n)", "if (i <= n + 4096)")
NOT_COMPILING = SIMPLE.replace("2.0f * x[i]", "twice_of(x[i])")
NOT_A_PLAN = SIMPLE.replace("//! let     n = x.numel", "//! let     n = x.count")

# The compiler's memory: every template instantiates two more.
MEMORY_EATING = SIMPLE.replace(
    'extern "C"',
    """template <int D, unsigned long long N> struct Grow {
    static constexpr int value = Grow<D - 1, N * 2>::value + Grow<D - 1, N * 2 + 1>::value;
};
template <unsigned long long N> struct Grow<0, N> { static constexpr int value = 0; };
extern "C\"""",
).replace("2.0f * x[i]", "2.0f * x[i] + Grow<40, 1>::value")

SCRATCH_EATING = (
    PLAN
    + """//! scratch heap: u8[17592186044416]
//! launch  twice<<<max(1, ceil_div(n, 256)), 256>>>(x, y, heap, n)

extern "C" __global__ void twice(const float* x, float* y, unsigned char* heap, long long n) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) heap[i << 30] = 1;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
)
