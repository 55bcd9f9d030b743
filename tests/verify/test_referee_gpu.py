"""The referee with a GPU: a pre-flight in the emulator, then the other cases and the task's own sizes for real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.verify import kernels, tasks

from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.devices.protocol import Closing
from tilewright.devices.sanitizer import SANITIZER
from tilewright.records import (
    CaseStatus,
    Crashed,
    Dimension,
    Execution,
    FaultKind,
    FindingKind,
    Job,
    Passed,
    Pattern,
    Rejected,
    Task,
    Unstable,
    Verdict,
    WrongValues,
)
from tilewright.reference import Reference, ReferenceLimits
from tilewright.verify import Referee
from tilewright.verify.cases import plan_cases
from tilewright.verify.judging_records import Judgement, JudgeRequest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(scope="module")
def gpu() -> Iterator[CudaDevice]:
    with CudaDevice() as device:
        yield device


@pytest.fixture(scope="module")
def with_gpu() -> Iterator[Reference]:
    with Reference(tasks.SOURCE, tasks.FUNCTION, limits=ReferenceLimits(gpu=True)) as made:
        yield made


@pytest.fixture(scope="module")
def emulated(gpu: CudaDevice) -> Iterator[EmulatedDevice]:
    with EmulatedDevice(gpu.profile) as device:
        yield device


def judge(task: Task, text: str, reference: Reference, emulator: EmulatedDevice, gpu: CudaDevice) -> Verdict:
    return Referee(task, reference, emulator=emulator, gpu=gpu).judge(text)


HONEST = {
    "pointwise": (tasks.DOUBLE, kernels.DOUBLE),
    "one running sum": (tasks.MEAN, kernels.MEAN),
    "sum by atomics": (tasks.TOTAL, kernels.TOTAL_BY_ATOMICS),
    "normalisation": (tasks.LAYERNORM, kernels.LAYERNORM),
    "softmax": (tasks.SOFTMAX, kernels.SOFTMAX_ONLINE),
    "matmul": (tasks.MATMUL, kernels.MATMUL),
    "bf16 matmul": (tasks.MATMUL_BF16, kernels.MATMUL_BF16),
    "argmax": (tasks.ARGMAX, kernels.ARGMAX),
    "in place": (tasks.ACCUMULATE, kernels.ACCUMULATE),
    "inputs drawn by seed": (replace(tasks.DOUBLE, dimensions=(Dimension("n", 1 << 27),)), kernels.DOUBLE),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_pass_at_the_task_s_own_sizes(
    name: str, with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    task, text = HONEST[name]
    verdict = judge(task, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Passed), verdict
    assert verdict.error_ratio < 1.0
    own = [one for one in verdict.cases if one.case.sizes == task.sizes]
    assert own
    assert {one.status for one in own} == {CaseStatus.RIGHT}
    assert {one.device for one in own} == {gpu.profile.name}
    assert any(one.emulated for one in verdict.cases)
    assert not any(one.emulated for one in own)


@pytest.mark.parametrize("task", [tasks.SOFTMAX, tasks.MATMUL, tasks.ACCUMULATE], ids=lambda task: task.name)
def test_the_reference_gets_ready_on_the_gpu_by_judging_itself(task: Task, with_gpu: Reference) -> None:
    request = JudgeRequest(task, plan_cases(task)[0], ())
    made: Judgement = with_gpu.call("tilewright.verify.judging:warm_up", request, Judgement)
    assert made.error_ratio < 1.0


def test_tensors_that_the_reference_makes_are_made_on_the_gpu(emulated: EmulatedDevice, gpu: CudaDevice) -> None:
    source = "import torch\ndef double(v):\n    return v + v + torch.ones(v.shape)\n"
    task = replace(tasks.DOUBLE, reference=source, function="double")
    with Reference(source, "double", limits=ReferenceLimits.on_gpu()) as made:
        verdict = judge(task, kernels.DOUBLE, made, emulated, gpu)
    assert isinstance(verdict, Passed), verdict
    assert any(one.case.sizes == task.sizes and one.status is CaseStatus.RIGHT for one in verdict.cases)


def test_what_only_shows_at_the_task_s_own_sizes(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    text = kernels.DOUBLE.replace("2.f * v[i] + 1.f", "i == 1000000 ? 0.f : 2.f * v[i] + 1.f")
    verdict = judge(tasks.DOUBLE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.outputs[0].first[0].index == (1000000,)
    text = kernels.DOUBLE.replace("if (i < n)", "if (i < n && i != 1000000)")
    verdict = judge(tasks.DOUBLE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.outputs[0].pattern is Pattern.UNWRITTEN


def test_faults_of_the_gpu_are_crashes(with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice) -> None:
    text = kernels.DOUBLE.replace("if (i < n)", "if (i == 1000000) __trap();\n  if (i < n)")
    verdict = judge(tasks.DOUBLE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.fault is not None
    text = kernels.MATMUL_TF32
    verdict = judge(tasks.MATMUL, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)


# -- large calls, whose results stay on the GPU --

LARGE = replace(tasks.DOUBLE, dimensions=(Dimension("n", 1 << 27),))
LARGE_SOFTMAX = replace(tasks.SOFTMAX, dimensions=(Dimension("rows", 1 << 14), Dimension("cols", 4099)))


def test_every_element_of_a_large_result_is_judged(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    last = (1 << 27) - 1
    text = kernels.DOUBLE.replace("2.f * v[i] + 1.f", f"i == {last} ? 0.f : 2.f * v[i] + 1.f")
    verdict = judge(LARGE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    (wrong,) = verdict.evidence.outputs
    assert wrong.first[0].index == (last,)
    assert wrong.elements == 1 << 27
    assert isinstance(judge(LARGE_SOFTMAX, kernels.SOFTMAX_ONLINE, with_gpu, emulated, gpu), Passed)
    text = kernels.SOFTMAX_ONLINE.replace("/ sum", "/ (blockIdx.x == 12345 ? 1.001f * sum : sum)")
    verdict = judge(LARGE_SOFTMAX, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.outputs[0].first[0].index[0] == 12345


MISBEHAVES = {  # only in calls that no emulator sees
    FaultKind.INPUT: "((float*)v)[77] = 0.f;",
    FaultKind.OUTSIDE: "out[n + 3] = 0.f;",
}


@pytest.mark.parametrize("kind", MISBEHAVES)
@pytest.mark.parametrize("task", [tasks.DOUBLE, LARGE], ids=["middle", "large"])
def test_a_kernel_leaves_alone_what_is_not_its_own(
    kind: FaultKind, task: Task, with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    own = f"  if (i == 0 && n == {task.sizes['n']}) {MISBEHAVES[kind]}\n}}"
    verdict = judge(task, kernels.DOUBLE.replace("\n}", f"\n{own}"), with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.fault is kind


def test_what_a_call_leaves_behind_shows_in_the_next(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    """A flag in scratch that is never set back: the second call finds it."""
    own = f"n == {1 << 20} && i == 0"
    text = (
        kernels.DOUBLE.replace("//! launch", "//! scratch flag: i32[1]\n//! launch")
        .replace("(v, out, n)", "(v, out, flag, n)")
        .replace("float* out, int n", "float* out, int* flag, int n")
        .replace("if (i < n)", f"if ({own} && *flag == 4711) return;\n  if ({own}) *flag = 4711;\n  if (i < n)")
    )
    verdict = judge(tasks.DOUBLE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, (WrongValues, Unstable))


class Deadly(Closing):
    """A device whose runner dies as soon as it has lent something."""

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu = gpu
        self.profile = gpu.profile

    def execute(self, job: Job) -> Execution:
        execution = self._gpu.execute(job)
        pid = self._gpu.runner_pid
        if job.share and pid is not None:
            os.kill(pid, signal.SIGKILL)
            while self._gpu.runner_pid is not None:
                time.sleep(0.01)
        return execution


def test_a_runner_that_dies_does_not_take_the_judge_with_it(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    for task in (LARGE, tasks.DOUBLE):
        verdict = Referee(task, with_gpu, emulator=emulated, gpu=Deadly(gpu)).judge(kernels.DOUBLE)
        assert isinstance(verdict, Passed), verdict


def test_what_cannot_be_emulated_is_judged_on_the_gpu(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    if gpu.profile.cc != 90:
        pytest.skip("needs Hopper")
    text = kernels.DOUBLE.replace(
        "  if (i", '  asm volatile("{.reg .u64 place; stacksave.u64 place;}" ::: "memory");\n  if (i'
    )
    verdict = judge(tasks.DOUBLE, text, with_gpu, emulated, gpu)
    assert isinstance(verdict, Passed)
    assert any("stacksave" in note for note in verdict.notes)
    assert {one.device for one in verdict.cases} == {gpu.profile.name}


# Results are right, and one thread reads past the end: only a sanitizer sees that where nothing is emulated.
READS_PAST_THE_END = kernels.DOUBLE.replace(
    "  if (i",
    """  asm volatile("{.reg .u64 place; stacksave.u64 place;}" ::: "memory");
  float past;
  if (i == n) asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(past) : "l"(v + i));
  if (i""",
)


@pytest.mark.skipif(SANITIZER.find() is None, reason="needs compute-sanitizer")
def test_where_nothing_is_emulated_a_sanitizer_looks_for_faults(
    with_gpu: Reference, emulated: EmulatedDevice, gpu: CudaDevice
) -> None:
    if gpu.profile.cc != 90:
        pytest.skip("needs Hopper")
    verdict = judge(tasks.DOUBLE, READS_PAST_THE_END, with_gpu, emulated, gpu)
    if isinstance(verdict, Passed):
        assert any(note.startswith("not checked by a sanitizer") for note in verdict.notes)
        pytest.skip("the sanitizer does not work here")
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.findings[0].kind is FindingKind.OUT_OF_BOUNDS_GLOBAL
    assert verdict.evidence.findings[0].where == "right after the end of v"
    assert verdict.evidence.line is not None
    assert "ld.volatile" in READS_PAST_THE_END.splitlines()[verdict.evidence.line - 1]
