"""From the sums in registers to the result, as text: put in order in shared memory, finished, and stored by lines."""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.playbook.gemms.finish_text import FinishText
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_hopper_store")


def runs_text(geometry: Geometry) -> str:
    """Which results a tile has."""
    rows = geometry.row_phases
    if len(rows) == geometry.phases:
        place = "  return phase * PITCH + min(position, POSITIONS - 1u);"
    else:
        found = "".join(f"phase == {phase} ? {row} : " for row, phase in enumerate(rows))
        place = f"  const int row = {found}-1;  // -1: no tap meets it\n"
        place += "  return row < 0 ? POSITIONS : row * PITCH + min(position, POSITIONS - 1u);"
    return worded(_CUDA["runs"], {"sector": str(sector(geometry)), "place_of_phase": place})


def sector(geometry: Geometry) -> int:
    return 32 // geometry.convolution.output.dtype.itemsize


def asked_text(finish: FinishText) -> str:
    """What is read with the results of a job, asked for before it is multiplied."""
    whole = [one for one in finish.inputs if one.place == "at"]
    asked = [f'asm volatile("prefetch.global.L2 [%0];" ::"l"({one.name} + at));' for one in whole]
    return worded(_CUDA["ahead"], {"asked": asked}) if whole else ""


def store_text(geometry: Geometry, finish: FinishText) -> str:
    """What a consumer does with the sums of a job, once they are scaled."""
    dtype = geometry.convolution.output.dtype
    made = finish.call_read("value[f][i]", "[f][i]")
    stored = "value[f][i]" if dtype is DType.F32 else f"static_cast<{dtype.cpp}>(value[f][i])"
    words = {
        "there": finish.arrays("[FILTERS_TOGETHER][TOGETHER]"),
        "from": finish.pointers("one_address(@ + base(f))"),
        "read": finish.reads("[f][i]", "line[f].has(begin[f] + i * 32)", "apart(i)"),
        "row": ["const long long row = line[f].at / s.plane();"] if "row" in finish.takes else [],
    }
    return worded(_CUDA["store"], {**words, "made": made, "stored": stored})


ONE_ADDRESS = _CUDA["one_address"]
NOTHING_STAGED = _CUDA["nothing_staged"]
SCALED = _CUDA["scaled"]
