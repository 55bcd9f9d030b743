"""What was found in a model, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from tilewright.frontends.finding.report import FoundModel, FoundRegion, SwapReport
from tilewright.frontends.report.rendering import BAR_CELLS, bar
from tilewright.frontends.report.runs import microseconds

_PLACES = 2
_WIDTH, _ROW, _LEFT, _TOP = 860, 34, 300, 70
_INK, _TIME, _LEAST = "#1f2933", "#2f6fb5", "#0b7a4b"


def found_lines(found: FoundModel) -> list[str]:
    """The whole listing."""
    kind = "measured" if found.measured else "modelled"
    lines = [
        f"{found.model} on {found.gpu}: {microseconds(found.time_us)} us {kind}, {found.kernels} kernels; "
        f"{found.products_share:.0%} of the time are products and attention, which the vendor's libraries do",
        *found.notes,
        "",
    ]
    if not found.regions:
        return [*lines, "nothing was found that one kernel could do better than those that run now"]
    for region in found.regions:
        lines += _region_lines(region, kind)
    lines += ["", *bars(found), ""]
    able = [one for one in found.regions if one.author == "playbook"]
    lines.append(
        f"with a kernel for each: {found.speedup:.2f}x end to end, at three quarters of the GPU's speed; "
        f"{len(able)} of {len(found.regions)} the playbook can write, free"
    )
    return lines


def _region_lines(region: FoundRegion, kind: str) -> list[str]:
    places = ", ".join(region.places[:_PLACES]) + (
        f" and {len(region.places) - _PLACES} more" * (len(region.places) > _PLACES)
    )
    shapes = ", ".join(f"{name} {layout}" for name, layout in region.inputs.items())
    times = f"{region.calls} call{'s' * (region.calls != 1)}"
    each = f"{region.kernels} kernel{'s' * (region.kernels != 1)} each"
    lines = [
        f"{region.number:>3}  {region.title}",
        f"     {times}, {each}{f', at {places}' if places else ''}",
        f"     {shapes} -> {', '.join(region.outputs)}",
        f"     {microseconds(region.time_us)} us {kind}, {region.share:.1%} of all; as one kernel about "
        f"{microseconds(region.expected_us)} us: {region.speedup:.2f}x end to end",
    ]
    lines.append("     the playbook can write it" if not region.why else f"     needs a model: {region.why}")
    return lines


def swap_lines(found: FoundModel, kernels: Mapping[str, str], swap: SwapReport | None) -> list[str]:
    """What was made, what became of it in the model, and how to have that in a program."""
    lines = [""]
    titles = {str(one.number): one.title for one in found.regions}
    lines += [f"{number:>3}  {titles[number]}: {path}" for number, path in kernels.items()]
    if not kernels:
        return ["", "no kernel was made"]
    if swap is None:
        lines.append("the model is too large to be made here; its outputs are compared where it is swapped")
    else:
        lines += [f"     in {count} places: {title}" for title, count in swap.replaced.items()]
        lines += [f"     put back: {title}: {why}" for title, why in swap.refused.items()]
        lines.append(f"     {swap.agreement}")
        if swap.before_us and swap.after_us:
            before, after = microseconds(swap.before_us), microseconds(swap.after_us)
            lines.append(f"     {before} us before, {after} us after: {swap.before_us / swap.after_us:.2f}x")
    chosen = ", ".join(kernels)
    return [
        *lines,
        "",
        "in a program, with these kernels found again, free:",
        f"    swap = tilewright.find(model, **example_inputs).make({chosen}).swap()   # swap.undo() takes them out",
    ]


def bars(found: FoundModel) -> list[str]:
    """Two bars for each region: its time, and what one kernel would take."""
    longest = max(one.time_us for one in found.regions)
    lines = [
        f"{'measured' if found.measured else 'modelled'} time of each region, and as one kernel; shorter is better"
    ]
    for one in found.regions:
        shown = f"{microseconds(one.time_us)} us"
        lines.append(f"{one.number:>4}  {bar(one.time_us / longest):<{BAR_CELLS}}  {shown:>10}  {one.title}")
        lines.append(f"      {bar(one.expected_us / longest):<{BAR_CELLS}}  {microseconds(one.expected_us):>7} us")
    return lines


def found_svg(found: FoundModel) -> str:
    """The bars as a picture."""
    height = _TOP + _ROW * len(found.regions) + 20
    longest = max((one.time_us for one in found.regions), default=1.0)
    kind = "measured" if found.measured else "modelled"
    title = f"{found.model} on {found.gpu}: {kind} time of each region, and as one kernel"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f'<title>{escape(title)}</title><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="26" font-size="16" fill="{_INK}">{escape(title)}</text>',
        f'<text x="16" y="46" fill="#5b6770">{microseconds(found.time_us)} us in all, {found.products_share:.0%} of it '
        f"products and attention; {found.speedup:.2f}x with a kernel for each</text>",
    ]
    for place, one in enumerate(found.regions):
        y = _TOP + _ROW * place
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 17}" text-anchor="end" fill="{_INK}">{escape(one.title)}</text>')
        for offset, time_us, colour in ((2, one.time_us, _TIME), (14, one.expected_us, _LEAST)):
            width = max((_WIDTH - _LEFT - 110) * time_us / longest, 1.0)
            parts.append(f'<rect x="{_LEFT}" y="{y + offset}" width="{width:.1f}" height="11" fill="{colour}"/>')
            parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + offset + 10}">{microseconds(time_us)} us</text>')
    return "\n".join([*parts, "</svg>\n"])
