"""Counts as people read them: the annotated source, and the lines that cost far more than they need."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.devices.emulation.translate import launch_counts
from tilewright.ptx.listing import LineCounts, Listing, annotate
from tilewright.ptx.listing_text import render
from tilewright.records import CountsRecord

__all__ = ["CostlyLine", "Listing", "costly_lines", "listing_of", "listing_text"]

# Where sizes are odd a request touches a sector or two more than it needs; that is no news.
_COSTLY_TIMES = 2.0
_COSTLY_MORE = 3.0  # sectors or passes of a request


@dataclass(frozen=True)
class CostlyLine:
    """A line of the kernel file whose memory requests take far more than the fewest sectors or passes."""

    kernel: str
    line: int
    requests: int
    sectors_per_request: float  # 0 where it is not global memory that costs
    ideal_sectors_per_request: float
    passes_per_request: float  # 0 where it is not shared memory that costs
    ideal_passes_per_request: float

    def __str__(self) -> str:
        if self.sectors_per_request:
            return (
                f"{self.sectors_per_request:.1f} sectors of global memory for each request, "
                f"{self.ideal_sectors_per_request:.1f} would carry the same bytes"
            )
        return (
            f"{self.passes_per_request:.1f} passes over shared memory for each request, "
            f"{self.ideal_passes_per_request:.1f} without bank conflicts"
        )


def listing_of(counts: CountsRecord, file: str, source: str) -> Listing:
    """The kernel file's lines with what each did."""
    return annotate(launch_counts(counts, file), {file: source})


def listing_text(listing: Listing) -> str:
    return render(listing)


def costly_lines(listing: Listing) -> tuple[CostlyLine, ...]:
    """Lines whose requests cost far more than they need, in the order of the file."""
    costly: list[CostlyLine] = []
    for line in listing.lines:
        costly += _costs(listing.summary.kernel, line)
    return tuple(costly)


def _costs(kernel: str, line: LineCounts) -> list[CostlyLine]:
    costs = []
    if _is_costly(line.sectors, line.ideal_sectors, line.global_requests):
        requests = line.global_requests
        costs.append(
            CostlyLine(kernel, line.line, requests, line.sectors / requests, line.ideal_sectors / requests, 0.0, 0.0)
        )
    if _is_costly(line.passes, line.ideal_passes, line.shared_requests):
        requests = line.shared_requests
        costs.append(
            CostlyLine(kernel, line.line, requests, 0.0, 0.0, line.passes / requests, line.ideal_passes / requests)
        )
    return costs


def _is_costly(actual: int, ideal: int, requests: int) -> bool:
    return actual >= _COSTLY_TIMES * ideal and actual - ideal >= _COSTLY_MORE * requests > 0
