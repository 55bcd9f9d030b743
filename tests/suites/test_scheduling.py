"""Tasks in real processes: several at once, one that dies tried once more, all on record, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.suites.made_records import made_suite
from tests.waiting import wait_until

from tilewright.child.family import process_start
from tilewright.records import Budget
from tilewright.store import StoreError
from tilewright.suites import OtherSuite, Status, SuiteFolder, SuiteTask, TaskRecord, carry_out
from tilewright.suites.pools import LocalPool

# What the process of a task does is its name: it ends well, dies the first time, dies always, or hangs.
TASK = """
import os, signal, sys, threading, time
from pathlib import Path
from tilewright.suites import Status, SuiteFolder, TaskRecord
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
folder, id = SuiteFolder(Path(sys.argv[1])), sys.argv[2]
name = next(one.name for one in folder.suite().tasks if one.id == id)
print("at work", flush=True)
mark = folder.path / f"{id}.begun"
if name == "dies" or (name == "dies once" and not mark.exists()):
    mark.touch()
    sys.stderr.write("out of luck\\n")
    os.kill(os.getpid(), signal.SIGKILL)
if name == "meets":
    mark.touch()
    while len(list(folder.path.glob("*.begun"))) < 2:
        time.sleep(0.01)
if name == "hangs":
    (folder.path / f"{id}.pid").write_text(str(os.getpid()))
    time.sleep(600)
folder.record(TaskRecord(id, name, Status.MADE, seconds=1.0))
"""
PARENT = """
import sys
from pathlib import Path
from tests.suites.test_scheduling import Heard, PROGRAM
from tilewright.suites import SuiteFolder, carry_out
from tilewright.suites.pools import LocalPool
folder = SuiteFolder(Path(sys.argv[1]))
carry_out(folder, LocalPool(folder, PROGRAM, 2), Heard())
"""
PROGRAM = (sys.executable, "-c", TASK)


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def begun(self, task: SuiteTask) -> None:
        self.lines.append(f"begun {task.id}")

    def lost(self, task: SuiteTask, why: str) -> None:
        self.lines.append(f"lost {task.id}: {why}")

    def done(self, record: TaskRecord) -> None:
        self.lines.append(f"done {record.id}")


def opened(path: Path, *names: str) -> SuiteFolder:
    suite = made_suite(len(names))
    tasks = tuple(replace(task, name=name) for task, name in zip(suite.tasks, names, strict=True))
    folder = SuiteFolder(path / "suite")
    folder.begin(replace(suite, tasks=tasks))
    return folder


def carried_out(folder: SuiteFolder, size: int = 2) -> Heard:
    heard = Heard()
    pool = LocalPool(folder, PROGRAM, size)
    try:
        carry_out(folder, pool, heard)
    finally:
        pool.close()
    return heard


def test_two_tasks_at_once_and_one_that_dies_once(tmp_path: Path) -> None:
    """The first two wait for each other: one after the other they would never end."""
    folder = opened(tmp_path, "meets", "meets", "dies once")
    heard = carried_out(folder)
    assert [(one.status, one.tries) for one in folder.records()] == [
        (Status.MADE, 1),
        (Status.MADE, 1),
        (Status.MADE, 2),
    ]
    assert [line for line in heard.lines if line.startswith("lost")] == [
        "lost 3: the task's process was killed by signal 9; its last words: out of luck"
    ]
    assert carried_out(folder).lines == [], "nothing is done twice"


def test_a_task_that_always_dies_is_a_fault_on_record_and_is_tried_again_later(tmp_path: Path) -> None:
    folder = opened(tmp_path, "dies", "fine")
    carried_out(folder, 1)
    first, second = folder.records()
    assert (first.status, first.tries, second.status) == (Status.FAILED, 2, Status.MADE)
    assert "out of luck" in first.reason
    assert [task.id for task in folder.waiting()] == ["1"]


def test_when_the_suite_is_killed_its_tasks_end_with_it(tmp_path: Path) -> None:
    folder = opened(tmp_path, "hangs")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder.path)], env=environment)
    mark = folder.path / "1.pid"
    wait_until(lambda: mark.exists() and mark.read_text() != "")
    child = int(mark.read_text())
    assert process_start(child) is not None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: process_start(child) is None)
    assert [task.id for task in folder.waiting()] == ["1"]


def test_a_folder_goes_on_with_the_same_suite_only(tmp_path: Path) -> None:
    folder = opened(tmp_path, "a", "b")
    folder.record(TaskRecord("2", "b", Status.MADE))
    suite = folder.suite()
    more = replace(suite, tasks=(*suite.tasks, replace(suite.tasks[0], id="3")), created="later")
    assert folder.begin(more).created == suite.created
    assert [task.id for task in folder.waiting()] == ["1", "3"]
    folder.begin(replace(more, settings=replace(suite.settings, budget=Budget(attempts=9))))
    assert folder.suite().settings.budget.attempts == 9
    for other, said in (
        (replace(suite, settings=replace(suite.settings, baselines=("eager",))), "other baselines"),
        (replace(suite, settings=replace(suite.settings, author="relay:x")), "the author playbook"),
        (replace(suite, gpu="A100"), "the GPU H200"),
        (replace(suite, fresh=True), "kernels of the library"),
    ):
        with pytest.raises(OtherSuite, match=said):
            folder.begin(other)
    with pytest.raises(OtherSuite, match="not empty"):
        SuiteFolder(tmp_path).begin(suite)
    with folder.lock(), pytest.raises(StoreError, match="another process"), folder.lock():
        pass
