"""Which run somebody works on, and what a run says that cannot go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK, attempt

from tilewright.frontends.api.choices import emulated_device
from tilewright.frontends.api.reporter import PlainReporter
from tilewright.frontends.api.requests import begun_run
from tilewright.frontends.api.running import Addition, resume
from tilewright.records import Budget, Ending, Settings
from tilewright.store import Request, RunFolder, Store
from tilewright.tasks.errors import BadArgument

REQUEST = Request("twice x", {"x": "64:f32"})


class Pending(PlainReporter):
    """Says nothing, and knows what it was to say."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str, title: str = "") -> None:
        self.said.append(text)


def test_a_waiting_run_is_changed_only_by_who_has_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Store(tmp_path).create_run(None, SETTINGS, ENVIRONMENT, REQUEST)
    holders = []
    reopen = RunFolder.reopen

    def seen(folder: RunFolder, settings: Settings) -> None:
        holders.append(folder.worker)
        reopen(folder, settings)

    monkeypatch.setattr(RunFolder, "reopen", seen)
    store, device = Store(tmp_path), emulated_device("H200")
    with begun_run(store, REQUEST, None, SETTINGS, device, fresh=False) as (folder, new):
        assert (folder.id, new) == (first.id, False)
        with begun_run(store, REQUEST, None, SETTINGS, device, fresh=False) as (other, is_new):
            assert other.id != first.id  # which is being worked on
            assert is_new
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
