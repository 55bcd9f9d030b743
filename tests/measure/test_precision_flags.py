"""The flags that baselines run under, seen from inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.measure import kernels

from tilewright.measure.baselines import EAGER, LIBRARY, with_precision
from tilewright.measure.precision_flags import Flags, PrecisionChanged, at_precision
from tilewright.records import Precision

PROMISED = [
    (Precision.DTYPE, Flags(matmul_tf32=False, convolution_tf32=True)),
    (Precision.DEFAULT_F32, Flags(matmul_tf32=False, convolution_tf32=True)),
    (Precision.STRICT, Flags(matmul_tf32=False, convolution_tf32=False)),
    (Precision.TF32, Flags(matmul_tf32=True, convolution_tf32=True)),
    (Precision.HALF, Flags(matmul_tf32=True, convolution_tf32=True)),
]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("before", [Flags(False, True), Flags(True, False), Flags(True, True, True)])
@pytest.mark.parametrize(("precision", "flags"), PROMISED)
def test_a_baseline_runs_at_the_tasks_promise_whatever_was_set(
    precision: Precision, flags: Flags, before: Flags
) -> None:
    seen: list[tuple[Flags | None, bool, str]] = []

    def baseline(**arguments: Any) -> None:
        autocast = torch.is_autocast_enabled("cuda")
        seen.append((Flags.current(), autocast, torch.get_float32_matmul_precision()))

    usual = Flags.current()
    assert usual is not None
    task = replace(kernels.scale_task(4, 4), precision=precision)
    before.set()
    try:
        with_precision(baseline, EAGER, task)(x=1)
        assert Flags.current() == before
    finally:
        usual.set()
    wide = "high" if flags.matmul_tf32 else "highest"
    assert seen == [(flags, precision is Precision.HALF and torch.cuda.is_available(), wide)]


def test_pytorchs_own_defaults_are_the_default_promise() -> None:
    assert Flags.current() == Flags.of(Precision.DTYPE)
    assert kernels.scale_task(4, 4).precision is Precision.DTYPE


def test_the_library_tries_its_algorithms() -> None:
    seen: list[bool] = []
    task = kernels.scale_task(4, 4)
    for name in (EAGER, LIBRARY):
        with_precision(lambda: seen.append(torch.backends.cudnn.benchmark), name, task)()
    assert seen == [False, True]


def test_a_baseline_that_changes_the_terms_is_refused() -> None:
    def greedy() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True

    with pytest.raises(PrecisionChanged, match="cannot be timed at dtype precision"):
        with_precision(greedy, EAGER, kernels.scale_task(4, 4))()
    assert Flags.current() == Flags.of(Precision.DTYPE)


def test_flags_that_were_set_in_two_ways_are_put_right() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # after which PyTorch refuses to say what allow_tf32 is
    with at_precision(Precision.STRICT):
        assert Flags.current() == Flags(matmul_tf32=False, convolution_tf32=False)
    assert Flags.current() == Flags.of(Precision.DTYPE)
