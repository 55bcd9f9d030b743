"""What torch's autograd is told of an operator: run it, refuse, or run it and remember how to go back.

Gradients come from a backward operation where one was given, else from the reference: it is run again, and autograd
goes through it, inside an operator of its own so that compilers see one node. Forward-mode tangents (`jvp`) run the
reference in the place of the kernel. Torch's own `register_autograd` would drop such tangents without a word, and does
not work under `torch.func`, so the kernel for the `Autograd` key is written here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from tilewright.kernel_file import Op
from tilewright.runtime import dispatcher
from tilewright.runtime.backward import run_with_backward
from tilewright.runtime.batching import batched
from tilewright.runtime.entries import refuse_gradients
from tilewright.runtime.errors import GradientNotSupported
from tilewright.runtime.last_resort import LastResort
from tilewright.runtime.op_schema import arguments_text

if TYPE_CHECKING:
    from tilewright.runtime.torch_op import TorchOp


def register_autograd(torch_op: TorchOp) -> None:
    """The kernel for the `Autograd` key, and the operator that gradients by the reference need."""
    overload, op = torch_op.overload, torch_op.op
    changes = any(parameter.in_place for parameter in op.parameters)
    by_reference = None if changes else _register_gradients(torch_op)

    def again(
        values: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool], further: bool
    ) -> Sequence[torch.Tensor]:
        if further or by_reference is None:
            return _transformable(torch_op.last_resort, values, gradients, wanted)
        found: Sequence[torch.Tensor] = by_reference(*values, list(gradients), list(wanted))
        return found

    def kernel(below: Any, *values: Any) -> Any:
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if forward_ad._current_level >= 0 and any(_has_tangent(one) for one in tensors):
            return _with_tangents(torch_op.last_resort, changes, values)
        if not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
            return dispatcher.run_below_autograd(overload, below, values)
        backward = torch_op.host.backward
        if backward is not None and backward.takes(op, values) and not _is_transformed():
            return run_with_backward(torch_op, backward, again if torch_op.last_resort.may_run else None, below, values)
        if by_reference is None or not torch_op.last_resort.may_run:
            refuse_gradients(op, [v for p, v in zip(op.parameters, values, strict=True) if p.scalar is None])
        _say_gradients(torch_op.last_resort, values)
        with _single_level():
            return _apply(torch_op, by_reference, below, *values)

    dispatcher.set_autograd(torch_op.name, kernel)


def _is_transformed() -> bool:
    """Whether a transformation of `torch.func` is at work: it may want gradients of gradients."""
    return torch._C._functorch.maybe_current_level() is not None


def _say_gradients(last_resort: LastResort, values: Sequence[Any]) -> None:
    pairs = [(p.name, v) for p, v in zip(last_resort.op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
    kind = ("gradient", *((name, value.dtype, value.dim(), value.requires_grad) for name, value in pairs))
    wanting = ", ".join(name for name, value in pairs if value.requires_grad)
    last_resort.say(
        kind,
        f"{wanting} requires grad and the operation has no backward kernel, so the reference is run again in the "
        "backward pass and its gradients are used (said once)",
    )


# -- backward, by the reference --


class _ByReference(torch.autograd.function._SingleLevelFunction):
    """One call whose gradients the reference gives. Of a single level: `torch.func` has chosen the level already."""

    @staticmethod
    def forward(ctx: Any, torch_op: TorchOp, by_reference: Any, below: Any, *values: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.torch_op, ctx.by_reference = torch_op, by_reference
        ctx.save_for_backward(*(value for value in values if isinstance(value, torch.Tensor)))
        ctx.others = [None if isinstance(value, torch.Tensor) else (value,) for value in values]
        with _levels_below():
            return dispatcher.run_below_autograd(torch_op.overload, below, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = iter([torch._C._functorch.unwrap_if_dead(one) for one in ctx.saved_tensors])
        values = [next(saved) if other is None else other[0] for other in ctx.others]
        wanted = list(ctx.needs_input_grad[3:])
        if torch.is_grad_enabled() or _is_transformed():
            found = _transformable(ctx.torch_op.last_resort, values, gradients, wanted)
        elif any(torch._C._functorch.is_legacy_batchedtensor(one) for one in gradients if one is not None):
            found = _detached(ctx.torch_op.last_resort, values, gradients, wanted)  # of `is_grads_batched`
        else:
            found = ctx.by_reference(*values, list(gradients), wanted)
        made = iter(found)
        return None, None, None, *(next(made) if one else None for one in wanted)


_apply: Any = _ByReference.apply  # type: ignore[attr-defined]  # its base has it, and has no types


def _register_gradients(torch_op: TorchOp) -> Any:
    """The operator that makes gradients by the reference: the call's values, those of its results, which are wanted."""
    name = f"{torch_op.name}_gradients"
    dispatcher.define(name, f"{arguments_text(torch_op.op)}, Tensor?[] gradients, bool[] wanted", "Tensor[]")

    def run(*values: Any) -> list[torch.Tensor]:
        *call, gradients, wanted = values
        with _recording():
            found = _detached(torch_op.last_resort, call, gradients, wanted)
        given = [one for one in (*call, *gradients) if isinstance(one, torch.Tensor)]
        return [_own(one.detach(), given) for one in found]

    def fake(*values: Any) -> list[torch.Tensor]:
        *call, _, wanted = values
        chosen = [value for value, want in zip(call, wanted, strict=True) if want]
        return [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in chosen]

    dispatcher.set_kernel(name, run)
    dispatcher.set_fake(name, fake)
    overload = dispatcher.overload(name)

    def kernel(below: Any, *values: Any) -> Any:
        tensors = [one for one in (*values[:-2], *values[-2]) if isinstance(one, torch.Tensor)]
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            raise GradientNotSupported(f"{torch_op.op.name}: gradients of gradients are not made by this operator")
        return dispatcher.run_below_autograd(overload, below, values)

    dispatcher.set_autograd(name, kernel)
    dispatcher.set_batching(name, batched(torch_op.op, overload))
    return overload


def _detached(
    last_resort: LastResort, call: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool]
) -> list[torch.Tensor]:
    """The gradient of each value wanted, by a run of the reference that has nothing to do with the one before."""
    with torch.enable_grad():
        values = [value.detach().requires_grad_() if want else value for value, want in zip(call, wanted, strict=True)]
        pairs = list(zip(last_resort.results(values), gradients, strict=True))
    used = [(result, gradient) for result, gradient in pairs if gradient is not None and result.requires_grad]
    sources = [value for value, want in zip(values, wanted, strict=True) if want]
    if not used:
        return [torch.zeros_like(one) for one in sources]
    found = torch.autograd.grad(
        [result for result, _ in used],
        sources,
        [gradient.to(result.dtype) for result, gradient in used],
        allow_unused=True,
    )
    return [torch.zeros_like(s) if one is None else one for s, one in zip(sources, found, strict=True)]


def _transformable(
    last_resort: LastResort, values: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool]
) -> Sequence[torch.Tensor]:
    """The same through `torch.func`: gradients that can be batched, and that have gradients themselves."""
    used = [number for number, gradient in enumerate(gradients) if gradient is not None]
    sources = [value for value, want in zip(values, wanted, strict=True) if want]
    if not used:  # nobody asks for anything that depends on it
        return [torch.zeros_like(one) for one in sources]

    def differentiated(*given: Any) -> tuple[torch.Tensor, ...]:
        taken = iter(given)
        results = last_resort.results([next(taken) if w else v for v, w in zip(values, wanted, strict=True)])
        return tuple(results[number] for number in used)

    results, pull = torch.func.vjp(differentiated, *sources)
    pairs = zip(results, used, strict=True)
    found: tuple[torch.Tensor, ...] = pull(tuple(gradients[number].to(result.dtype) for result, number in pairs))
    return found


def _own(gradient: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contiguous, as torch was told, and no argument itself."""
    gradient = gradient.contiguous()
    return gradient.clone() if dispatcher.share_memory(gradient, given) else gradient


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Autograd at work inside an operator's kernel, below which torch has switched it off."""
    c = torch._C
    excluded = c._dispatch_tls_local_exclude_set() - _autograd_keys()
    with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


def _autograd_keys() -> Any:
    c = torch._C
    keys = c.DispatchKeySet(c.DispatchKey.ADInplaceOrView)
    for name in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther"):
        keys = keys | c.DispatchKeySet(c.DispatchKey.__members__[name])
    return keys


@contextlib.contextmanager
def _single_level() -> Iterator[None]:
    """Under `torch.func` a function of one level must be allowed; otherwise this changes nothing."""
    before = torch._C._functorch.get_single_level_autograd_function_allowed()
    torch._C._functorch.set_single_level_autograd_function_allowed(True)
    try:
        yield
    finally:
        torch._C._functorch.set_single_level_autograd_function_allowed(before)


@contextlib.contextmanager
def _levels_below() -> Iterator[None]:
    """Inside a `Function` nothing is recorded; the levels of `torch.func` below it record for themselves."""
    if not _is_transformed():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


# -- forward-mode tangents --


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _with_tangents(last_resort: LastResort, changes: bool, values: Sequence[Any]) -> Any:
    """The reference in the place of the kernel: only it knows how tangents go through."""
    op: Op = last_resort.op
    if changes or not last_resort.may_run:
        raise GradientNotSupported(
            f"{op.name}: an input has a tangent (jvp, forward-mode gradients), and a kernel file computes none: the "
            "result would silently lose it; give the operation a reference, or call it without tangents"
        )
    last_resort.say(("tangent",), "an input has a tangent (jvp), so the reference runs (said once)")
    results = last_resort.results(values)
    return results[0] if len(op.results) == 1 else results
