"""Check a function's gradients against finite differences in f64. `check` runs in the reference's process.

Autograd is right about PyTorch's operations, but a custom backward may be wrong. Kernels are judged by the function's
gradients, so these are checked first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from tilewright.records import Case, Task
from tilewright.reference import AnyReference
from tilewright.reference.torch_calls import flat_results, to_torch
from tilewright.verify.arithmetic import WIDE, Arithmetic
from tilewright.verify.distributions import draw_inputs

CHECK = "tilewright.verify.gradient_check:check"
_SECONDS = 120.0
_SEEDS = (21, 22, 23)  # a kink may lie within one step of a drawn value, but hardly three times
_FEW = (3, 5, 4, 7)
_LARGEST = 1e-3  # relative difference to finite differences


@dataclass(frozen=True)
class GradientRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class GradientAnswer:
    problem: str  # "" where the gradients are right


def gradient_problem(task: Task, reference: AnyReference) -> str:
    """Why a function's gradients are wrong, in one sentence; "" where they are right."""
    request = GradientRequest(task, _least_sizes(task))
    answer: GradientAnswer = reference.call(CHECK, request, GradientAnswer, _SECONDS)
    return answer.problem


def _least_sizes(task: Task) -> dict[str, int]:
    """A few elements of each dimension: where something is wrong, each of them costs a call."""
    sizes = task.sizes
    for number, dimension in enumerate(one for one in task.free if one.varies):
        wanted = dimension.permitted(_FEW[number % len(_FEW)])
        smaller = task.complete({**sizes, dimension.name: min(dimension.size, wanted)})
        sizes = smaller if task.is_sound(smaller) else sizes
    return sizes


def check(function: Callable[..., Any], request: GradientRequest) -> GradientAnswer:
    """The handler: torch.autograd.gradcheck at drawn values in f64."""
    for seed in _SEEDS:
        problem = _problem(function, request.task, request.sizes, seed)
        if not problem:
            break
    return GradientAnswer(problem)


def _problem(function: Callable[..., Any], task: Task, sizes: dict[str, int], seed: int) -> str:
    specs = task.specs(sizes)
    drawn = draw_inputs(task, Case(sizes, seed))
    tensors = {name: to_torch(specs[name], content) for name, content in drawn.items()}
    leaves = {
        name: one.to(WIDE).contiguous().requires_grad_() for name, one in tensors.items() if one.is_floating_point()
    }
    others: dict[str, Any] = {one.name: one.value for one in task.numbers}
    others |= {one.name: tensors.get(one.name) for one in task.tensors if one.name not in leaves}

    def call(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with Arithmetic(WIDE):
            found = flat_results(function(**others, **dict(zip(leaves, values, strict=True))))
        return tuple(one for one in found if one.requires_grad)

    usual = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(WIDE)
    try:
        with torch.enable_grad():
            if not call(*leaves.values()):
                return "no result can be derived"
            torch.autograd.gradcheck(call, tuple(leaves.values()), fast_mode=True, rtol=_LARGEST, nondet_tol=1e-9)
    except GradcheckError as error:
        return _words(str(error))
    finally:
        torch.set_default_dtype(usual)
    return ""


def _words(message: str) -> str:
    if "reentrant" in message:
        return "two backward passes over the same values give different gradients"
    if "Jacobian mismatch" in message or "Numerical gradients" in message or "numerical" in message:
        return "its gradients are not those of what it computes, as finite differences in f64 show"
    return " ".join(message.split())[:200]
