"""An operation's backward as another operation: kernels for both passes.

Only what the backward operation takes is kept. It makes all gradients in one go; those that nobody wants are dropped.
What it cannot do - gradients of gradients, batched ones - the forward's reference does, from the inputs that were kept;
where results were kept in their place, one sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilewright.kernel_file import Op
from tilewright.runtime import dispatcher
from tilewright.runtime.errors import GradientNotSupported, LoadError

if TYPE_CHECKING:
    from tilewright.runtime.operation import Operation
    from tilewright.runtime.torch_op import TorchOp

# Gradients by the reference that have gradients: from a call's values, its results' gradients, and which are wanted.
Again = Callable[[Sequence[Any], Sequence[Any], Sequence[bool]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Backward:
    """What is called in the backward pass, and what is kept for it.

    The backward operation's parameters are gradients of the forward's results, and whatever else they are called after
    among the forward's parameters and results. Its results are gradients of the forward's inputs `by`, in order.
    """

    operation: Operation
    gradients: Mapping[str, str]  # a result of the forward -> the parameter that its gradient is
    by: tuple[str, ...]
    ranks: Mapping[str, int] | None = None  # of the forward's inputs and results as it takes them; None: as they come
    leading: frozenset[str] = frozenset()  # inputs whose first dimension may stand for several: these are laid flat

    def takes(self, op: Op, values: Sequence[Any]) -> bool:
        """Whether it is for a call of the forward with these values."""
        if self.ranks is None:
            return True
        pairs = [(p.name, v) for p, v in zip(op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
        return all(value.dim() == self.ranks[name] or name in self.leading for name, value in pairs)

    def laid_flat(self, name: str, value: Any) -> Any:
        """A tensor of the forward with the rank that it has here: a stack of rows has the gradients of its rows."""
        rank = self.ranks.get(name) if self.ranks is not None else None
        if rank is None or not isinstance(value, torch.Tensor) or value.dim() == rank:
            return value
        kept = value.dim() - rank + 1
        return value.reshape(math.prod(value.shape[:kept]), *value.shape[kept:])

    def check(self, op: Op) -> None:
        """Raises `LoadError` where the two operations do not fit each other."""
        changed = [parameter.name for parameter in op.parameters if parameter.in_place]
        if changed:
            raise LoadError(f"{op.name} changes {changed[0]} in place, and of such an operation no gradient is told")
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
    def forward(ctx: Any, torch_op: TorchOp, backward: Backward, again: Again | None, below: Any, *values: Any) -> Any:
        op = torch_op.op
        ctx.set_materialize_grads(False)
        made = dispatcher.run_below_autograd(torch_op.overload, below, values)
        results = (made,) if len(op.results) == 1 else made
        known = {p.name: value for p, value in zip(op.parameters, values, strict=True)}
        known |= dict(zip(op.results, results, strict=True))
        kept = [known[name] for name in backward.keeps]
        ctx.backward, ctx.op, ctx.again = backward, op, again
        ctx.layouts = {n: (t.shape, t.dtype, t.device) for n, t in known.items() if isinstance(t, torch.Tensor)}
        ctx.numbers = {name: value for name, value in known.items() if not isinstance(value, torch.Tensor)}
        pairs = zip(op.results, results, strict=True)
        ctx.mark_non_differentiable(*(one for name, one in pairs if name not in backward.gradients))
        ctx.save_for_backward(*(one for one in kept if isinstance(one, torch.Tensor)))
        ctx.others = [None if isinstance(one, torch.Tensor) else (one,) for one in kept]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        backward, op = ctx.backward, ctx.op
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if other is None else other[0] for other in ctx.others]
        known = dict(zip(backward.keeps, kept, strict=True))
        wanted = ctx.needs_input_grad[4:]
        batched = any(torch._C._functorch.is_legacy_batchedtensor(one) for one in gradients if one is not None)
        if torch.is_grad_enabled() or batched:
            return None, None, None, None, *_by_reference(ctx, known, gradients, wanted)
        for name, gradient in zip(op.results, gradients, strict=True):
            if name in backward.gradients:
                known[backward.gradients[name]] = backward.laid_flat(name, _dense(gradient, *ctx.layouts[name]))
        known |= {name: backward.laid_flat(name, known[name]) for name in backward.keeps}
        made = backward.operation.torch_op(*(known[one.name] for one in backward.operation.op.parameters))
        found = dict(zip(backward.by, (made,) if len(backward.by) == 1 else made, strict=True))
        pairs = zip(op.parameters, wanted, strict=True)
        return None, None, None, None, *(_shaped(ctx, found, p.name) if want else None for p, want in pairs)


def _shaped(ctx: Any, found: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    if name not in found:
        return None
    gradient, shape = found[name], ctx.layouts[name][0]
    if gradient.shape != shape and ctx.backward.ranks is None:
        raise GradientNotSupported(
            f"{ctx.op.name}: its backward gives the gradient of {name} in the shape {list(gradient.shape)}, where "
            f"{name} has {list(shape)}; mend the backward's file"
        )
    return gradient.reshape(shape)


def _dense(gradient: torch.Tensor | None, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A result's gradient as the kernel takes it; often it is an expanded number, or there is none."""
    return torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient.to(dtype).contiguous()


def _by_reference(
    ctx: Any, known: Mapping[str, Any], gradients: Sequence[Any], wanted: Sequence[bool]
) -> list[torch.Tensor | None]:
    kept = [name for name in known if name in ctx.op.results]
    if kept or ctx.again is None:
        what = f"need its inputs, and {', '.join(kept)} was kept in their place" if kept else "need a reference"
        raise GradientNotSupported(
            f"{ctx.op.name}: its backward is a kernel, and gradients of gradients, or batched ones, {what}; use the "
            "function itself for those"
        )
    values = []
    for one in ctx.op.parameters:
        if one.name in known or one.name in ctx.numbers:
            values.append(known.get(one.name, ctx.numbers.get(one.name)))
        else:  # no gradient depends on it, so none of theirs does
            shape, dtype, device = ctx.layouts[one.name]
            values.append(torch.zeros(shape, dtype=dtype, device=device))
    made = iter(ctx.again(values, gradients, wanted))
    return [next(made) if want else None for want in wanted]


_apply: Any = _ByKernel.apply  # type: ignore[attr-defined]  # its base has it, and has no types


def run_with_backward(
    torch_op: TorchOp, backward: Backward, again: Again | None, below: Any, values: Sequence[Any]
) -> Any:
    """The call, with what its backward will need; `again`: None where there is no reference to be run again."""
    pairs = zip(torch_op.op.parameters, values, strict=True)
    wanting = [
        p.name for p, v in pairs if isinstance(v, torch.Tensor) and v.requires_grad and p.name not in backward.by
    ]
    if wanting and backward.ranks is None:  # of kernels that were made for each other it is known why one gets none
        raise GradientNotSupported(
            f"{torch_op.op.name}: {wanting[0]} requires grad, and its backward gives no gradient of it; "
            f"pass {wanting[0]}.detach(), or a backward that does"
        )
    return _apply(torch_op, backward, again, below, *values)
