"""Sums of 16-bit products are kept in 16 bits where PyTorch rounds them, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.functions import Function, draw, task_of, truth

import tilewright
from tilewright.kernel_file import parse
from tilewright.kernel_file.evaluate import evaluate
from tilewright.playbook.gemms.hopper import hopper_product
from tilewright.playbook.gemms.program import Gemm
from tilewright.playbook.gemms.reading import read
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import traced_task, understand
from tilewright.records import DType, Task, TensorSpec
from tilewright.records.gpu import PROFILES
from tilewright.tasks import task_op_line

GPU = replace(PROFILES["H200"], sms=2)
SIZES = {"m": 150, "n": 136, "k": 264}
_HALF = "a: f16[m, k]; b: f16[k, n]"
_BRAIN = "a: bf16[m, k]; b: bf16[k, n]"
_LAYER = "F.linear(a.float(), b.float().T, d.float())"

# What PyTorch adds before it rounds takes most of the sums away, or brings them into the range of f16.
ROUNDED_ONCE = (
    Function("matrix_added", "return torch.addmm(c, a, b)", f"{_BRAIN}; c: bf16[m, n]"),
    Function("column_added", "return torch.addmm(c, a, b).relu()", f"{_BRAIN}; c: bf16[m, one]"),
    Function("scaled", "return torch.addmm(c, a, b, beta=0.5, alpha=1e-3)", f"{_HALF}; c: f16[m, n]"),
    Function("scaled_bias", "return torch.addmm(c, a, b, alpha=1e-3)", f"{_HALF}; c: f16[n]"),
    Function("in_f32", "return (a.float() @ b.float() + c.float()).to(a.dtype)", f"{_BRAIN}; c: bf16[m, n]"),
    Function("scaled_in_f32", "return ((a.float() @ b.float()) * 1e-3).half()", _HALF),
    Function("bias_in_f32", f"return ({_LAYER} + c.float()).bfloat16()", f"{_BRAIN}; c: bf16[n]; d: bf16[n]"),
)
# The same of what may be kept in 16 bits: PyTorch has rounded it, or it is a linear layer's bias that takes it away.
ROUNDED_EARLY = (
    Function("bias", "return torch.addmm(c, a, b)", f"{_BRAIN}; c: bf16[n]"),
    Function("scaled_layer", "return torch.addmm(c, a, b) * g", f"g: bf16[n]; {_BRAIN}; c: bf16[n]"),
)


def _task(function: Function) -> Task:
    return task_of(function, SIZES)


def _written(function: Function) -> str:
    task, made = _task(function), function.callable
    (stage,) = read(traced_task(task, lambda request: trace(made, request))).stages
    assert isinstance(stage, Gemm)
    text = hopper_product(stage, task_op_line(task)).file()
    return re.sub(r"//! need    BN .*\n", "", text.replace("BN = 192 | 256 | 128 | 64", "BN = 64"))


def _tensors(function: Function) -> dict[str, torch.Tensor]:
    """Sums are about 264, or beyond the range of f16; `c` takes all but some of 264 away."""
    found = draw(_task(function), {**SIZES, "one": 1}, 0)
    for name in ("a", "b"):
        found[name] = (found[name].float() * 0.1 + 1).to(found[name].dtype)
        if "f16[m, k]" in function.inputs and "bf16" not in function.inputs:
            found[name] *= 32
    if "c" in found and found["a"].dtype is torch.bfloat16:
        found["c"] -= 264
    return found


def _check(function: Function, late: int, folder: Path) -> None:
    text, tensors = _written(function), _tensors(function)
    specs = {
        one.name: TensorSpec.contiguous(one.dtype, tuple(tensors[one.name].shape)) for one in _task(function).tensors
    }
    assert dict(evaluate(parse(text, "product.cu"), specs, GPU).constants).get("LATE", 0) == late
    path = folder / "product.cu"
    path.write_text(text)
    call = tilewright.load(str(path)).emulate(*tensors.values(), gpu=GPU, schedules=1)
    assert call.findings == ()
    found = call.results
    assert isinstance(found, torch.Tensor)
    uncast = replace(function, body=re.sub(r"\.(float|half|bfloat16)\(\)|\.to\(a\.dtype\)", "", function.body))
    (exact,) = truth(uncast, _task(uncast), tensors)
    step = 2**-8 if found.dtype is torch.bfloat16 else 2**-11
    assert ((found.double() - exact).abs() <= exact.abs() * step * (1.01 + late) + 1e-3).all()


@pytest.mark.parametrize("function", ROUNDED_ONCE, ids=lambda one: one.name)
def test_sums_are_not_rounded_before_pytorch_rounds_them(function: Function, tmp_path: Path) -> None:
    _check(function, 0, tmp_path)


@pytest.mark.parametrize("function", ROUNDED_EARLY, ids=lambda one: one.name)
def test_what_a_linear_layer_adds_is_added_before_sums_are_rounded(function: Function, tmp_path: Path) -> None:
    _check(function, 1, tmp_path)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_scores_are_not_rounded_on_their_way_to_a_softmax(dtype: str, tmp_path: Path) -> None:
    """Scores of some hundreds, rounded to 16 bits, would make weights wrong by tens of per cent (bf16) or by 6 %."""
    function = Function("scores", "return torch.softmax(q @ k.T / 2, -1)", f"q: {dtype}[m, d]; k: {dtype}[n, d]")
    task, made = task_of(function, {"m": 40, "n": 200, "d": 512}), function.callable
    tensors = {name: one * 3 for name, one in draw(task, task.sizes, 0).items()}
    (exact,) = truth(function, task, tensors)
    step = 2**-8 if dtype == "bf16" else 2**-11
    chain = read(traced_task(task, lambda request: trace(made, request)))
    assert [(one.name, one.dtype) for one in chain.scratch] == [("hidden", DType.F32)]
    for structure in understand(task).structures:
        path = tmp_path / f"{structure.id}.cu"
        path.write_text(structure.write(task_op_line(task)))
        call = tilewright.load(str(path)).emulate(*tensors.values(), gpu=GPU, schedules=1)
        assert call.findings == ()
        found = call.results
        assert isinstance(found, torch.Tensor)
        assert ((found.double() - exact).abs() <= exact * (step + 1e-3) + 1e-7).all()


def test_scores_that_are_multiplied_too_stay_what_they_are() -> None:
    function = Function(
        "both", "h = x @ w\nreturn torch.softmax(h, -1), h @ v", "x: bf16[m, k]; w: bf16[k, n]; v: bf16[n, k]"
    )
    task, made = task_of(function, {"m": 64, "n": 128, "k": 64}), function.callable
    chain = read(traced_task(task, lambda request: trace(made, request)))
    assert [one.dtype for one in chain.scratch] == [DType.BF16]
