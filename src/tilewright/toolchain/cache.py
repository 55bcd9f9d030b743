"""Finished builds on disk, by content address. One folder a build; whole or absent, never half.

A build is written into a temporary folder and renamed into place, so a writer may be killed at any instant and several
may write the same build. What is read is checked against a digest; a damaged entry is thrown away and built again.
The least recently used entries go first when the limit is passed. Successes are kept, and failures that the same source
would always meet again; a time or memory limit passed today may hold tomorrow.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tilewright.records import Build, BuildFailure, FailureReason, RecordError, from_json, to_json
from tilewright.toolchain.errors import ToolchainError

DEFAULT_LIMIT_BYTES = 2 << 30
LASTING_FAILURES = frozenset(
    {
        FailureReason.DIAGNOSTICS,
        FailureReason.EXTERNAL,
        FailureReason.DEVICE_STATE,
        FailureReason.DEVICE_CALL,
    }
)

_RECORD, _CUBIN, _PTX = "record.json", "kernel.cubin", "kernel.ptx"
TEMPORARY = ".writing-"
_STALE_SECONDS = 600.0
_IN_USE_SECONDS = 3600.0  # a folder without a record may be another writer's for so long after its last change
_LOOK_AGAIN_FRACTION = 32  # a writer measures the whole cache again after this part of the limit


class BuildCache:
    """A folder of builds. Without arguments: TILEWRIGHT_CACHE or ~/.cache/tilewright/builds, TILEWRIGHT_CACHE_BYTES."""

    def __init__(self, directory: Path | None = None, limit_bytes: int | None = None) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._serial = itertools.count()
        self._written_bytes: int | None = None  # since the cache was last measured; None before the first time
        self._warned = False

    @property
    def directory(self) -> Path:
        if self._directory is not None:
            return self._directory
        named = os.environ.get("TILEWRIGHT_CACHE")
        return Path(named).expanduser() if named else Path.home() / ".cache" / "tilewright" / "builds"

    @property
    def limit_bytes(self) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes
        named = os.environ.get("TILEWRIGHT_CACHE_BYTES", "")
        if named and not named.isdecimal():
            raise ToolchainError(f"TILEWRIGHT_CACHE_BYTES is {named!r}; write a number of bytes, such as {2 << 30}")
        return int(named) if named else DEFAULT_LIMIT_BYTES

    def get(self, key: str) -> Build | BuildFailure | None:
        """The result kept under a key, or None. A damaged entry is removed on the way."""
        entry = self.directory / key
        try:
            digest, _, record = (entry / _RECORD).read_bytes().partition(b"\n")
        except OSError:
            return None
        try:
            cubin = (entry / _CUBIN).read_bytes()
            stored = Stored(record, cubin, (entry / _PTX).read_bytes())
            if digest != _digest(stored):
                raise RecordError("digest differs")
            result = from_stored(stored)
        except (OSError, RecordError):
            self._remove(entry)
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, or a cache that may only be read
            os.utime(entry / _RECORD)  # the time of last use
        return result

    def put(self, key: str, result: Build | BuildFailure) -> None:
        """Keep a result, if it is of a lasting kind. A cache that cannot be written warns once and is done without."""
        if isinstance(result, BuildFailure) and result.reason not in LASTING_FAILURES:
            return
        stored = to_stored(result)
        try:
            self._write(key, stored)
            self._written(sum(map(len, stored)))
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"builds are not cached: {error}; set TILEWRIGHT_CACHE to a writable folder", stacklevel=3
                )

    def size_bytes(self) -> int:
        """What all entries take together."""
        return sum(size for _, size, _ in self._entries())

    def trim(self) -> None:
        """Remove the least recently used entries until the limit holds, and what killed writers left."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        young = time.time() - _IN_USE_SECONDS
        for used, size, entry in entries:
            if total <= self.limit_bytes:
                break
            if used > young and not (entry / _RECORD).is_file():
                continue
            self._remove(entry)
            total -= size
        for leftover in self.directory.glob(f"{TEMPORARY}*"):
            try:
                if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(leftover, ignore_errors=True)
            except OSError:
                continue

    def _write(self, key: str, stored: Stored) -> None:
        entry = self.directory / key
        temporary = self._temporary()
        temporary.mkdir(parents=True)
        try:
            (temporary / _CUBIN).write_bytes(stored.cubin)
            (temporary / _PTX).write_bytes(stored.ptx)
            (temporary / _RECORD).write_bytes(_digest(stored) + b"\n" + stored.record)
            try:
                temporary.rename(entry)
            except OSError:
                if (entry / _RECORD).is_file():
                    return  # another writer was first, and the same key holds the same build
                self._remove(entry)
                temporary.rename(entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _written(self, size: int) -> None:
        with self._lock:
            if self._written_bytes is not None:
                self._written_bytes += size
                if self._written_bytes < self.limit_bytes // _LOOK_AGAIN_FRACTION:
                    return
            self._written_bytes = 0
        self.trim()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, folder) of every entry, and of other folders, which have no record."""
        found: list[tuple[float, int, Path]] = []
        try:
            folders = list(os.scandir(self.directory))
        except OSError:
            return found
        for folder in folders:
            if folder.name.startswith(TEMPORARY):
                continue
            try:
                stats = {file.name: file.stat() for file in os.scandir(folder.path)}
                used = stats[_RECORD].st_mtime if _RECORD in stats else folder.stat().st_mtime
            except OSError:
                continue
            found.append((used, sum(stat.st_size for stat in stats.values()), Path(folder.path)))
        return found

    def _remove(self, entry: Path) -> None:
        # Renamed first, so that no reader finds half an entry.
        doomed = self._temporary()
        try:
            entry.rename(doomed)
        except OSError:
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _temporary(self) -> Path:
        return (
            self.directory / f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{next(self._serial)}-{time.time_ns()}"
        )


def _digest(stored: Stored) -> bytes:
    digest = hashlib.sha256()
    for part in stored:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest().encode()


class Stored(NamedTuple):
    """A build's result as the three files of an entry."""

    record: bytes  # JSON, without cubin and PTX
    cubin: bytes
    ptx: bytes


def to_stored(result: Build | BuildFailure) -> Stored:
    if isinstance(result, Build):
        bare = replace(result, cubin=b"", ptx="")
        return Stored(json.dumps(to_json(bare)).encode(), result.cubin, result.ptx.encode())
    return Stored(json.dumps(to_json(result)).encode(), b"", b"")


def from_stored(stored: Stored) -> Build | BuildFailure:
    """The result again; raises `RecordError` where the bytes are not one."""
    try:
        data = json.loads(stored.record)
        ptx = stored.ptx.decode()
    except ValueError as error:
        raise RecordError(f"not a stored build: {error}") from None
    if isinstance(data, dict) and data.get("is") == "BuildFailure":
        failure: BuildFailure = from_json(BuildFailure, data)
        return failure
    build: Build = from_json(Build, data)
    return replace(build, cubin=stored.cubin, ptx=ptx)
