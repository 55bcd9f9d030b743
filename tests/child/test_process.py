"""One child and everything it may do, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from tilewright.child import family, process
from tilewright.child.envelope import Envelope, message, message_in
from tilewright.child.environment import HOME_PREFIX, make_home
from tilewright.child.process import Ended, EndedBy, Interrupted, SupervisedChild, check_stop, stopped_when

COMMAND = (sys.executable, str(Path(__file__).parent / "scripted_child.py"))
MIB = 1 << 20


def start(**options: Any) -> SupervisedChild:
    return SupervisedChild(COMMAND, **({"resident_bytes": 300 * MIB} | options))


@pytest.fixture
def child() -> Iterator[SupervisedChild]:
    made = start()
    yield made
    made.end()


def said(envelope: Envelope) -> str:
    text: str = message_in(envelope, str)
    return text


def tell(child: SupervisedChild, *words: str, seconds: float = 300.0) -> str | Ended:
    return child.converse(message(words), seconds, said)


def ended(child: SupervisedChild, *words: str, seconds: float = 300.0) -> Ended:
    outcome = tell(child, *words, seconds=seconds)
    assert isinstance(outcome, Ended), outcome
    assert not child.alive
    return outcome


def gone(pid: int) -> bool:
    return family.process_start(pid) is None


def noted(path: Path) -> int:
    """The process id that somebody writes into a file."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


# -- limits --


def test_answers_come_and_the_child_stays(child: SupervisedChild) -> None:
    assert [tell(child, "echo", "x" * size) for size in (1, 3_000_000, 1)] == ["done echo"] * 3


def test_time_is_bounded(child: SupervisedChild) -> None:
    outcome = ended(child, "hang", seconds=0.3)
    assert (outcome.by, outcome.detail) == (EndedBy.TIME, "nothing came within 0.3 s")


def test_its_own_memory_is_bounded(child: SupervisedChild) -> None:
    outcome = ended(child, "eat", "2048")
    assert outcome.by is EndedBy.MEMORY
    assert outcome.detail.endswith("of host memory and may hold 300 MiB")


def test_memory_of_what_cut_itself_loose_counts(child: SupervisedChild, tmp_path: Path) -> None:
    assert tell(child, "escape", str(tmp_path / "pid"), "400") == "done escape"
    stray = noted(tmp_path / "pid")
    outcome = ended(child, "hang")
    assert outcome.by is EndedBy.MEMORY
    assert gone(stray)


def test_an_answer_is_bounded() -> None:
    child = start(answer_bytes=10)
    outcome = ended(child, "echo", "x")
    assert outcome.by is EndedBy.MEMORY
    assert "what it sent is too much" in outcome.detail


def test_messages_cost_no_look_at_other_processes(child: SupervisedChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at by the clock and never in the table of all processes, however many messages pass."""
    looks: list[str] = []
    read = family._read
    monkeypatch.setattr(family, "_read", lambda path: looks.append(path) or read(path))
    monkeypatch.setattr(family, "_table", lambda: pytest.fail("it looked at every process"))
    now = 1000.0
    monkeypatch.setattr(process.time, "monotonic", lambda: now)
    tell(child, "echo", "x")
    first = len(looks)
    assert first > 0
    for _ in range(200):
        assert tell(child, "echo", "x") == "done echo"
    assert len(looks) == first
    now += 10.0
    tell(child, "echo", "x")
    assert first < len(looks) <= 4 * first
    assert {path.split("/")[2] for path in looks} == {str(child.pid)}
    monkeypatch.undo()
    monkeypatch.setattr(family, "_table", lambda: pytest.fail("it looked at every process"))
    child.end()


# -- ends --


def test_a_death_is_told_with_its_signal_and_peak(child: SupervisedChild) -> None:
    outcome = ended(child, "die", str(int(signal.SIGSEGV)))
    assert (outcome.by, outcome.signal_name, outcome.detail) == (EndedBy.DEATH, "SIGSEGV", "it died")
    assert outcome.peak_bytes > MIB


def test_nonsense_ends_it(child: SupervisedChild) -> None:
    outcome = ended(child, "babble")
    assert outcome.by is EndedBy.BABBLE
    assert "Segmentation fault" in outcome.detail


def test_what_a_dead_child_had_said_is_heard(child: SupervisedChild) -> None:
    """Though the pipe stays open in the hands of what it started."""
    assert tell(child, "answer_and_die") == "the last answer"
    outcome = ended(child, "echo", "x")
    assert (outcome.by, outcome.detail) == (EndedBy.DEATH, "it ended with exit status 0")
    assert outcome.last_words == "the last words"


def test_what_it_left_behind_is_found_in_one_look(
    child: SupervisedChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    table = family._table
    monkeypatch.setattr(family, "_table", lambda: looks.append(None) or table())
    outcome = ended(child, "leave_behind", str(tmp_path / "pid"))
    assert outcome.status == 7
    stray = noted(tmp_path / "pid")
    assert gone(stray)
    assert len(looks) == 1


def test_an_end_reaches_what_cut_itself_loose(child: SupervisedChild, tmp_path: Path) -> None:
    assert tell(child, "escape", str(tmp_path / "pid")) == "done escape"
    stray = noted(tmp_path / "pid")
    child.end()
    assert gone(child.pid)
    assert gone(stray)


def test_descendants_are_found_where_the_kernel_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as parent:
        try:
            while not (listed := family.descendants(parent.pid)):
                assert parent.poll() is None
            monkeypatch.setattr(family, "_LISTED", False)
            assert family.descendants(parent.pid) == listed
        finally:
            family.kill([*listed, parent.pid])


def test_a_copy_made_by_fork_does_not_answer(child: SupervisedChild) -> None:
    assert [tell(child, "fork_and_return"), tell(child, "echo", "x")] == ["done fork_and_return", "done echo"]


def test_an_interrupt_ends_it() -> None:
    asked: list[bool] = []
    child = start(interrupt=lambda: bool(asked))
    assert tell(child, "echo", "x") == "done echo"
    asked.append(True)
    with pytest.raises(Interrupted):
        tell(child, "hang")
    assert not child.alive


def test_whoever_waits_within_a_limit_is_stopped_with_its_child_in_other_threads_too(child: SupervisedChild) -> None:
    deadline = time.monotonic() + 1.0
    with stopped_when(lambda: time.monotonic() > deadline), ThreadPoolExecutor(1) as threads:
        talking = threads.submit(copy_context().run, tell, child, "hang")
        with pytest.raises(Interrupted):
            talking.result(300.0)
    assert not child.alive
    check_stop()  # nothing asks any more


def test_a_program_that_does_not_exist_leaves_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        SupervisedChild(("/no/such/program",), resident_bytes=None)
    assert list(tmp_path.iterdir()) == []


# -- its surroundings --


def test_it_has_an_empty_home_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "CUDA_SECRET_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    child = start(environment={"EXTRA": "given"})
    found = child.converse(message(("look",)), 300.0, lambda envelope: message_in(envelope, dict[str, str]))
    assert isinstance(found, dict)
    assert "secret" not in found.values()
    assert (found["CUDA_VISIBLE_DEVICES"], found["EXTRA"]) == ("0", "given")
    assert found["HOME"] == found["TMPDIR"] == found["folder"] != os.environ.get("HOME")
    assert os.listdir(found["HOME"]) == []
    child.end()
    assert not os.path.exists(found["HOME"])


def test_homes_of_killed_owners_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = Path(make_home()).name.removeprefix(HOME_PREFIX).partition("-")[0]
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        f"{HOME_PREFIX}{here}-{dead.pid}-a": False,
        f"{HOME_PREFIX}{here}-1-alive": True,
        f"{HOME_PREFIX}elsewhere-{dead.pid}-new": True,
        f"{HOME_PREFIX}elsewhere-{dead.pid}-old": False,
        f"{HOME_PREFIX}odd": True,
        "other": True,
    }
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    os.utime(tmp_path / f"{HOME_PREFIX}elsewhere-{dead.pid}-old", (time.time() - 90000,) * 2)
    make_home()
    assert {name: (tmp_path / name).exists() for name in names} == names


PARENT = """
import os, sys, threading, time
sys.path.insert(0, {root!r})
from tests.child.test_process import start, tell
def work():
    child = start()
    tell(child, "escape", {stray!r})
    open({note!r}, "w").write(f"{{child.pid}}\\n")
    tell(child, "hang", seconds=600.0)
def fork():  # once that child is there
    while not os.path.exists({note!r}):
        time.sleep(0.01)
    if os.fork() == 0:
        open({copy!r}, "w").write(f"{{os.getpid()}}\\n")
        time.sleep(600)
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "work()",
        "threading.Thread(target=work).start()",
        # a forked copy must not keep the pipes open
        "threading.Thread(target=work).start(); fork()",
    ],
    ids=["main thread", "other thread", "forked"],
)
def test_a_busy_child_dies_with_its_killed_parent(tmp_path: Path, end: str) -> None:
    root = str(Path(__file__).parents[2])
    places = {name: str(tmp_path / place) for name, place in (("stray", "stray"), ("note", "pid"), ("copy", "copy"))}
    program = PARENT.format(root=root, end=end, **places)
    parent = subprocess.Popen([sys.executable, "-c", program])
    pid = noted(tmp_path / "pid")
    home = os.readlink(f"/proc/{pid}/cwd")
    copies = [noted(tmp_path / "copy")] if "fork" in end else []
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    wait_until(lambda: gone(pid))
    family.kill(copies)
    if "Thread" in end:  # without the kernel's help the child also tidies up
        wait_until(lambda: not os.path.exists(home))
        wait_until(lambda: gone(noted(tmp_path / "stray")))
    else:
        family.kill([noted(tmp_path / "stray")])
