"""Finished kernels are kept once, found by their task, and the best of several is given."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import DUPLICATE, ENVIRONMENT, KERNEL_TEXT, SETTINGS, TASK, attempt

from tilewright.frontends.report.runs import found_words
from tilewright.records import Attempt, Changed, Measured, Passed, Task, Timing
from tilewright.store import ChangedKernel, RunFolder, Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def digest(number: int) -> str:
    return hashlib.sha256(f"{KERNEL_TEXT}// {number}\n".encode()).hexdigest()[:20]


def made(store: Store, *attempts: Attempt, task: Task = TASK) -> RunFolder:
    folder = store.create_run(task, SETTINGS, ENVIRONMENT)
    for one in attempts:
        folder.attempt(one.number).save_text("kernel.cu", f"{KERNEL_TEXT}// {one.number}\n")
        folder.attempt(one.number).finish(replace(one, kernel=digest(one.number)))
    return folder


def test_the_best_kernel_is_kept_with_its_tuned_choice(store: Store) -> None:
    folder = made(store, attempt(1, 10.0), attempt(2, 5.0), attempt(3, 6.0))
    assert store.library.find(TASK.hash) is None
    kept = store.library.add(folder, '{"entries": []}')
    assert store.library.add(folder).folder == kept.folder  # once
    found = Store(store.home).library.find(TASK.hash)
    assert found is not None
    assert (found.entry.run, found.entry.attempt, found.entry.op) == (folder.id, 2, "double_it")
    assert found.entry.device == "H200 (emulated)"
    assert found.text() == f"{KERNEL_TEXT}// 2\n"
    assert found.path.with_name("double_it.cu.tuned.json").read_text() == '{"entries": []}'
    assert found.task() == TASK


def test_a_kernel_may_be_asked_of_one_author_and_one_device(store: Store) -> None:
    kept = store.library.add(made(store, attempt(1, 10.0)))
    entry, find = kept.entry, store.library.find
    assert find(entry.task_hash, author=entry.author, device=entry.device) is not None
    assert find(entry.task_hash, author="somebody else") is None
    assert find(entry.task_hash, device="another GPU") is None


def test_another_task_has_another_kernel(store: Store) -> None:
    store.library.add(made(store, attempt(1, 10.0)))
    assert store.library.find(replace(TASK, words="as asked", assumptions=("none",)).hash) is not None
    assert store.library.find(replace(TASK, gpu="A100").hash) is None


def test_measured_comes_before_modelled_then_the_fastest(store: Store) -> None:
    slow, fast = made(store, attempt(1, 10.0)), made(store, attempt(1, 4.0))
    for folder in (fast, slow):
        store.library.add(folder)
    found = store.library.find(TASK.hash)
    assert found is not None
    assert found.entry.run == fast.id
    measured = Measured("H200", {"n": 1000}, Timing("kernel", (20.0,)), (), 1.0)
    on_gpu = made(store, attempt(1, measurement=measured))
    store.library.add(on_gpu)
    found = store.library.find(TASK.hash)
    assert found is not None
    assert found.entry.run == on_gpu.id


def test_verified_comes_before_provisional(store: Store) -> None:
    """Of a run's attempts and of the library's kernels, however much faster the other is."""
    provisional = Passed((), unseen="its tensors take 9,000 MB")
    quick = made(store, attempt(1, 2.0, verdict=provisional))
    kept = store.library.add(quick)
    assert kept.entry.provisional
    assert "provisional" in found_words(kept.entry, "", "--fresh")
    folder = made(
        store,
        attempt(1, 3.0, verdict=provisional),
        attempt(2, 9.0),
        attempt(3, 1.0, verdict=provisional),
        attempt(4, 8.0),
    )
    best = folder.load().best
    assert best is not None
    assert best.number == 4
    store.library.add(folder)
    found = store.library.find(TASK.hash)
    assert found is not None
    assert (found.entry.run, found.entry.provisional) == (folder.id, False)
    assert "provisional" not in found_words(found.entry, "", "--fresh")


def test_a_run_without_a_kernel_gives_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="no kernel that passed"):
        store.library.add(made(store, attempt(1, verdict=DUPLICATE)))


def test_a_damaged_entry_is_as_good_as_absent(store: Store) -> None:
    kept = store.library.add(made(store, attempt(1, 10.0)))
    (kept.folder / "entry.json").write_text("{")
    assert store.library.find(TASK.hash) is None
    assert store.library.all() == ()


CHANGED = r"double_it\.cu was changed after it was verified, .* tilewright check \S*double_it\.cu --reference double-it"


def test_a_kernel_that_was_changed_is_not_handed_over(store: Store) -> None:
    kept = store.library.add(made(store, attempt(1, 10.0)))
    kept.path.write_text("// mine")
    with pytest.raises(ChangedKernel, match=f"{CHANGED}.*, or make it again with --fresh"):
        store.library.find(TASK.hash)
    with pytest.raises(ChangedKernel, match=CHANGED):
        kept.text()
    with pytest.warns(UserWarning, match=CHANGED):
        assert store.library.all() == ()


def test_another_kernel_of_the_task_is_given_instead(store: Store) -> None:
    slow, fast = store.library.add(made(store, attempt(1, 10.0))), store.library.add(made(store, attempt(1, 4.0)))
    fast.path.write_text("// mine")
    with pytest.warns(UserWarning, match=CHANGED):
        found = store.library.find(TASK.hash)
    assert found is not None
    assert found.folder == slow.folder


def test_the_run_puts_its_own_kernel_back(store: Store) -> None:
    folder = made(store, attempt(1, 10.0))
    store.library.add(folder).path.write_text("// mine")
    assert store.library.add(folder).text() == f"{KERNEL_TEXT}// 1\n"


def test_an_attempt_whose_file_was_changed_has_not_passed(store: Store) -> None:
    folder = made(store, attempt(1, 10.0), attempt(2, 5.0))
    (folder.attempt(2).path / "kernel.cu").write_text("// mine")
    with pytest.warns(UserWarning, match=r"0002/kernel\.cu was changed after it was verified"):
        run = folder.load()
    assert run.best is not None
    assert run.best.number == 1
    assert isinstance(run.attempts[1].verdict, Changed)
    assert run.attempts[1].verdict.reason == "changed since"
    with pytest.warns(UserWarning, match="changed after"):
        assert store.library.add(folder).entry.attempt == 1
