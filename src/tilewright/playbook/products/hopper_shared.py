"""Tiles that all blocks share, as text: the last ones of 16-bit products on Hopper, which do not fill a round.

Their steps along k, of one tile after the other, are dealt out in equal runs. A block leaves its sums of a run in
scratch memory, in the order of its registers; who has the first of a tile's steps adds them up, always in the same
order, and finishes the tile. Blocks wait for each other, so all of them must be running.
"""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("products/hopper_shared")

SHARED_SUMS = _CUDA["shared_sums"]
WAIT_FOR_OTHERS = _CUDA["wait_for_others"]
WALK = _CUDA["walk"]
