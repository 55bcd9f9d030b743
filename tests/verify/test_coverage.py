"""What of an own call is held to be covered by judged cases, of the same build and of others."""

from __future__ import annotations

import pytest

from tilewright.records import LOOP, CoverageRecord, CoveredSite, Seen, from_json, to_json
from tilewright.records.verdict import Passed, UncoveredLine
from tilewright.verify.trial import Coverage

TEXT = "one\n  two();\nthree\nfour"
BOTH = Seen.RAN | Seen.SKIPPED


def record(program: str, *sites: tuple[tuple[int, ...], str, tuple[Seen, ...]]) -> CoverageRecord:
    return CoverageRecord("k", 1, program, tuple(CoveredSite(at, what, bytes(seen).hex()) for at, what, seen in sites))


def lacking(own: CoverageRecord, *judged: CoverageRecord) -> list[tuple[int, str]]:
    coverage = Coverage()
    coverage.add(judged)
    return [(one.line, one.why) for one in coverage.uncovered([own], TEXT)]


def site(line: int, what: str, *seen: Seen) -> tuple[tuple[int, ...], str, tuple[Seen, ...]]:
    return (line,), what, seen


def test_the_same_code_is_compared_instruction_by_instruction() -> None:
    own = record("a", site(2, "ld", Seen.RAN, Seen.RAN), site(3, "st", Seen(0)))
    assert lacking(own, record("a", site(2, "ld", Seen.RAN, Seen(0)))) == [(2, "it never ran")]
    assert not lacking(
        own, record("a", site(2, "ld", Seen.RAN, Seen(0))), record("a", site(2, "ld", Seen(0), Seen.RAN))
    )


def test_other_code_is_compared_line_by_line() -> None:
    """A build for another size has other instructions at the line, or more of them."""
    own = record("a", site(2, "mad", Seen.RAN, Seen.RAN), site(3, "st", Seen.RAN))
    assert lacking(own, record("b", site(2, "shl", Seen.RAN))) == [(3, "it never ran")]
    assert not lacking(own, record("b", site(2, "shl", Seen.RAN)), record("c", site(3, "st", Seen.RAN)))


@pytest.mark.parametrize(
    ("own", "judged", "lacks"),
    [
        (Seen.MANY_TRIPS, Seen.SEVERAL_TRIPS, False),
        (Seen.MANY_TRIPS, Seen.ONE_TRIP | Seen.TWO_TRIPS, True),
        (Seen.ONE_TRIP, Seen.MANY_TRIPS, True),
        (Seen.TWO_TRIPS, Seen.TWO_TRIPS | Seen.MANY_TRIPS, False),
        (Seen(0), Seen.MANY_TRIPS, False),
    ],
)
def test_trips_of_loops(own: Seen, judged: Seen, lacks: bool) -> None:
    assert bool(lacking(record("a", site(2, LOOP, own)), record("a", site(2, LOOP, judged)))) is lacks


def test_ways_of_conditions() -> None:
    branch = "its branch never went this way"
    assert lacking(record("a", site(2, "bra", BOTH)), record("a", site(2, "bra", Seen.RAN))) == [(2, branch)]
    assert lacking(record("a", site(2, "bra", Seen.RAN)), record("a", site(2, "bra", Seen.SKIPPED))) == [(2, branch)]
    chosen = record("a", site(2, "selp", Seen.RAN | Seen.FIRST))
    assert lacking(chosen, record("a", site(2, "selp", Seen.RAN | Seen.SECOND))) == [(2, branch)]
    # Another build may have turned the condition round.
    assert not lacking(record("a", site(2, "bra", Seen.RAN)), record("b", site(2, "bra", Seen.SKIPPED)))
    assert lacking(record("a", site(2, "bra", BOTH)), record("b", site(2, "bra", Seen.SKIPPED))) == [(2, branch)]


def test_a_provisional_verdict_says_what_it_lacks() -> None:
    coverage = Coverage()
    lines = coverage.uncovered([record("a", site(2, "st", Seen.RAN))], TEXT)
    assert lines == (UncoveredLine(2, "two();", "it never ran"),)
    passed = Passed((), uncovered=lines)
    assert passed.is_provisional
    assert passed.unjudged == ("line 2: it never ran in a judged case: two();",)
    assert from_json(Passed, to_json(passed)) == passed
    assert not Passed(()).is_provisional
    assert "uncovered" not in to_json(Passed(()))
