"""Which workers of a spool live: by their heartbeat, or, on the same machine, by a look at their process.

A heartbeat is stale when it has not changed for a while on the observer's own clock, so machines whose clocks disagree
can share a spool.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from tilewright.devices.spool_files import Announcement, SpoolFiles


class Heartbeats:
    """An observer of the workers of one spool. Whoever it has not seen alive yet gets the whole stale time."""

    def __init__(self, files: SpoolFiles, stale_s: float) -> None:
        self._files = files
        self._stale_s = stale_s
        self._seen: dict[str, tuple[int | None, float]] = {}  # last heartbeat (None: no announcement), seen here when

    def living(self) -> dict[str, Announcement]:
        """Announced workers that are not known to be dead."""
        return {
            worker: announcement
            for worker, (announcement, beat_ns) in self._files.announced().items()
            if not known_dead(announcement) and self._fresh(worker, beat_ns)
        }

    def dead(self, claimants: frozenset[str]) -> frozenset[str]:
        """Announced workers, and holders of claims, that live no more."""
        announced = self._files.announced()
        dead = set()
        for worker in claimants | announced.keys():
            announcement, beat_ns = announced.get(worker, (None, None))
            fresh = self._fresh(worker, beat_ns)
            if not fresh or (announcement is not None and known_dead(announcement)):
                dead.add(worker)
        return frozenset(dead)

    def forget(self, worker: str) -> None:
        self._seen.pop(worker, None)

    def _fresh(self, worker: str, beat_ns: int | None) -> bool:
        now = time.monotonic()
        last_beat_ns, since = self._seen.get(worker, (None, now))
        if worker not in self._seen or last_beat_ns != beat_ns:
            since = now
        self._seen[worker] = (beat_ns, since)
        return now - since <= self._stale_s


def pid_space() -> str:
    """What must be equal for a process number to mean the same process: this boot, this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex  # unknown: equal to nothing


def process_start(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def known_dead(announcement: Announcement) -> bool:
    """True only where this machine can see that the worker's process is no more."""
    return announcement.pid_space == pid_space() and process_start(announcement.pid) != announcement.process_start
