"""How small sizes may be, how they are found out in time, and that real calls have the last word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.tasks.in_process import probed

from tilewright.frontends.report.runs import task_words
from tilewright.records import Task
from tilewright.tasks.child import trials
from tilewright.verify.cases import plan_cases

SOURCE = """
import torch
import torch.nn.functional as F

def pooled(x, w):
    return F.conv2d(x, w).mean((2, 3))

def normalised(x, w):
    y = x.flatten(0, 1)
    if y.shape[0] < 2:
        raise ValueError("a mean of one value")
    return (y - y.mean(0)) * w

def whitened(x):
    return F.batch_norm(x, None, None, training=True)

def of_pairs(x):
    return F.batch_norm(x[0::2] * x[1::2], None, None, training=True)

def windows(x):
    return F.max_pool1d(x, 5, 2)

def padded(x):
    return F.pad(x, (3, 3), mode="reflect")

def transposed(x, w):
    return F.conv_transpose1d(x, w, padding=1)

def halves(x):
    a, b = x.chunk(2, -1)
    if a.shape[-1] < 4:
        raise ValueError("too narrow")
    return a * b

def picky(x, w):
    if x.device.type == "cpu" and x.shape[1] != len(w):
        raise ValueError("with content, other channels are refused")
    if x.shape[2:] != (64, 64):
        raise ValueError("another image")
    return x * w.sum()
"""


def made(function: str, shapes: dict[str, str]) -> Task:
    return probed(SOURCE, function, shapes)[0]


def least(task: Task) -> dict[str, int]:
    return {one.name: one.at_least for one in task.dimensions if one.varies and one.formula is None}


def test_an_image_is_no_smaller_than_its_filter() -> None:
    task = made("pooled", {"x": "4x8x32x40", "w": "16x8x5x3"})
    assert least(task) == {"batch": 1, "channels": 1, "height": 5, "width": 3, "out_channels": 1}
    assert "kernel_height is fixed because its largest value depends on other sizes" in task.assumptions


def test_what_a_formula_says_is_not_said_again() -> None:
    task = made("transposed", {"x": "4x8x64", "w": "8x16x3"})
    assert [str(one.formula) for one in task.dimensions if one.formula] == ["width + kernel_width - 3"]
    assert set(least(task).values()) == {1}
    assert all(one.varies for one in task.dimensions)


def test_a_least_that_other_sizes_make_up_for_is_told_with_them() -> None:
    """Of a mean over several sizes any one above 1 is enough; the result of a window is never empty."""
    task = made("whitened", {"x": "4x6x8x10"})
    assert task_words(task)[2] == "any batch, channels, height, width (at least 2 where batch is 1 and height is 1)"
    assert task.is_sound({"batch": 2, "channels": 1, "height": 1, "width": 1})
    assert not task.is_sound({"batch": 1, "channels": 5, "height": 1, "width": 1})
    judged = [one.sizes for one in plan_cases(task)]
    assert all(task.is_sound(sizes) for sizes in judged)
    assert any(sizes["width"] == 1 for sizes in judged)
    pairs = made("of_pairs", {"x": "8x6x10"})
    assert task_words(pairs)[2].startswith("any batch (a multiple of 2), rows, cols (at least 2 where batch is 2)")
    assert not pairs.is_sound(pairs.complete({**pairs.sizes, "batch": 2, "cols": 1}))
    windows = made("windows", {"x": "4x64"})
    assert task_words(windows)[2] == "any rows, cols (at least 5); then y_cols = (cols - 3) / 2"
    filtered = made("transposed", {"x": "4x8x64", "w": "8x16x3"})
    assert task_words(filtered)[2].endswith("= width + kernel_width - 3 (at least 1)")


@pytest.mark.parametrize(
    ("function", "shapes", "found"),
    [
        ("normalised", {"x": "8x16x24", "w": "24"}, {"batch": 1, "rows": 2, "cols": 1}),
        ("padded", {"x": "8x64"}, {"rows": 1, "cols": 4}),
        ("halves", {"x": "8x64"}, {"rows": 1, "cols": 8}),
    ],
)
def test_least_sizes(function: str, shapes: dict[str, str], found: dict[str, int]) -> None:
    assert least(made(function, shapes)) == found


def test_a_real_call_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_SLOW_SECONDS", 0.0)  # every call is slow, so most are made without content
    task = made("picky", {"x": "16x32x64x64", "w": "32"})
    assert task.tensors[1].dimensions == (task.tensors[0].dimensions[1],)
    assert [one.varies for one in task.dimensions] == [True, True, False]


def crowded() -> str:
    """The hash of a task for which not everything can be tried."""
    names = "abcdef"
    source = f"def f({', '.join(names)}):\n    return {' + '.join(f'{one}.sum()' for one in names)}"
    shapes = {one: f"{32 + 2 * (number % 3)}x{32 + 2 * (number % 3)}" for number, one in enumerate(names)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "_TRIALS", 60)
        return probed(source, "f", shapes)[0].hash


def crowded_elsewhere(seed: str) -> str:
    """The same in a process whose sets have another order."""
    script = "from tests.tasks.child.test_least_sizes import crowded; print(crowded())"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=600, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [("1",), pytest.param(("2", "3", "4"), marks=pytest.mark.slow)])
def test_the_same_request_is_the_same_task_in_every_process(seeds: tuple[str, ...]) -> None:
    [one] = {crowded(), *map(crowded_elsewhere, seeds)}
    assert len(one) == 20
