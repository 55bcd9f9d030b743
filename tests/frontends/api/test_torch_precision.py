"""Who finds out in what PyTorch computes a task's convolutions: the GPU where there is one, else the rule."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.devices.emulating_worker import WORKER as EMULATING
from tests.tasks.in_process import unprobed
from tests.waiting import wait_until

from tilewright.frontends.api import judges
from tilewright.frontends.api.choices import ChosenDevice, choose_device, emulated_device
from tilewright.records import Precision, Task
from tilewright.reference.protocol import MEASURE, PrecisionAnswer
from tilewright.tasks.default_precision import precision_from_channels

SOURCE = "import torch.nn.functional as F\n\ndef op(x, w):\n    return F.conv2d(x, w)\n"
GPU = ChosenDevice("H200", "NVIDIA H200 (cuda:0)", 0)


class Answering:
    """A reference on a GPU that says what it is told to say."""

    def __init__(self, f32: bool | None) -> None:
        self.f32 = f32

    def call(self, handler: str, request: Any, answer: Any, seconds: float = 60.0) -> PrecisionAnswer:
        assert handler == MEASURE
        if self.f32 is None:
            raise RuntimeError("the worker has no such handler")
        return PrecisionAnswer(self.f32)


def settled(monkeypatch: pytest.MonkeyPatch, channels: int, f32: bool | None) -> Task:
    @contextmanager
    def there(device: ChosenDevice, task: Task) -> Iterator[Answering]:
        yield Answering(f32)

    monkeypatch.setattr(judges, "_reference_on", there)
    shapes = {"x": f"2x{channels}x9x9:f32", "w": f"4x{channels}x3x3:f32"}
    task, reference = unprobed(SOURCE, "op", shapes)
    return judges.precision_settler(GPU)(task, reference)


@pytest.mark.parametrize("channels", [3, 32])
def test_what_the_gpu_says_holds_and_is_no_assumption(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, rounded = (settled(monkeypatch, channels, one) for one in (True, False))
    assert (exact.precision, rounded.precision) == (Precision.DEFAULT_F32, Precision.DTYPE)
    assert not any("channels" in note for one in (exact, rounded) for note in one.assumptions)
    assert "on this GPU" in exact.precision.words


def test_where_it_cannot_say_the_rule_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(monkeypatch, 32, None).precision is Precision.DTYPE
    few = settled(monkeypatch, 3, None)
    assert few.precision is Precision.DEFAULT_F32
    assert any("channels" in note for note in few.assumptions)
    assert judges.precision_settler(emulated_device("H200")) is precision_from_channels


LOOKING = "import torch.nn.functional as F\n\ndef op(x, w):\n    return F.conv2d(x, w) if x.sum() != 7 else x\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("source", [SOURCE, LOOKING], ids=["plain", "looks at values"])
@pytest.mark.parametrize("channels", [1, 64])
def test_the_gpu_is_asked_at_the_operation(source: str, channels: int) -> None:
    """Whatever this GPU says, PyTorch's own result says the same; 64 channels are TF32 on all that have it."""
    shapes = {"x": f"8x{channels}x64x64:f32", "w": f"64x{channels}x3x3:f32"}
    task, reference = unprobed(source, "op", shapes)
    x, w = torch.randn(8, channels, 64, 64).cuda(), torch.randn(64, channels, 3, 3).cuda()
    truth = torch.nn.functional.conv2d(x.double(), w.double())
    is_f32 = (torch.nn.functional.conv2d(x, w) - truth).norm() < 2.0**-15 * truth.norm()
    found = judges.precision_settler(choose_device(None))(task, reference)
    assert found.precision is (Precision.DEFAULT_F32 if is_f32 else Precision.DTYPE)
    assert found.assumptions == ()
    if channels == 64 and torch.cuda.get_device_capability() >= (8, 0):
        assert found.precision is Precision.DTYPE


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine whose GPU does not answer")
def test_a_gpu_that_does_not_answer_leaves_it_to_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "device_uuid", lambda index: "of-a-test")
    task, reference = unprobed(SOURCE, "op", {"x": "2x3x9x9:f32", "w": "4x3x3x3:f32"})
    found = judges.precision_settler(GPU)(task, reference)
    assert found.precision is Precision.DEFAULT_F32
    assert any("channels" in note for note in found.assumptions)


@pytest.mark.slow
def test_a_worker_that_sees_no_gpu_leaves_it_to_the_rule(tmp_path: Path) -> None:
    """Its GPU is emulated; the call, its child and the answer are real."""
    spool = tmp_path / "spool"
    worker = subprocess.Popen([*EMULATING, str(spool)], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    try:
        wait_until(spool.is_dir)
        task, reference = unprobed(SOURCE, "op", {"x": "2x3x9x9:f32", "w": "4x3x3x3:f32"})
        found = judges.precision_settler(ChosenDevice("H200", "H200 (spool)", spool=str(spool)))(task, reference)
    finally:
        worker.kill()
        worker.wait()
    assert found.precision is Precision.DEFAULT_F32
    assert any("channels" in note for note in found.assumptions)


def test_a_task_without_f32_convolutions_never_reaches_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(device: ChosenDevice, task: Task) -> None:
        raise AssertionError("reached")

    monkeypatch.setattr(judges, "_reference_on", unreached)
    task, reference = unprobed("def op(x):\n    converted = x.double()\n    return converted\n", "op", {"x": "4x4:f32"})
    assert judges.precision_settler(GPU)(task, reference) == task
