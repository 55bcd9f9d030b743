"""Files that are whole or absent, and on disk when the call returns: written aside, synced, renamed, synced again.

What the store refuses is a `StoreError`; a disk that is full or a folder that cannot be written stays an `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from tilewright.records import RecordError, from_json, to_json

T = TypeVar("T")

_TEMPORARY = ".writing-"  # how the names of unfinished files and folders begin
_serial = itertools.count()


class StoreError(RuntimeError):
    """Something the store refuses, in one sentence that says what to do."""


class NoSuchRun(StoreError):
    """No run has that name, or more than one matches it."""


class RunBusy(StoreError):
    """Another process holds the run's lock."""


class NotAccepted(StoreError):
    """A request in words whose specification is not accepted yet, so that it has no task."""


class Damaged(StoreError):
    """A file of a run or of the library that is not what this version writes."""


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` by `text`. What UTF-8 cannot encode becomes a question mark."""
    temporary = _temporary_beside(path)
    try:
        with open(temporary, "xb") as stream:
            stream.write(text.encode("utf-8", "replace"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # about the file that is wanted, not the one written aside
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    sync_folder(path.parent)


def write_record(path: Path, record: object) -> None:
    write_text(path, record_text(record))


def record_text(record: object) -> str:
    """The text of a record's file. Characters outside ASCII are escaped."""
    return json.dumps(to_json(record), indent=1) + "\n"


def read_text(path: Path) -> str | None:
    """What is in the file to the letter, line ends included; None where there is no file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def find_record(path: Path, kind: type[T] | Any) -> T | None:
    """The record in a file, None where there is no file; raises `Damaged` for one that is something else."""
    text = read_text(path)
    if text is None:
        return None
    try:
        found: T = from_json(kind, json.loads(text))
    except (RecordError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({error}); it is damaged or of another version of tilewright") from None
    return found


def read_record(path: Path, kind: type[T] | Any) -> T:
    """The record in a file that must be there; raises `Damaged` for one that is missing too."""
    if not path.exists():
        raise Damaged(f"{path} is missing")
    return typing.cast(T, find_record(path, kind))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, so that they survive a crash of the machine."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which stands at `path` when the block ends, and never half filled.

    Raises `FileExistsError` where something is there already.
    """
    make_folder(path.parent)
    temporary = _temporary_beside(path)
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FileExistsError(f"{path} is there already") from None
        raise
    sync_folder(path.parent)


def move(path: Path, target: Path) -> None:
    """Rename within a folder; nothing where there is no such file."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, target)
        sync_folder(path.parent)


def remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder and everything in it; meanwhile it has the name of an unfinished one."""
    temporary = _temporary_beside(path)
    path.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder: without it a rename may be lost in a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_unfinished(path: Path) -> bool:
    """Whether a file or folder is still being written, or its writer was killed."""
    return path.name.startswith(_TEMPORARY)


def sweep_unfinished(folder: Path) -> None:
    """Remove what killed writers left under `folder`. The caller holds the lock of its writers."""
    for path in folder.rglob(f"{_TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}-{next(_serial)}-{os.urandom(4).hex()}")
