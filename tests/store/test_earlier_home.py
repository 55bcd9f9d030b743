"""A home written before endings were words and emulation a field: it loads, and what is written from now on is new."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tilewright.records import Ending, Passed
from tilewright.store import RunFolder, Store

EARLIER = Path(__file__).with_name("earlier_home")
GALLERY = sorted(path.parent for path in (Path(__file__).parents[2] / "gallery").glob("*/run.json"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(EARLIER, tmp_path / "home")
    return Store(tmp_path / "home")


def test_it_is_as_it_was(store: Store) -> None:
    listing = store.runs()
    assert listing.broken == ()
    (run,) = listing.runs
    assert run.ending is Ending.ATTEMPTS
    assert (run.environment.device, run.environment.emulated) == ("H200 (emulated)", True)
    assert run.best is not None
    assert run.best.number == 2
    for attempt in run.attempts:
        assert isinstance(attempt.verdict, Passed)
        assert {one.emulated for one in attempt.verdict.cases} == {True}
    found = store.library.find(run.task.hash)
    assert found is not None
    assert found.entry.emulated
    assert found.entry.kernel == run.best.kernel


def test_what_is_written_now_has_the_new_form(store: Store) -> None:
    (run,) = store.runs().runs
    folder = store.open_run(run.id)
    folder.reopen(run.settings)
    folder.end(Ending.SETTLED)
    stored = json.loads((folder.path / "run.json").read_text())
    assert stored["ending"] == "settled"
    assert stored["environment"]["emulated"] is True
    assert folder.load().ending is Ending.SETTLED


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.name)
def test_gallery_runs_have_an_ending_and_say_where_they_ran(path: Path) -> None:
    run = RunFolder(path).load()
    assert run.ending is not None
    assert run.environment.emulated == run.environment.device.endswith("(emulated)")
