"""The copy of the input made by the product's own kernel, as text: two warps of a block, ahead of what is multiplied.

A copy takes as long as memory does, and a product as long as tensor cores and shared memory do. In one kernel they take
as long as the longer of them, and what is copied is read from the cache before it leaves that. TMA brings boxes of x,
with zeros around it; warps that have nothing else to do put channels side by side, bulk copies store them, and what is
there is counted. Who loads rows waits for the pieces that they lie in. Blocks wait for each other, so that all of them
must run at once.
"""

from __future__ import annotations

from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/convolution_hopper_ahead")

_UNDER_WAY = 2  # boxes of a warp
_BOX_BYTES = 8192  # 256 times eight channels
_LEAD = 4  # tiles of all blocks that the copy is ahead, at most: what has been copied shall be read from the cache
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 56, 224
COPY_BYTES = 2 * (_UNDER_WAY * _BOX_BYTES + 2 * _BOX_BYTES // 2) + 256  # of two warps: boxes, what is stored, barriers


def before_first(geometry: Geometry) -> int:
    """Elements between where the first box of a line begins, which is a multiple of 16 bytes, and the line's first."""
    return -geometry.axes[2].margin % 4


def ahead_parameters() -> list[tuple[str, str]]:
    """Of the kernel, beside those of the product."""
    return [
        ("const __grid_constant__ CUtensorMap x_map", "@x_map"),
        ("uint4* __restrict__ copied", "@copied"),
        ("int* __restrict__ noted", "@noted"),
        ("int* __restrict__ arrived", "@arrived"),
        ("int x_depth", "@x_depth"),
        ("int x_height", "@x_height"),
        ("int pieces_of_line", "@pieces_of_line"),
    ]


def ahead_functions(geometry: Geometry) -> str:
    """What the two warps do, and how it is waited for."""
    text = _CUDA["ahead"].replace("@before", str(before_first(geometry)))
    return text.replace("@under_way", str(_UNDER_WAY)).replace("@lead", str(_LEAD)).replace("@box", str(_BOX_BYTES))


def ahead_text(geometry: Geometry) -> str:
    """What the kernel knows of it."""
    pairs = [pair for kind in geometry.kinds for pair in kind]
    outer = f"({max(one.depth for one in pairs)} * height + {max(one.height for one in pairs)}) * width"
    return _CUDA["known"].replace("@reach", f"{outer} + {max(one.shifts[0] for one in geometry.slots)}")


LOADER_WAITS = _CUDA["loader_waits"]
COPIES = _CUDA["copies"]
