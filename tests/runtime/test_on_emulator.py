"""Operations on CPU tensors, really emulated: right answers, faults with their line, refusals that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime import plans
from tests.runtime.conftest import Make

from tilewright.ptx.native import CoreMissing
from tilewright.records import Check, FindingKind
from tilewright.runtime import (
    GradientNotSupported,
    KernelFault,
    KernelNotEmulable,
    NoKernelApplies,
    NotOnCuda,
    OperationError,
    OverlappingTensors,
    ReferenceUsed,
    TooLargeToEmulate,
)


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "H200")
    torch.manual_seed(0)


def _chained(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0) * 3 + 1


SOUND: list[tuple[str, tuple[Any, ...], Callable[..., Any]]] = [
    ("twice", (torch.randn(1000).bfloat16(),), lambda x: x + x),
    ("scale", (torch.randn(100, 7), 0.5, 3), lambda x, factor, shift: x * 2 * factor + shift),
    ("transposed", (torch.randn(30, 41),), lambda x: x),
    ("any strides", (torch.randn(41, 30).T,), lambda x: x + 1),
    ("any strides", (torch.randn(1000)[1:].as_strided((17, 9), (50, 3)),), lambda x: x + 1),
    ("zeroed", (torch.randint(0, 10, (1000,)), 10), lambda x, count: torch.bincount(x, minlength=count).int()),
    ("optional", (torch.randn(1000), torch.rand(1000) < 0.5), lambda x, mask: torch.where(mask, x, 0)),
    ("optional", (torch.randn(1000),), lambda x: x),
    ("large smem", (torch.randn(50000),), lambda x: x.flip(0)),
    ("pdl", (torch.randn(5000),), _chained),
    ("when", (torch.randn(1000), True), lambda x, negate: -x),
    ("two results", (torch.randn(30, 40),), lambda x: (x.amin(1), x.amax(1))),
    ("twice", (torch.randn(0, 5),), lambda x: x),
]


@pytest.mark.parametrize(("name", "arguments", "truth"), SOUND, ids=[name for name, *_ in SOUND])
def test_results_are_exact(make: Make, name: str, arguments: tuple[Any, ...], truth: Callable[..., Any]) -> None:
    found = make(plans.SAMPLES[name].text)(*arguments)
    expected = truth(*arguments)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.device.type == "cpu"
        assert torch.equal(one, other)


CLOSE: list[tuple[str, tuple[Any, ...], Callable[..., Any]]] = [
    ("two launches", (torch.randn(30, 40),), lambda x: x.double().mean(1)),
    ("counter", (torch.randn(5000),), lambda x: x.double().sum()),
    ("cooperative", (torch.rand(5000),), lambda x: x.double() / x.double().sum()),
    (
        "library",
        (torch.randn(30, 40), torch.randn(40, 50), torch.randn(50)),
        lambda x, w, b: x.double() @ w.double() + b,
    ),
]


@pytest.mark.parametrize(("name", "arguments", "truth"), CLOSE, ids=[name for name, *_ in CLOSE])
def test_sums_are_close(make: Make, name: str, arguments: tuple[Any, ...], truth: Callable[..., Any]) -> None:
    found = make(plans.SAMPLES[name].text)(*arguments)
    torch.testing.assert_close(found.double(), truth(*arguments), rtol=1e-5, atol=1e-4)


def test_strides_of_results_are_the_plan_s(make: Make) -> None:
    assert make(plans.TRANSPOSED)(torch.randn(30, 40)).stride() == (1, 30)


def test_in_place_tensors_are_changed_and_nothing_beside_them(make: Make) -> None:
    operation = make(plans.IN_PLACE)
    whole = torch.randn(20, 30)
    before = whole.clone()
    part, x = whole[2:7, 5:25:2], torch.randn(5, 10)
    version = part._version
    assert operation(part, x) is None
    before[2:7, 5:25:2] += x
    assert torch.equal(whole, before)
    assert part._version > version
    with pytest.raises(OverlappingTensors, match="y is changed in place and shares memory with x"):
        operation(whole[:5], whole[:5])
    assert torch.equal(whole, before)


def test_gradients_are_refused(make: Make) -> None:
    x = torch.randn(10, requires_grad=True)
    with pytest.raises(GradientNotSupported):
        make(plans.TWICE)(x)
    with torch.no_grad():
        assert torch.equal(make(plans.TWICE)(x), x + x)


def test_the_emulated_gpu_is_what_the_plan_sees(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sms = make(
        "//! op sms(x) -> y\n//! out y: i32[2]\n//! launch f<<<1, 1>>>(y, device.sms, device.cc, x)\n"
        "__global__ void f(int* y, int a, int b, const float* x) { y[0] = a; y[1] = b; }\n"
    )
    x = torch.zeros(1)
    assert sms(x).tolist() == [132, 90]
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "a100")
    assert sms(x).tolist() == [108, 80]
    assert sms.emulate(x, gpu="RTX 4090").results.tolist() == [128, 89]
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "Z80")
    with pytest.raises(OperationError, match=r"TILEWRIGHT_EMULATE is 'Z80'.*known are T4"):
        sms(x)


OVERRUN = plans.TWICE.replace("if (i < n)", "if (i <= n)")


def test_a_fault_raises_with_its_line(make: Make) -> None:
    with pytest.raises(KernelFault) as caught:
        make(OVERRUN)(torch.randn(1000))
    assert {finding.kind for finding in caught.value.findings} == {FindingKind.OUT_OF_BOUNDS_GLOBAL}
    assert {finding.line for finding in caught.value.findings} == {9}
    text = str(caught.value)
    assert "twice: " in text
    assert "k0.cu is at fault (emulated)" in text
    assert "line 9" in text
    assert "check the values" not in text  # no tensor here can hold indices
    thread = caught.value.findings[0].thread
    assert thread is not None
    assert (thread.block[0], thread.thread[0]) == (3, 1000 - 3 * 256)


def test_an_index_out_of_range_is_named(make: Make) -> None:
    picked = make("""\
//! op      pick(table, index) -> y
//! need    table.dtype == f32 and table.ndim == 1 and index.dtype == i64 and index.ndim == 1
//! out     y: f32[index.shape[0]]
//! launch  pick<<<ceil_div(index.numel, 64), 64>>>(table, index, y, index.numel)
__global__ void pick(const float* table, const long long* index, float* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = table[index[i]];
}
""")
    table = torch.randn(50)
    assert torch.equal(picked(table, torch.tensor([49, 0])), table[[49, 0]])
    with pytest.raises(KernelFault, match="check the values in index: an index out of range reads elsewhere"):
        picked(table, torch.tensor([49, 50]))


def test_a_fault_changes_nothing_in_place(make: Make) -> None:
    faulty = plans.IN_PLACE.replace("c < cols", "c < cols + 1000")
    y, x = torch.randn(4, 8), torch.randn(4, 8)
    before = y.clone()
    with pytest.raises(KernelFault):
        make(faulty)(y, x)
    assert torch.equal(y, before)


def test_a_counter_that_is_left_is_a_fault(make: Make) -> None:
    leaving = make(plans.COUNTER.replace("  *tick = 0;\n", ""))
    with pytest.raises(KernelFault, match=r"line 7: counter not left at zero: tick\[0\] is 5: .* set it back to 0"):
        leaving(torch.randn(5000))
    assert FindingKind.COUNTER_LEFT in {finding.kind for finding in leaving.emulate(torch.randn(5000)).findings}


def test_an_interpreter_that_was_not_compiled_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CoreMissing("the emulator's compiled core is missing: install a C compiler")

    monkeypatch.setattr("tilewright.ptx.native.core", missing)
    with pytest.raises(
        KernelNotEmulable, match=r"twice: CPU tensors are emulated, and .* missing: install a C compiler; or"
    ):
        make(plans.TWICE)(torch.randn(5))
    assert "missing: install a C compiler" in str(make(plans.TWICE).explain("5:f32", device="cpu"))


def test_blocks_of_a_cluster_know_their_rank(make: Make) -> None:
    ranks = make(plans.CLUSTER)(torch.zeros(32, dtype=torch.int32), 4)
    assert ranks.tolist() == [400 + block % 4 for block in range(32)]


STACKED = """\
//! op      f(x) -> y
//! out     y: f32[x.shape]
//! need    device.cc == 90
//! launch  f<<<1, 32>>>(x, y)
__global__ void f(const float* x, float* y) {
  asm volatile("{ .reg .u64 s; stacksave.u64 s; }" ::: "memory");
  y[threadIdx.x] = x[threadIdx.x];
}
"""


def test_an_unsupported_instruction_is_named_with_its_line(make: Make) -> None:
    with pytest.raises(
        KernelNotEmulable, match=r"k0\.cu: f \(line 4\) cannot be emulated: .*; pass CUDA tensors, or .*=A100"
    ) as caught:
        make(STACKED)(torch.randn(32))
    assert "stacksave" in str(caught.value)
    assert "line 6" in str(caught.value)
    explanation = make(STACKED).explain("32:f32")
    assert "cannot be emulated" in str(explanation)
    assert "stacksave" in str(explanation)


def test_too_much_work_is_refused_before_and_during_the_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = make(plans.TWICE)
    monkeypatch.setenv("TILEWRIGHT_EMULATE_BUDGET", "1e5")
    with pytest.raises(
        TooLargeToEmulate, match=r"more than 100,000 thread .*79 blocks of 256.*emulate\(\.\.\., blocks=8\)"
    ):
        twice(torch.randn(20000))
    endless = make(plans.TWICE.replace("y[i] = ", "while (x[i] == x[i]) y[i] = "))
    with pytest.raises(TooLargeToEmulate, match="endless loop"):
        endless(torch.randn(100))
    assert twice(torch.randn(100)).shape == (100,)
    monkeypatch.setenv("TILEWRIGHT_EMULATE_BUDGET", "much")
    with pytest.raises(OperationError, match="'much'; write a number"):
        twice(torch.randn(100))


def test_no_file_takes_the_call(make: Make) -> None:
    x = torch.zeros(5, dtype=torch.int8)
    with pytest.raises(NoKernelApplies, match=r"k0\.cu:3:"):
        make(plans.TWICE)(x)
    with pytest.warns(ReferenceUsed):
        assert torch.equal(make(plans.TWICE, reference=lambda x: x + x)(x), x + x)
    with pytest.raises(NoKernelApplies):
        make(plans.TWICE, reference=lambda x: x + x).emulate(x)


def test_mixed_devices_are_refused(make: Make) -> None:
    with pytest.raises(NotOnCuda, match=r"pass x\.cpu\(\)"):
        make(plans.TWICE).emulate(torch.zeros(3, device="meta"))


def test_preparing_and_explaining_without_a_gpu(make: Make) -> None:
    operation = make(plans.TWICE)
    operation.prepare("5:f32", device="cpu")
    assert "twice on H200" in str(operation.explain("5:f32", device="cpu"))


# -- emulate --


def test_emulate_answers_results_findings_and_counts(make: Make) -> None:
    x = torch.randn(1000)
    call = make(plans.TWICE).emulate(x, schedules=3)
    assert torch.equal(call.results, x + x)
    assert (call.findings, call.complete, call.schedules, call.varying) == ((), True, 3, ())
    (counts,) = call.counts
    assert (counts.kernel, counts.blocks, counts.grid_blocks) == ("twice<float>", 4, 4)
    stores = [one for one in counts.instructions if one.ptx_text.startswith("st.global")]
    assert [(one.requests, one.sectors, one.bytes) for one in stores] == [(32, 125, 4000)]
    assert "no findings" in str(call)


RACY = """\
//! op      shifted(x) -> y
//! need    x.dtype == f32 and x.numel % 128 == 0
//! out     y: f32[x.shape]
//! launch  shifted<<<x.numel / 128, 128>>>(x, y)
__global__ void shifted(const float* x, float* y) {
  __shared__ float held[128];
  const int i = blockIdx.x * 128 + threadIdx.x;
  held[threadIdx.x] = x[i];
  y[i] = held[(threadIdx.x + 32) % 128];
}
"""


def test_emulate_finds_a_missing_barrier(make: Make) -> None:
    call = make(RACY).emulate(torch.randn(512), schedules=3)
    races = [finding for finding in call.findings if finding.kind is FindingKind.RACE_SHARED]
    assert {frozenset((race.line, race.other_line)) for race in races} == {frozenset((8, 9))}
    fixed = RACY.replace("= x[i];", "= x[i]; __syncthreads();")
    assert make(fixed).emulate(torch.randn(512), schedules=5).findings == ()
    quiet = make(RACY).emulate(torch.randn(512), checks=())
    assert (quiet.findings, quiet.counts) == ((), ())
    only = make(RACY).emulate(torch.randn(512), checks=["races"])
    assert only.findings
    assert not only.counts
    assert make(RACY).emulate(torch.randn(512), checks=[Check.COUNTERS]).counts


def test_emulate_notices_elements_that_nothing_wrote(make: Make) -> None:
    call = make(plans.TWICE.replace("if (i < n)", "if (i < n - 3)")).emulate(torch.randn(10, 100))
    (finding,) = call.findings
    assert finding.kind is FindingKind.OUTPUT_NOT_WRITTEN
    assert finding.where == "y[9, 97]"
    assert "3 of 1000 elements" in finding.detail
    assert call.results[9, 97:].isnan().all()


def test_emulate_samples_blocks_of_large_calls(make: Make) -> None:
    x = torch.randn(300_000)
    call = make(plans.TWICE).emulate(x, blocks=4)
    assert not call.complete
    assert call.findings == ()
    assert (call.counts[0].blocks, call.counts[0].grid_blocks) == (4, 1172)
    assert torch.equal(call.results[:256], 2 * x[:256])
    assert torch.equal(call.results[1171 * 256 :], 2 * x[1171 * 256 :])
    assert int(call.results.isnan().sum()) == 300_000 - 3 * 256 - (300_000 - 1171 * 256)
    y = torch.randn(100, 8)
    before = y.clone()
    make(plans.IN_PLACE).emulate(y, torch.randn(100, 8), blocks=2)
    assert torch.equal(y, before)
    with pytest.raises(KernelNotEmulable, match="wait for each other"):
        make(plans.COOPERATIVE).emulate(torch.rand(5000), blocks=2)


def test_emulate_returns_what_stopped_the_run(make: Make) -> None:
    endless = make(plans.TWICE.replace("y[i] = ", "while (x[i] == x[i]) y[i] = "))
    call = endless.emulate(torch.randn(100), budget=100_000)
    assert not call.complete
    assert FindingKind.BUDGET in {finding.kind for finding in call.findings}
