"""kill -9 at random instants: every state loads, nothing finished is lost, no stored reply is asked for again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.store.records_for_store import ENVIRONMENT, KERNEL_TEXT, SETTINGS, TASK, attempt
from tests.waiting import wait_until

from tilewright.store import Store

ROOT = Path(__file__).parents[2]
KILLS = 25


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    return child


def test_a_run_survives_its_writer(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    folder = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    ledger = tmp_path / "ledger"
    chance = random.Random(4)
    finished = 0
    for number in range(KILLS):
        child = start("-m", "tests.store.writing_child", folder.path, ledger)
        try:
            time.sleep(chance.uniform(0.0, 0.12))
            if number == KILLS - 1:  # how far it gets in so short a time depends on the machine
                wait_until((folder.path / "attempts" / "0003").exists)
        finally:
            child.kill()
            child.wait()
        run = store.open_run(folder.id).load()
        assert [one.number for one in run.attempts] == list(range(1, len(run.attempts) + 1))
        assert len(run.attempts) >= finished
        finished = len(run.attempts)
        for one in run.attempts:
            place = folder.attempt(one.number)
            assert [r.text for r in place.replies()] == [f"answer {one.number:04d}-{k}" for k in (1, 2)]
            assert place.text("kernel.cu") == f"// {one.number}\n" * 500
        assert store.runs().broken == ()
    assert finished > 1
    asked = ledger.read_text().splitlines()
    assert not [line for line in asked if "TWICE" in line]
    # A question is asked again only where a kill came between the asking and the storing.
    assert sum(count - 1 for count in Counter(asked).values()) <= KILLS
    with folder.lock():
        assert not list(folder.path.rglob(".writing-*"))


ADDING = """
import sys
from pathlib import Path
from tilewright.store import Store
store = Store(Path(sys.argv[1]))
folders = [store.open_run(run.id) for run in store.runs().runs]
print("working", flush=True)
while True:
    for folder in folders:
        store.library.add(folder, "{}")
    for kernel in (store.home / "library").glob("*/*"):
        kernel.rename(kernel.parent.parent.parent / f"gone-{kernel.name}-{id(kernel)}")
"""


def test_the_library_and_new_runs_are_whole_or_absent(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for number in range(3):
        folder = store.create_run(TASK, SETTINGS, ENVIRONMENT)
        folder.attempt(1).save_text("kernel.cu", KERNEL_TEXT)
        folder.attempt(1).finish(attempt(1, 5.0 + number, text=KERNEL_TEXT))
    chance = random.Random(7)
    for _ in range(8):
        child = start("-c", ADDING, store.home)
        try:
            time.sleep(chance.uniform(0.0, 0.1))
        finally:
            child.kill()
            child.wait()
        for path in (store.home / "library" / TASK.hash).glob("[!.]*"):
            assert {"entry.json", "task.json", "double_it.cu"} <= {one.name for one in path.iterdir()}
        found = store.library.find(TASK.hash)
        assert found is None or (found.text() == KERNEL_TEXT and found.task() == TASK)
