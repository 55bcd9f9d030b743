"""Sweeps that were made before: what a GPU timed once is not timed again in any later process.

Those of `known_sweeps.json` come with the package, timed on GPUs of ours. Modelled times are as good as the model, and
the next release may have another: they are kept for this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.records import RecordError, from_json, to_json
from tilewright.toolchain import cache_directory

KNOWN = Path(__file__).with_name("known_sweeps.json")
_MOST = 4096  # sweeps; those made first go first


@dataclass(frozen=True)
class Sweep:
    """The times of a sweep's choices in microseconds, by rounds; the default is the first."""

    times_us: tuple[tuple[tuple[tuple[str, int | bool], ...], tuple[tuple[float, ...], ...]], ...]


class SweepMemory:
    """A folder with a file for each sweep, whole or absent. By default beside the builds; `known` is only read."""

    def __init__(self, folder: Path | None = None, known: Path = KNOWN) -> None:
        builds = cache_directory()
        self._known = known
        self._folder = folder or builds.with_name(f"{builds.name}-tuned")

    def find(self, key: str) -> Sweep | None:
        """A sweep on record, here or with the package; one that cannot be read is as good as absent."""
        with contextlib.suppress(OSError, ValueError, RecordError):
            found: Sweep = from_json(Sweep, json.loads(self._path(key).read_text("utf-8")))
            return found
        return known_sweeps(self._known).get(key)

    def keep(self, key: str, sweep: Sweep) -> None:
        """Put a sweep on record; where that cannot be done, it is made again."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".writing-")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(to_json(sweep), stream)
            os.replace(temporary, self._path(key))
            self._make_room()

    def _make_room(self) -> None:
        kept = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[: max(0, len(kept) - _MOST)]:
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


@cache
def known_sweeps(path: Path = KNOWN) -> Mapping[str, Sweep]:
    """Those that come with the package, by their keys."""
    with contextlib.suppress(OSError):
        return {key: from_json(Sweep, one) for key, one in json.loads(path.read_text("utf-8")).items()}
    return {}


class ProcessMemory(SweepMemory):
    """The same without a folder."""

    def __init__(self) -> None:
        super().__init__()
        self._sweeps: dict[str, Sweep] = {}

    def find(self, key: str) -> Sweep | None:
        return self._sweeps.get(key)

    def keep(self, key: str, sweep: Sweep) -> None:
        self._sweeps[key] = sweep
