"""Which launches have surely ended where programmatic launches overlap.

A programmatic launch starts when every block of the launch before has let it, or has ended. griddepcontrol.wait waits
for that launch only, and that launch has waited for the one before it only if one of its own threads did.
"""

from __future__ import annotations

_LAUNCHES = 8  # that `MemoryRegion.recent` tells apart, two bits each; the last stands for all that are older
OLDEST = 3 << 2 * (_LAUNCHES - 1)

_Launches = frozenset[int]


class LaunchOrder:
    """The launches of one memory, by number, in order."""

    def __init__(self) -> None:
        self._number = -1
        self._at_start: _Launches = frozenset()  # have ended when the current one starts
        self._at_end: _Launches = frozenset()  # have ended when the one before has
        self._let: _Launches = frozenset()  # have ended when the one before lets the current one start

    def begin(self, *, overlaps: bool) -> tuple[int, int]:
        """The bits of the launches that may still run: when this one starts, and when it has waited."""
        self._number += 1
        self._at_start = self._let if overlaps else frozenset(range(self._number))
        return self._open(self._at_start), self._open(self._at_start | self._at_end)

    def end(self, *, awaited: bool, awaited_first: bool) -> None:
        """`awaited`: a thread waited; `awaited_first`: in some block before that let the next launch start."""
        waited = self._at_start | self._at_end
        self._let = waited if awaited_first else self._at_start
        self._at_end = (waited if awaited else self._at_start) | {self._number}

    def _open(self, ended: _Launches) -> int:
        bits = 0
        for launch in set(range(self._number)) - ended:
            bits |= 3 << 2 * min(self._number - launch, _LAUNCHES - 1)
        return bits
