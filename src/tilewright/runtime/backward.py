"""Autograd with a backward kernel: a second operation computes the gradients of the first.

Only the tensors that the backward operation takes are saved. It computes all gradients at once; unneeded ones are
dropped. Double backward, batched gradients and unsupported sizes fall back to the forward's reference, which needs the
inputs: where results were saved in their place, an error says so.
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
    from tilewright.runtime.operation import Operation
    from tilewright.runtime.torch_op import TorchOp

# Gradients by the reference: (values of the call, gradients of its results, which are needed, create_graph).
ReferenceBackward = Callable[[Sequence[Any], Sequence[Any], Sequence[bool], bool], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Backward:
    """The backward operation and how its parameters map to the forward's.

    Its parameters are gradients of the forward's results, or have the name of a forward parameter or result. Its
    results are the gradients of the forward's inputs `by`, in order.
    """

    operation: Operation
    gradients: Mapping[str, str]  # a result of the forward -> the parameter that its gradient is
    by: tuple[str, ...]
    ranks: Mapping[str, int] | None = None  # expected by the backward; None: those of the call
    leading: frozenset[str] = frozenset()  # inputs whose leading dimensions may be flattened
    leads: Mapping[str, int] = field(default_factory=dict)  # used where `ranks` is None: those of the `lead` lines

    def matches(self, op: Op, values: Sequence[Any]) -> bool:
        """Whether it supports the ranks of this forward call."""
        if self.ranks is None:
            return True
        pairs = [(p.name, v) for p, v in zip(op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
        return all(value.dim() == self.ranks[name] or name in self.leading for name, value in pairs)

    def ranks_of(self, op: Op, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, int]:
        """The rank to flatten each tensor of a forward call to; tensors not named keep theirs."""
        if self.ranks is not None:
            return self.ranks
        further = {len(shapes[name]) - rank for name, rank in self.leads.items() if name in shapes}
        more = further.pop() if len(further) == 1 else 0
        if more == 0 or more < -1:  # nothing to flatten, or ranks that no plan takes
            return {}
        return {**self.leads, **{name: len(shapes[name]) - more for name in op.results}}

    def check(self, op: Op) -> None:
        """Raises `LoadError` where the signatures of the two operations do not match."""
        changed = [parameter.name for parameter in op.parameters if parameter.in_place]
        if changed:
            raise LoadError(f"{op.name} changes {changed[0]} in place, so it cannot have a backward")
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
    def saved_names(self) -> tuple[str, ...]:
        """The forward's parameters and results that it needs."""
        given = set(self.gradients.values())
        return tuple(one.name for one in self.operation.op.parameters if one.name not in given)


class _ByKernel(torch.autograd.Function):
    """One call whose gradients the backward operation computes."""

    @staticmethod
    def forward(
        ctx: Any,
        torch_op: TorchOp,
        backward: Backward,
        by_reference: ReferenceBackward | None,
        below: Any,
        *values: Any,
    ) -> Any:
        op = torch_op.op
        ctx.set_materialize_grads(False)
        made = torch_library.run_below_autograd(torch_op.overload, below, values)
        results = (made,) if len(op.results) == 1 else made
        known = {p.name: value for p, value in zip(op.parameters, values, strict=True)}
        known |= dict(zip(op.results, results, strict=True))
        kept = [known[name] for name in backward.saved_names]
        ctx.backward, ctx.op, ctx.by_reference, ctx.fallback = backward, op, by_reference, torch_op.fallback
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
        known = dict(zip(backward.saved_names, kept, strict=True))
        wanted = ctx.needs_input_grad[4:]
        batched = any(torch._C._functorch.is_legacy_batchedtensor(one) for one in gradients if one is not None)
        if torch.is_grad_enabled() or batched:
            return None, None, None, None, *_by_reference(ctx, known, gradients, wanted, create_graph=True)
        try:
            found = _by_kernel(ctx, known, gradients)
        except NoKernelApplies as refusal:
            if ctx.by_reference is None or any(name in op.results for name in known):
                raise
            kind = ("backward", *((one.file, one.problem.code, one.problem.line) for one in refusal.reasons))
            reasons = "\n".join(f"  {one}" for one in refusal.reasons)
            ctx.fallback.warn(
                kind,
                "no file of the backward kernel takes this call, so the reference is run again and its gradients are "
                f"used (said once):\n{reasons}",
            )
            return None, None, None, None, *_by_reference(ctx, known, gradients, wanted, create_graph=False)
        pairs = zip(op.parameters, wanted, strict=True)
        return None, None, None, None, *(found.get(p.name) if want else None for p, want in pairs)


def _by_kernel(ctx: Any, known: Mapping[str, Any], gradients: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The gradients of the inputs `by`; leading dimensions are flattened for the kernel and restored after it."""
    backward, op = ctx.backward, ctx.op
    ranks = backward.ranks_of(op, {name: layout[0] for name, layout in ctx.layouts.items()})
    values = {name: _flatten_leading(value, ranks.get(name)) for name, value in known.items()}
    for name, gradient in zip(op.results, gradients, strict=True):
        if name in backward.gradients:
            shape, dtype, device = ctx.layouts[name]
            if gradient is None:
                gradient = torch.zeros(shape, dtype=dtype, device=device)
            dense = gradient.to(dtype).contiguous()  # often it is an expanded number
            values[backward.gradients[name]] = _flatten_leading(dense, ranks.get(name))
    made = backward.operation.torch_op(*(values[one.name] for one in backward.operation.op.parameters))
    found = dict(zip(backward.by, (made,) if len(backward.by) == 1 else made, strict=True))
    return {name: _shaped(ctx, name, one, ranks.get(name)) for name, one in found.items()}


def _flatten_leading(value: Any, rank: int | None) -> Any:
    if rank is None or not isinstance(value, torch.Tensor) or value.dim() == rank:
        return value
    return value.reshape(_flat_shape(value.shape, rank))


def _flat_shape(shape: Sequence[int], rank: int | None) -> tuple[int, ...]:
    """The shape with its leading dimensions merged, so that `rank` are left."""
    if rank is None or len(shape) == rank:
        return tuple(shape)
    kept = len(shape) - rank + 1
    return math.prod(shape[:kept]), *shape[kept:]


def _shaped(ctx: Any, name: str, gradient: torch.Tensor, rank: int | None) -> torch.Tensor:
    shape = ctx.layouts[name][0]
    if ctx.backward.ranks is None and tuple(gradient.shape) != _flat_shape(shape, rank):
        raise GradientNotSupported(
            f"{ctx.op.name}: its backward gives the gradient of {name} in the shape {list(gradient.shape)}, where "
            f"{name} has {list(shape)}; correct the backward's file"
        )
    return gradient.reshape(shape)


def _by_reference(
    ctx: Any, known: Mapping[str, Any], gradients: Sequence[Any], wanted: Sequence[bool], *, create_graph: bool
) -> list[torch.Tensor | None]:
    kept = [name for name in known if name in ctx.op.results]
    if kept or ctx.by_reference is None:
        what = f"need its inputs, and {', '.join(kept)} was kept in their place" if kept else "need a reference"
        raise GradientNotSupported(
            f"{ctx.op.name}: its backward is a kernel, and gradients of gradients, or batched ones, {what}; use the "
            "function itself for those"
        )
    values = []
    for one in ctx.op.parameters:
        if one.name in known or one.name in ctx.numbers:
            values.append(known.get(one.name, ctx.numbers.get(one.name)))
        else:  # the backward kernel does not need it, so no gradient depends on it
            shape, dtype, device = ctx.layouts[one.name]
            values.append(torch.zeros(shape, dtype=dtype, device=device))
    made = iter(ctx.by_reference(values, gradients, wanted, create_graph))
    return [next(made) if want else None for want in wanted]


def common_leads(files: Sequence[KernelFile]) -> dict[str, int]:
    """The ranks of the `lead` lines, where all files agree on them."""
    leads = [file.compiled.lead for file in files]
    found = {lead.ranks if lead is not None else () for lead in leads}
    return dict(found.pop()) if len(found) == 1 else {}


def run_with_backward(
    torch_op: TorchOp, backward: Backward, by_reference: ReferenceBackward | None, below: Any, values: Sequence[Any]
) -> Any:
    """Run the forward and save what its backward needs; `by_reference` is None without a reference."""
    pairs = zip(torch_op.op.parameters, values, strict=True)
    wanting = [
        p.name for p, v in pairs if isinstance(v, torch.Tensor) and v.requires_grad and p.name not in backward.by
    ]
    if wanting and backward.ranks is None:  # a pair generated together omits gradients on purpose
        raise GradientNotSupported(
            f"{torch_op.op.name}: {wanting[0]} requires grad, and its backward gives no gradient of it; "
            f"pass {wanting[0]}.detach(), or a backward that does"
        )
    return _ByKernel.apply(torch_op, backward, by_reference, below, *values)  # type: ignore[no-untyped-call]
