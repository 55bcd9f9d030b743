"""Autofix: every case with one mechanical fix, what is left alone, and that fixing ends."""

from __future__ import annotations

import pytest

from tilewright.kernel_file.parser import apply_autofixes, autofix, parse
from tilewright.kernel_file.problems import Autofix, Code, KernelFileError, Problem

PLAN = """//! op f(x, mask?, rows: int, flag: bool) -> y
//! out y: f32[rows]
//! {line}
//! launch f<<<rows, 32>>>(x, mask, y)
__global__ void f(const float* x, const float* mask, float* y) {{}}
"""

FIXED = [
    ("let a = x.size(0)", "let a = x.shape[0]"),
    ("let a = x.size(-1)", "let a = x.shape[-1]"),
    ("let a = x.size(rows)", "let a = x.shape[rows]"),
    ("let a = x.size()", "let a = x.shape"),
    ("let a = x.shape()", "let a = x.shape"),
    ("let a = x.stride(1) + x.stride(0)", "let a = x.stride[1] + x.stride[0]"),
    ("let a = x.numel()", "let a = x.numel"),
    ("let a = x.dim() + x.ndim()", "let a = x.ndim + x.ndim"),
    ("let a = x.element_size()", "let a = x.itemsize"),
    ("let a = x.element_size", "let a = x.itemsize"),
    ("let a = x.strides", "let a = x.stride"),
    ("let a = x.nmel", "let a = x.numel"),
    ("need x.dtype == float32", "need x.dtype == f32"),
    ("need x.dtype == torch.float32", "need x.dtype == f32"),
    ("need x.dtype == torch.half or x.dtype == half", "need x.dtype == f16 or x.dtype == f16"),
    ("need x.dtype in [bfloat16, int64, double]", "need x.dtype in [bf16, i64, f64]"),
    ("let a = cdiv(rows, 4)", "let a = ceil_div(rows, 4)"),
    ("let a = ceildiv(div_up(rows, 2), 4)", "let a = ceil_div(ceil_div(rows, 2), 4)"),
    ("need mask is not None or flag", "need has(mask) or flag"),
    ("need mask is None", "need not has(mask)"),
    ("need mask != none", "need has(mask)"),
    ("need mask == None", "need not has(mask)"),
    ("let a = rows \\", "let a = rows "),
    ("let a = rows // the number of rows", "let a = rows # the number of rows"),
    ("let a = rows // 2, b = 3 // halves", "let a = rows // 2, b = 3 # halves"),
    ("let a = row + rowss", "let a = rows + rows"),
    ("let a = max(rows, 0x20)", "let a = max(rows, 32)"),
    ("let a = 2.5f * 4.0F, b = 7u", "let a = 2.5 * 4.0, b = 7"),
    ("need flg", "need flag"),
    ("ned flag", "need flag"),
    ("accept x: stride", "accept x: strided"),
]


@pytest.mark.parametrize(("written", "meant"), FIXED, ids=[written for written, _ in FIXED])
def test_fixed(written: str, meant: str) -> None:
    text = PLAN.format(line=written)
    with pytest.raises(KernelFileError) as caught:
        parse(text)
    assert any(problem.autofix is not None for problem in caught.value.problems)
    assert autofix(text).text == PLAN.format(line=meant)


def test_true_false_none_are_read_as_they_are() -> None:
    text = PLAN.format(line="let a = True and not False")
    assert autofix(text).text == text


def test_headers_that_are_there_already_are_deleted() -> None:
    text = PLAN.format(line="need flag") + "#include <cuda_runtime.h>\n#include <stdint.h> // widths\n"
    assert autofix(text).text == PLAN.format(line="need flag") + "\n // widths\n"


def test_allowed_headers_in_quotes_get_their_brackets() -> None:
    text = PLAN.format(line="need flag") + '#include "cuda_fp16.h" // halves\n#include "cute/tensor.hpp"\n'
    after = "#include <cuda_fp16.h> // halves\n#include <cute/tensor.hpp>\n"
    assert autofix(text).text == PLAN.format(line="need flag") + after


def test_several_lines_at_once() -> None:
    text = PLAN.format(line="let a = x.size(0)\n//! let b = cdiv(a, 2)\n//! need x.dtype == float32")
    fixed = PLAN.format(line="let a = x.shape[0]\n//! let b = ceil_div(a, 2)\n//! need x.dtype == f32")
    assert autofix(text).text == fixed


ALONE = [
    "let a = sin(rows)",  # near `min`, but no slip of it
    "let a = x.sum()",
    "let a = unknown",
    "let a = r",  # one letter is near everything
    "let a = x.dtype + 1",
    "accept masc: strided",  # four letters of which one differs
]


@pytest.mark.parametrize("line", ALONE)
def test_left_alone(line: str) -> None:
    with pytest.raises(KernelFileError) as caught:
        autofix(PLAN.format(line=line))
    assert [problem.autofix for problem in caught.value.problems] == [None]


def test_names_that_differ_on_purpose_are_left_alone() -> None:
    with pytest.raises(KernelFileError) as caught:
        autofix(PLAN.format(line="tune BLOCK_M = 1 | 2\n//! let stride0 = 1, a = BLOCK_N + stride1 + stride"))
    unknown = [problem for problem in caught.value.problems if problem.code is Code.UNKNOWN_NAME]
    assert len(unknown) == 3
    assert all(problem.autofix is None for problem in unknown)


def test_what_remains_is_raised_after_the_fixes() -> None:
    with pytest.raises(KernelFileError) as caught:
        autofix(PLAN.format(line="let a = x.size(0) + unknown"))
    assert [problem.code for problem in caught.value.problems] == [Code.UNKNOWN_NAME]
    assert "unknown" in caught.value.problems[0].found


def test_overlapping_fixes_are_made_one_at_a_time() -> None:
    first = Problem(Code.SYNTAX, 1, 1, "a", "b", Autofix(1, 1, 3, "x"))
    second = Problem(Code.SYNTAX, 1, 2, "a", "b", Autofix(1, 2, 1, "y"))
    assert apply_autofixes("abcd", [first, second]) == "aycd"


def test_fixes_outside_the_text_are_ignored() -> None:
    far = Problem(Code.SYNTAX, 1, 1, "a", "b", Autofix(9, 1, 1, "x"))
    assert apply_autofixes("abcd", [far]) == "abcd"
