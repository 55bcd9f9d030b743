"""An operation's backward as another operation: kernels for both passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilewright.kernel_file import Op
from tilewright.runtime import dispatcher
from tilewright.runtime.errors import GradientNotSupported, LoadError

if TYPE_CHECKING:
    from tilewright.runtime.operation import Operation
    from tilewright.runtime.torch_op import TorchOp


@dataclass(frozen=True)
class Backward:
    """What is called in the backward pass, and what is kept for it.

    The backward operation's parameters are gradients of the forward's results, and whatever else they are called after
    among the forward's parameters and results. Its results are gradients of the forward's inputs `by`, in order.
    """

    operation: Operation
    gradients: Mapping[str, str]  # a result of the forward -> the parameter that its gradient is
    by: tuple[str, ...]

    def check(self, op: Op) -> None:
        """Raises `LoadError` where the two operations do not fit each other."""
        known = {*self.gradients.values(), *(one.name for one in op.parameters), *op.results}
        strange = [one.name for one in self.operation.op.parameters if one.name not in known]
        wrong = [name for name in self.gradients if name not in op.results]
        wrong += [name for name in self.by if name not in {p.name for p in op.parameters if p.scalar is None}]
        if strange or wrong or len(self.by) != len(self.operation.op.results):
            said = (
                f"{op.name} has no {(strange or wrong)[0]}" if strange or wrong else "not one result for each of `by`"
            )
            raise LoadError(f"{self.operation.op.name} is no backward of {op.name}: {said}")

    @property
    def keeps(self) -> tuple[str, ...]:
        """The names of what it needs of the forward call."""
        given = set(self.gradients.values())
        return tuple(one.name for one in self.operation.op.parameters if one.name not in given)


class _ByKernel(torch.autograd.function._SingleLevelFunction):
    """One call whose gradients another operation computes."""

    @staticmethod
    def forward(ctx: Any, torch_op: TorchOp, backward: Backward, below: Any, *values: Any) -> Any:
        op = torch_op.op
        made = dispatcher.run_below_autograd(torch_op.overload, below, values)
        results = (made,) if len(op.results) == 1 else made
        known = {p.name: value for p, value in zip(op.parameters, values, strict=True)}
        known |= dict(zip(op.results, results, strict=True))
        kept = [known[name] for name in backward.keeps]
        ctx.backward, ctx.op = backward, op
        ctx.save_for_backward(*(one for one in kept if isinstance(one, torch.Tensor)))
        ctx.others = [None if isinstance(one, torch.Tensor) else (one,) for one in kept]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        backward, op = ctx.backward, ctx.op
        if torch.is_grad_enabled():
            raise GradientNotSupported(
                f"{op.name}: its backward is a kernel, which has no gradient of its own; for gradients of gradients "
                "use the operation without its backward"
            )
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if other is None else other[0] for other in ctx.others]
        known = dict(zip(backward.keeps, kept, strict=True))
        for name, gradient in zip(op.results, gradients, strict=True):
            if name in backward.gradients:
                known[backward.gradients[name]] = gradient.contiguous()  # often an expanded number
        made = backward.operation.torch_op(*(known[one.name] for one in backward.operation.op.parameters))
        found = dict(zip(backward.by, (made,) if len(backward.by) == 1 else made, strict=True))
        wanted = zip(op.parameters, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(found.get(parameter.name) if want else None for parameter, want in wanted)


_apply: Any = _ByKernel.apply  # type: ignore[attr-defined]  # its base has it, and has no types


def run_with_backward(torch_op: TorchOp, backward: Backward, below: Any, values: Sequence[Any]) -> Any:
    """The call, with what its backward will need."""
    return _apply(torch_op, backward, below, *values)
