"""A handler for the reference's child: the reference itself on the GPU, eager and compiled, timed as candidates are.

Before every call the inputs are drawn anew and the L2 cache is filled with something else; a short wait on the device
lets the calls of many small kernels be queued before the first starts, so that Python's time is not theirs.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.measure.preparation import job_inputs
from tilewright.records import Precision, Task, Timing

TIME_BASELINES = "tilewright.measure.baselines:time_baselines"
EAGER, COMPILED, AGAINST = "eager", "torch.compile", "against"
_CYCLES_PER_US = 2_000
_LEAST_HEAD_START_US, _MOST_HEAD_START_US = 200.0, 20_000.0
_WARM_UP_SECONDS = 0.15


@dataclass(frozen=True)
class BaselineRequest:
    """One round. `against` is "module:function", a further baseline that is called as the reference is."""

    task: Task
    runs: int
    seed: int
    contenders: tuple[str, ...]
    against: str = ""
    device: int = 0


@dataclass(frozen=True)
class BaselineAnswer:
    timings: tuple[Timing, ...]
    failures: dict[str, str]  # by contender: why it is left out


class _Contenders:
    """What is timed, prepared once and kept for the next round: compiling takes long."""

    def __init__(self) -> None:
        self._ready: dict[tuple[int, str, str], Callable[..., Any]] = {}

    def get(self, name: str, function: Callable[..., Any], against: str) -> Callable[..., Any]:
        key = (id(function), name, against)
        if key not in self._ready:
            self._ready[key] = self._make(name, function, against)
        return self._ready[key]

    @staticmethod
    def _make(name: str, function: Callable[..., Any], against: str) -> Callable[..., Any]:
        if name == EAGER:
            return function
        if name == COMPILED:
            import torch

            compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
            return compiled
        module, _, attribute = against.partition(":")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise ImportError(f"{module} cannot be imported where it is to be timed: {error}") from error
        return found


_CONTENDERS = _Contenders()


def time_baselines(function: Callable[..., Any], request: BaselineRequest) -> BaselineAnswer:
    """Every contender `runs` times, in random order; one that fails is left out, with its reason."""
    import torch

    if not torch.cuda.is_available():
        return BaselineAnswer((), dict.fromkeys(request.contenders, "this process sees no GPU"))
    if request.task.precision is not Precision.DTYPE:
        torch.set_float32_matmul_precision("high")  # what the kernel may do, they may
    rig = _Rig(request, torch.device("cuda", request.device))
    ready: dict[str, Callable[..., Any]] = {}
    failures: dict[str, str] = {}
    for name in request.contenders:
        try:
            ready[name] = rig.warmed(_CONTENDERS.get(name, function, request.against))
        except Exception as error:  # whatever a compiler or somebody's module may raise: the others still count
            first = (str(error).strip().splitlines() or [""])[0]
            failures[name] = f"{type(error).__name__}: {first}"[:300]
    rig.warm_up()
    samples: dict[str, list[float]] = {name: [] for name in ready}
    order = list(ready)
    shuffle = random.Random(request.seed)
    for _ in range(request.runs):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(rig.once(ready[name]))
    return BaselineAnswer(tuple(Timing(name, tuple(times)) for name, times in samples.items() if times), failures)


class _Rig:
    """Inputs, cache and events of one round."""

    def __init__(self, request: BaselineRequest, device: Any) -> None:
        import torch

        from tilewright.devices.inputs import allocate

        self._device = device
        self._inputs = job_inputs(request.task, request.task.sizes, request.seed)
        self._held = {one.name: allocate(one.spec, device) for one in self._inputs}
        self._arguments: dict[str, Any] = {one.name: one.value for one in request.task.numbers}
        for one in request.task.tensors:
            held = self._held.get(one.name)
            self._arguments[one.name] = None if held is None else held.tensor
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)
        self._host_us: dict[int, float] = {}  # by contender: how long the host takes to queue its work

    def warm_up(self) -> None:
        """Keep the GPU busy until its clocks have risen: one that was idle is several times slower at first."""
        import torch

        end = time.monotonic() + _WARM_UP_SECONDS
        while time.monotonic() < end:
            torch.cuda._sleep(int(_LEAST_HEAD_START_US * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self._device)

    def warmed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call after two runs: compiled, tuned, loaded. One that makes tensors of its own makes them on the GPU."""
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

    def once(self, call: Callable[..., Any]) -> float:
        """Microseconds of one call."""
        import torch

        from tilewright.devices.inputs import fill

        for one in self._inputs:
            fill(self._held[one.name], one.content)
        torch.cuda.synchronize(self._device)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._flush.zero_()
            # The GPU waits while the work is queued, so that it then runs without gaps.
            head_start_us = max(_LEAST_HEAD_START_US, 2.0 * self._host_us.get(id(call), 0.0))
            torch.cuda._sleep(int(head_start_us * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
            start.record()
            began = time.perf_counter()
            call(**self._arguments)
            self._host_us[id(call)] = min(_MOST_HEAD_START_US, 1e6 * (time.perf_counter() - began))
            stop.record()
        torch.cuda.synchronize(self._device)
        return 1000.0 * float(start.elapsed_time(stop))
