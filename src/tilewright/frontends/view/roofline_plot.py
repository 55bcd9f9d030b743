"""A kernel under its GPU's roofline: operations for each byte moved, and operations in a second, both on log scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.frontends import svg
from tilewright.frontends.run_words import microseconds

WIDTH, HEIGHT = 620, 380
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 56, 52


@dataclass(frozen=True)
class Roofline:
    """What was counted of a kernel, and what its GPU could do at best."""

    gpu: str
    bandwidth_gbs: float
    peaks: tuple[tuple[str, float], ...]  # kind of arithmetic, TFLOP/s; those that the kernel uses
    operations: float
    bytes: float
    time_us: float
    time_is: str  # "measured" or "modelled"

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit."""
        return max(peak for _, peak in self.peaks) * 1e3 / self.bandwidth_gbs

    @property
    def roof(self) -> float:
        """What could be done at this intensity, in TFLOP/s."""
        return min(max(peak for _, peak in self.peaks), self.intensity * self.bandwidth_gbs / 1e3)

    @property
    def share(self) -> float:
        return self.tflops / self.roof

    @property
    def share_words(self) -> str:
        """`12%`, and never `0%`."""
        return f"{self.share:.0%}" if self.share >= 0.01 else "less than 1%"

    @property
    def tflops(self) -> float:
        return self.operations / (self.time_us * 1e6)


def roofline_picture(found: Roofline) -> str:
    """Slanted: what the memory lets through. Level: what each kind of arithmetic can do. The dot is the kernel."""
    ridge = found.ridge
    low, high = min(found.intensity, ridge) / 10, max(found.intensity, ridge) * 10
    top = 2.5 * max(peak for _, peak in found.peaks)
    bottom = min(found.tflops / 4, low * found.bandwidth_gbs / 1e3)

    def x(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(intensity / low) / math.log(high / low)

    def y(tflops: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(tflops / bottom) / math.log(top / bottom)

    body = []
    for tick in _decades(low, high):
        body.append(svg.line(x(tick), TOP, x(tick), HEIGHT - BOTTOM, svg.FAINT))
        body.append(svg.text(x(tick), HEIGHT - BOTTOM + 18, f"{tick:g}"))
    for tick in _decades(bottom, top):
        body.append(svg.line(LEFT, y(tick), WIDTH - RIGHT, y(tick), svg.FAINT))
        body.append(svg.text(LEFT - 8, y(tick) + 4, f"{tick:g}", anchor="end"))
    body.append(svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "operations for each byte of device memory"))
    for name, peak in found.peaks:
        corner = peak * 1e3 / found.bandwidth_gbs
        body.append(svg.polyline([(x(low), y(low * found.bandwidth_gbs / 1e3)), (x(corner), y(peak))], svg.DOT))
        body.append(svg.polyline([(x(corner), y(peak)), (x(high), y(peak))], svg.DOT))
        body.append(svg.text(WIDTH - RIGHT, y(peak) - 6, f"{name}: {peak:g} TFLOP/s", anchor="end"))
    here = x(found.intensity)
    body.append(svg.line(here, y(found.tflops), here, y(found.roof), svg.INK, dashes="5 4"))
    said = f"{found.tflops:.3g} TFLOP/s in {microseconds(found.time_us)} us {found.time_is}"
    body.append(svg.titled(said, svg.dot(here, y(found.tflops), svg.GOOD, 6)))
    share = f"{found.share_words} of the roof"
    body.append(svg.text(here + 12, y(found.tflops) + 5, share, colour=svg.GOOD, anchor="start"))
    subtitle = (
        f"TFLOP/s against operations a byte, {found.bandwidth_gbs:,.0f} GB/s; time {found.time_is}, counts emulated"
    )
    return svg.page(WIDTH, HEIGHT, f"Roofline of {found.gpu}", subtitle, LEFT, body)


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten in between."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
