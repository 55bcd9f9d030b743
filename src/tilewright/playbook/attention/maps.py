"""How TMA sees queries, keys and values: tensor maps of whole tensors, and the coordinates of a tile."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import AttentionKernel
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.reader import Read
from tilewright.playbook.places.sizes import Size

_MOST_OUTER = 3  # dimensions of a map beside rows and elements
_TOGETHER = 8  # elements of 16 bytes, of which TMA takes whole ones


@dataclass(frozen=True)
class MatrixMap:
    """A matrix of every head: rows of `pitch` elements, in which this head's begin at an offset."""

    read: Read
    pitch: Size
    outer: tuple[tuple[Variable, Size], ...]  # heads that lie apart, with how far
    inner: tuple[tuple[Variable, Size], ...]  # heads that lie side by side in a row
    offset: Size

    @property
    def rank(self) -> int:
        return 2 + len(self.outer)

    @property
    def needs(self) -> list[str]:
        """What the plan must ask for: all that places are made of is a multiple of 16 bytes."""
        sizes = [self.pitch, *(one for _, one in (*self.outer, *self.inner)), self.offset]
        texts = dict.fromkeys(one.text for one in sizes if one.literal is None or one.literal % _TOGETHER)
        return [f"({text}) % {_TOGETHER} == 0" for text in texts]

    def tiled(self, rows_text: str, box_rows: str) -> str:
        shape = [*(one.size.text for one, _ in self.outer), rows_text, self.pitch.text]
        stride = [*(apart.text for _, apart in self.outer), self.pitch.text, "1"]
        box = ["1"] * len(self.outer) + [box_rows, "64"]
        return (
            f"tiled({self.read.tensor}, shape=[{', '.join(shape)}], stride=[{', '.join(stride)}], "
            f"box=[{', '.join(box)}], swizzle=128, l2=256)"
        )

    def element(self, kernel: AttentionKernel) -> str:
        """Where this head's rows begin in a row of the map."""
        parts = [f"{kernel.variable(one)} * {kernel.size(apart, 'int')}" for one, apart in self.inner]
        parts += [kernel.size(self.offset, "int")] if not self.offset.is_always(0) else []
        return " + ".join(parts)

    def outer_coordinates(self, kernel: AttentionKernel) -> list[str]:
        """Innermost first, as TMA has them."""
        return [kernel.variable(one) for one, _ in reversed(self.outer)]


def matrix_map(made: Attention, read: Read, rows: Variable) -> MatrixMap:
    """Raises `NotSupported` where TMA cannot see the matrices so."""
    pitch = read.place.factor(rows)
    if pitch is None:
        raise NotSupported("the playbook reads matrices of several rows by TMA")
    outer: list[tuple[Variable, Size]] = []
    inner: list[tuple[Variable, Size]] = []
    for one in made.heads:
        apart = read.place.factor(one)
        if apart is None:
            continue
        side_by_side = all(a < b for a, b in zip(apart.values, pitch.values, strict=True))
        (inner if side_by_side else outer).append((one, apart))
    if len(outer) > _MOST_OUTER:
        raise NotSupported("the playbook reads by TMA what has up to five dimensions")
    return MatrixMap(read, pitch, tuple(outer), tuple(inner), read.place.constant)


def load_box(rank: int) -> str:
    """The function that brings a box of a map of this rank."""
    coordinates = [f"int c{index}" for index in range(rank)]
    named = ", ".join(f"%{index + 3}" for index in range(rank))
    given = ", ".join(f'"r"(c{index})' for index in range(rank))
    return f"""\
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to,
                                         {", ".join(coordinates)}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{{named}}}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), {given} : "memory");
}}
"""
