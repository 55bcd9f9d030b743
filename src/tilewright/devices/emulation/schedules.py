"""One plan under several schedules: the same fault seen again is one finding."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from tilewright.records import FindingKind, FindingRecord

_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)


def merged(runs: Iterable[Sequence[FindingRecord]]) -> tuple[FindingRecord, ...]:
    """Findings of all runs, each instruction's once: as first seen, with the greatest count and how many runs saw it."""
    kept: dict[Hashable, FindingRecord] = {}
    for findings in runs:
        seen: set[Hashable] = set()
        for finding in findings:
            key = _key(finding)
            known = kept.get(key)
            if known is None:
                kept[key] = finding
            else:
                more = 0 if key in seen else 1
                kept[key] = replace(known, count=max(known.count, finding.count), schedules=known.schedules + more)
            seen.add(key)
    return tuple(kept.values())


def _key(finding: FindingRecord) -> Hashable:
    # Which side of a race is noticed depends on the schedule; it is one race.
    if finding.kind in _RACES and finding.other_line is not None and finding.line is not None:
        lines = tuple(sorted((finding.line, finding.other_line)))
        return finding.kind, finding.kernel, lines
    return (
        finding.kind,
        finding.kernel,
        finding.launch_line,
        finding.ptx_line,
        finding.where if not finding.ptx_line else "",
    )
