"""An operation as an operator of torch's own dispatcher: `torch.ops.tilewright.silu_3f0c9a1b2d`.

The name follows from the files' text (and the reference, where there is one), so whatever holds the operator, such as
an exported program, finds it again in another process once the same files are loaded there. An operator lives as long
as the process; loading the same files again only replaces what runs behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.kernel_file import DoesNotApply, KernelFile, NoneApplies, Op, Reason, TracedOut, out_specs, traced_outs
from tilewright.runtime import dispatcher
from tilewright.runtime.autograd_kernel import register_autograd
from tilewright.runtime.backward import Backward
from tilewright.runtime.batching import batched
from tilewright.runtime.call_devices import refuse_two_devices
from tilewright.runtime.entries import count_changes, refuse_traced_overlap
from tilewright.runtime.errors import CallRefused
from tilewright.runtime.last_resort import LastResort, NoFileTakes, answer
from tilewright.runtime.op_schema import arguments_text, results_text
from tilewright.runtime.specs import traced_arguments, unusable_reasons

# Inductor must hand over tensors with the strides that were traced: a kernel file takes no others.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


class Host(Protocol):
    """What stands behind an operator."""

    op: Op
    files: tuple[KernelFile, ...]
    last_resort: LastResort
    backward: Backward | None

    def run_values(self, *values: Any) -> Any:
        """Run on tensors with content; raises `NoFileTakes` where no file takes them."""


class TorchOp:
    """One registered operator; `host` is the operation that was loaded last under its name."""

    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.host = host
        self.op = host.op
        # Files may differ in the strides of their results, and torch was told one of them.
        self._may_differ = len(host.files) > 1 and any(
            out.stride is not None for file in host.files for out in file.compiled.outs
        )
        dispatcher.define(name, arguments_text(self.op), results_text(self.op), _TAGS)
        dispatcher.set_kernel(name, self.run)
        dispatcher.set_fake(name, self.fake)
        self.overload = dispatcher.overload(name)
        register_autograd(self)
        dispatcher.set_batching(name, batched(self.op, self.overload, host.files))

    @property
    def last_resort(self) -> LastResort:
        return self.host.last_resort

    def run(self, *values: Any) -> Any:
        """The call itself, on tensors with content, below whatever torch does around it."""
        try:
            made = self.host.run_values(*values)
        except NoFileTakes as refusal:
            return answer(self.op, self._by_reference(refusal.none, self._outs(values), values))
        if self._may_differ:
            results = made if isinstance(made, tuple) else (made,)
            return answer(self.op, self._conformed(results, self._outs(values), values))
        return made

    def fake(self, *values: Any) -> Any:
        """Results without content: those of the `out` lines, which need no device, else the reference's."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        refuse_two_devices(self.op, values)
        outs = self._outs(values)
        if isinstance(outs, NoneApplies):
            return answer(self.op, self._by_reference(outs, outs, values))
        refuse_traced_overlap(self.op, values)
        if not self.last_resort.may_run:
            self._refuse_early(values)
        device = tensors[0].device if tensors else torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return answer(self.op, tuple(_empty(out, device) for out in outs))

    def _outs(self, values: Sequence[Any]) -> tuple[TracedOut, ...] | NoneApplies:
        reasons = unusable_reasons(self.op, values)
        return NoneApplies(reasons) if reasons else traced_outs(self.host.files, traced_arguments(self.op, values))

    def _refuse_early(self, values: Sequence[Any]) -> None:
        """Where every size is a number and no file can take them, there is no need to wait for the call."""
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
            raise self.last_resort.refusal(NoneApplies(tuple(reasons)))

    def _by_reference(
        self, none: NoneApplies, outs: tuple[TracedOut, ...] | NoneApplies, values: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        self.last_resort.accept(none)
        results = self.last_resort.results(values)
        count_changes(self.op, values)  # below autograd torch does not count those of the reference itself
        return self._conformed(results, outs, values)

    def _conformed(
        self, results: tuple[torch.Tensor, ...], outs: tuple[TracedOut, ...] | NoneApplies, values: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        """Results as torch was told of them: of that layout, and none of them an argument or a view of one."""
        given = [value for value in values if isinstance(value, torch.Tensor)]
        if isinstance(outs, NoneApplies):
            return tuple(_apart(one.contiguous(), given) for one in results)
        return tuple(
            _laid_out(self.op, name, _apart(one, given), out)
            for name, one, out in zip(self.op.results, results, outs, strict=True)
        )


def _empty(out: TracedOut, device: torch.device) -> torch.Tensor:
    if out.stride is None:
        return torch.empty(out.shape, dtype=TORCH_DTYPE[out.dtype], device=device)
    return torch.empty_strided(out.shape, out.stride, dtype=TORCH_DTYPE[out.dtype], device=device)


def _apart(result: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    return result.clone() if dispatcher.share_memory(result, given) else result


def _laid_out(op: Op, name: str, result: torch.Tensor, out: TracedOut) -> torch.Tensor:
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
