"""One run of a model, written down: every operation, and which call of which module or function it was a part of.

Operations are seen below autograd, as PyTorch runs them eagerly, so each that is no view is a kernel on a GPU. Modules
are seen by hooks, functions of the model's own packages by Python's profiler hook. Nothing of this stays behind.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.tasks.lifting.source_text import undecorated

_LIBRARIES = ("torch", "kernels", "tilewright", "numpy")


@dataclass(frozen=True)
class Layout:
    """A tensor without its content."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or '1'}:{DTYPE_OF_TORCH.get(self.dtype, self.dtype)}"


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.dtype)


@dataclass(frozen=True)
class Operation:
    """One operation of PyTorch. `is_view`: nothing is computed and no kernel is launched."""

    name: str  # `aten.mul`
    reads: tuple[Layout, ...]
    writes: tuple[Layout, ...]
    flops: float
    is_view: bool


@dataclass(repr=False)
class Call:
    """One call of a module or a function: what it was given and gave, and the operations within.

    Tensors are stand-ins on the meta device, so that nothing of the run is kept alive.
    """

    owner: Any  # the module, or the function
    path: str  # of the module; "" of a function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: int
    result: Any = None
    last: int = 0  # operations first..last-1 are its own

    @property
    def is_module(self) -> bool:
        return isinstance(self.owner, torch.nn.Module)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [one for one in tree_leaves((self.args, self.kwargs)) if isinstance(one, torch.Tensor)]


@dataclass(frozen=True)
class Recording:
    operations: list[Operation]
    calls: list[Call]

    def within(self, call: Call) -> list[Operation]:
        return self.operations[call.first : call.last]


def record(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
    """Call the model once, without gradients."""
    recorder = _Recorder(model)
    with torch.no_grad(), recorder.hooked(), _FusedOperations(recorder, _FUSED[:1]), recorder:
        recorder.profiled(lambda: model(*args, **kwargs))
    return Recording(recorder.operations, recorder.calls)


def record_function(function: Callable[..., Any], *args: Any) -> list[Operation]:
    """The operations of one call of a function."""
    recorder = _Recorder(torch.nn.Module())
    with torch.no_grad(), _FusedOperations(recorder, _FUSED), recorder:
        function(*args)
    return recorder.operations


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.calls: list[Call] = []
        self.muted = False
        self._open: list[Call] = []
        self._model = model
        own = {inspect.getmodule(type(one)) for one in model.modules()} - {None}
        packages = {one.__name__.partition(".")[0] for one in own if one is not None} - {*_LIBRARIES}
        self._packages = packages
        self._known: dict[types.CodeType, Any] = {}  # code -> its function, None where it is of no interest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not self.muted:
            self.operations.append(_operation(func, args, kwargs or {}, made))
        return made

    # -- modules --

    @contextmanager
    def hooked(self) -> Iterator[None]:
        removers = []
        for name, module in self._model.named_modules():
            removers.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True))
            removers.append(module.register_forward_hook(self._leave, with_kwargs=True))
        try:
            yield
        finally:
            for one in removers:
                one.remove()

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._begin(Call(module, path, args, dict(kwargs), len(self.operations)))

        return enter

    def _leave(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._end(module, result)

    # -- functions --

    def profiled(self, work: Callable[[], Any]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            work()
        finally:
            sys.setprofile(before)

    def _profile(self, frame: types.FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._function_of(frame)
        function = self._known[code]
        if function is None:
            return
        if event == "return":
            if any(one.owner is function for one in self._open):
                self._end(function, value)
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        if any(isinstance(one, torch.Tensor) for one in tree_leaves(list(arguments.values()))):
            self._begin(Call(function, "", (), arguments, len(self.operations)))

    def _function_of(self, frame: types.FrameType) -> Any:
        """The plain function of one of the model's packages that a frame runs; None where it is something else."""
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        found = undecorated(frame.f_globals.get(frame.f_code.co_name))
        own = package in self._packages and isinstance(found, types.FunctionType) and found.__code__ is frame.f_code
        return found if own else None

    def _begin(self, call: Call) -> None:
        call.args, call.kwargs = _stand_ins((call.args, call.kwargs))
        self._open.append(call)
        self.calls.append(call)

    def _end(self, owner: object, result: Any) -> None:
        while self._open:
            call = self._open.pop()
            call.last = len(self.operations)
            if call.owner is owner:
                call.result = _stand_ins(result)
                return


class _FusedOperations(TorchFunctionMode):
    """Sees as one operation what PyTorch runs as one kernel on a GPU, where another device takes it apart."""

    def __init__(self, recorder: _Recorder, fused: tuple[Callable[..., Any], ...]) -> None:
        super().__init__()
        self._recorder, self._fused = recorder, fused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)]
        if func not in self._fused or tensors[0].is_cuda or self._recorder.muted:
            return func(*args, **(kwargs or {}))
        self._recorder.muted = True
        try:
            made = func(*args, **(kwargs or {}))
        finally:
            self._recorder.muted = False
        reads = tuple(map(layout_of, tensors))
        flops = 0.0
        if func is torch.nn.functional.scaled_dot_product_attention:
            flops = 4.0 * tensors[0].numel() * tensors[1].shape[-2]
        self._recorder.operations.append(Operation(f"aten.{func.__name__}", reads, (layout_of(made),), flops, False))
        return made


_FUSED = (torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.rms_norm, torch.rms_norm)


def _stand_ins(value: Any) -> Any:
    """The same with tensors that have no content."""

    def stand_in(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or one.is_meta:
            return one
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")

    with _disable_current_modes():
        return tree_map(stand_in, value)


def _operation(func: Any, args: Any, kwargs: Any, made: Any) -> Operation:
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    results = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
    packet = getattr(func, "_overloadpacket", func)
    flops = 0.0
    if packet in flop_registry:
        flops = float(flop_registry[packet](*args, **kwargs, out_val=made))
    return Operation(
        str(packet).replace("::", "."),
        tuple(map(layout_of, given)),
        tuple(map(layout_of, results)),
        flops,
        bool(getattr(func, "is_view", False)) or str(packet) in _NO_KERNEL or not results,
    )


_NO_KERNEL = ("aten._unsafe_view", "aten.detach", "aten.alias", "aten.empty", "aten._reshape_alias", "aten.lift_fresh")
