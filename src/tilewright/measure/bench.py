"""`tilewright bench`: time several kernel files of one task beside baselines, in alternating rounds on a cold cache."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.devices.protocol import Device
from tilewright.measure.baselines import BaselineRequest
from tilewright.measure.gpu_timing import (
    CONTROL,
    GpuFault,
    Rounds,
    Say,
    baseline_round,
    rounds_and_runs,
    time_candidate,
)
from tilewright.records import Task
from tilewright.reference import AnyReference
from tilewright.toolchain import BuiltPlan


def bench_on_gpu(
    kernels: Mapping[str, BuiltPlan],
    task: Task,
    gpu: Device,
    baselines: tuple[AnyReference, tuple[str, ...]] | None,
    floor_us: float,
    say: Say,
) -> Rounds:
    """The first kernel is timed twice per round, first and last, as a control. One that fails is left out with a
    note."""
    rounds = Rounds()
    count, runs = rounds_and_runs(floor_us)
    running = dict(kernels)
    contenders = baselines[1] if baselines is not None else ()
    first = next(iter(kernels))
    for number in range(count):
        say(f"timing, round {number + 1} of {count}")
        back = number % 2 == 1
        order = [*running, CONTROL] if first in running else [*running]
        for name in reversed(order) if back else order:
            built = running.get(first if name == CONTROL else name)
            if built is None:
                continue
            try:
                timed = time_candidate(built, task, gpu, runs, f"bench-{number}-{name}", digests=False)
            except GpuFault as fault:
                rounds.note(f"{name} failed: {fault}")
                running.pop(name, None)
                continue
            rounds.add_runs(name, timed)
        if baselines is not None and contenders:
            request = BaselineRequest(
                task, runs, contenders[::-1] if back else contenders, "", getattr(gpu, "index", 0)
            )
            known = baseline_round(rounds, request, baselines[0], first=number == 0)
            contenders = tuple(name for name in contenders if name in known)
    return rounds
