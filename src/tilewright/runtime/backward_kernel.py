"""Gradients by a kernel of their own: what a call keeps for it, and the call of it in the backward pass.

Only what the backward operation takes is kept. It makes all gradients in one go; those that nobody wants are dropped.
What it cannot do - gradients of gradients, batched gradients - the forward's reference does, from the inputs that were
kept; where results were kept in their place, one sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilewright.kernel_file import Op
from tilewright.records import Derivative
from tilewright.runtime.errors import GradientNotSupported, LoadError

if TYPE_CHECKING:
    from tilewright.runtime.torch_op import TorchOp

Run = Callable[[Sequence[Any]], Any]  # the forward itself, below autograd
ByReference = Callable[[Sequence[Any], Sequence[Any], Sequence[bool]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class BackwardKernel:
    """An operation that makes a forward's gradients, and which of the forward's tensors it takes and gives."""

    operation: Callable[..., Any]
    op: Op
    derivative: Derivative

    def check(self, forward: Op) -> None:
        """Raises `LoadError` where it is not the backward of this op."""
        known = {*(one.name for one in forward.parameters), *forward.results}
        used = {*(one.name for one in self.derivative.saved), *self.derivative.by, *self.derivative.results}
        numbers = {one.name for one in forward.parameters if one.scalar is not None}
        taken = {*self.derivative.gradients, *(one.name for one in self.derivative.saved), *numbers}
        if not used <= known or {one.name for one in self.op.parameters} - taken:
            raise LoadError(f"{self.op.name} is not the backward of {forward.name}; it is that of {self.derivative.op}")


class ByKernel(torch.autograd.function._SingleLevelFunction):
    """One call whose gradients the backward kernel makes."""

    @staticmethod
    def forward(ctx: Any, torch_op: TorchOp, run: Run, by_reference: ByReference, *values: Any) -> Any:
        ctx.set_materialize_grads(False)
        backward = torch_op.backward
        assert backward is not None
        ctx.backward, ctx.op, ctx.by_reference = backward, torch_op.op, by_reference
        made = run(values)
        named = {p.name: v for p, v in zip(torch_op.op.parameters, values, strict=True)}
        results = dict(zip(torch_op.op.results, made if isinstance(made, tuple) else (made,), strict=True))
        ctx.kept = [one.name for one in backward.derivative.saved]
        ctx.save_for_backward(*({**named, **results}[name] for name in ctx.kept))
        ctx.others = {name: value for name, value in named.items() if not isinstance(value, torch.Tensor)}
        tensors = {name: one for name, one in {**named, **results}.items() if isinstance(one, torch.Tensor)}
        ctx.layouts = {name: (one.shape, one.dtype, one.device) for name, one in tensors.items()}
        ctx.mark_non_differentiable(*(one for name, one in results.items() if name not in backward.derivative.results))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        kernel: BackwardKernel = ctx.backward
        wanted = ctx.needs_input_grad[3:]
        given = dict(zip(ctx.op.results, gradients, strict=True))
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        batched = any(torch._C._functorch.is_legacy_batchedtensor(one) for one in gradients if one is not None)
        if torch.is_grad_enabled() or batched:
            found = _by_reference(ctx, kept, gradients, wanted)
            return None, None, None, *found
        values = {**ctx.others, **kept}
        for result, name in zip(kernel.derivative.results, kernel.derivative.gradients, strict=True):
            values[name] = _gradient(given[result], *ctx.layouts[result])
        made = kernel.operation(*(values[parameter.name] for parameter in kernel.op.parameters))
        by_input = dict(zip(kernel.derivative.by, made if isinstance(made, tuple) else (made,), strict=True))
        names = [parameter.name for parameter in ctx.op.parameters]
        return None, None, None, *(by_input.get(n) if w else None for n, w in zip(names, wanted, strict=True))


def _gradient(given: Any, shape: Any, dtype: Any, device: Any) -> torch.Tensor:
    """What a result's gradient is to the kernel: dense, of the result's dtype, zeros where nothing depends on it."""
    if given is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    made: torch.Tensor = given.to(dtype).contiguous()
    return made


def _by_reference(
    ctx: Any, kept: dict[str, torch.Tensor], gradients: Sequence[Any], wanted: Sequence[bool]
) -> list[torch.Tensor | None]:
    results = [one.name for one in ctx.backward.derivative.saved if one.is_result]
    if results or ctx.by_reference is None:
        what = f"need the inputs, and {', '.join(results)} was kept instead" if results else "need a reference"
        raise GradientNotSupported(
            f"{ctx.op.name}: gradients of its gradients, or batched ones, {what}; call the PyTorch function itself "
            "where they are wanted"
        )
    values = []
    for one in ctx.op.parameters:
        if one.name in kept or one.name in ctx.others:
            values.append(kept.get(one.name, ctx.others.get(one.name)))
        else:  # no gradient depends on it, so none of theirs does
            shape, dtype, device = ctx.layouts[one.name]
            values.append(torch.zeros(shape, dtype=dtype, device=device))
    made = iter(ctx.by_reference(values, gradients, wanted))
    return [next(made) if one else None for one in wanted]


apply_with_kernel: Any = ByKernel.apply  # type: ignore[attr-defined]  # its base has it, and has no types
