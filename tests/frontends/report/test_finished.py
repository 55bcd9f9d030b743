"""What people ask of a finished kernel: is it faster, what does it take, gradients, the call; one table of attempts."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK, attempt, modelled

import tilewright
from tilewright.frontends.report.document import Section
from tilewright.frontends.report.finished import Made, answer_blocks, end_of_run, finished, is_catalogued, note_words
from tilewright.frontends.report.rendering import markdown, plain_text, show
from tilewright.records import (
    Dimension,
    DType,
    FollowedAddresses,
    Measured,
    NumberInput,
    Origin,
    Run,
    ScalarType,
    TensorInput,
    Timing,
    Touched,
    write_reference,
)
from tilewright.runtime.errors import GradientNotSupported
from tilewright.store import Request
from tilewright.words import read

GENERAL = """\
//! op      double_it(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<1, 1>>>(x, y)
__global__ void k(const float* x, float* y) {}
"""
PINNED = """\
//! op      step_once(x, step: int) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 1 and step == 10
//! launch  k<<<1, 1>>>(x, y)
__global__ void k(const float* x, float* y) {}
"""
BOUNDED = GENERAL.replace("x.ndim == 1", "x.ndim == 1 and x.shape[0] <= 512")
WORDS = replace(TASK, origin=Origin.WORDS)


def measured(**baselines: float) -> Measured:
    timings = tuple(Timing(name.replace("_", "."), (time, time, time)) for name, time in baselines.items())
    return Measured("NVIDIA H200", {"n": 1000}, Timing("kernel", (10.1, 10.1, 10.1)), timings, 5.5)


def made(text: str = GENERAL, **changes: object) -> Made:
    return replace(Made(WORDS, Path("k.cu"), text, "run-1", modelled(9.0), cases=3, devices=("H200",)), **changes)


def said(of: Made) -> str:
    return plain_text(answer_blocks(finished(of)))


def test_a_measured_kernel_says_first_how_it_compares_with_pytorch() -> None:
    answers = finished(made(measurement=measured(eager=22.0, torch_compile=12.9)))
    assert answers.speed == (
        "faster than eager and torch.compile, measured on NVIDIA H200: 10.1 us; eager 22.0 us (2.18x), "
        "torch.compile 12.9 us (1.28x); 54% of the roofline (5.50 us)"
    )
    assert not answers.is_slower


def test_slower_than_compile_is_said_plainly() -> None:
    answers = finished(made(measurement=measured(eager=22.0, torch_compile=8.0)))
    assert answers.speed.startswith("slower than torch.compile, faster than eager, measured on NVIDIA H200: 10.1 us;")
    assert "torch.compile 8.00 us (0.79x)" in answers.speed
    assert answers.is_slower
    same = finished(made(measurement=measured(torch_compile=10.1)))
    assert same.speed.startswith("as fast as torch.compile, measured")
    assert not same.is_slower
    assert "PyTorch was not timed" in finished(made(measurement=measured())).speed


def test_without_a_gpu_it_says_how_to_time_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def double_it(x):\n    return 2 * x\n")
    assert finished(made()).speed.startswith(
        "not timed against PyTorch: no GPU here. Modelled for H200: 9.00 us, 11% of"
    )
    beside = replace(modelled(9.0), eager_us=18.0, eager_kernels=2)
    assert finished(made(measurement=beside)).speed.startswith(
        "not timed against PyTorch: no GPU here. Modelled for H200: 9.00 us, eager 18.0 us (2.00x; its 2 kernels at "
        "the speed of a copy), 11% of the roofline"
    )
    assert not finished(made(measurement=beside)).is_slower
    slow = finished(made(measurement=replace(modelled(9.0), eager_us=9.2, eager_kernels=1)))
    assert slow.speed.endswith(". It may be no faster than eager: time it before you use it")
    assert slow.is_slower
    assert "time it on a GPU with: tilewright bench k.cu --reference run-1 --shape x=1000:f32\n" in said(made())
    own = made(task=replace(TASK, origin=Origin.FUNCTION), request=Request("mine.py:double_it"))
    assert finished(own).time_with == "tilewright bench k.cu --reference mine.py:double_it --shape x=1000:f32"
    assert finished(made(measurement=measured(eager=22.0))).time_with == ""
    assert finished(made(measurement=None, why_untimed="it has no time: too long")).speed == "it has no time: too long"


def test_words_of_the_catalogue_have_a_reference_to_fall_back_to(tmp_path: Path) -> None:
    request = Request("relu", {"x": "1000:f32"})
    task = replace(WORDS, words="relu", reference=read(request.text, request.shapes).reference)
    assert is_catalogued(task, request)
    assert not is_catalogued(replace(task, reference="def relu(x): ..."), request)  # as a model would write it
    alone = replace(made(task=task, request=request), path=tmp_path / "relu.cu")
    assert finished(alone).otherwise.startswith("Any other call raises NoKernelApplies")
    write_reference(alone.path, "0" * 64, task.reference, task.function)
    assert finished(alone).otherwise.startswith("Any other call runs the PyTorch function instead")
    assert "the backward pass runs the PyTorch function again" in finished(alone).gradients


def pinned() -> Made:
    x, step = TensorInput("x", DType.F32, ("n",)), NumberInput("step", ScalarType.INT, 10, default=False)
    task = replace(TASK, name="step_once", function="step_once", inputs=(x, step), origin=Origin.FUNCTION)
    return made(PINNED, task=task)


def test_a_kernel_for_one_number_says_so_before_anything_else() -> None:
    answers = finished(pinned())
    assert answers.only == ("step = 10",)
    assert "only for step = 10: any other call raises NoKernelApplies" in said(pinned())
    own = replace(pinned(), own_reference=True)
    assert "only for step = 10: any other call runs the PyTorch function instead, and a warning" in said(own)
    assert said(own).index("only for") < said(own).index("works for: any n; f32 tensors; contiguous.")
    assert "**only for step = 10**" in markdown_of(own)
    assert finished(made()).only == ()
    free = replace(pinned(), text=PINNED.replace(" and step == 10", ""))
    assert "works for: any n; any step; f32 tensors; contiguous." in said(free)
    told = replace(own, notes=("the file declines other numbers: step=11", "not emulated: why"))
    assert finished(told).checked[1:] == ("limit of the check: not emulated: why",)  # the first is told by `only`


def markdown_of(of: Made) -> str:
    from tilewright.frontends.report.document import Document

    return markdown(Document("t", (Section("", tuple(answer_blocks(finished(of)))),)), None)


def test_fixed_and_bounded_sizes_and_layouts_are_told() -> None:
    assert finished(made(BOUNDED, task=replace(WORDS, dimensions=(Dimension("n", 256),)))).only == ("n at most 512",)
    fixed = replace(WORDS, dimensions=(Dimension("n", 1000, varies=False),))
    assert finished(made(task=fixed)).only == ("n = 1000",)
    assert finished(made()).takes == "any n; f32 tensors; contiguous"
    strided = GENERAL.replace("//! launch", "//! accept  x: strided\n//! launch").replace(
        "(x, y)\n_", "(x, x.stride, y)\n_"
    )
    assert finished(made(strided)).takes == "any n; f32 tensors"


def test_gradients_are_told_and_the_text_is_what_happens(tmp_path: Path) -> None:
    none = finished(made()).gradients
    assert none.startswith("none: a call whose inputs require grad raises GradientNotSupported. Make it with")
    file = tmp_path / "k.cu"
    file.write_text(GENERAL)
    with pytest.raises(GradientNotSupported):
        tilewright.load(str(file))(torch.ones(8, requires_grad=True))
    again = finished(made(own_reference=True)).gradients
    assert again.startswith("there is no backward kernel: the backward pass runs the PyTorch function again.")
    both = made(backward=(replace(TASK, derivative=None), Path("k_backward.cu")))
    assert finished(both).gradients == "a backward kernel computes them"
    whole = replace(WORDS, inputs=(TensorInput("x", DType.I32, ("n",)),))
    assert finished(made(task=whole)).gradients.startswith("it has none")


def test_what_was_looked_at_in_part_does_not_contradict_verified() -> None:
    note = "at the task's own sizes every block was run and a part of the results judged: n=1000"
    text = said(made(notes=(note,)))
    assert "verified: right in 3 cases on H200\n  at the full size (n=1000) every block ran, and a sample" in text
    assert "not covered" not in text
    some = "near the task's own sizes 8 blocks of each launch were run and a part of the results judged: n=64"
    assert note_words(some).startswith("near the full size (n=64) 8 blocks of each launch ran, and a sample")
    assert note_words("not emulated: why") == "limit of the check: not emulated: why"
    followed = FollowedAddresses(written=(Touched("y", 8, 8, by=(0,)),), read=(Touched("x", 8, 8),))
    words = note_words(f"every block's addresses at the task's own sizes: {followed}")
    assert words == "at the full size written: all 8 elements of y by 1 launch; read: all of x"
    unseen = finished(made(unjudged=("line 3: it never ran in a judged case",)))
    assert not unseen.is_verified
    assert unseen.checked[0].startswith("provisional, not verified")


def test_there_is_one_table_of_attempts() -> None:
    run = Run("r", "2026-01-01T00:00:00+00:00", TASK, SETTINGS, ENVIRONMENT, (attempt(1, 20.0), attempt(2, 12.5)))
    for table, count in ((True, 1), (False, 0)):
        shown = io.StringIO()
        end = end_of_run(run, finished(made()), Path("k.cu"), table=table, call=True, took_s=75.0)
        show(Console(file=shown, width=200), end)
        assert "1 min 15 s" in shown.getvalue()  # as the progress said, and not what the attempts took
        lines = shown.getvalue().splitlines()
        assert sum(line.split()[:2] == ["2", "structure"] for line in lines) == count
        assert ("the best is attempt 2" in shown.getvalue()) == (not table)  # where rows were seen as they were made
        assert sum("stage" in line and "vs best" in line for line in lines) == count
        assert sum("▏" in line or "█" in line for line in lines) <= 2 * count  # bars stand in its rows alone
