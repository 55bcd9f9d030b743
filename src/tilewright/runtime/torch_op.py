"""An operation as a custom op: `torch.ops.tilewright.silu_3f0c9a1b2d`.

The name is derived from the files' text and the reference, so that an exported program finds the op in another process
that has loaded the same files. An op lives as long as the process; loading the files again replaces its implementation.
"""

from __future__ import annotations

import contextlib
import re
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._ops import _OpNamespace

from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.kernel_file import DoesNotApply, KernelFile, NoneApplies, Op, Reason, TracedOut, out_specs, traced_outs
from tilewright.runtime import torch_library
from tilewright.runtime.backward import Backward, run_with_backward
from tilewright.runtime.call_devices import check_one_device
from tilewright.runtime.entries import count_changes, refuse_gradients, refuse_traced_overlap
from tilewright.runtime.errors import CallRefused, GradientNotSupported, LoadError
from tilewright.runtime.fallback import Fallback, NoKernelMatches, Reference, unwrap_results
from tilewright.runtime.specs import traced_arguments, unsupported_reasons
from tilewright.runtime.torch_library import (
    DIGITS,
    NAMESPACE,
    REFERENCE_DIGITS,
    arguments_text,
    files_digest,
    reference_digest,
    results_text,
    schema_name,
)

# -- autograd --


def register_autograd(torch_op: TorchOp) -> None:
    """Register the `Autograd` kernel, and the op that computes gradients by the reference."""
    overload, op = torch_op.overload, torch_op.op
    changes = any(parameter.in_place for parameter in op.parameters)
    by_reference = None if changes else _register_gradients(torch_op)

    def reference_backward(
        values: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool], create_graph: bool
    ) -> Sequence[torch.Tensor]:
        if create_graph or by_reference is None:
            return _recomputed(torch_op.fallback, values, gradients, wanted, create_graph=True)
        found: Sequence[torch.Tensor] = by_reference(*values, list(gradients), list(wanted))
        return found

    def kernel(below: Any, *values: Any) -> Any:
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
            return torch_library.run_below_autograd(overload, below, values)
        backward = torch_op.host.backward
        if backward is not None and backward.matches(op, values):
            by_rerun = reference_backward if torch_op.fallback.may_run else None
            return run_with_backward(torch_op, backward, by_rerun, below, values)
        if by_reference is None or not torch_op.fallback.may_run:
            refuse_gradients(op, [v for p, v in zip(op.parameters, values, strict=True) if p.scalar is None])
        _warn_gradients(torch_op.fallback, values)
        return _ByReference.apply(torch_op, by_reference, below, *values)  # type: ignore[no-untyped-call]

    torch_library.set_autograd(torch_op.name, kernel)


def _warn_gradients(fallback: Fallback, values: Sequence[Any]) -> None:
    pairs = [(p.name, v) for p, v in zip(fallback.op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
    kind = ("gradient", *((name, value.dtype, value.dim(), value.requires_grad) for name, value in pairs))
    wanting = ", ".join(name for name, value in pairs if value.requires_grad)
    fallback.warn(
        kind,
        f"{wanting} requires grad and the operation has no backward kernel, so the reference is run again in the "
        "backward pass and its gradients are used (said once)",
    )


# -- backward by the reference --


class _ByReference(torch.autograd.Function):
    """One call whose gradients the reference computes."""

    @staticmethod
    def forward(ctx: Any, torch_op: TorchOp, by_reference: Any, below: Any, *values: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.torch_op, ctx.by_reference = torch_op, by_reference
        ctx.save_for_backward(*(value for value in values if isinstance(value, torch.Tensor)))
        ctx.others = [None if isinstance(value, torch.Tensor) else (value,) for value in values]
        return torch_library.run_below_autograd(torch_op.overload, below, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        values = [next(saved) if other is None else other[0] for other in ctx.others]
        wanted, fallback = list(ctx.needs_input_grad[3:]), ctx.torch_op.fallback
        batched = any(torch._C._functorch.is_legacy_batchedtensor(one) for one in gradients if one is not None)
        if torch.is_grad_enabled() or batched:  # the latter for `is_grads_batched`
            found = _recomputed(fallback, values, gradients, wanted, create_graph=torch.is_grad_enabled())
        else:
            found = ctx.by_reference(*values, list(gradients), wanted)
        made = iter(found)
        return None, None, None, *(next(made) if one else None for one in wanted)


def _register_gradients(torch_op: TorchOp) -> Any:
    """Define the op that computes gradients by the reference: (values, result gradients, which are needed)."""
    name = f"{torch_op.name}_gradients"
    torch_library.define(name, f"{arguments_text(torch_op.op)}, Tensor?[] gradients, bool[] wanted", "Tensor[]")

    def run(*values: Any) -> list[torch.Tensor]:
        *call, gradients, wanted = values
        with _recording():
            found = _recomputed(torch_op.fallback, call, gradients, wanted, create_graph=False)
        given = [one for one in (*call, *gradients) if isinstance(one, torch.Tensor)]
        return [_unaliased(one.detach().contiguous(), given) for one in found]

    def fake(*values: Any) -> list[torch.Tensor]:
        *call, _, wanted = values
        chosen = [value for value, want in zip(call, wanted, strict=True) if want]
        return [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in chosen]

    torch_library.set_kernel(name, run)
    torch_library.set_fake(name, fake)
    overload = torch_library.overload(name)

    def kernel(below: Any, *values: Any) -> Any:
        tensors = [one for one in (*values[:-2], *values[-2]) if isinstance(one, torch.Tensor)]
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            raise GradientNotSupported(f"{torch_op.op.name}: gradients of gradients are not made by this operator")
        return torch_library.run_below_autograd(overload, below, values)

    torch_library.set_autograd(name, kernel)
    return overload


def _recomputed(
    fallback: Fallback, call: Sequence[Any], gradients: Sequence[Any], wanted: Sequence[bool], *, create_graph: bool
) -> list[torch.Tensor]:
    """The needed gradients, by running the reference again; `create_graph`: they can be differentiated in turn."""
    with torch.enable_grad():
        alone = [want and not (create_graph and one.requires_grad) for one, want in zip(call, wanted, strict=True)]
        values = [one.detach().requires_grad_() if is_alone else one for one, is_alone in zip(call, alone, strict=True)]
        pairs = list(zip(fallback.results(values), gradients, strict=True))
        used = [(result, gradient) for result, gradient in pairs if gradient is not None and result.requires_grad]
        sources = [value for value, want in zip(values, wanted, strict=True) if want]
        if not used:
            return [torch.zeros_like(one) for one in sources]
        found = torch.autograd.grad(
            [result for result, _ in used],
            sources,
            [gradient.to(result.dtype) for result, gradient in used],
            allow_unused=True,
            create_graph=create_graph,
        )
    return [torch.zeros_like(s) if one is None else one for s, one in zip(sources, found, strict=True)]


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Enable autograd inside an op's kernel, where torch has disabled it."""
    c = torch._C
    excluded = c._dispatch_tls_local_exclude_set()
    for name in ("ADInplaceOrView", "AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther"):
        excluded = excluded - c.DispatchKeySet(c.DispatchKey.__members__[name])
    with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


# -- the op --

# Inductor must pass tensors with the traced strides: a kernel file accepts no others.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


class Host(Protocol):
    """The operation that implements an op."""

    op: Op
    files: tuple[KernelFile, ...]
    fallback: Fallback
    backward: Backward | None

    def run_values(self, *values: Any) -> Any:
        """Run on real tensors; raises `NoKernelMatches` where no file takes them."""


class TorchOp:
    """A registered op; `host` is the operation loaded last under its name."""

    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.host = host
        self.op = host.op
        # Files may differ in their result strides; torch traced one of them.
        self._may_differ = len(host.files) > 1 and any(
            out.stride is not None for file in host.files for out in file.compiled.outs
        )
        torch_library.define(name, arguments_text(self.op), results_text(self.op), _TAGS)
        torch_library.set_kernel(name, self.run)
        torch_library.set_fake(name, self.fake)
        self.overload = torch_library.overload(name)
        register_autograd(self)

    @property
    def fallback(self) -> Fallback:
        return self.host.fallback

    def run(self, *values: Any) -> Any:
        """The kernel for real tensors, below autograd."""
        try:
            made = self.host.run_values(*values)
        except NoKernelMatches as refusal:
            return unwrap_results(self.op, self._by_reference(refusal.none, self._outs(values), values))
        if self._may_differ:
            results = made if isinstance(made, tuple) else (made,)
            return unwrap_results(self.op, self._conformed(results, self._outs(values), values))
        return made

    def fake(self, *values: Any) -> Any:
        """The fake kernel: results by the `out` lines, which need no device, else by the reference."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        check_one_device(self.op, values)
        outs = self._outs(values)
        if isinstance(outs, NoneApplies):
            return unwrap_results(self.op, self._by_reference(outs, outs, values))
        refuse_traced_overlap(self.op, values)
        if not self.fallback.may_run:
            self._refuse_early(values)
        device = tensors[0].device if tensors else torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return unwrap_results(self.op, tuple(_empty(out, device) for out in outs))

    def _outs(self, values: Sequence[Any]) -> tuple[TracedOut, ...] | NoneApplies:
        reasons = unsupported_reasons(self.op, values)
        return NoneApplies(reasons) if reasons else traced_outs(self.host.files, traced_arguments(self.op, values))

    def _refuse_early(self, values: Sequence[Any]) -> None:
        """Raise at trace time where all sizes are concrete and no file takes them."""
        arguments = traced_arguments(self.op, values)
        sizes = [
            size for value in values if isinstance(value, torch.Tensor) for size in (*value.shape, *value.stride())
        ]
        numbers = [value for value in values if not isinstance(value, (torch.Tensor, list))]
        if any(type(one) not in (int, float, bool, type(None)) for one in (*sizes, *numbers)):
            return
        reasons = []
        for file in self.host.files:
            try:
                out_specs(file, arguments)
            except DoesNotApply as refusal:
                reasons.append(Reason(file.name, refusal.problem))
        if len(reasons) == len(self.host.files):
            raise self.fallback.error(NoneApplies(tuple(reasons)))

    def _by_reference(
        self, none: NoneApplies, outs: tuple[TracedOut, ...] | NoneApplies, values: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        self.fallback.warn_or_raise(none)
        results = self.fallback.results(values)
        count_changes(self.op, values)  # below autograd torch does not bump them itself
        return self._conformed(results, outs, values)

    def _conformed(
        self, results: tuple[torch.Tensor, ...], outs: tuple[TracedOut, ...] | NoneApplies, values: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        """Results in the traced layout, none of them aliasing an argument."""
        given = [value for value in values if isinstance(value, torch.Tensor)]
        if isinstance(outs, NoneApplies):
            return tuple(_unaliased(one.contiguous(), given) for one in results)
        return tuple(
            _with_layout(self.op, name, _unaliased(one, given), out)
            for name, one, out in zip(self.op.results, results, outs, strict=True)
        )


def _empty(out: TracedOut, device: torch.device) -> torch.Tensor:
    if out.stride is None:
        return torch.empty(out.shape, dtype=TORCH_DTYPE[out.dtype], device=device)
    return torch.empty_strided(out.shape, out.stride, dtype=TORCH_DTYPE[out.dtype], device=device)


def _unaliased(result: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    return result.clone() if torch_library.share_memory(result, given) else result


def _with_layout(op: Op, name: str, result: torch.Tensor, out: TracedOut) -> torch.Tensor:
    if tuple(result.shape) != out.shape or result.dtype is not TORCH_DTYPE[out.dtype]:
        raise CallRefused(
            f"{op.name}: the reference's {name} is {result.dtype}{list(result.shape)} where the `out` line says "
            f"{TORCH_DTYPE[out.dtype]}{list(out.shape)}; what torch traced relies on the line"
        )
    if out.stride is None:
        return result.contiguous()
    if result.stride() == out.stride:
        return result
    return torch.empty_strided(out.shape, out.stride, dtype=result.dtype, device=result.device).copy_(result)


# -- the namespace `torch.ops.tilewright`: an exported program may name an op that is created on demand --

_OURS = re.compile(rf"(?P<op>\w+)_(?P<files>[0-9a-f]{{{DIGITS}}})(_[0-9a-f]{{{REFERENCE_DIGITS}}}(_\d+)?)?")
_lock = threading.RLock()
_operators: dict[str, TorchOp] = {}
_making: set[str] = set()  # torch looks an op up before it defines it
_loaded: dict[tuple[str, str], Callable[[], Host]] = {}  # (op, digest) -> the operation without its reference


def operator_of(host: Host, without_reference: Callable[[], Host]) -> TorchOp:
    """The op of an operation: the registered one for the same files and reference, or a new one."""
    last = host.fallback
    digest = reference_digest(last.reference, last.strict, _backward_identity(host.backward))
    base = name = schema_name(host.op, host.files, digest)
    with _lock:
        _loaded[host.op.name, files_digest(host.files)[:DIGITS]] = without_reference
        number = 1
        while name in _operators and not (
            _is_same(_operators[name].fallback.reference, last.reference)
            and _same_backward(_operators[name].host.backward, host.backward)
        ):
            number += 1
            name = f"{base}_{number}"
        known = _operators.get(name)
        if known is None:
            known = _made(name, host)
        known.host = host
        return known


def _made(name: str, host: Host) -> TorchOp:
    _making.add(name)
    try:
        _operators[name] = TorchOp(name, host)
    finally:
        _making.discard(name)
    return _operators[name]


def _is_same(one: Reference | None, other: Reference | None) -> bool:
    """Whether two references with equal digests are interchangeable: by `identity`, or as stateless functions."""
    if one is other or one == other or isinstance(getattr(one, "identity", None), str):
        return True
    if not (isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType)):
        return False  # methods and other callables may have state
    if one.__closure__ is not None or other.__closure__ is not None:
        return False
    return (one.__defaults__, one.__kwdefaults__) == (other.__defaults__, other.__kwdefaults__)


def _same_backward(one: Backward | None, other: Backward | None) -> bool:
    if one is None or other is None:
        return one is other
    return _is_same(one.operation.fallback.reference, other.operation.fallback.reference)


def _backward_identity(backward: Backward | None) -> str:
    """The part of a backward operation in the op's digest: files, gradient mapping, reference."""
    if backward is None:
        return ""
    last = backward.operation.fallback
    pairs = (sorted(backward.gradients.items()), backward.by)
    return f"{files_digest(backward.operation.files)} {pairs} {reference_digest(last.reference, last.strict)}"


class _Operators(_OpNamespace):
    """Torch's namespace, which also creates ops of loaded files on demand."""

    __module__ = _OpNamespace.__module__  # exported programs record the module of the namespace

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            ours = _OURS.fullmatch(name)
            if ours is None or name in _making:
                raise
        with _lock:
            self._make(name, ours)
        return super().__getattr__(name)

    def _make(self, name: str, ours: re.Match[str]) -> None:
        without_reference = _loaded.get((ours["op"], ours["files"]))
        if without_reference is None:
            # Not an AttributeError: torch would swallow it and fail with a less helpful one.
            raise LoadError(
                f"torch.ops.{NAMESPACE}.{name} is the operator of a kernel file that is not loaded in this process: "
                f"load the file of op {ours['op']} whose digest begins with {ours['files']} first, "
                f"tilewright.load('{ours['op']}.cu'); if that file has changed since, export again"
            )
        _made(name, without_reference())


def install() -> None:
    """Register our namespace before torch creates its own."""
    if not isinstance(torch.ops.__dict__.get(NAMESPACE), _Operators):
        setattr(torch.ops, NAMESPACE, _Operators(NAMESPACE))


install()
