"""Where torch.compile keeps what it made: a folder for each source, and not too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.reference import Reference, ReferenceLimits, reference, spares, start_ahead
from tilewright.reference.spares import end_spares, take_spare


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "builds"))


def test_each_source_has_a_folder_beside_the_builds(tmp_path: Path) -> None:
    first, again, other = (reference.compile_cache(text) for text in ("a", "a", "b"))
    assert first == again != other
    assert first is not None
    assert first.parent == tmp_path / "builds-compiled"


def test_those_not_used_for_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "KEPT", 2)
    made = [reference.compile_cache(text) for text in "ab"]
    for number, one in enumerate(made):
        assert one is not None
        os.utime(one, (number, number))
    reference.compile_cache("a")
    third = reference.compile_cache("c")
    assert [one is not None and one.exists() for one in (*made, third)] == [True, False, True]


def test_a_place_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "builds"))
    assert reference.compile_cache("a") is None


def test_children_are_started_ahead_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "_wanted", False)
    monkeypatch.setattr(spares, "_FEWEST_CORES", 1)
    start_ahead(ReferenceLimits())
    assert not any(spares._spares.values())
    spares.want_spares()
    try:
        start_ahead(ReferenceLimits())
        ((key, (child,)),) = spares._spares.items()
        with Reference("def f(x): return x", "f") as reference:
            assert reference.pid == child.pid
        assert take_spare(key) is None
    finally:
        end_spares()
