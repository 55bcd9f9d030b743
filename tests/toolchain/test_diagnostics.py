"""Messages at the kernel file's own lines, and nothing of ours among them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.records import Build, BuildFailure, DType, FailureReason, Severity

Compiled = Callable[..., Build]
Refused = Callable[..., BuildFailure]


def places(failure: BuildFailure) -> list[tuple[int, int, str]]:
    return [(d.line, d.column, d.severity.value) for d in failure.diagnostics]


def clean(failure: BuildFailure) -> BuildFailure:
    for diagnostic in failure.diagnostics:
        for text in (diagnostic.file, diagnostic.message, *diagnostic.notes):
            assert "tilewright" not in text
            assert "site-packages" not in text
            assert "nv_mangled_name" not in text
    return failure


def test_errors_and_warnings_with_line_column_and_text(refused: Refused) -> None:
    failure = clean(
        refused("__global__ void k(float* x) {\n\tint y = x;  x[0] = zz;\n  int unused;\n}\n", name="mine.cu")
    )
    assert failure.reason is FailureReason.DIAGNOSTICS
    assert places(failure) == [(2, 10, "error"), (2, 21, "error"), (3, 7, "warning")]
    first, second, third = failure.diagnostics
    assert first.source_line == "\tint y = x;  x[0] = zz;"
    assert second.message == 'identifier "zz" is undefined'
    assert third.severity is Severity.WARNING
    assert str(second) == 'mine.cu:2:21: error: identifier "zz" is undefined'


def test_columns_count_characters(refused: Refused) -> None:
    line = "__global__ void k(float* x) { /* éé */ x[0] = zz; }"
    failure = clean(refused(f"// 你好\n{line}\n"))
    assert places(failure) == [(2, line.index("zz") + 1, "error")]
    assert failure.diagnostics[0].source_line == line


def test_warnings_of_a_build_that_succeeds(compiled: Callable[..., Build]) -> None:
    build = compiled("__global__ void k(float* x) {\n  int unused;\n  x[0] = 1;\n}\n", constants=(("N", 3),))
    assert [(w.line, w.message) for w in build.warnings] == [(2, 'variable "unused" was declared but never referenced')]


def test_the_instantiation_backtrace_is_kept_as_notes(refused: Refused) -> None:
    failure = clean(
        refused(
            "template <class T> struct A { typename T::none q; };\n"
            "template <class T> __device__ void f(T t) { A<T> a; }\n"
            "template <class T> __global__ void k(T* x) {\n  f(x[0]);\n}\n",
            "k<float>",
        )
    )
    (error,) = failure.diagnostics
    assert error.line == 1
    assert error.notes[0] == 'instantiation of class "A<T> [with T=float]" at line 2'
    assert error.notes[1] == 'instantiation of "void f(T) [with T=float]" at line 4'


def test_an_error_inside_a_header_moves_to_the_line_that_caused_it(refused: Refused) -> None:
    kernel = "__global__ void k(int* x) {\n  x[0] = cuda::std::get<5>(cuda::std::array<int, 2>{});\n}\n"
    failure = clean(refused("#include <cuda/std/array>\n" + kernel))
    error = failure.diagnostics[0]
    assert (error.file, error.line) == ("kernel.cu", 3)
    assert error.source_line.strip().startswith("x[0] = cuda::std::get<5>")


def test_candidates_of_a_failed_call_are_notes(refused: Refused) -> None:
    failure = clean(refused("#include <cuda_fp16.h>\n__global__ void k(__half* x) {\n  __half h{x, x};\n}\n"))
    error = failure.diagnostics[0]
    assert "argument types are: (__half *, __half *)" in error.message
    assert any(note.startswith("cuda_fp16.h(") for note in error.notes)
    assert len(error.notes) <= 16


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("__global__ void k(float* x) {\n  x[0] = 1;\n", 2, 'expected a "}"'),
        ("__global__ void k(float* x) {\n  x[0] = 1; }\nstruct A { int x; }", 3, 'expected a ";"'),
        ("__global__ void k(float* x) {\n  x[0] = 1; }\nint q = (3\n\n", 3, 'expected a ")"'),
        ("#if 1\n__global__ void k(float* x) {}\n", 1, "#endif"),
        ("/* open\n__global__ void k(float* x) {}\n", 1, "comment unclosed"),
        ("__global__ void k(float* x) {}\n#error stop here\n", 2, "stop here"),
        ('__global__ void k(float* x) {}\n#include "none.h"\n', 2, "none.h"),
    ],
)
def test_files_that_are_cut_short(refused: Refused, source: str, line: int, words: str) -> None:
    failure = clean(refused(source))
    errors = [d for d in failure.diagnostics if d.severity is Severity.ERROR]
    assert errors[0].line == line
    assert words in errors[0].message


LAUNCH = "//! launch  silo<<<1, 32>>>(x)\n"


@pytest.mark.parametrize(
    ("kernel", "source", "line", "words"),
    [
        ("silo", LAUNCH + "__global__ void __launch_bounds__(32 * (1 + 1)) silu(float* x) {}", 1, "did you mean silu?"),
        ("silo", LAUNCH + "__global__ void attention(float* x) {}", 1, "its kernels: attention"),
        ("silo", LAUNCH + "void helper() {}", 1, "write one with __global__"),
        ("silo", LAUNCH + "__device__ void silo(float* x) { x[0] = 1; }", 1, "not a __global__ function"),
        ("k<float>", "\ntemplate <int N> __global__ void k(float* x) {}", 2, "does not take these template arguments"),
        ("k<1, 2>", "\ntemplate <int N> __global__ void k(float* x) {}", 2, "does not take these template arguments"),
        ("k", "\ntemplate <int N> __global__ void k(float* x) {}", 2, "is a template; write its arguments"),
        ("k<1>", "\n__global__ void k(float* x) {}", 2, "is no template; write `launch k<<<`"),
        ("k", "\n__global__ void k(float* x) {}\n__global__ void k(int* x) {}", 2, "is declared more than once"),
        ("a::k", "namespace b { __global__ void k(float* x) {} }", 1, "cannot be named like this"),
    ],
)
def test_a_name_in_the_plan_without_its_kernel(
    refused: Refused, kernel: str, source: str, line: int, words: str
) -> None:
    failure = clean(refused(source, kernel))
    assert [d.line for d in failure.diagnostics] == [line]
    name = kernel.partition("<")[0].rpartition("::")[2]
    column = failure.diagnostics[0].column
    assert source.split("\n")[line - 1][column - 1 :].startswith(name)
    assert kernel in failure.diagnostics[0].message
    assert words in failure.diagnostics[0].message


def test_inline_assembly_is_located(refused: Refused) -> None:
    failure = clean(
        refused('__global__ void k(float* x) {\n  x[0] = 1;\n  asm volatile("bogus.f32 %0;" :: "f"(x[0]));\n}\n')
    )
    (error,) = failure.diagnostics
    assert error.line == 3
    assert error.message == "inline assembly: Not a name of any known instruction: 'bogus'"


def test_too_much_static_shared_memory(refused: Refused) -> None:
    body = "  __shared__ float a[100000];\n  a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[0];\n}\n"
    failure = clean(refused("//! launch  k<<<1, 32>>>(x)\n__global__ void k(float* x) {\n" + body))
    (error,) = failure.diagnostics
    assert error.line == 1
    assert "400000 bytes" in error.message


def test_a_constant_whose_name_is_taken(refused: Refused) -> None:
    failure = clean(refused("//! tune INT_MAX = 3 | 4\n__global__ void k() {}", constants=(("INT_MAX", 3),)))
    assert failure.diagnostics[0].line == 1
    assert "the constant INT_MAX cannot be defined" in failure.diagnostics[0].message


def test_a_constants_type_clashing_with_the_file(refused: Refused) -> None:
    failure = clean(refused("\nconstexpr int T = 3;\n__global__ void k() {}", constants=(("T", DType.F32),)))
    assert failure.diagnostics[0].line == 2


def test_a_macro_of_the_prelude_may_be_defined_again(compiled: Compiled) -> None:
    build = compiled("#define INFINITY 1e30f\n#define FLT_MAX 3e38f\n__global__ void k(float* x) { x[0] = INFINITY; }")
    assert build.warnings == ()


def test_a_header_one_slip_away(refused: Refused) -> None:
    (error,) = clean(refused("#include <cooperative_groups/redduce.h>\n__global__ void k(float* x) {}")).diagnostics
    assert error.line == 1
    assert error.message.endswith("did you mean <cooperative_groups/reduce.h>?")
    (error,) = clean(refused("#include <cuda/nothing_like_it.h>\n__global__ void k(float* x) {}")).diagnostics
    assert "did you mean" not in error.message


def test_a_type_of_many_kilobytes_is_cut(refused: Refused) -> None:
    nested = "template <class A, class B> struct Pair {};\nusing T0 = Pair<int, float>;\n"
    nested += "".join(f"using T{n} = Pair<T{n - 1}, T{n - 1}>;\n" for n in range(1, 12))
    failure = clean(refused(nested + "__global__ void k(float* x) { T11 wrong = x[0]; }\n"))
    (error,) = [one for one in failure.diagnostics if one.severity is Severity.ERROR]
    assert error.message.endswith(" ...")
    assert len(error.message) < 5000
