"""What of a kernel was run in judged cases, and what of its own call was not.

Where two builds have the same code, instructions are compared one by one. Where they differ, because sizes are written
into the code, what counts is the line: its instructions ran, its conditions went both ways if they do in the own call,
its loops went round many times. Only what runs in the own call is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce

from tilewright.records import LOOP, CoverageRecord, CoveredSite, Seen, UncoveredLine

_MANY = Seen.SEVERAL_TRIPS | Seen.MANY_TRIPS
_TRIPS = _MANY | Seen.ONE_TRIP | Seen.TWO_TRIPS
_PAIRS = (Seen.RAN | Seen.SKIPPED, Seen.FIRST | Seen.SECOND)

_Place = tuple[tuple[int, ...], str]


@dataclass
class Coverage:
    """Everything that was seen to run and judged right."""

    _programs: dict[str, dict[_Place, list[Seen]]] = field(default_factory=dict)
    _places: dict[_Place, Seen] = field(default_factory=dict)
    _lines: dict[int, Seen] = field(default_factory=dict)  # by innermost line, whatever stands there

    def add(self, records: Iterable[CoverageRecord]) -> None:
        for record in records:
            known = self._programs.setdefault(record.program, {})
            for site in record.sites:
                place, each = (site.lines, site.what), _seen(site)
                before = known.get(place, [Seen(0)] * len(each))
                known[place] = [one | other for one, other in zip(before, each, strict=True)]
                together = _together(each)
                self._places[place] = self._places.get(place, Seen(0)) | together
                if site.lines and site.what != LOOP:
                    self._lines[site.lines[0]] = self._lines.get(site.lines[0], Seen(0)) | together

    def uncovered(self, own: Iterable[CoverageRecord], text: str) -> tuple[UncoveredLine, ...]:
        """The lines of the kernel file where the own call does what no judged case did."""
        source = text.split("\n")
        found: dict[tuple[int, str], None] = {}
        for record in own:
            for site, why in self._missing(record):
                line = site.lines[0] if site.lines else 0
                if 0 < line <= len(source):
                    found.setdefault((line, why))
        return tuple(UncoveredLine(line, source[line - 1].strip(), why) for line, why in sorted(found))

    def _missing(self, record: CoverageRecord) -> Iterator[tuple[CoveredSite, str]]:
        known = self._programs.get(record.program)
        for site in record.sites:
            place, each = (site.lines, site.what), _seen(site)
            if known is not None:
                for one, other in zip(each, known.get(place, [Seen(0)] * len(each)), strict=True):
                    yield from ((site, why) for why in _lacking(site.what, one, other))
                continue
            line = self._lines.get(site.lines[0], Seen(0)) if site.lines else Seen.RAN
            judged = self._places.get(place)
            yield from ((site, why) for why in _lacking_elsewhere(site.what, _together(each), judged, line))


def _together(each: list[Seen]) -> Seen:
    """Of all of them."""
    return reduce(operator.or_, each, Seen(0))


def _seen(site: CoveredSite) -> list[Seen]:
    return [Seen(one) for one in bytes.fromhex(site.seen)]


def _lacking(what: str, own: Seen, judged: Seen) -> Iterator[str]:
    """Of one instruction, or of the head of one loop."""
    if what == LOOP:
        for trips, words in ((Seen.ONE_TRIP, "just once"), (Seen.TWO_TRIPS, "just twice")):
            if own & trips and not judged & trips:
                yield f"its loop never went round {words}"
        if own & _MANY and not judged & _MANY:
            yield "its loop never went round more than twice"
    elif own & Seen.RAN and not judged & Seen.RAN:
        yield "it never ran" if what != "bra" else _WAY
    elif own & ~judged & (Seen.SKIPPED | Seen.FIRST | Seen.SECOND):
        yield _WAY


_WAY = "its condition never went this way"


def _lacking_elsewhere(what: str, own: Seen, judged: Seen | None, line: Seen) -> Iterator[str]:
    """Of all instructions of a kind at a place, in other builds: there a condition may be turned round, or be left out
    together with its loop because a size is known, and other instructions may do the line's work."""
    if what == LOOP:
        if judged is not None and own & _MANY and not judged & _MANY and judged & _TRIPS:
            yield "its loop never went round more than twice"
    elif own & (Seen.RAN | Seen.SKIPPED) and not line & (Seen.RAN | Seen.SKIPPED):
        yield "it never ran"
    elif judged and any(own & both == both and judged & both != both for both in _PAIRS if what in ("bra", "selp")):
        yield _WAY
