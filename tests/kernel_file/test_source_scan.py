"""The rules for the C++ text: what is refused, with place and remedy, and what honest code may do."""

# The samples are code of one line each, told apart more easily unbroken.
# ruff: noqa: E501

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tilewright.kernel_file.cpp_tokens import find_hidden_text, tokenize_cpp
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import Code, KernelFileError, Problem
from tilewright.kernel_file.source_scan import ALLOWED_HEADERS, scan_source

PLANS = sorted((Path(__file__).parent / "plans").glob("*.cu"))
PLAN = "//! op f(x) -> y\n//! out y: f32[1]\n//! launch f<<<1, 32>>>(x, y)\n"
KERNEL = "__global__ void f(const float* x, float* y) {}\n"


def problems_of(code: str) -> tuple[Problem, ...]:
    try:
        parse(PLAN + code + KERNEL)
    except KernelFileError as error:
        return error.problems
    return ()


# The place of the problem is marked with `@@`.
REFUSED = [
    # includes, five disguises and more
    ('#include @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ("#include @@</etc/passwd>\n", Code.INCLUDE, "in < >"),
    ("#include @@<cute/../../../etc/passwd>\n", Code.INCLUDE, "in < >"),
    ("#include @@<cute/./tensor.hpp>\n", Code.INCLUDE, "in < >"),
    ("#include @@<.hidden>\n", Code.INCLUDE, "in < >"),
    ("#include @@<cute//tensor.hpp>\n", Code.INCLUDE, "in < >"),
    ("#define H <cuda_fp16.h>\n#include @@H\n", Code.INCLUDE, "in < >"),
    ('#include @@"cute/tensor.hpp"\n', Code.INCLUDE, "write <cute/tensor.hpp>"),
    ('#include @@"cute/../secret.h"\n', Code.INCLUDE, "in < >"),
    ('%:include @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('#/**/include @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('/* a */ # /* b */ include /* c */ @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('#inc\\\nlude @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('#\\\ninclude @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('#\\\r\ninclude @@"secret.h"\n', Code.INCLUDE, "in < >"),
    ('#if 0\n#include @@"secret.h"\n#endif\n', Code.INCLUDE, "in < >"),
    ("@@#include\n", Code.INCLUDE, "allowed"),
    ("@@#include_next <cuda_fp16.h>\n", Code.INCLUDE, "delete the line"),
    ("@@#import <cuda_fp16.h>\n", Code.INCLUDE, "delete the line"),
    ('@@#embed "secret"\n', Code.INCLUDE, "delete the line"),
    ('@@#line 1 "other.cu"\n', Code.INCLUDE, "delete the line"),
    ('@@# 1 "other.cu"\n', Code.INCLUDE, "delete the line"),
    ('#if @@__has_include("secret.h")\n#endif\n', Code.INCLUDE, "delete the test"),
    ("#define TEST @@__has_include(<x>)\n", Code.INCLUDE, "delete"),
    ("#include @@<torch/extension.h>\n", Code.INCLUDE, "allowed"),
    ("#include @@<cuda_runtime.h>\n", Code.INCLUDE, "there already"),
    ("#include @@<stdint.h>\n", Code.INCLUDE, "there already"),
    ("#include @@<cub/device/device_reduce.cuh>\n", Code.INCLUDE, "allowed"),
    ("#include @@<cuda/std/chrono>\n", Code.INCLUDE, "no clock"),
    ("@@#pragma nv_restrict_flags\n", Code.INCLUDE, "allowed: unroll"),
    ("@@#pragma push_macro(x)\n", Code.INCLUDE, "allowed: unroll"),
    ('void g() { @@_Pragma("push_macro(x)") }\n', Code.INCLUDE, "allowed: unroll"),
    ("#define P(x) @@_Pragma(#x)\n", Code.INCLUDE, "write it out"),
    ("@@import <vector>;\n", Code.INCLUDE, "allowed headers"),
    ('__device__ void g() { asm(@@".include \\"x\\";"); }\n', Code.INCLUDE, "no files"),
    # host code
    ("void g() { f@@<<<1, 32>>>(0, 0); }\n", Code.HOST_CODE, "//! launch"),
    ("#define GO f@@<<<1, 32>>>(0, 0)\n", Code.HOST_CODE, "//! launch"),
    ("@@__host__ void g() {}\n", Code.HOST_CODE, "__host__ __device__"),
    ("int @@main() { return 0; }\n", Code.HOST_CODE, "the plan launches"),
    ("void g(@@torch::Tensor t);\n", Code.HOST_CODE, "device code only"),
    ("void g(@@at::Tensor t);\n", Code.HOST_CODE, "device code only"),
    ("void g(@@c10::ScalarType t);\n", Code.HOST_CODE, "device code only"),
    ("void g() { @@std::thread t; }\n", Code.HOST_CODE, "device code only"),
    ("void g() { @@std::vector<int> t; }\n", Code.HOST_CODE, "device code only"),
    ("@@PYBIND11_MODULE(a, b) {}\n", Code.HOST_CODE, "device code only"),
    ("@@TORCH_LIBRARY(a, b) {}\n", Code.HOST_CODE, "device code only"),
    ("void g() { @@cudaMemcpy(0, 0, 0, 0); }\n", Code.HOST_CODE, "the runner owns"),
    ("void g(@@cudaStream_t s);\n", Code.HOST_CODE, "the runner owns"),
    ("void g() { @@cuMemAlloc(0, 0); }\n", Code.HOST_CODE, "//! map"),
    ("void g() { @@cublasSgemm(0); }\n", Code.HOST_CODE, "//! library"),
    ("__attribute__((@@constructor)) void g() {}\n", Code.HOST_CODE, "no host code"),
    ('void g() { @@system("ls"); }\n', Code.HOST_CODE, "no host code"),
    # state
    ("@@__managed__ int count;\n", Code.DEVICE_STATE, "scratch"),
    ("@@thread_local int n;\n", Code.DEVICE_STATE, "scratch"),
    ('asm(@@".global .u32 count;");\n', Code.DEVICE_STATE, "in assembly"),
    ('__device__ void g() { asm volatile(@@".visible .glo" "bal .u32 c;"); }\n', Code.DEVICE_STATE, "in assembly"),
    ('__device__ void g() { asm(@@"\\x2eglobal .u32 c;"); }\n', Code.DEVICE_STATE, "in assembly"),
    # text that could be read two ways
    ("// what@@??/\n", Code.SYNTAX, "character it stands for"),
    ("#define A 1 @@\\ \n", Code.SYNTAX, "delete the blanks"),
    ("// rig@@\u202eht to left\n", Code.SYNTAX, "misleads"),
    ("int g(); // a@@\x0cb\n", Code.SYNTAX, "misleads"),
    ("int g(); // a@@\rint h;\n", Code.SYNTAX, "misleads"),
    ("@@\x00\n", Code.SYNTAX, "misleads"),
    ("@@/* never closed\n", Code.SYNTAX, "`*/`"),
    ("int g(); @@'\n", Code.SYNTAX, "close it"),
    ('int g(); @@"abc\n', Code.SYNTAX, "close it"),
    ('auto s = @@R"(never closed\n', Code.SYNTAX, "close it"),
    ('constexpr auto s = @@R"(a\\\nb)";\n', Code.SYNTAX, "ordinary string"),
    ("int mall@@\\u006fc();\n", Code.SYNTAX, "written plainly"),
]


@pytest.mark.parametrize(("marked", "code", "remedy"), REFUSED, ids=[repr(text)[:60] for text, _, _ in REFUSED])
def test_refused(marked: str, code: Code, remedy: str) -> None:
    before, marker, after = marked.partition("@@")
    assert marker
    problems = problems_of(before + after)
    assert problems, "accepted"
    assert problems[0].code is code, problems
    expected_line = PLAN.count("\n") + before.count("\n") + 1
    assert (problems[0].line, problems[0].column) == (expected_line, len(before) - (before.rfind("\n") + 1) + 1)
    assert remedy in problems[0].remedy


CLEAN = [
    "".join(f"#include <{name}>\n" for name in ALLOWED_HEADERS),
    "#include <cuda/std/type_traits>\n#include <cuda/barrier>\n#include <cooperative_groups/reduce.h>\n",
    "#include <cute/tensor.hpp>\n#include <cutlass/numeric_types.h> // why\n#include <cub/block/block_reduce.cuh>\n",
    "# include /* spaced */ <cub/warp/warp_scan.cuh> /* fine */\n",
    "#pragma once\n#pragma unroll\n#pragma unroll 4\n#pragma nv_diag_suppress 177\n#\n",
    '#define UNROLL _Pragma("unroll")\n',
    "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n#define FAST 1\n#else\n#define FAST 0\n#endif\n#undef FAST\n",
    "#define WRAP(x)   \\\n  do {            \\\n    g(x);         \\\n  } while (false)\n",
    '/* malloc printf <<< #include "x" */ // __device__ int count; cudaMemcpy\n',
    'constexpr const char* kText = "malloc(1) %clock64 <<< #include \\"x\\" \\\\";\n',
    'constexpr auto kRaw = R"x(#include "y" __device__ int n; )" )x";\n',
    "constexpr int kBig = 1'000'000; constexpr char kQuote = '\\''; constexpr char kOther = '\"';\n",
    "constexpr int table[4] = {1, 2, 3, 4};\nstatic constexpr float kHalf = 0.5f;\ninline constexpr bool kYes = true;\n",
    "__device__ constexpr float weights[2] = {1.f, 2.f};\n__constant__ int lookup[2] = {1, 2};\n__constant__ float one{1.f};\n",
    "const int n = 3;\nstatic const float* const nothing = nullptr;\n__device__ const int steps[] = {1, 2};\n",
    "template <class T> constexpr bool is_half = sizeof(T) == 2;\ntemplate <> constexpr bool is_half<char> = false;\n",
    "extern __shared__ float dynamic[];\nextern __shared__ __align__(1024) unsigned char bytes[];\n",
    "struct Plain { int a; float b = 1.f; Plain() = default; Plain(const Plain&) = delete; };\n",
    "struct Statics { static constexpr int value = 3; static const int other = 4; static __device__ int f(int v) { return v; } };\n",
    "template <int N> struct Deep { struct Inner { int x[N]; } inner; enum { A, B }; using type = Inner; };\n",
    "struct Forward;\ntemplate <class T> struct Other;\ntemplate <> struct Other<int>;\nenum class Mode : int;\nunion U { int i; float f; };\n",
    "class Access { public: __device__ int get() const { return v_; } private: int v_; };\n",
    "enum Color { Red, Green };\nenum class Mode : unsigned char { Plain = 0, Fancy };\n",
    "using namespace cute;\nusing Half = __half;\ntypedef unsigned int uint;\nnamespace cg = cooperative_groups;\n",
    "__device__ __forceinline__ float g(float v = 1.f) { return v; }\n__device__ int h(int (*callback)(int), int n) { return callback(n); }\n",
    "__host__ __device__ inline int both(int v) { return v; }\n__device__ static __host__ int again(int v) { return v; }\n",
    "template <class F> __device__ auto apply(F f) -> decltype(f(1)) { return f(1); }\n",
    "template <int N, class = void> __device__ void g(const int (&values)[N]) {}\n",
    "template <class T, int N = (3 > 2 ? 1 : 0)> __launch_bounds__(128) __global__ void other(T* p) { p[N] = T{}; }\n",
    "__device__ void g() { static constexpr int n = 3; static const float t[] = {1.f}; static __shared__ int s[32]; static_assert(n == 3); }\n",
    "__device__ void g() { struct L { static __device__ int f() { return 1; } int x; } l{L::f()}; (void)l; }\n",
    "__device__ void g() { auto f = [&](int i) mutable { return i + static_cast<int>(1.f); }; f(1); for (int i = 0; i < 3; ++i) {} }\n",
    '__device__ unsigned lane() { unsigned v; asm volatile("mov.u32 %0, %%laneid;" : "=r"(v)); return v; }\n',
    '__device__ float load(const float* p) { float v; asm("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(p)); return v; }\n',
    '__device__ void g() { asm volatile("{ .reg .pred p; .reg .b32 r; setp.ne.b32 p, 1, 0; }" ::: "memory"); }\n',
    "__device__ void wait() { cudaGridDependencySynchronize(); cudaTriggerProgrammaticLaunchCompletion(); }\n",
    "__device__ void g(int free, int clock, float main) { free += clock; main += 1.f; }\n",
    "struct Pool { __device__ void free(int slot) {} __device__ long clock() { return 0; } };\n__device__ void g(Pool& p) { p.free(1); }\n",
    "__device__ void g(int cuSeqlens, int cudaless) { int at = cuSeqlens + cudaless; (void)at; }\n",
    "__device__ bool operator==(int2 a, int2 b) { return a.x == b.x; }\nstruct Op { __device__ float operator()(float a) const { return a; } };\n",
    "template <class T> struct Guide { T v; };\ntemplate <class T> Guide(T) -> Guide<T>;\n",
    "template <class T> concept Small = sizeof(T) <= 4 && requires(T t) { t + t; };\n",
    "[[nodiscard]] __device__ int g() { return 1; }\n__attribute__((always_inline)) __device__ int h() { return 1; }\n",
    "alignas(16) __device__ constexpr int aligned[4] = {1, 2, 3, 4};\n",
    'extern "C" __device__ int linked(int v) { return v; }\n',
    "namespace a::b { inline namespace v1 { constexpr int c = 1; } }\n",
    "__device__ int shift(int a) { return a << 2 >> 1; }\nusing Nested = Guide2<Guide2<Guide2<int>>>;\n".replace(
        "Guide2", "A"
    ),
    "int declared(int);\n__device__ long long imported(long long import) { return import; }\n",
    "// unicode in comments is fine: \u00e9 \u03bc \u2192\n",
]


@pytest.mark.parametrize("code", CLEAN, ids=[repr(text)[:60] for text in CLEAN])
def test_honest_code_passes(code: str) -> None:
    assert problems_of(code) == ()


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_sample_plans_pass(path: Path) -> None:
    parse(path.read_text(), path.name)


def test_carriage_returns_are_line_ends() -> None:
    parse((PLAN + "#define A(x) \\\n  (x)\n" + KERNEL).replace("\n", "\r\n"))


def test_facts_for_the_plan() -> None:
    facts, problems = scan_source(
        "#define BODY used_in_macro\n__global__ void __launch_bounds__(32, 1) one(int a);\n"
        "template <int N> __global__ static void two() {}\n// hidden\n",
        (),
    )
    assert not problems
    assert facts.kernels == ("one", "two")
    assert {"one", "two", "N", "used_in_macro"} <= facts.identifiers
    assert "hidden" not in facts.identifiers
    assert not facts.incomplete
    assert scan_source("#define GLUE(a, b) a##b\n", ())[0].incomplete


def test_places_after_splices() -> None:
    cpp = tokenize_cpp("int \\\n a; \\\r\nb\\\nc \\\n d\n")
    places = {token.text: cpp.place(token.start) for token in cpp.code}
    assert places == {"int": (1, 1), "a": (2, 2), ";": (2, 3), "bc": (3, 1), "d": (5, 2)}


def test_digraphs_and_template_colons() -> None:
    texts = [token.text for token in tokenize_cpp("a<:1:> <% %> f<::g> %:").code]
    assert texts == ["a", "[", "1", "]", "{", "}", "f", "<", "::", "g", ">", "#"]


def test_every_needless_header_is_mended_away() -> None:
    problem = problems_of("#include <cuda_runtime.h> // not needed\n")[0]
    assert problem.autofix is not None
    assert (problem.autofix.line, problem.autofix.column, problem.autofix.length, problem.autofix.replacement) == (
        4,
        1,
        25,
        "",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        '"' * 100_000,
        "'" * 100_000,
        '\\"' * 50_000,
        'R"(' * 30_000,
        "/*" * 50_000,
        "{" * 100_000,
        "(" * 100_000,
        "template <" * 10_000,
        "#" * 100_000,
        "#include " * 10_000,
        "static int a[" * 8_000,
        "asm(" * 25_000,
        "__host__ " * 10_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_hostile_text_takes_bounded_time(text: str) -> None:
    start = time.process_time()
    find_hidden_text(text)
    scan_source(text, ())
    scan_source("void f() {" + text, ())
    assert time.process_time() - start < 60
