"""An operation: ordered kernel files of one op as a function on CUDA tensors.

A call seen before goes through `quick_call`; this module is the slow way, taken once for each kind of call: bind,
check, choose a file, build, load, run, remember. It computes no gradients and copies no tensor.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.devices.cuda.executor import executor_of
from tilewright.devices.cuda.facts import gpu_profile
from tilewright.kernel_file import (
    CallError,
    Dispatcher,
    DoesNotApply,
    KernelFile,
    NoneApplies,
    Op,
    Reason,
    Signature,
    TunedChoices,
    out_specs,
    try_evaluate,
    Refused,
)
from tilewright.records import PROFILES, GpuProfile, TensorSpec
from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.runtime.entries import make_entry, refuse_gradients
from tilewright.runtime.errors import LoadError, NoKernelApplies, NotOnCuda, ReferenceUsed
from tilewright.runtime.explanation import Explanation, explain_none, explain_selected
from tilewright.runtime.on_device import Builds, OnDevice, Ready
from tilewright.runtime.quick_call import Recent, make_key_function, make_quick_call
from tilewright.runtime.specs import PLACEHOLDER, is_fake, read_specs, spec_of, unusable

Reference = Callable[..., Any]
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN_NUMBERS = frozenset({int, float, bool, type(None)})


class Operation:
    """Call it as the op line says. Made by `tilewright.load`."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        tuned: TunedChoices | None = None,
        reference: Reference | None = None,
        strict: bool = False,
    ) -> None:
        self.files = _agreeing(files)
        self.reference = reference
        self.strict = strict
        self.op: Op = files[0].plan.op
        self.__name__ = self.op.name
        self.signature = Signature(self.op)
        self.__doc__ = f"{self.signature}, from {', '.join(file.name for file in files)}"
        self._tuned = tuned or TunedChoices()
        self._builds = Builds()
        self._devices: dict[int, OnDevice] = {}
        self._lock = threading.Lock()
        self._warned: set[tuple[object, ...]] = set()
        self._count = len(self.op.parameters)
        self._arrangements: dict[tuple[object, ...], tuple[Any, ...]] = {}
        # A profile decides nothing about which scalars decide, so any will do here.
        deciding = Dispatcher(self.files, PROFILES["H200"]).deciding
        self._recent = Recent()
        self._key = make_key_function(self.op, deciding)
        self._quick = make_quick_call(self.op, deciding, self._recent, self._slow)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on CUDA tensors; answers the result, a tuple of several, or None if all work is in place."""
        if not kwargs and len(args) == self._count:
            return self._quick(*args)
        return self._quick(*self._arranged(args, kwargs))

    def __repr__(self) -> str:
        return f"<Operation {self.signature} of {len(self.files)} file{'s' if len(self.files) != 1 else ''}>"

    # -- ahead of a call --

    def prepare(self, *args: Any, device: int | str | torch.device | None = None, **kwargs: Any) -> None:
        """Build and load what calls like this one need, so that they cost no more, or can be captured in a graph.

        Tensors are given as tensors (on any device; only their layout counts), as `TensorSpec`, or as text such as
        `"4096x1024:bf16"`. Numbers that decide nothing may be left out. Raises `NoKernelApplies` where no file does.
        """
        arguments = self._arguments(args, kwargs)
        outcome = self._on(_device_index(device, args, kwargs)).ready(arguments)
        if isinstance(outcome, NoneApplies):
            raise self._none_applies(outcome.reasons)

    def explain(
        self,
        *args: Any,
        gpu: GpuProfile | str | None = None,
        device: int | str | torch.device | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """Which file takes such a call and with what launches, or why none does. Builds, and runs nothing.

        `gpu` asks for another GPU than one of this machine: a profile, or the name of a known one such as `"H200"`.
        """
        arguments = self._arguments(args, kwargs)
        profile = _profile(gpu, device, args, kwargs)
        selection = Dispatcher(self.files, profile, self._tuned).select(arguments)
        falls_back = self.reference is not None and not self.strict
        if isinstance(selection, NoneApplies):
            return explain_none(self.op.name, profile, selection, falls_back)
        earlier = ((file, try_evaluate(file, arguments, profile)) for file in self.files[: selection.index])
        refused = tuple(Reason(file.name, outcome.problem) for file, outcome in earlier if isinstance(outcome, Refused))
        return explain_selected(self.op.name, selection, self._builds.build(selection.evaluation), refused)

    # -- the slow way of a call --

    def _slow(self, *values: Any) -> Any:
        regular = self.signature.normalise(values, {})
        tensors = tuple(v for p, v in zip(self.op.parameters, regular, strict=True) if p.scalar is None)
        given = [tensor for tensor in tensors if tensor is not None]
        self._check_tensors(tensors)
        if any(map(is_fake, given)):
            return self._fake_results(regular, given)
        index = self._device_of(tensors)
        reasons = self._unusable(tensors)
        if torch.is_grad_enabled():
            refuse_gradients(self.op, tensors)
        if reasons:
            return self._fall_back(NoneApplies(reasons), values)
        arguments = self._specs(regular)
        ready = self._on(index).ready(arguments)
        if isinstance(ready, NoneApplies):
            return self._fall_back(ready, values)
        return self._run(ready, arguments, tensors, values)

    def _run(self, ready: Ready, arguments: Mapping[str, Any], tensors: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        specs = [arguments[p.name] for p in self.op.parameters if p.scalar is None]
        requires_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
        entry = make_entry(ready, self.op, specs, requires_grad, self._again)
        if self._is_memorable(values):
            self._recent.add(self._key(*values), entry)
        numbers = tuple(arguments[p.name] for p in self.op.parameters if p.scalar is not None)
        return entry(tensors, tuple(0 if t is None else t.data_ptr() for t in tensors), numbers)

    def _again(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
        """A call that an entry could not serve, because its numbers make a `let` of the chosen file fail."""
        tensor, number = iter(tensors), iter(numbers)
        values = tuple(next(tensor) if p.scalar is None else next(number) for p in self.op.parameters)
        arguments = self._specs(self.signature.normalise(values, {}))
        ready = self._on(self._device_of(tensors)).ready(arguments)
        if isinstance(ready, NoneApplies):
            return self._fall_back(ready, values)
        specs = [arguments[p.name] for p in self.op.parameters if p.scalar is None]
        entry = make_entry(ready, self.op, specs, False, self._again)
        return entry(tensors, tuple(0 if t is None else t.data_ptr() for t in tensors), numbers)

    def _is_memorable(self, values: Sequence[Any]) -> bool:
        """Whether a key tells calls like this one from others: plain tensors and numbers, nothing derived from them."""
        for parameter, value in zip(self.op.parameters, values, strict=True):
            if parameter.scalar is None:
                if value is not None and type(value) not in _PLAIN_TENSORS:
                    return False
            elif parameter.is_list and value is not None:
                if not isinstance(value, (list, tuple)) or any(type(item) not in _PLAIN_NUMBERS for item in value):
                    return False
            elif type(value) not in _PLAIN_NUMBERS:
                return False
        return True
