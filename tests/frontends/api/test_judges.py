"""Turns at a GPU that several processes use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.waiting import wait_until

from tilewright.frontends.api import judges
from tilewright.frontends.api.judges import GpuLock, GpuUse, LockedDevice, gpu_use
from tilewright.records import (
    PROFILES,
    BoundPlan,
    Completed,
    DType,
    Execution,
    GpuProfile,
    InputTensor,
    Job,
    Normal,
    TensorSpec,
)

# Adds one to a number in a file, slowly: what comes of it is right only where nobody else does the same meanwhile.
ADDING = """
import sys, time
from pathlib import Path
from tilewright.frontends.api.judges import GpuLock
number, turns = Path(sys.argv[2]), GpuLock(Path(sys.argv[1]))
for _ in range(20):
    with turns.turn(), turns.turn():
        found = int(number.read_text())
        time.sleep(0.005)
        number.write_text(str(found + 1))
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", ADDING, str(tmp_path / "lock"), str(number)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [one.wait() for one in processes] == [0, 0, 0]
    assert number.read_text() == "60"


class Device:
    index = 3
    profile: GpuProfile = PROFILES["H200"]

    def __init__(self) -> None:
        self.ran = threading.Event()

    def execute(self, job: Job) -> Execution:
        self.ran.set()
        return Completed("job", "H200", (), ())

    def close(self) -> None: ...


def job(elements: int, timed_runs: int = 0) -> Job:
    x = InputTensor("x", TensorSpec.contiguous(DType.F32, (elements,)), Normal(1))
    return Job("job", "sm_90a", b"", BoundPlan((), (), ()), (x,), (), timed_runs)


SMALL, TIMED, LARGE = job(1000), job(1000, timed_runs=5), job(1 << 26)


def runs_beside(tmp_path: Path, mine: Job, *, shared: bool) -> bool:
    """Whether a job runs while another process has a turn; it does at the latest when that is over."""
    inner = Device()
    device = LockedDevice(inner, GpuLock(tmp_path / "gpu.lock"))  # type: ignore[arg-type]
    with GpuLock(tmp_path / "gpu.lock").turn(shared=shared):
        running = threading.Thread(target=lambda: device.execute(mine))
        running.start()
        beside = inner.ran.wait(300 if shared and mine is SMALL else 0.3)
    running.join(timeout=300)
    assert inner.ran.is_set()
    return beside


def test_only_small_jobs_that_nobody_times_run_beside_each_other(tmp_path: Path) -> None:
    assert runs_beside(tmp_path, SMALL, shared=True)
    assert not runs_beside(tmp_path, SMALL, shared=False)
    assert not runs_beside(tmp_path, TIMED, shared=True)
    assert not runs_beside(tmp_path, LARGE, shared=True)


def test_three_larger_jobs_run_beside_each_other_where_memory_is_far_larger(tmp_path: Path) -> None:
    def turns(memory_gib: int = 128) -> GpuLock:
        return GpuLock(tmp_path / "gpu.lock", memory_bytes=memory_gib << 30)

    inner = Device()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(turns().turn(shared=True, large=True))
        LockedDevice(inner, turns()).execute(LARGE)  # type: ignore[arg-type]
        inner.ran.clear()
        stack.enter_context(turns().turn(shared=True, large=True))
        waiting = threading.Thread(target=lambda: LockedDevice(inner, turns()).execute(LARGE))  # type: ignore[arg-type]
        waiting.start()
        assert not inner.ran.wait(0.3)
    waiting.join(timeout=300)
    assert inner.ran.is_set()
    assert turns(24).most_shared_bytes == 0
    assert turns(80).most_shared_bytes == int(2.5 * (1 << 30))


def test_whoever_needs_the_gpu_alone_is_let_in_before_those_that_came_later(tmp_path: Path) -> None:
    order: list[str] = []
    said: list[str] = []

    def take(name: str, shared: bool) -> None:
        with GpuLock(tmp_path / "gpu.lock", say=lambda _: said.append(name)).turn(shared=shared):
            order.append(name)

    alone = threading.Thread(target=take, args=("alone", False))
    later = threading.Thread(target=take, args=("later", True))
    with GpuLock(tmp_path / "gpu.lock").turn(shared=True):
        alone.start()
        wait_until(lambda: said == ["alone"])
        later.start()
        wait_until(lambda: said == ["alone", "later"])
        assert order == []
    alone.join(timeout=300)
    later.join(timeout=300)
    assert order == ["alone", "later"]


def test_what_was_written_down_says_how_long_the_gpu_was_in_use(tmp_path: Path) -> None:
    log = tmp_path / "gpu.turns"
    assert gpu_use(log) == GpuUse(0.0, 0.0, 0)
    log.write_text(
        "10.0 14.0 alone 1\n20.0 21.0 shared 1\n12.0 12.5 shared 2\n20.5 22.0 shared 3\n9000.0 9001.0 alone 4\n"
    )
    assert gpu_use(log) == GpuUse(7.0, 6.0, 5)
    with GpuLock(tmp_path / "lock", log).turn():
        pass
    with GpuLock(tmp_path / "lock").turn():  # of a run, which nobody writes down
        pass
    assert gpu_use(log).turns == 6


HOLDING = """
import sys, time
from pathlib import Path
from tilewright.frontends.api import judges
judges.LOCKS = Path(sys.argv[2]).parent
judges.device_uuid = lambda index: "abc" if index == int(sys.argv[1]) else "def"
with judges.GpuLock.of_gpu(int(sys.argv[1]), Path(sys.argv[2])).turn():
    print("in", flush=True)
    time.sleep(600)
"""


def test_all_of_a_user_share_one_lock_of_a_gpu_and_a_process_that_is_killed_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two suites know one GPU by different numbers, as CUDA_VISIBLE_DEVICES has it."""
    monkeypatch.setattr(judges, "LOCKS", tmp_path)
    monkeypatch.setattr(judges, "device_uuid", lambda index: "abc" if index == 0 else "def")
    said: list[str] = []
    log = tmp_path / "gpu.turns"
    process = subprocess.Popen([sys.executable, "-c", HOLDING, "1", str(log)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    with GpuLock.of_gpu(1, say=said.append).turn():  # another GPU
        assert said == []
    entered = threading.Event()

    def enter() -> None:
        with GpuLock.of_gpu(0, say=said.append).turn():
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    wait_until(lambda: said != [])
    assert not entered.wait(0.3)
    process.kill()
    process.wait()
    waiting.join(timeout=300)
    assert entered.is_set()
    assert said == ["waiting for the GPU, which another process uses"]
    assert gpu_use(log).turns == 0  # the killed one wrote none, and the other has no log


def test_a_job_waits_for_whoever_has_the_turn(tmp_path: Path) -> None:
    inner = Device()
    mine, other = GpuLock(tmp_path / "lock"), GpuLock(tmp_path / "lock")
    device = LockedDevice(inner, mine)  # type: ignore[arg-type]
    assert (device.index, device.profile) == (3, PROFILES["H200"])
    with other.turn():
        waiting = threading.Thread(target=lambda: device.execute(SMALL))
        waiting.start()
        assert not inner.ran.wait(0.3)
    waiting.join(timeout=300)
    assert inner.ran.is_set()


def test_where_no_lock_can_be_made_that_is_said_and_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "LOCKS", tmp_path)
    monkeypatch.setattr(judges, "device_uuid", lambda index: "abc")
    (tmp_path / f"tilewright-{os.getuid()}").write_text("in the way")
    said: list[str] = []
    with GpuLock.of_gpu(0, say=said.append).turn():
        assert len(said) == 1
    assert said[0].startswith("this process does not wait for your other processes that use the GPU: ")
