"""Parameter types read back from the compiled module."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.records import Build, KernelParameter, ParameterKind, PointeeKind
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.signature import check_against_entry, read_signature

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
        KernelParameter(K.POINTER, 8, 8, 16, 16),
        KernelParameter(K.CONST_POINTER, 8, 8, 4, 4),
        KernelParameter(K.CONST_POINTER, 8, 8, 1, 1),
        KernelParameter(K.POINTER, 8, 8, 1, 1),
        KernelParameter(K.POINTER, 8, 8, 2, 2, P.F16),
        KernelParameter(K.CONST_POINTER, 8, 8, 4, 4, P.F16),
        KernelParameter(K.CONST_POINTER, 8, 8, 2, 2, P.BF16),
        KernelParameter(K.POINTER, 8, 8, 4, 4, P.BF16),
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
