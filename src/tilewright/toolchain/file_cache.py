"""`FileCache`: a folder of files by name, shared by processes, from which the least recently used are removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from tilewright.toolchain.nvrtc import ToolchainError

DEFAULT_LIMIT_BYTES = 2 << 30
TEMPORARY = ".writing-"
_STALE_SECONDS = 600.0  # after which an unfinished file's writer counts as killed
_TRIM_FRACTION = 32  # a writer trims after writing this fraction of the limit


def cache_directory() -> Path:
    """The folder of the builds: TILEWRIGHT_CACHE, or ~/.cache/tilewright/builds."""
    named = os.environ.get("TILEWRIGHT_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "tilewright" / "builds"


class FileCache:
    """Files are whole or absent, whenever a process is killed. Without arguments: `cache_directory`, and
    TILEWRIGHT_CACHE_BYTES as the limit."""

    def __init__(self, directory: Path | None = None, limit_bytes: int | None = None) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._written_bytes: int | None = None  # since the cache was last measured; None before the first time

    @property
    def directory(self) -> Path:
        return self._directory or cache_directory()

    @property
    def limit_bytes(self) -> int:
        named = os.environ.get("TILEWRIGHT_CACHE_BYTES", "")
        if self._limit_bytes is None and named and not named.isdecimal():
            raise ToolchainError(f"TILEWRIGHT_CACHE_BYTES is {named!r}; write a number of bytes, such as {2 << 30}")
        return self._limit_bytes if self._limit_bytes is not None else int(named or DEFAULT_LIMIT_BYTES)

    def read(self, name: str) -> bytes | None:
        try:
            content = (self.directory / name).read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, or a read-only cache
            os.utime(self.directory / name)  # the time of last use
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a file; raises `OSError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.replace(temporary, self.directory / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        with self._lock:
            if self._written_bytes is not None:
                self._written_bytes += len(content)
                if self._written_bytes < self.limit_bytes // _TRIM_FRACTION:
                    return
            self._written_bytes = 0
        self.trim()

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.directory / name).unlink()

    def size_bytes(self) -> int:
        """The total size of all files."""
        return sum(size for _, size, _ in self._entries())

    def trim(self) -> None:
        """Remove the least recently used files beyond the limit, and the leftovers of killed writers."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for used, size, path in entries:
            unfinished = path.name.startswith(TEMPORARY)
            if time.time() - used > _STALE_SECONDS if unfinished else total > self.limit_bytes:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()  # earlier versions kept folders
                total -= size

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of every entry."""
        found: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.directory):
                with contextlib.suppress(OSError):
                    inside = list(os.scandir(entry.path)) if entry.is_dir() else [entry]
                    found.append((entry.stat().st_mtime, sum(one.stat().st_size for one in inside), Path(entry.path)))
        return found
