"""What the addresses of a call show, followed for every block of every launch at full size."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records.emulation import FindingRecord


@dataclass(frozen=True)
class Touched:
    """The elements of a tensor that a call writes, or reads."""

    name: str
    elements: int
    touched: int
    first_left: tuple[int, ...] | None = None  # index of the first that it does not
    by: tuple[int, ...] = ()  # positions of launches and library steps in the plan

    @property
    def whole(self) -> bool:
        return self.touched == self.elements


@dataclass(frozen=True)
class WrittenTwice:
    """Elements that different threads of a launch store to, not by atomic operations."""

    name: str
    index: tuple[int, ...]  # of the first
    launch: int  # its position among the launches
    blocks: tuple[int, int]
    count: int


@dataclass(frozen=True)
class LaunchPath:
    """Blocks of a launch that take the same way through the slice."""

    launch: int
    blocks: int
    example: int  # one of them, drawn at random


@dataclass(frozen=True)
class FollowedAddresses:
    """`reason`: why they could not be followed, a clause; the rest is then empty."""

    reason: str = ""
    needs: tuple[str, ...] = ()  # inputs that addresses depend on and that were not given
    written: tuple[Touched, ...] = ()  # of outputs that do not start cleared
    read: tuple[Touched, ...] = ()  # of inputs
    reads_left: str = ""  # why not all reads were followed, a clause
    twice: tuple[WrittenTwice, ...] = ()
    twice_left: str = ""  # why it is unknown whether those threads write the same, a clause
    unread: str = ""  # that a part of an input which results need is read by nothing, a clause
    ways: int = 0  # values decide some accesses: of the two ways that all of them may go, those followed; 0: none does
    paths: tuple[LaunchPath, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    thread_instructions: int = 0

    @property
    def followed(self) -> bool:
        return not self.reason and not self.needs

    @property
    def doubt(self) -> str:
        """Why they do not show that each element is written, and by one thread, a clause; "" where they do."""
        return self.reason or self.twice_left

    def __str__(self) -> str:
        """`written: all 4,194,304 elements of y by 1 launch; read: all of x`."""
        if not self.followed:
            return f"not followed: {self.reason or 'they depend on ' + ' and '.join(self.needs)}"
        parts = []
        if self.written:
            parts.append("written: " + ", ".join(map(_written, self.written)))
        if self.read:
            parts.append("read: " + ", ".join(f"{_share(one)} of {one.name}" for one in self.read))
        if self.ways:
            parts.append("whichever way values decide" if self.ways > 1 else "as if values decided one way")
        if self.reads_left:
            parts.append(f"reads were not followed: {self.reads_left}")
        return "; ".join(parts)


def _written(one: Touched) -> str:
    count = f"all {one.elements:,}" if one.whole else f"{one.touched:,} of {one.elements:,}"
    steps = f" by {len(one.by)} launch{'es' if len(one.by) > 1 else ''}" if one.by else ""
    return f"{count} elements of {one.name}{steps}"


def _share(one: Touched) -> str:
    return "all" if one.whole else f"{100 * one.touched / one.elements:.3g} %" if one.touched else "nothing"
