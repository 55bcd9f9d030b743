"""Turns at a GPU that several processes use."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tilewright.frontends.gpu_turns import GpuTurns, TurnedDevice
from tilewright.records import PROFILES, Completed, Execution, GpuProfile, Job

# Adds one to a number in a file, slowly: what comes of it is right only where nobody else does the same meanwhile.
ADDING = """
import sys, time
from pathlib import Path
from tilewright.frontends.gpu_turns import GpuTurns
number, turns = Path(sys.argv[2]), GpuTurns(Path(sys.argv[1]))
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


def test_a_job_waits_for_whoever_has_the_turn(tmp_path: Path) -> None:
    inner = Device()
    mine, other = GpuTurns(tmp_path / "lock"), GpuTurns(tmp_path / "lock")
    device = TurnedDevice(inner, mine)  # type: ignore[arg-type]
    assert (device.index, device.profile) == (3, PROFILES["H200"])
    with other.turn():
        waiting = threading.Thread(target=lambda: device.execute(None))  # type: ignore[arg-type]
        waiting.start()
        assert not inner.ran.wait(0.3)
    waiting.join(timeout=30)
    assert inner.ran.is_set()
