"""A `Listing` as text for people: the totals, then the source with a margin of counts."""

from __future__ import annotations

from tilewright.ptx.listing import WARP_LANES, LaunchSummary, LineCounts, Listing

WASTEFUL = 1.5  # so many times the ideal is worth a mark

_HEADING = f"{'share':>6} {'warp instr':>11} {'lanes':>6} {'sectors/request':>16} {'passes/request':>15}"
_BLANK = " " * len(_HEADING)


def render(listing: Listing, around: int | None = 2) -> str:
    """The whole text. `around`: how many idle lines to show next to those that ran; None for the whole source."""
    return render_summary(listing.summary) + "\n" + render_lines(listing, around)


def render_summary(summary: LaunchSummary) -> str:
    """Totals in a few lines."""
    ran = f"{summary.blocks:,} blocks"
    if summary.blocks != summary.grid_blocks:
        ran = f"{summary.blocks:,} of {summary.grid_blocks:,} blocks"
    lines = [
        f"{summary.kernel}: {ran}, {summary.warp_instructions:,} warp instructions, "
        f"{summary.thread_instructions:,} thread instructions, "
        f"{summary.active_lanes / WARP_LANES:.0%} of lanes active (emulated)"
    ]
    mix = ", ".join(f"{each.kind.value} {each.share:.1%}" for each in summary.mix)
    lines.append(f"  instructions: {mix or 'none'}")
    operations = [f"{each.kind.value} {each.count:,}" for each in (*summary.flops, *summary.tensor_operations)]
    if operations:
        lines.append(f"  operations: {', '.join(operations)}")
    level = summary.bytes
    lines.append(
        f"  bytes: global {level.global_bytes:,} ({level.global_sector_bytes:,} in sectors), "
        f"shared {level.shared_bytes:,}, local {level.local_bytes:,}, constant and parameters {level.constant_bytes:,}"
    )
    for traffic in summary.traffic:
        parts = [f"{traffic.requests:,} requests", f"{traffic.bytes:,} bytes"]
        if traffic.sectors:
            parts.append(f"{traffic.sectors:,} sectors, ideal {traffic.ideal_sectors:,}")
        if traffic.passes:
            parts.append(f"{traffic.passes:,} passes, ideal {traffic.ideal_passes:,}")
        lines.append(f"  {traffic.kind.value}: {'; '.join(parts)}")
    return "\n".join(lines) + "\n"


def render_lines(listing: Listing, around: int | None = 2) -> str:
    """The source with its margin. A `!` marks a line whose requests cost far more than they need."""
    out: list[str] = []
    for file, text in listing.sources:
        counted = {line.line: line for line in listing.lines if line.file == file}
        if not counted:
            continue
        out += [f"{file}", f"{_HEADING}   line"]
        source = text.splitlines()
        previous = 0
        for number in _shown(sorted(counted), len(source), around):
            if number != previous + 1:
                out.append(f"{_BLANK}    ...")
            previous = number
            line = counted.get(number)
            margin = _BLANK + " " if line is None else _margin(line)
            shown = source[number - 1] if number <= len(source) else ""
            out.append(f"{margin} {number:>5} | {shown}".rstrip())
    if listing.elsewhere is not None:
        out.append(f"{_margin(listing.elsewhere)} on no line of the source")
    return "\n".join(out) + "\n"


def _shown(counted: list[int], last: int, around: int | None) -> list[int]:
    if around is None:
        return list(range(1, max(last, counted[-1]) + 1))
    numbers: set[int] = set()
    for line in counted:
        numbers.update(range(max(1, line - around), min(max(last, line), line + around) + 1))
    return sorted(numbers)


def _margin(line: LineCounts) -> str:
    sectors = _per_request(line.sectors, line.ideal_sectors, line.global_requests)
    passes = _per_request(line.passes, line.ideal_passes, line.shared_requests)
    wasteful = line.sectors > WASTEFUL * line.ideal_sectors or line.passes > WASTEFUL * line.ideal_passes
    return (
        f"{line.share:>6.1%} {line.warp_instructions:>11,} {line.active_lanes / WARP_LANES:>6.0%} "
        f"{sectors:>16} {passes:>15}{'!' if wasteful else ' '}"
    )


def _per_request(actual: int, ideal: int, requests: int) -> str:
    if not requests:
        return ""
    return f"{actual / requests:.1f} (ideal {ideal / requests:.1f})"
