"""Which run somebody works on who asks for what another process is making."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK, attempt

from tilewright.frontends.api.reporter import PlainReporter
from tilewright.frontends.api.requests import WantedRun
from tilewright.frontends.api.running import Addition, resume
from tilewright.records import Budget, Ending, Settings
from tilewright.store import Request, RunFolder, Store
from tilewright.tasks.errors import BadArgument

REQUEST = Request("twice x", {"x": "64:f32"})


class Pending(PlainReporter):
    """Says nothing, and knows what it was to say, and whether a run was waited for."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.waits = False
        self.said: list[str] = []

    def say(self, text: str, title: str = "") -> None:
        self.waits = self.waits or "waiting for it" in text
        self.said.append(text)


def wanted(home: Path, settings: Settings = SETTINGS) -> WantedRun:
    return WantedRun(Store(home), REQUEST, None, settings, ENVIRONMENT, False)


@contextmanager
def waiting(home: Path, first: RunFolder, settings: Settings) -> Iterator[Future[tuple[str, bool, Settings]]]:
    """Somebody who waits for a run as long as the block goes on: then the id of his run, if it is new, its settings."""
    reporter = Pending()

    def open_it() -> tuple[str, bool, Settings]:
        with wanted(home, settings).opened(reporter) as (folder, new):
            return folder.id, new, folder.header().settings

    with ThreadPoolExecutor(1) as pool, first.lock():
        opened = pool.submit(open_it)
        while not reporter.waits:
            assert not opened.done(), opened.result()
        yield opened


def test_a_run_that_is_left_goes_on_as_the_next_asked(tmp_path: Path) -> None:
    first = Store(tmp_path).create_run(None, replace(SETTINGS, hints=((0, "be bold"),)), ENVIRONMENT, REQUEST)
    asked = replace(SETTINGS, budget=Budget(attempts=9), licence="MIT", output="/b.cu")
    with waiting(tmp_path, first, asked) as opened:
        pass
    assert opened.result() == (first.id, False, replace(asked, hints=((0, "be bold"),)))


@pytest.mark.parametrize(("attempts", "shared"), [(5, True), (9, False)])
def test_a_run_without_a_kernel_serves_who_would_have_spent_as_much(
    tmp_path: Path, attempts: int, shared: bool
) -> None:
    first = Store(tmp_path).create_run(None, SETTINGS, ENVIRONMENT, REQUEST)
    with waiting(tmp_path, first, replace(SETTINGS, budget=Budget(attempts=attempts))) as opened:
        first.accept(TASK)
        first.end(Ending.ATTEMPTS)
    name, new, _ = opened.result()
    assert (name == first.id) is shared
    assert new is not shared


def test_a_kernel_that_was_made_serves_everybody(tmp_path: Path) -> None:
    first = Store(tmp_path).create_run(None, SETTINGS, ENVIRONMENT, REQUEST)
    with waiting(tmp_path, first, replace(SETTINGS, budget=Budget(attempts=9))) as opened:
        first.accept(TASK)
        first.attempt(1).save_text("kernel.cu", "")
        first.attempt(1).finish(replace(attempt(1, 5.0), tune=None))
        first.end(Ending.ATTEMPTS)
    assert opened.result() == (first.id, False, SETTINGS)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, start="// a kernel to improve"),
        replace(SETTINGS, against="torch:relu"),
        replace(SETTINGS, base_url="http://localhost:1/v1"),
        replace(SETTINGS, spool="/gpus"),
    ],
)
def test_what_is_made_in_another_way_is_not_waited_for(tmp_path: Path, settings: Settings) -> None:
    first = Store(tmp_path).create_run(None, settings, ENVIRONMENT, REQUEST)
    with first.lock(), wanted(tmp_path).opened(Pending()) as (folder, new):
        assert folder.id != first.id
        assert new


def test_measured_and_modelled_times_do_not_meet_in_a_shared_run(tmp_path: Path) -> None:
    measured = replace(ENVIRONMENT, device="NVIDIA H200 (cuda:0)", emulated=False)
    first = Store(tmp_path).create_run(None, SETTINGS, measured, REQUEST)
    with first.lock(), wanted(tmp_path).opened(Pending()) as (folder, _):
        assert folder.id != first.id


def test_a_waiting_run_is_changed_only_by_who_has_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Store(tmp_path).create_run(None, SETTINGS, ENVIRONMENT, REQUEST)
    holders = []
    reopen = RunFolder.reopen

    def seen(folder: RunFolder, settings: Settings) -> None:
        holders.append(folder.worker)
        reopen(folder, settings)

    monkeypatch.setattr(RunFolder, "reopen", seen)
    with wanted(tmp_path).opened(Pending()) as (folder, new):
        assert (folder.id, new) == (first.id, False)
    assert [holder.startswith("process") for holder in holders] == [True]


def test_more_of_a_run_that_could_not_go_on_says_why_in_words(tmp_path: Path) -> None:
    folder = Store(tmp_path).create_run(TASK, replace(SETTINGS, budget=Budget(attempts=1)), ENVIRONMENT)
    folder.attempt(1).save_text("kernel.cu", "")
    folder.attempt(1).finish(replace(attempt(1, 5.0), tune=None))
    folder.end(Ending.ATTEMPTS)
    with pytest.raises(BadArgument) as caught:
        resume(folder, Addition(hint="faster"), "", Pending())
    why = "because the budget of attempts is spent; add more with --attempts N"
    assert str(caught.value) == f"run {folder.id} would end at once, {why}"


@pytest.mark.parametrize(
    ("author", "remedy"),
    [("playbook", "go on with a model: --model PROVIDER:NAME"), ("relay:somewhere", "add a hint with --hint TEXT")],
)
def test_who_reads_no_hints_is_not_offered_one(tmp_path: Path, author: str, remedy: str) -> None:
    folder = Store(tmp_path).create_run(TASK, replace(SETTINGS, author=author), ENVIRONMENT)
    folder.end(Ending.AUTHOR_DONE)
    reporter = Pending()
    resume(folder, Addition(), "", reporter)
    assert any(remedy in line for line in reporter.said)
