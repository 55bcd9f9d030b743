"""Every line of a finished kernel has somebody who wrote it, and the record of that lies beside the kernel."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import DUPLICATE, ENVIRONMENT, SETTINGS, TASK, attempt, question, reply

from tilewright.records import UNSTATED, Attempt, Contribution, Settings, Stage
from tilewright.store import RunFolder, Store, StoreError, line_authors, provenance_of, provenance_path

WRONG = DUPLICATE  # any rejection


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def run_of(store: Store, *attempts: tuple[Attempt, str], settings: Settings = SETTINGS) -> RunFolder:
    """A run whose attempts have these lines, a word each."""
    folder = store.create_run(TASK, settings, ENVIRONMENT)
    for one, words in attempts:
        place = folder.attempt(one.number)
        place.reply_to(1, question(one.number), lambda asked: reply(f"to {asked.id}"))
        text = "\n".join(words.split()) + "\n"
        place.save_text("kernel.cu", text)
        place.finish(replace(one, kernel=hashlib.sha256(text.encode()).hexdigest()[:20]))
    return folder


def authors(folder: RunFolder) -> list[int]:
    run = folder.load()
    assert run.best is not None
    return line_authors(folder, run, run.best)


def test_lines_are_of_the_attempt_that_wrote_them(store: Store) -> None:
    folder = run_of(
        store,
        (attempt(1, 10.0), "op a b c d"),
        (replace(attempt(2, 5.0), parent=1), "op a B c d e"),
        (replace(attempt(3, 9.0), parent=2), "nothing of this is kept"),  # no gain: nobody's parent
        (replace(attempt(4, 2.0), parent=2), "op a B C d e e"),
    )
    assert authors(folder) == [1, 1, 2, 4, 1, 2, 4]
    made = provenance_of(folder)
    assert [(one.attempt, one.lines) for one in made.contributions] == [
        (1, ((1, 2), (5, 5))),
        (2, ((3, 3), (6, 6))),
        (4, ((4, 4), (7, 7))),
    ]
    assert {one.author for one in made.contributions} == {"replay:somewhere"}
    asked = folder.attempt(4).question_texts()
    assert made.contributions[2].prompts == (hashlib.sha256(asked[0].encode()).hexdigest(),)
    assert (made.right_cases, made.worst_error, made.verified_on) == (1, 0.25, ("H200 (emulated)",))
    assert made.measurement is not None
    assert made.measurement.time_us == 2.0


def test_a_repair_goes_on_from_what_it_mends(store: Store) -> None:
    folder = run_of(
        store,
        (attempt(1, verdict=WRONG), "op a b c"),
        (replace(attempt(2, verdict=WRONG, stage=Stage.REPAIR_BUILD), parent=None), "op a B c"),
        (replace(attempt(3, 4.0, stage=Stage.REPAIR_WRONG), parent=None), "op a B C"),
    )
    assert authors(folder) == [1, 1, 2, 3]


def test_a_file_that_was_given_keeps_its_lines_and_its_licence(store: Store) -> None:
    start = "// SPDX-License-Identifier: Apache-2.0\nop\na\nb\n"
    settings = replace(SETTINGS, start=start)
    folder = run_of(store, (attempt(1, 3.0), "op a b c"), settings=settings)
    folder.attempt(1).save_text("kernel.cu", start + "c\n")
    folder.attempt(1).finish(attempt(1, 3.0, text=start + "c\n"))
    made = provenance_of(folder)
    assert made.licence == "Apache-2.0"
    assert made.contributions[0] == Contribution(0, "start", "given", "the file given to start from", (), ((1, 4),))
    assert made.contributions[1].lines == ((5, 5),)


def test_the_licence_is_what_the_person_states_or_nothing(store: Store) -> None:
    assert provenance_of(run_of(store, (attempt(1, 3.0), "op"))).licence == UNSTATED
    settings = replace(SETTINGS, licence="MIT", start="// SPDX-License-Identifier: Apache-2.0\n")
    assert provenance_of(run_of(store, (attempt(1, 3.0), "op"), settings=settings)).licence == "MIT"


def test_it_lies_beside_the_kernel_in_the_library(store: Store) -> None:
    folder = run_of(store, (attempt(1, 3.0), "op a"))
    kept = store.library.add(folder)
    assert provenance_path(kept.path).exists()
    assert kept.provenance() == provenance_of(folder)
    provenance_path(kept.path).unlink()
    assert kept.provenance() is None  # an older entry


def test_a_run_without_a_kernel_has_none(store: Store) -> None:
    with pytest.raises(StoreError, match="no kernel that passed"):
        provenance_of(run_of(store, (attempt(1, verdict=WRONG), "op")))
