"""What a consumer multiplies for a job, as text: the products of rows of taps."""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/convolution_hopper_products")


def products_text(geometry: Geometry) -> str:
    """The products of a row of taps, added to those before it; of a few rows, where sums of sums are made."""
    exact = geometry.convolution.is_exact
    if geometry.by_halves:
        if geometry.rest:
            steps = [geometry.planar_steps for _ in geometry.slots]
        else:
            steps = [len(one.shifts) if geometry.planes == 2 else -(-len(one.shifts) // 2) for one in geometry.slots]
        words = {"steps": ", ".join(map(str, steps)), "along": _ALONG_POSITIONS, "step": _planar_step(geometry)}
        return worded(_CUDA["halves"], words)
    if geometry.planes:
        text = _CUDA["planar_sums"] if exact else _CUDA["planar_products"]
        along, step, block = _ALONG_POSITIONS, _planar_step(geometry), "slot"
    else:
        text, along, step, block = _CUDA["row_products"], "", "(step * 32 >> 4)", "i"
    each = {"lines": "", "rows_of_line": "", "first_line": ""}
    if not exact:
        each = {"lines": _CUDA["lines"], "rows_of_line": " + line * line_rows", "first_line": " && line == 0"}
    words = {"multiply": _CUDA["multiply"], "sum": "some" if exact else "sum", "along": along, "step": step, **each}
    if not exact:
        return worded(text, {**words, "before": "weight"})
    text = worded(text, words)
    first, others = text.replace("@before", block), text.replace("@before || step", "true")
    return worded(_CUDA["sum_of_rows"], {"first": first, "others": others})


def loop_text(geometry: Geometry) -> str:
    """The head of a loop over rows of taps; over those that a slot serves together, where each row is not a sum."""
    return _CUDA["rows_one_by_one"] if geometry.convolution.is_exact else _CUDA["rows_of_a_slot"]


def _planar_step(geometry: Geometry) -> str:
    """What a step of k adds to the descriptor of a slot."""
    return "step_at(step)" if geometry.rest else "(step * (32 / PLANES) >> 4)"


def step_text(geometry: Geometry) -> list[str]:
    """Where the elements of k of a slot lie, where a second plane has those of neighbours side by side."""
    at = ", ".join(f"{'PLANE_BYTES + ' if plane else ''}{row * 16}" for plane, row in geometry.chunks)
    return _CUDA["step"].replace("@at", at).splitlines() if geometry.rest else []


def empty_text(geometry: Geometry) -> str:
    """What a job has whose results no tap meets."""
    all_met = all(geometry.kinds[one] for one in geometry.made)
    return "" if geometry.convolution.is_exact or all_met else _CUDA["empty"]


_ALONG_POSITIONS = "  // k goes from position to position: a row of a plane is 16 bytes"
