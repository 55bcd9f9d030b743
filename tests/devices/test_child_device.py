"""A device behind a real child process, whatever that process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devices.scripted_jobs import FIRST_LINE, HERE, PROFILE, RUNNER, answer_of, scripted_job
from tests.waiting import wait_until

from tilewright.child import process
from tilewright.child.process import Interrupted
from tilewright.devices.child_device import CudaDevice
from tilewright.devices.protocol import Device, DeviceError
from tilewright.records import Faulted, FaultKind


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with CudaDevice(command=RUNNER, host_bytes=400 << 20) as device:
        yield device


def faulted(device: CudaDevice, *actions: str, seconds: float = 300.0) -> Faulted:
    execution = device.execute(scripted_job("bad", *actions, seconds=seconds))
    assert isinstance(execution, Faulted), execution
    assert execution.job == "bad"
    assert execution.device == PROFILE.name
    return execution


def still_works(device: CudaDevice) -> None:
    assert answer_of(device.execute(scripted_job("next", numbers=(5.0, -1.0)))) == [6.0, 0.0]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def test_it_is_a_device_with_a_profile(device: Device) -> None:
    assert device.profile == PROFILE


def test_the_child_is_kept_between_jobs(device: CudaDevice) -> None:
    still_works(device)
    pid = device.runner_pid
    still_works(device)
    assert pid is not None
    assert device.runner_pid == pid


def test_a_large_job_passes_both_ways(device: CudaDevice) -> None:
    numbers = tuple(float(i % 1000) for i in range(3_000_000))
    assert answer_of(device.execute(scripted_job("large", numbers=numbers))) == [n + 1 for n in numbers]


def test_a_hung_kernel_is_ended_and_named(device: CudaDevice) -> None:
    before = device.runner_pid
    started = time.monotonic()
    fault = faulted(device, "add", "hang", seconds=1.0)
    assert 1.0 <= time.monotonic() - started < 120.0
    assert fault.kind is FaultKind.TIME
    assert (fault.kernel, fault.line) == ("hang", FIRST_LINE + 1)
    assert (
        fault.message
        == f"not done after 1 s, while running step 2: hang (line {FIRST_LINE + 1}): the process was killed"
    )
    assert before is None or gone(before)
    still_works(device)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE"])
def test_a_death_by_its_own_signal_is_named_and_not_repeated(device: CudaDevice, name: str) -> None:
    fault = faulted(device, f"signal {name}")
    assert fault.kind is FaultKind.DIED
    assert f"died of {name}" in fault.message
    assert fault.kernel == f"signal {name}"
    still_works(device)


def test_an_exit_is_told_with_status_and_last_words(device: CudaDevice) -> None:
    fault = faulted(device, "exit 3")
    assert fault.kind is FaultKind.DIED
    assert "exit status 3" in fault.message
    assert "the last words of a runner" in fault.message
    still_works(device)


def test_a_kill_from_outside_is_tried_once_more(device: CudaDevice, tmp_path: Path) -> None:
    job = scripted_job("unlucky", f"signal-once {tmp_path / 'mark'}")
    assert answer_of(device.execute(job)) == [2.0, 3.0, 4.0]


def test_a_job_killed_twice_is_reported(device: CudaDevice) -> None:
    fault = faulted(device, "signal SIGKILL")
    assert fault.kind is FaultKind.DIED
    assert "SIGKILL from outside, on two attempts" in fault.message
    still_works(device)


def test_host_memory_is_bounded(device: CudaDevice) -> None:
    fault = faulted(device, "eat 40")  # 40 x 32 MiB
    assert fault.kind is FaultKind.MEMORY
    assert "may hold 400 MiB" in fault.message
    assert fault.kernel == "eat 40"
    still_works(device)


@pytest.mark.parametrize("action", ["babble", "mute", "half"])
def test_nonsense_on_the_pipe_ends_the_child(device: CudaDevice, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "DYING_WAIT_S", 0.5)
    fault = faulted(device, action)
    assert fault.kind is FaultKind.DIED
    assert fault.kernel == action
    still_works(device)


def test_chatter_on_standard_output_disturbs_nothing(device: CudaDevice) -> None:
    assert answer_of(device.execute(scripted_job("chatty", "print", "add"))) == [2.0, 3.0, 4.0]


def test_a_refused_launch_keeps_the_child_and_a_lost_context_replaces_it(device: CudaDevice) -> None:
    still_works(device)
    pid = device.runner_pid
    assert faulted(device, "refused").kind is FaultKind.LAUNCH_REFUSED
    assert device.runner_pid == pid
    assert faulted(device, "spoilt").kind is FaultKind.ILLEGAL_ACCESS
    assert device.runner_pid != pid
    still_works(device)


def test_a_child_that_died_idle_costs_no_job(device: CudaDevice) -> None:
    still_works(device)
    pid = device.runner_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    still_works(device)


def test_a_child_killed_while_it_starts_is_started_again() -> None:
    with CudaDevice(command=RUNNER) as device:
        device.execute(scripted_job("spoil", "spoilt"))  # the next child is starting now
        pid = device.runner_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        still_works(device)


def test_the_child_sees_no_secrets(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    monkeypatch.setenv("CUDA_SECRET_TOKEN", "odd")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    device.execute(scripted_job("fresh", "spoilt"))  # the next child starts in this environment
    seen = tmp_path / "seen.json"
    device.execute(scripted_job("look", f"environment {seen}"))
    found = json.loads(seen.read_text())
    assert "secret" not in json.dumps(found["environment"])
    assert "CUDA_SECRET_TOKEN" not in found["environment"]
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["environment"]["PATH"] == os.environ["PATH"]
    assert found["environment"]["HOME"] == found["folder"] != os.environ.get("HOME")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (9, "there is no cuda:9 here; use cuda:0"),
        (8, "ended before it was ready: it ended with exit status 1; it last wrote: .*an engine that is broken"),
        (7, "did not start: nothing came within 1 s"),
    ],
)
def test_a_device_that_cannot_be_had_raises(index: int, message: str) -> None:
    seconds = 1.0 if index == 7 else 60.0
    with (
        CudaDevice(index, command=RUNNER, start_seconds=seconds) as device,
        pytest.raises(DeviceError, match=f"(?s){message}"),
    ):
        device.execute(scripted_job("never"))


def test_a_runner_that_does_not_exist_raises() -> None:
    with (
        CudaDevice(command=("/no/such/runner",)) as device,
        pytest.raises(DeviceError, match="'/no/such/runner' cannot be started: No such file"),
    ):
        device.execute(scripted_job("never"))


def test_a_closed_device_says_so_and_its_child_is_gone() -> None:
    device = CudaDevice(command=RUNNER)
    still_works(device)
    pid = device.runner_pid
    device.close()
    assert pid is not None
    assert gone(pid)
    with pytest.raises(DeviceError, match="closed"):
        device.execute(scripted_job("late"))


def test_an_interrupt_abandons_the_job_and_the_device_stays_usable() -> None:
    asked = threading.Event()
    with CudaDevice(command=RUNNER, interrupt=asked.is_set) as device:
        still_works(device)
        pid = device.runner_pid
        threading.Timer(0.3, asked.set).start()
        with pytest.raises(Interrupted):
            device.execute(scripted_job("long", "hang"))
        asked.clear()
        assert pid is not None
        assert gone(pid)
        still_works(device)


def test_several_threads_take_turns(device: CudaDevice) -> None:
    answers: dict[int, list[float]] = {}

    def work(index: int) -> None:
        answers[index] = answer_of(device.execute(scripted_job(f"job{index}", "sleep 0.01", numbers=(float(index),))))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {index: [index + 1.0] for index in range(8)}


def test_a_child_started_by_a_thread_that_ended_lives_on() -> None:
    with CudaDevice(command=RUNNER) as device:
        thread = threading.Thread(target=still_works, args=(device,))
        thread.start()
        thread.join()
        pid = device.runner_pid
        time.sleep(0.3)
        still_works(device)
        assert device.runner_pid == pid


@pytest.mark.slow
@pytest.mark.parametrize("from_thread", [False, True])
def test_a_busy_child_dies_with_its_killed_parent(tmp_path: Path, from_thread: bool) -> None:
    note = tmp_path / "pid"
    program = f"""
import sys, threading
sys.path.insert(0, {str(HERE)!r})
from tests.devices.scripted_jobs import RUNNER, scripted_job
from tilewright.devices.child_device import CudaDevice
device = CudaDevice(command=RUNNER)
def work():
    device.ready()
    open({str(note)!r}, "w").write(f"{{device.runner_pid}}\\n")
    device.execute(scripted_job("long", "hang", seconds=600.0))
if {from_thread}:
    threading.Thread(target=work).start()
else:
    work()
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
    child = int(note.read_text())
    home = os.readlink(f"/proc/{child}/cwd")
    time.sleep(0.3)
    assert not gone(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: gone(child))
    if from_thread:  # without the kernel's help the child also tidies up
        wait_until(lambda: not os.path.exists(home))
