"""What prompts say of floors is what the stopwatch says later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.prompts.samples import LAYERNORM, TASKS

from tilewright.frontends.api.choices import known_profile
from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.measure.floor import floor_us
from tilewright.measure.work import least_traffic
from tilewright.prompts.question import system_text
from tilewright.prompts.task_text import memory_bounds
from tilewright.records import FIRST_LAUNCH_US, PROFILES, Task, memory_us


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_bounds_are_the_stopwatch_s(task: Task) -> None:
    in_place = replace(task, inputs=(replace(task.tensors[0], in_place=True), *task.inputs[1:]))
    for one in (task, in_place):
        bounds = memory_bounds(one)
        assert bounds is not None
        assert bounds.floor_us == pytest.approx(floor_us(one))
        least = least_traffic(one, one.profile)
        assert bounds.written_back_bytes == pytest.approx(least.evicted_bytes)
        moved = (least.read_bytes, least.written_bytes, least.evicted_bytes)
        assert bounds.reached_us == pytest.approx(FIRST_LAUNCH_US + memory_us(*moved, one.profile.bandwidth_gbs))


def test_a_gpu_of_unknown_bandwidth_has_none() -> None:
    unknown = [name for name, profile in PROFILES.items() if not profile.bandwidth_gbs]
    for name in unknown:
        assert memory_bounds(replace(LAYERNORM, gpu=name)) is None


def test_a_further_gpu_is_one_entry_of_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    further = replace(PROFILES["H200"], name="X1 Plus", sms=99, bandwidth_gbs=1000.0)
    monkeypatch.setitem(PROFILES, "X1 Plus", further)
    task = replace(LAYERNORM, gpu="X1 Plus")
    assert "X1 Plus (sm_90a): 99 SMs" in system_text(task)
    assert "1,000 GB/s" in system_text(task)
    bounds = memory_bounds(task)
    assert bounds is not None
    assert bounds.floor_us == pytest.approx(floor_us(task)) == pytest.approx(task.moved_bytes / 1e6 + 2.0)
    assert named_gpu("x1plus") == further
    assert known_profile(replace(further, name="NVIDIA X1 Plus 80GB")) == further
