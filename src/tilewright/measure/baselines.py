"""Handlers for the reference's process: time the reference on the GPU, eager and compiled, as candidates are timed.

Each call gets fresh inputs in rotating buffers and a flushed L2 cache. A short wait on the device lets the host queue
all launches of a call first, so that launch overhead is not measured. Every call runs at the task's precision.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.measure.preparation import job_inputs
from tilewright.records import Task, Timing

if TYPE_CHECKING:
    from tilewright.devices.inputs import PlacedTensor

TIME_BASELINES = "tilewright.measure.baselines:time_baselines"
COMPILE_BASELINES = "tilewright.measure.baselines:compile_baselines"
# `LIBRARY` is eager with cuDNN's benchmark mode: the vendor's library at its best.
EAGER, COMPILED, MAX_AUTOTUNE, LIBRARY, AGAINST = "eager", "torch.compile", "max-autotune", "library", "against"
BASELINES = {"eager": EAGER, "compile": COMPILED, "max-autotune": MAX_AUTOTUNE, "library": LIBRARY}  # as asked for
_CYCLES_PER_US = 2_000
_LEAST_HEAD_START_US, _MOST_HEAD_START_US = 200.0, 20_000.0
_WARM_UP_SECONDS = 0.03  # the GPU is warm: a candidate was timed just before
_FIRST_WARM_UP_SECONDS = 0.15
_MOST_AHEAD = 0.2  # of the free memory, that compiling ahead may take


@dataclass(frozen=True)
class BaselineRequest:
    """One round. `against` is "module:function", a further baseline with the reference's signature."""

    task: Task
    runs: int
    contenders: tuple[str, ...]  # in the order of the first run; every second run reverses it
    against: str = ""
    device: int = 0


@dataclass(frozen=True)
class BaselineAnswer:
    timings: tuple[Timing, ...]
    failures: dict[str, str]  # reasons, by contender


_READY: dict[tuple[int, str, str], Callable[..., Any]] = {}  # contenders are kept: compiling takes long


def _contender(name: str, function: Callable[..., Any], against: str) -> Callable[..., Any]:
    if name in (EAGER, LIBRARY):
        return function
    if name in (COMPILED, MAX_AUTOTUNE):
        import torch

        mode = "max-autotune-no-cudagraphs" if name == MAX_AUTOTUNE else None  # a graph would own its inputs
        compiled: Callable[..., Any] = torch.compile(function, dynamic=False, mode=mode)
        return compiled
    module, _, attribute = against.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ImportError(f"{module} cannot be imported where it is to be timed: {error}") from error
    return found


def time_baselines(function: Callable[..., Any], request: BaselineRequest) -> BaselineAnswer:
    """Time every contender `runs` times, in alternating order. One that fails is left out with its reason."""
    import torch

    if not torch.cuda.is_available():
        return BaselineAnswer((), dict.fromkeys(request.contenders, "this process sees no GPU"))
    rig = _Rig(request, torch.device("cuda", request.device))
    ready: dict[str, Callable[..., Any]] = {}
    failures: dict[str, str] = {}
    keys = {name: (id(function), name, request.against) for name in request.contenders}
    are_new = any(key not in _READY for key in keys.values())
    for name, key in keys.items():
        try:
            if key not in _READY:
                _READY[key] = _contender(name, function, request.against)
            ready[name] = rig.warmed(with_precision(_READY[key], name, request.task))
        except Exception as error:  # from a compiler or a user's module; the other contenders still count
            first = (str(error).strip().splitlines() or [""])[0]
            failures[name] = f"{type(error).__name__}: {first}"[:300]
    rig.warm_up(_FIRST_WARM_UP_SECONDS if are_new else _WARM_UP_SECONDS)
    samples = alternating({name: functools.partial(rig.once, call) for name, call in ready.items()}, request.runs)
    return BaselineAnswer(tuple(Timing(name, times) for name, times in samples.items() if times), failures)


def compile_baselines(function: Callable[..., Any], request: BaselineRequest) -> BaselineAnswer:
    """Fill torch.compile's on-disk cache ahead of time; nothing is executed.

    The GPU may be in use, so tensors are allocated without contents, and only if enough memory is free.
    """
    import torch

    if COMPILED in request.contenders and torch.cuda.is_available() and _takes_little(request):
        ahead = torch.compile(function, dynamic=False, backend=_compile_only)
        call = with_precision(ahead, COMPILED, request.task)
        with torch.no_grad(), contextlib.suppress(Exception):  # at the latest `_CompiledAhead`, wrapped by torch
            call(**_empty_arguments(request))
        torch._dynamo.reset()
    return BaselineAnswer((), {})


def _takes_little(request: BaselineRequest) -> bool:
    import torch

    needed = sum(one.spec.storage_bytes for one in job_inputs(request.task))
    free, _ = torch.cuda.mem_get_info(request.device)
    return needed < _MOST_AHEAD * free


class _CompiledAhead(Exception):
    """Stops execution once the graph is compiled."""


def _compile_only(graph: Any, inputs: Any) -> Any:
    from torch._inductor.compile_fx import compile_fx

    compile_fx(graph, inputs)
    raise _CompiledAhead


def _empty_arguments(request: BaselineRequest) -> dict[str, Any]:
    import torch

    from tilewright.devices.inputs import TORCH_DTYPE

    device = torch.device("cuda", request.device)
    arguments: dict[str, Any] = {one.name: one.value for one in request.task.numbers}
    arguments |= {one.name: None for one in request.task.tensors}
    for name, spec in request.task.specs().items():
        arguments[name] = torch.empty_strided(spec.shape, spec.stride, dtype=TORCH_DTYPE[spec.dtype], device=device)
    return arguments


def with_precision(call: Callable[..., Any], name: str, task: Task) -> Callable[..., Any]:
    """The call at the task's precision, which holds while it compiles too."""
    from tilewright.measure.precision_flags import at_precision

    def precise(**arguments: Any) -> Any:
        with at_precision(task.precision, cudnn_benchmark=name == LIBRARY):
            return call(**arguments)

    return precise


def alternating(calls: Mapping[str, Callable[[], float]], runs: int) -> dict[str, tuple[float, ...]]:
    """Time each call `runs` times, reversing the order every time so that a linear drift affects all equally."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs):
        for name in tuple(calls) if run % 2 == 0 else tuple(calls)[::-1]:
            samples[name].append(calls[name]())
    return {name: tuple(times) for name, times in samples.items()}


class _Rig:
    def __init__(self, request: BaselineRequest, device: Any) -> None:
        import torch

        from tilewright.devices.inputs import COLD_L2, allocate, rotating_sets

        self._device = device
        self._task = request.task
        self._inputs = job_inputs(request.task)
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        size = sum(one.spec.storage_bytes for one in self._inputs)
        sets = range(rotating_sets(size, l2_bytes, request.runs))
        self._ring = deque({one.name: allocate(one.spec, device) for one in self._inputs} for _ in sets)
        self._flush = torch.empty(COLD_L2 * l2_bytes, dtype=torch.uint8, device=device)
        self._host_us: dict[int, float] = {}  # by contender: time the host takes to queue its launches
        self._kept: dict[str, Any] = {}  # copies of the inputs

    def warm_up(self, seconds: float) -> None:
        """Keep the GPU busy until its clocks have risen: an idle one is several times slower at first."""
        import torch

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            torch.cuda._sleep(int(_LEAST_HEAD_START_US * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self._device)

    def warmed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call after two warm-up runs. One that creates tensors itself is run with the GPU as default device."""
        import torch

        def on_device(**arguments: Any) -> Any:
            with torch.device(self._device):
                return call(**arguments)

        chosen = call
        try:
            self.once(chosen)
        except RuntimeError:  # tensors on two devices, say
            chosen = on_device
            self.once(chosen)
        self.once(chosen)
        return chosen

    def _fill(self, placed: Mapping[str, PlacedTensor]) -> None:
        """Write the inputs: generated the first time, then copied, which is several times faster."""
        import torch

        from tilewright.devices.inputs import fill, free_bytes

        for one in self._inputs:
            if one.name in self._kept:
                placed[one.name].storage.copy_(self._kept[one.name])
            else:
                fill(placed[one.name], one.content)
        storages = {one.name: placed[one.name].storage for one in self._inputs}
        if not self._kept and 4 * sum(one.numel() for one in storages.values()) < free_bytes(self._device):
            with contextlib.suppress(
                torch.OutOfMemoryError
            ):  # another process took the memory: generate them each time
                self._kept = {name: one.clone() for name, one in storages.items()}

    def once(self, call: Callable[..., Any]) -> float:
        """Microseconds of one call."""
        import torch

        placed = self._ring[0]
        self._ring.rotate()
        self._fill(placed)
        arguments: dict[str, Any] = {one.name: one.value for one in self._task.numbers}
        arguments |= {one.name: placed[one.name].tensor if one.name in placed else None for one in self._task.tensors}
        torch.cuda.synchronize(self._device)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._flush.zero_()
            # The GPU waits while the launches are queued, so that they run back to back.
            head_start_us = max(_LEAST_HEAD_START_US, 2.0 * self._host_us.get(id(call), 0.0))
            torch.cuda._sleep(int(head_start_us * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
            start.record()
            began = time.perf_counter()
            call(**arguments)
            self._host_us[id(call)] = min(_MOST_HEAD_START_US, 1e6 * (time.perf_counter() - began))
            stop.record()
        torch.cuda.synchronize(self._device)
        return 1000.0 * float(start.elapsed_time(stop))
