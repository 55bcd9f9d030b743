"""Runs: made, named, found, listed, locked, reopened."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import DUPLICATE, ENVIRONMENT, SETTINGS, TASK, attempt, question, reply

from tilewright.records import Budget, Ending
from tilewright.store import Damaged, NoSuchRun, NotAccepted, Request, RunBusy, Store, StoreError, write_text


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    folder = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    for one in (attempt(1, 10.0), attempt(2, verdict=DUPLICATE), attempt(3, 8.0), attempt(4, 7.99)):
        folder.attempt(one.number).finish(one)
    folder.attempt(5).reply_to(1, question(5), lambda _: reply())  # begun, not finished
    run = Store(store.home).open_run(folder.id).load()
    assert run.task == TASK
    assert (run.settings, run.environment) == (SETTINGS, ENVIRONMENT)
    assert [one.number for one in run.attempts] == [1, 2, 3, 4]
    assert run.best == attempt(3, 8.0)  # attempt 4 is within the noise
    assert run.ending is None


def test_ending_and_reopening(store: Store) -> None:
    folder = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    folder.end(Ending.ATTEMPTS)
    assert folder.load().ending is Ending.ATTEMPTS
    more = replace(SETTINGS, budget=Budget(attempts=9), hints=((5, "try one warp per row"),))
    folder.reopen(more)
    assert folder.load().ending is None
    assert folder.load().settings == more


def test_words_wait_for_their_task(store: Store) -> None:
    request = Request("double every element", {"x": "1000:f32"}, fixed=("n",))
    folder = store.create_run(None, SETTINGS, ENVIRONMENT, request)
    assert folder.id.startswith("double-every-element-")
    folder.attempt(0).reply_to(1, question(0), lambda _: reply("def double_it(x): ...", 0.25))
    with pytest.raises(NotAccepted, match=f"tilewright resume {folder.id}"):
        folder.load()
    assert [one.request for one in store.runs().waiting] == [request]
    folder.accept(TASK)
    run = folder.load()
    assert run.task == TASK
    assert run.dollars == 0.25  # the specification is part of what a run costs
    assert run.usage.output_tokens == 10
    assert folder.request() == request
    assert store.runs().waiting == ()


def test_runs_are_found_by_id_prefix_path_and_last(store: Store) -> None:
    older = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    other = store.create_run(replace(TASK, name="softmax"), SETTINGS, ENVIRONMENT)
    for text in (other.id, "softmax", str(other.path), "last"):
        assert store.open_run(text).path == other.path
    assert [run.id for run in store.runs().runs] == [other.id, older.id]
    store.create_run(TASK, SETTINGS, ENVIRONMENT)
    with pytest.raises(NoSuchRun, match="2 runs begin with 'double'"):
        store.open_run("double")
    for text in ("gelu", "", "../runs"):
        with pytest.raises(NoSuchRun, match="tilewright runs"):
            store.open_run(text)


def test_an_empty_home_has_no_runs(store: Store) -> None:
    assert store.runs().runs == ()
    with pytest.raises(NoSuchRun):
        store.open_run("last")


def test_broken_runs_hide_no_others(store: Store) -> None:
    good = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    broken = [store.create_run(TASK, SETTINGS, ENVIRONMENT) for _ in range(4)]
    (broken[0].path / "run.json").write_text("{")
    (broken[1].path / "task.json").unlink()
    broken[2].attempt(1).finish(attempt(1))
    (broken[2].path / "attempts" / "0001" / "attempt.json").write_bytes(b"\xff\xfe")
    (broken[3].path / "run.json").write_text((good.path / "run.json").read_text().replace('"format": 1', '"format": 2'))
    (store.home / "runs" / "stray.txt").write_text("not a run")
    listing = store.runs()
    assert [run.id for run in listing.runs] == [good.id]
    problems = {Path(one.path).name: one.problem for one in listing.broken}
    assert set(problems) == {one.path.name for one in broken}
    assert "format 2" in problems[broken[3].path.name]
    with pytest.raises(Damaged):
        store.open_run(broken[1].path.name).load()


def test_a_run_that_has_lost_its_task_is_damaged_and_waits_for_nobody(store: Store) -> None:
    folder = store.create_run(TASK, SETTINGS, ENVIRONMENT, Request("ops.py:double"))
    folder.attempt(1).finish(attempt(1))
    (folder.path / "task.json").unlink()
    with pytest.raises(Damaged, match=r"task\.json is missing"):
        folder.load()


@pytest.mark.parametrize("name", ["a-file", "a-file/below"])
def test_a_home_that_cannot_be_one_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(StoreError, match=rf"runs cannot be kept in .*{name} \(.*with TILEWRIGHT_HOME"):
        Store(tmp_path / name).create_run(TASK, SETTINGS, ENVIRONMENT)


def test_an_error_in_writing_names_the_file_that_was_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "kernel.cu", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "kernel.cu")


def test_one_process_at_a_time(store: Store) -> None:
    folder = store.create_run(TASK, SETTINGS, ENVIRONMENT)
    program = (
        "import sys; from pathlib import Path; from tilewright.store import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunBusy, match=f"being worked on by process {holder.pid}"), folder.lock():
            pass
        assert folder.load().id == folder.id  # reading needs no lock
    finally:
        holder.kill()
        holder.wait()
    (folder.path / ".writing-left-behind").write_text("half a fi")
    with folder.lock():
        assert not list(folder.path.rglob(".writing-*"))


def test_names_for_any_words(store: Store) -> None:
    for words in ("", "Ünïcödé 🚀", "../../etc/passwd", "x" * 500):
        folder = store.create_run(None, SETTINGS, ENVIRONMENT, Request(words))
        assert folder.path.parent == store.home / "runs"
        assert len(folder.path.name) < 40
