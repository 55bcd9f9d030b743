"""What a bench says: each contender's time, and how it stands beside the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Timing
from tilewright.records.intervals import Interval


@dataclass(frozen=True)
class BenchRow:
    """One contender. Without a GPU a time is modelled, and has no samples."""

    name: str
    time_us: float | None  # None: it has none
    times_as_long: float | None = None  # as the kernel takes
    interval: Interval | None = None  # where that lies, where it was measured
    timing: Timing | None = None
    judged: str = ""  # of a kernel file: whether it is right
    note: str = ""


@dataclass(frozen=True)
class BenchReport:
    file: str
    op: str
    gpu: str
    device: str
    measured: bool
    arguments: dict[str, str]
    guessed: bool
    floor_us: float
    rows: tuple[BenchRow, ...]  # the kernel first
    wrong: tuple[str, ...]  # kernel files that are not right
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return int(bool(self.wrong) or self.rows[0].time_us is None)
