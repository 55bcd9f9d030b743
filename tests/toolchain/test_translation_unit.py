"""The prelude and the constants, as a kernel file sees them: most of it is proved by static_assert in NVRTC."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tilewright.records import Build, BuildFailure, BuildRequest, DType, KernelParameter, ParameterKind, PointeeKind
from tilewright.toolchain.nvrtc import ToolchainError
from tilewright.toolchain.translation_unit import KERNEL_FILE_NAME, assemble, check_against_entry, read_signature

Compiled = Callable[..., Build]
Refused = Callable[..., BuildFailure]


def test_prelude_names(compiled: Compiled) -> None:
    compiled(
        """
        template <class A, class B> constexpr bool same = false;
        template <class A> constexpr bool same<A, A> = true;
        static_assert(same<int8_t, signed char> && same<uint16_t, unsigned short> && same<int32_t, int>);
        static_assert(sizeof(int64_t) == 8 && sizeof(uint64_t) == 8 && sizeof(uintptr_t) == 8 && sizeof(size_t) == 8);
        static_assert(int64_t(-1) < 0 && uint32_t(-1) > 0u && same<ptrdiff_t, decltype((char*)0 - (char*)0)>);
        static_assert(INFINITY > FLT_MAX && -INFINITY < -FLT_MAX && NAN != NAN);
        static_assert(FLT_EPSILON == 1.1920929e-7f && DBL_MAX > 1e308 && INT_MAX + 1u == 2147483648u);
        static_assert(INT_MIN == -2147483648ll && LLONG_MIN < 0 && UINT64_MAX == ~0ull && M_PI > 3.14159);
        static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 128);
        __global__ void k(float* y) { y[0] = -INFINITY; }
        """
    )


def test_constants_have_the_types_of_the_specification(compiled: Compiled) -> None:
    compiled(
        """
        template <class A, class B> constexpr bool same = false;
        template <class A> constexpr bool same<A, A> = true;
        static_assert(same<decltype(SMALL), const int> && SMALL == -2147483648ll);
        static_assert(same<decltype(WIDE), const long long> && WIDE == 1ll << 40);
        static_assert(same<decltype(LOWEST), const long long> && LOWEST == -9223372036854775807ll - 1);
        static_assert(same<decltype(REAL), const float> && REAL == 0.1f);
        static_assert(same<decltype(FLAG), const bool> && FLAG);
        static_assert(same<T, __nv_bfloat16> && same<E, __nv_fp8_e4m3> && same<W, long long>);
        template <int SMALL> struct a_parameter_may_share_the_name { static constexpr int value = SMALL; };
        static_assert(a_parameter_may_share_the_name<3>::value == 3);
        __global__ void k(T* y) { y[0] = T(1.0f); }
        """,
        constants=(
            ("SMALL", -(2**31)),
            ("WIDE", 2**40),
            ("LOWEST", -(2**63)),
            ("REAL", 0.1),
            ("FLAG", True),
            ("T", DType.BF16),
            ("E", DType.F8E4M3),
            ("W", DType.I64),
        ),
    )


def test_infinite_constants(compiled: Compiled) -> None:
    compiled(
        "static_assert(UP == INFINITY && DOWN == -INFINITY && NOT != NOT);\n__global__ void k(int* y) { y[0] = 1; }",
        constants=(("UP", float("inf")), ("DOWN", float("-inf")), ("NOT", float("nan"))),
    )


def test_headers_come_only_with_a_type_that_needs_them() -> None:
    plain = assemble(BuildRequest("", (("N", 4),), ("k<4>",), "sm_80"))
    half = assemble(BuildRequest("", (), ("k<__half>",), "sm_80"))
    fp8 = assemble(BuildRequest("", (("T", DType.F8E5M2),), ("k",), "sm_80"))
    assert "#include" not in plain.text
    assert "#include <cuda_fp16.h>" in half.text
    assert "#include <cuda_fp8.h>" in fp8.text


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ("const __nv_bfloat16* x, float* y) { y[0] = __bfloat162float(x[0]); }", "cuda_bf16.h"),
        ("const __half* x, float* y) { y[0] = __half2float(x[0]); }", "cuda_fp16.h"),
        ("const unsigned short* x, float* y) { y[0] = float(__ushort2half_rn(x[0])); }", "cuda_fp16.h"),
        ("const __nv_fp8_e4m3* x, float* y) { y[0] = float(x[0]); }", "cuda_fp8.h"),
    ],
)
def test_headers_come_with_the_names_a_file_uses(compiled: Compiled, body: str, header: str) -> None:
    source = f"__global__ void k({body}"
    assert f"#include <{header}>" in assemble(BuildRequest(source, (), ("k",), "sm_90a")).text
    compiled(source)


def test_everyday_words_bring_no_header(compiled: Compiled) -> None:
    source = "constexpr int half = 2, half2 = 4;\n__global__ void k(float* y) { y[0] = half + half2; }"
    assert "#include" not in assemble(BuildRequest(source, (), ("k",), "sm_90a")).text
    compiled(source)


def test_lines_are_the_files_own() -> None:
    unit = assemble(BuildRequest("line one\nline two", (("N", 4),), ("k",), "sm_80"))
    lines = unit.text.split("\n")
    at = lines.index(f'#line 1 "{KERNEL_FILE_NAME}"')
    assert lines[at + 1 : at + 3] == ["line one", "line two"]


def test_only_light_files_are_built_without_the_runtime_declarations() -> None:
    light = assemble(BuildRequest("#include <cuda_fp16.h>\n", (), ("k",), "sm_80"))
    heavy = assemble(
        BuildRequest("#include <cuda_fp16.h>\n#include <cub/block/block_reduce.cuh>\n", (), ("k",), "sm_80")
    )
    assert "-minimal" in light.options
    assert "-minimal" not in heavy.options


def test_headers_with_quoted_includes_are_found(compiled: Compiled) -> None:
    build = compiled(
        """#include <mma.h>
        __global__ void k(const __half* a, float* c) {
          using namespace nvcuda::wmma;
          fragment<matrix_a, 16, 16, 16, __half, row_major> fa; fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
          fragment<accumulator, 16, 16, 16, float> fc;
          fill_fragment(fc, 0.0f); load_matrix_sync(fa, a, 16); load_matrix_sync(fb, a, 16);
          mma_sync(fc, fa, fb, fc); store_matrix_sync(c, fc, 16, mem_row_major);
        }"""
    )
    assert "wmma.mma" in build.ptx


def test_a_header_that_wants_cuda_h_gets_the_preludes_descriptor(compiled: Compiled) -> None:
    compiled(
        "#include <cuda.h>\n__global__ void k(const __grid_constant__ CUtensorMap m, int* y) { y[0] = sizeof(m); }"
    )


def test_macros_left_by_the_file_do_not_reach_the_tables(compiled: Compiled) -> None:
    build = compiled(
        "__global__ void k(float* y, int n) { y[0] = n; }\n#define const broken\n#define decltype broken\n"
        "#define table broken\n"
    )
    assert len(build.kernels[0].parameters) == 2


def test_a_plain_build_is_quick(compiled: Compiled) -> None:
    source = "__global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[0]; }"
    compiled(source)
    started = time.process_time()
    compiled(source)
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_characters_the_compiler_cannot_be_given(refused: Refused, character: str) -> None:
    failure = refused(f"// first\n//  {character}\n")
    assert (failure.diagnostics[0].line, failure.diagnostics[0].column) == (2, 5)
    assert f"U+{ord(character):04X}" in failure.diagnostics[0].message


# -- tables of parameter types --


K, P = ParameterKind, PointeeKind


def test_every_kind_of_parameter(compiled: Callable[..., Build]) -> None:
    build = compiled(
        """#include <cuda_fp16.h>
        #include <cuda_bf16.h>
        struct Pair { int a, b; };
        struct Unknown;
        __global__ void k(const float* __restrict__ a, float4* b, const volatile int* c, const void* d, Unknown* e,
            __half* f, const __half2* g, const __nv_bfloat16* h, __nv_bfloat162* i,
            bool j, int l, unsigned m, long long n, unsigned long o, signed char p, unsigned short q,
            float r, double s, const __grid_constant__ CUtensorMap t, Pair u, __half v) {}
        """
    )
    assert build.kernels[0].parameters == (
        KernelParameter(K.CONST_POINTER, 8, 8, 4, 4),
        KernelParameter(K.POINTER, 8, 8, 16, 16, only_read=True),
        KernelParameter(K.CONST_POINTER, 8, 8, 4, 4),
        KernelParameter(K.CONST_POINTER, 8, 8, 1, 1),
        KernelParameter(K.POINTER, 8, 8, 1, 1, only_read=True),
        KernelParameter(K.POINTER, 8, 8, 2, 2, P.F16, only_read=True),
        KernelParameter(K.CONST_POINTER, 8, 8, 4, 4, P.F16),
        KernelParameter(K.CONST_POINTER, 8, 8, 2, 2, P.BF16),
        KernelParameter(K.POINTER, 8, 8, 4, 4, P.BF16, only_read=True),
        KernelParameter(K.BOOL, 1, 1),
        KernelParameter(K.SIGNED, 4, 4),
        KernelParameter(K.UNSIGNED, 4, 4),
        KernelParameter(K.SIGNED, 8, 8),
        KernelParameter(K.UNSIGNED, 8, 8),
        KernelParameter(K.SIGNED, 1, 1),
        KernelParameter(K.UNSIGNED, 2, 2),
        KernelParameter(K.FLOAT, 4, 4),
        KernelParameter(K.FLOAT, 8, 8),
        KernelParameter(K.TENSOR_MAP, 128, 128),
        KernelParameter(K.OTHER, 8, 4),
        KernelParameter(K.OTHER, 2, 2),
    )


def test_references_and_functions_are_nothing_that_an_argument_fits(compiled: Callable[..., Build]) -> None:
    build = compiled("__global__ void k(const float& a, float* const& b, void (*c)(), float* d) {}")
    assert [(p.kind, p.size) for p in build.kernels[0].parameters] == [(K.OTHER, 8)] * 3 + [(K.POINTER, 8)]


def test_a_template_over_the_element_type(compiled: Callable[..., Build]) -> None:
    build = compiled(
        "template <class T, int N> __global__ void k(const T* x, T* y) { y[N] = x[0]; }",
        "k<__half, 3>",
        "k<float, 4>",
    )
    half, full = build.kernels
    assert [p.pointee for p in half.parameters] == [P.F16, P.F16]
    assert [p.pointee_size for p in full.parameters] == [4, 4]
    assert half.symbol != full.symbol
    assert build.kernel("k<float, 4>") is full


def test_a_kernel_without_parameters(compiled: Callable[..., Build]) -> None:
    assert compiled("__global__ void k() {}").kernels[0].parameters == ()


def test_a_table_that_is_not_there_is_our_fault() -> None:
    with pytest.raises(ToolchainError, match="lacks the table"):
        read_signature(".version 9.0", "tilewright_0")


def test_sizes_that_disagree_with_the_entry_are_our_fault() -> None:
    with pytest.raises(ToolchainError, match=r"\[8, 4\]"):
        check_against_entry((KernelParameter(K.SIGNED, 4, 4),), ".entry k(.param .u64 a, .param .u32 b)", "k")
