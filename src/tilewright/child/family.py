"""The processes below one: who they are, what they hold, and their end, as /proc has it.

While a process lives, all that it started is found by way of the kernel's own lists of children, and costs what they
are; only of one that died by itself must the whole table be searched for what it left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_ROUNDS = 3  # what is being killed may fork once more
_DYING_S = 2.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # some sandboxes have no such lists


def resident_bytes(pids: Iterable[int]) -> int:
    """What processes hold in memory together; those that are gone hold nothing."""
    held = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            held += int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    return held


def descendants(pid: int) -> list[int]:
    """Every process below one, without a look at any other."""
    found: list[int] = []
    unseen = [pid]
    while unseen:
        children = [child for child in _children(unseen.pop()) if child not in found]
        found += children
        unseen += children
    return found


def _children(pid: int) -> Iterator[int]:
    if not _LISTED:
        for one in _table():
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int(_stat(one)[1]) == pid:
                    yield one
        return
    with contextlib.suppress(OSError):  # gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def kill_strays(session: int, home: str) -> None:
    """Kill what a dead process left: processes of its session, or with its home in their environment.

    The one thing here that looks at every process of the machine.
    """
    mark = f"HOME={home}\0".encode()
    found = []
    for pid in _table():
        with contextlib.suppress(OSError, IndexError, ValueError):
            group, own = map(int, _stat(pid)[2:4])
            if own == group == session:  # with all of its group, so that none can fork meanwhile
                os.killpg(session, signal.SIGKILL)
            if own == session or mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    kill(found)


def _table() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def kill_below(pid: int) -> None:
    """Kill every process below one that adopts the orphans below it; itself it is left alone."""
    for _ in range(_ROUNDS):
        living = [one for one in descendants(pid) if process_start(one) is not None]
        if not living:
            return
        kill(living)


def kill(pids: Sequence[int]) -> None:
    """Kill processes, and give them the moment that dying takes."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DYING_S
    while any(process_start(pid) is not None for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)


def process_start(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when there is no such process, or only its remains."""
    try:
        state, *rest = _stat(pid)
    except OSError:
        return None
    return None if state in "ZX" else rest[18]


def pid_space() -> str:
    """What must be equal for a process number to mean the same process: this boot, this pid namespace."""
    try:
        return f"{_read('/proc/sys/kernel/random/boot_id').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex  # unknown: equal to nothing


def _stat(pid: int) -> list[str]:
    """The fields of a process's status from its state on: its name, which comes before, may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
