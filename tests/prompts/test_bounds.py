"""What prompts say of floors is what the stopwatch says later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.prompts.samples import LAYERNORM, TASKS

from tilewright.measure.floor import LAUNCH_US, floor_us
from tilewright.measure.performance_model import FIRST_LAUNCH_US
from tilewright.measure.performance_model import REACHED_BANDWIDTH as MODELLED_BANDWIDTH
from tilewright.measure.work import USABLE_L2, least_traffic
from tilewright.prompts.bounds import (
    DIRTY_L2,
    FLOOR_LAUNCH_US,
    MODELLED_LAUNCH_US,
    REACHED_BANDWIDTH,
    memory_bounds,
)
from tilewright.records import Task


def test_the_figures_are_the_stopwatch_s() -> None:
    ours = (FLOOR_LAUNCH_US, MODELLED_LAUNCH_US, REACHED_BANDWIDTH, DIRTY_L2)
    assert ours == (LAUNCH_US, FIRST_LAUNCH_US, MODELLED_BANDWIDTH, USABLE_L2)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_bounds_are_the_stopwatch_s(task: Task) -> None:
    in_place = replace(task, inputs=(replace(task.tensors[0], in_place=True), *task.inputs[1:]))
    for one in (task, in_place):
        bounds = memory_bounds(one)
        assert bounds is not None
        assert bounds.floor_us == pytest.approx(floor_us(one))
        least = least_traffic(one, one.profile)
        assert bounds.written_back_bytes == pytest.approx(least.evicted_bytes)
        rate = one.profile.bandwidth_gbs * 1e3 * MODELLED_BANDWIDTH
        assert bounds.reached_us == pytest.approx(FIRST_LAUNCH_US + least.total_bytes / rate)


def test_a_gpu_of_unknown_bandwidth_has_none() -> None:
    from tilewright.records import PROFILES

    unknown = [name for name, profile in PROFILES.items() if not profile.bandwidth_gbs]
    for name in unknown:
        assert memory_bounds(replace(LAYERNORM, gpu=name)) is None
