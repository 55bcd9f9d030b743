"""Bad input, all in one process: each gets a clear error, and the process stays usable after every one of them."""

from __future__ import annotations

import pytest

from tilewright.kernel_file import Code, DoesNotApply, KernelFileError, evaluate, parse
from tilewright.records import PROFILES, BuildFailure, DType, TensorSpec
from tilewright.toolchain import BuiltPlan, build_plan

H200 = PROFILES["H200"]
GOOD = """\
//! op      copy(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  copy<<<ceil_div(n, 256), 256>>>(x, y, n)
{include}
__global__ void copy(const float* x, float* y, long long n) {{
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = x[i];
}}
"""
X = TensorSpec.contiguous(DType.F32, (1000,))


def still_usable() -> bool:
    result = build_plan(parse(GOOD.format(include="")), {"x": X}, H200)
    return isinstance(result, BuiltPlan) and len(result.plan.steps) == 1


def refused(text: str) -> KernelFileError:
    with pytest.raises(KernelFileError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    "include",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "#include <../../secret.h>",
        '%:include "secret.h"',
        '#define WHAT "secret.h"\n#include WHAT',
        '#/* quiet */include "secret.h"',
        '#inc\\\nlude "secret.h"',
        '??=include "secret.h"',
        '/**/ # /**/ include "secret.h"',
        '_Pragma("include_alias(\\"cuda_fp16.h\\", \\"secret.h\\")")',
    ],
)
def test_local_files_stay_out_of_the_build(include: str) -> None:
    problems = refused(GOOD.format(include=include)).problems
    assert {Code.INCLUDE, Code.SYNTAX} & {problem.code for problem in problems}  # a trigraph is refused as such
    assert all(6 <= problem.line <= 7 for problem in problems)
    assert still_usable()


def test_malformed_plan() -> None:
    [problem] = refused(GOOD.format(include="").replace("256>>>", "256>>")).problems
    assert (problem.code, problem.line) == (Code.SYNTAX, 5)
    assert still_usable()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (TensorSpec.contiguous(DType.F16, (8,)), "x.dtype == f32"),
        (TensorSpec(DType.F32, (4, 4), (1, 4)), "contiguous"),
        (TensorSpec(DType.F32, (8,), (1,), alignment=4), "aligned"),
    ],
)
def test_what_the_file_does_not_take(spec: TensorSpec, why: str) -> None:
    with pytest.raises(DoesNotApply, match=why):
        evaluate(parse(GOOD.format(include="")), {"x": spec}, H200)
    assert still_usable()


def test_an_empty_tensor_launches_nothing() -> None:
    empty = evaluate(parse(GOOD.format(include="")), {"x": TensorSpec.contiguous(DType.F32, (0,))}, H200)
    assert empty.steps == ()
    assert empty.buffers[0].spec.shape == (0,)


def run_to_binding(text: str) -> None:
    assert isinstance(build_plan(parse(text), {"x": X}, H200), BuiltPlan)


def failing_step(text: str, code: Code) -> str:
    with pytest.raises(KernelFileError) as caught:
        run_to_binding(text)
    [problem] = caught.value.problems
    assert problem.code is code
    assert still_usable()
    return str(problem)


def test_two_to_the_31_blocks() -> None:
    message = failing_step(GOOD.format(include="").replace("ceil_div(n, 256), 256", "2147483648, 256"), Code.LIMIT)
    assert "2147483648" in message
    assert "2147483647" in message


def test_a_terabyte_of_scratch() -> None:
    text = GOOD.format(include="").replace(
        "//! launch  copy<<<", "//! scratch s: f32[1 * 274877906944]\n//! launch  copy<<<"
    )
    text = text.replace("(x, y, n)\n", "(x, y, n, s)\n").replace("long long n)", "long long n, float* s)")
    message = failing_step(text, Code.LIMIT)
    assert "1099511627776" in message


def test_a_block_beyond_launch_bounds() -> None:
    text = GOOD.format(include="").replace("void copy", "void __launch_bounds__(128) copy")
    assert "128" in failing_step(text, Code.LIMIT)


def test_a_kernel_that_is_not_there() -> None:
    [problem] = refused(GOOD.format(include="").replace("launch  copy", "launch  kopy")).problems
    assert (problem.code, problem.line) == (Code.UNKNOWN_NAME, 5)
    assert "copy" in problem.remedy


def test_code_that_does_not_compile() -> None:
    text = GOOD.format(include="").replace("y[i] = x[i];", "y[i] = z[i];")
    result = build_plan(parse(text), {"x": X}, H200)
    assert isinstance(result, BuildFailure)
    [diagnostic] = result.diagnostics
    assert (diagnostic.line, diagnostic.source_line.strip()) == (9, "if (i < n) y[i] = z[i];")
    assert still_usable()
