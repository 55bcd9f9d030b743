"""An operation's backward as another operation: kernels for both passes.

Only what the backward operation takes is kept. It makes all gradients in one go; those that nobody wants are dropped.
What it cannot do - gradients of gradients, batched ones, sizes that its files do not take - the forward's reference
does, from the inputs that were kept; where results were kept in their place, one sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tilewright.kernel_file import KernelFile, Op
from tilewright.runtime import torch_library
from tilewright.runtime.errors import GradientNotSupported, LoadError, NoKernelApplies

if TYPE_CHECKING:
    from tilewright.runtime.fallback import Fallback
    from tilewright.runtime.operation import Operation
    from tilewright.runtime.torch_op import TorchOp

# Gradients by the reference: from a call's values, its results' gradients, which are wanted, and whether they are to
# have gradients themselves.
Again = Callable[[Sequence[Any], Sequence[Any], Sequence[bool], bool], Sequence[torch.Tensor]]


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
    leads: Mapping[str, int] = field(default_factory=dict)  # where ranks are not known: those of the `lead` lines

    def takes(self, op: Op, values: Sequence[Any]) -> bool:
        """Whether it is for a call of the forward with these values."""
        if self.ranks is None:
            return True
        pairs = [(p.name, v) for p, v in zip(op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
        return all(value.dim() == self.ranks[name] or name in self.leading for name, value in pairs)

    def ranks_of(self, op: Op, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, int]:
        """The rank that tensors of a call of the forward have here; of those not named it is their own."""
        if self.ranks is not None:
            return self.ranks
        further = {len(shapes[name]) - rank for name, rank in self.leads.items() if name in shapes}
        more = further.pop() if len(further) == 1 else 0
        if more == 0 or more < -1:  # as the plan has them, or as no plan takes them
            return {}
        return {**self.leads, **{name: len(shapes[name]) - more for name in op.results}}

    def check(self, op: Op) -> None:
        """Raises `LoadError` where the two operations do not fit each other."""
        changed = [parameter.name for parameter in op.parameters if parameter.in_place]
        if changed:
            raise LoadError(f"{op.name} changes {changed[0]} in place, and of such an operation no gradient is told")
        known = {*self.gradients.values(), *(one.name for one in op.parameters), *op.results}
        strange = [one.name for one in self.operation.op.parameters if one.name not in known]
        wrong = [name for name in self.gradients if name not in op.results]
        wrong += [name for name in self.by if name not in {p.name for p in op.tensors}]
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
        made = torch_library.run_below_autograd(torch_op.overload, below, values)
        results = (made,) if len(op.results) == 1 else made
        known = {p.name: value for p, value in zip(op.parameters, values, strict=True)}
        known |= dict(zip(op.results, results, strict=True))
        kept = [known[name] for name in backward.keeps]
        ctx.backward, ctx.op, ctx.again, ctx.fallback = backward, op, again, torch_op.fallback
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
            return None, None, None, None, *_by_reference(ctx, known, gradients, wanted, further=True)
        try:
            found = _by_kernel(ctx, known, gradients)
        except NoKernelApplies as refusal:
            if ctx.again is None or any(name in op.results for name in known):
                raise
            _say(ctx.fallback, refusal)
            return None, None, None, None, *_by_reference(ctx, known, gradients, wanted, further=False)
        pairs = zip(op.parameters, wanted, strict=True)
        return None, None, None, None, *(found.get(p.name) if want else None for p, want in pairs)


def _by_kernel(ctx: Any, known: Mapping[str, Any], gradients: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The gradients of the inputs `by`; a stack of rows has the gradients of its rows, and is laid flat."""
    backward, op = ctx.backward, ctx.op
    ranks = backward.ranks_of(op, {name: layout[0] for name, layout in ctx.layouts.items()})
    values = {name: _laid_flat(value, ranks.get(name)) for name, value in known.items()}
    for name, gradient in zip(op.results, gradients, strict=True):
        if name in backward.gradients:
            values[backward.gradients[name]] = _laid_flat(_dense(gradient, *ctx.layouts[name]), ranks.get(name))
    made = backward.operation.torch_op(*(values[one.name] for one in backward.operation.op.parameters))
    found = dict(zip(backward.by, (made,) if len(backward.by) == 1 else made, strict=True))
    return {name: _shaped(ctx, name, one, ranks.get(name)) for name, one in found.items()}


def _laid_flat(value: Any, rank: int | None) -> Any:
    if rank is None or not isinstance(value, torch.Tensor) or value.dim() == rank:
        return value
    return value.reshape(_flat_shape(value.shape, rank))


def _flat_shape(shape: Sequence[int], rank: int | None) -> tuple[int, ...]:
    """A shape whose first dimensions are one, so that it has so many."""
    if rank is None or len(shape) == rank:
        return tuple(shape)
    kept = len(shape) - rank + 1
    return math.prod(shape[:kept]), *shape[kept:]


def _shaped(ctx: Any, name: str, gradient: torch.Tensor, rank: int | None) -> torch.Tensor:
    shape = ctx.layouts[name][0]
    if ctx.backward.ranks is None and tuple(gradient.shape) != _flat_shape(shape, rank):
        raise GradientNotSupported(
            f"{ctx.op.name}: its backward gives the gradient of {name} in the shape {list(gradient.shape)}, where "
            f"{name} has {list(shape)}; mend the backward's file"
        )
    return gradient.reshape(shape)


def _dense(gradient: torch.Tensor | None, shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A result's gradient as the kernel takes it; often it is an expanded number, or there is none."""
    return torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient.to(dtype).contiguous()


def _by_reference(
    ctx: Any, known: Mapping[str, Any], gradients: Sequence[Any], wanted: Sequence[bool], *, further: bool
) -> list[torch.Tensor | None]:
    """`further`: the gradients are to have gradients themselves, or are batched."""
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
    made = iter(ctx.again(values, gradients, wanted, further))
    return [next(made) if want else None for want in wanted]


def _say(fallback: Fallback, refusal: NoKernelApplies) -> None:
    kind = ("backward", *((one.file, one.problem.code, one.problem.line) for one in refusal.reasons))
    reasons = "\n".join(f"  {one}" for one in refusal.reasons)
    text = "no file of the backward kernel takes this call, so the reference is run again and its gradients are used"
    fallback.say(kind, f"{text} (said once):\n{reasons}")


def common_leads(files: Sequence[KernelFile]) -> dict[str, int]:
    """What the `lead` lines of an operation's files say, where all say the same."""
    leads = [file.compiled.lead for file in files]
    found = {lead.ranks if lead is not None else () for lead in leads}
    return dict(found.pop()) if len(found) == 1 else {}


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
