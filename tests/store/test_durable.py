"""Files are on disk when a call returns: content before the name, the name before the return."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.store import durable

ASIDE = ".writing-"  # how the names of unfinished files and folders begin


class Disk:
    """What is asked of the disk, in order; names of files written aside are shortened."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.seen: list[str] = []
        sync, replace, rename = os.fsync, os.replace, os.rename

        def fsync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            size = f" {path.stat().st_size}" if path.is_file() else ""
            self.seen.append(f"sync {self._name(path)}{size}")
            sync(handle)

        def renaming(how: Callable[..., None]) -> Callable[..., None]:
            def move(source: Path, target: Path) -> None:
                self.seen.append(f"{self._name(source)} -> {self._name(target)}")
                how(source, target)

            return move

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", renaming(replace))
        monkeypatch.setattr(os, "rename", renaming(rename))  # what `Path.rename` calls

    def _name(self, path: Path | str) -> str:
        parts = Path(path).relative_to(self.root).parts
        return "/".join("aside" if part.startswith(ASIDE) else part for part in parts) or "."


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_a_file_is_synced_then_named_then_its_folder_is_synced(disk: Disk) -> None:
    for text in ("five.", "and again"):
        disk.seen.clear()
        durable.write_text(disk.root / "file", text)
        assert disk.seen == [f"sync aside {len(text)}", "aside -> file", "sync ."]
        assert (disk.root / "file").read_text() == text


def test_a_folder_and_those_above_it_are_synced_from_the_top(disk: Disk) -> None:
    durable.make_folder(disk.root / "a" / "b")
    assert disk.seen == ["sync .", "sync a"]


def test_a_new_folder_is_filled_then_synced_then_named(disk: Disk) -> None:
    with durable.new_folder(disk.root / "run") as filling:
        durable.write_text(filling / "file", "x")
    filled = ["sync aside/aside 1", "aside/aside -> aside/file", "sync aside"]
    assert disk.seen == [*filled, "sync aside", "aside -> run", "sync ."]


def test_what_is_moved_or_removed_is_so_on_disk(disk: Disk) -> None:
    durable.write_text(disk.root / "old", "x")
    disk.seen.clear()
    durable.move(disk.root / "old", disk.root / "new")
    assert disk.seen == ["old -> new", "sync ."]
    disk.seen.clear()
    durable.remove(disk.root / "new")
    assert disk.seen == ["sync ."]
    (disk.root / "folder").mkdir()
    disk.seen.clear()
    durable.remove_folder(disk.root / "folder")
    assert disk.seen == ["folder -> aside", "sync ."]


def test_a_file_that_cannot_be_synced_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        durable.write_text(tmp_path / "file", "after")
    assert caught.value.filename == str(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"
