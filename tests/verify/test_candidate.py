"""Who judges a case: the reference here, or the one where the GPU is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.verify import kernels, tasks

from tilewright.devices.protocol import Device
from tilewright.kernel_file import KernelFile, compare_op, parse, print_op
from tilewright.kernel_file.op_line import op_of_task
from tilewright.records import (
    BadPlan,
    Case,
    Dimension,
    DType,
    Execution,
    Job,
    NumberInput,
    ScalarType,
    Task,
    TaskOutput,
    TensorInput,
)
from tilewright.verify import read_kernel
from tilewright.verify.candidate import Judges
from tilewright.verify.distributions import TASK


@dataclass(frozen=True)
class Named:
    """A reference that is asked nothing."""

    name: str
    sees_gpu: bool

    def call(self, handler: str, request: Any, answer: Any, seconds: float = 60.0) -> Any:
        raise AssertionError("nobody is to be asked")

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: Any, seconds: float = 60.0
    ) -> tuple[Execution, Any]:
        raise AssertionError("nobody is to be asked")

    def close(self) -> None:
        pass


CPU, LOCAL = Named("a CPU here", False), Named("a GPU here", True)
FAR = Named("a GPU elsewhere", True)
SMALL, MIDDLE, SEEDED, HUGE = 1000, 1 << 22, 1 << 25, 1 << 27  # elements of f32


def judge(judges: Judges, elements: int, values: str = TASK, task: Task = tasks.DOUBLE) -> str | None:
    sized = replace(task, dimensions=(Dimension(task.dimensions[0].name, elements),))
    found = judges.of(sized, Case(sized.sizes, 1, values))
    assert found is None or isinstance(found, Named)
    return found.name if found else None


@pytest.mark.parametrize(
    ("elements", "values", "alone", "local", "spooled"),
    [
        (SMALL, TASK, CPU, LOCAL, CPU),
        (SMALL, "impulse", CPU, LOCAL, CPU),
        (MIDDLE, TASK, CPU, LOCAL, FAR),  # a CPU would take long
        (MIDDLE, "impulse", CPU, LOCAL, FAR),  # its bytes travel, so whoever gets them can judge
        (SEEDED, TASK, None, LOCAL, FAR),
        (SEEDED, "impulse", None, None, None),  # no device draws these
        (HUGE, TASK, None, LOCAL, FAR),  # what the kernel makes of them stays there
    ],
)
def test_who_judges_what(
    elements: int, values: str, alone: Named | None, local: Named | None, spooled: Named | None
) -> None:
    found = [judge(one, elements, values) for one in (Judges(CPU), Judges(LOCAL), Judges(CPU, FAR))]
    assert found == [one.name if one else None for one in (alone, local, spooled)]


@pytest.mark.parametrize(("elements", "shared"), [(SMALL, False), (MIDDLE, False), (SEEDED, True), (HUGE, True)])
def test_large_results_stay_where_the_gpu_is(elements: int, shared: bool) -> None:
    sized = replace(tasks.DOUBLE, dimensions=(Dimension(tasks.DOUBLE.dimensions[0].name, elements),))
    case = Case(sized.sizes, 1)
    assert Judges(LOCAL).shares(sized, case) is shared
    assert Judges(CPU, FAR).shares(sized, case) is shared
    assert not Judges(CPU).shares(sized, case)


# -- reading a candidate: the task's op, mechanical mends, outputs and library steps --


def test_the_op_of_a_task() -> None:
    task = Task(
        "fused",
        "",
        "f",
        (
            TensorInput("x", DType.F32, ("n",)),
            TensorInput("state", DType.F32, ("n",), in_place=True),
            TensorInput("mask", DType.BOOL, ("n",), optional=True),
            NumberInput("eps", ScalarType.FLOAT, 1),
            NumberInput("steps", ScalarType.INT, 3, default=False),
            NumberInput("causal", ScalarType.BOOL, True),
        ),
        (TaskOutput("y", DType.F32, ("n",)), TaskOutput("z", DType.F32, ())),
        (Dimension("n", 8),),
    )
    line = print_op(op_of_task(task))
    assert line == "op      fused(x, state!, mask?, eps: float = 1.0, steps: int, causal: bool = true) -> y, z"
    text = f"//! {line}\n//! out     y: f32[x.shape]\n//! out     z: f32[]\n"
    text += "//! launch  k<<<1, 1>>>(x, state, mask, y, z)\n"
    file = parse(text + "__global__ void k(const float*, float*, const bool*, float*, float*) {}\n")
    assert compare_op(file, op_of_task(task)) == ()
    assert print_op(op_of_task(tasks.ACCUMULATE)) == "op      accumulate(y!, delta)"


def test_an_honest_file_is_read() -> None:
    file = read_kernel(kernels.LAYERNORM, tasks.LAYERNORM)
    assert isinstance(file, KernelFile)
    assert file.text == kernels.LAYERNORM


def test_trivia_are_mended() -> None:
    text = kernels.LAYERNORM.replace("x.shape[0]", "x.size(0)").replace("eps: float = 1e-5", "eps: float")
    file = read_kernel(text, tasks.LAYERNORM)
    assert isinstance(file, KernelFile)
    assert "x.shape[0]" in file.text
    assert "eps: float = 1e-05" in file.text


def test_problems_have_lines() -> None:
    found = read_kernel(kernels.DOUBLE.replace("let     n = v.numel", "let     n = w.numel"), tasks.DOUBLE)
    assert isinstance(found, BadPlan)
    (problem,) = found.problems
    assert (problem.line, problem.code) == (3, "unknown-name")
    assert problem.source_line == "//! let     n = w.numel"
    found = read_kernel("hello", tasks.DOUBLE)
    assert isinstance(found, BadPlan)


def test_another_op_or_output_is_refused() -> None:
    found = read_kernel(kernels.DOUBLE, tasks.MEAN)
    assert isinstance(found, BadPlan)
    assert {one.code for one in found.problems} == {"task-mismatch"}
    found = read_kernel(
        kernels.DOUBLE.replace("f32[v.shape]", "f16[v.shape]").replace("float* out", "__half* out"), tasks.DOUBLE
    )
    assert isinstance(found, BadPlan)
    assert found.problems[0].code == "out"
    assert found.problems[0].message == "out is f16[1048576], the task has f32[1048576]"


def test_library_steps_need_permission() -> None:
    text = """\
//! op      matmul(a, b) -> out
//! out     out: f32[a.shape[0], b.shape[1]]
//! library out = aten.mm(a, b)
"""
    found = read_kernel(text, tasks.MATMUL)
    assert isinstance(found, BadPlan)
    assert found.problems[0].code == "library"
    assert isinstance(read_kernel(text, replace(tasks.MATMUL, allow_library=True)), KernelFile)


def test_results_may_be_called_otherwise() -> None:
    text = kernels.DOUBLE.replace("-> out", "-> y").replace("out:", "y:").replace("(v, out, n)", "(v, y, n)")
    assert "float* out" in text
    file = read_kernel(text, tasks.DOUBLE)
    assert isinstance(file, KernelFile)
    assert file.text == kernels.DOUBLE
    taken = text.replace("let     n = v.numel", "let     n = v.numel, out = 1").replace("(v, y, n)", "(v, y, n * out)")
    assert isinstance(read_kernel(taken, tasks.DOUBLE), BadPlan)


def test_a_lead_line_is_the_task_s_and_written_where_it_is_missing() -> None:
    leading = replace(tasks.DOUBLE, leading=(("v", 1),))
    file = read_kernel(kernels.DOUBLE, leading)
    assert isinstance(file, KernelFile)
    assert file.compiled.lead is not None
    assert file.compiled.lead.ranks == (("v", 1),)
    assert isinstance(read_kernel(file.text, leading), KernelFile)
    refused = read_kernel(file.text, tasks.DOUBLE)
    assert isinstance(refused, BadPlan)
    assert "not found to do the same with each row" in refused.problems[0].message
    assert read_kernel(kernels.DOUBLE, tasks.DOUBLE) == parse(kernels.DOUBLE)
