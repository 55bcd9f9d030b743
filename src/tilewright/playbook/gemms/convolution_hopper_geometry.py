"""A convolution as one product of matrices whose columns are positions: what of it is known before any size is.

Along each dimension results come in phases: result `j * phases + r` is number r of position j. It is made from elements
`j * modulus + shift` of the input, and for every phase and tap there is one shift, or none. So all positions, in all
dimensions and of the whole batch, are one long index; input elements that lie `modulus` apart are neighbours in a copy
of the input made for it; and a tap is a constant distance there.

    a convolution:     shift = r * stride + tap * dilation - padding,     modulus = phases * stride
    a transposed one:  shift = (r + padding - tap * dilation) / stride where that is whole,  modulus = phases / stride

Along the width all phases are rows of one product, beside the filters: neighbouring results are stored together, and
few filters fill the tensor cores' 64 rows. Along height and depth each phase is a product of its own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.program import Extent
from tilewright.records import DType

NAMES = ("depth", "height", "width")
_ONE = Extent("1", 1)
_NO_WINDOW = Window(_ONE, _ONE, 1, 1, 0, 1)
ROWS_OF_PRODUCT = 64  # of one wgmma
_MOST_PHASES = 4  # that few filters are multiplied by
_MOST_COPIED_AHEAD = 64  # channels, of which a box has all
LEAST_COPIED_AHEAD = 2**23  # elements of the input: else a launch before the product copies it
LEAST_PRODUCTS_AHEAD = 1150  # with each of them: two warps copy 0.24 elements in a picosecond, on an H200
_FARTHEST = 64  # rows between the first and the last tap of a slot
_PLANAR_STEPS = 4  # 16-element steps of k in the 128 bytes of a row of weights


@dataclass(frozen=True)
class Axis:
    """One dimension: its window, and how results and input elements are numbered along it."""

    window: Window
    transposed: bool
    phases: int

    @property
    def modulus(self) -> int:
        return self.phases // self.window.stride if self.transposed else self.phases * self.window.stride

    @cached_property
    def taps_of_shifts(self) -> dict[int, dict[int, int]]:
        """For every shift, counted from the first: the tap of each phase that meets it."""
        found: dict[int, dict[int, int]] = {}
        for phase, tap in itertools.product(range(self.phases), range(self.window.taps)):
            shift = self._shift(phase, tap)
            if shift is not None:
                found.setdefault(shift + self.margin, {})[phase] = tap
        return dict(sorted(found.items()))

    def _shift(self, phase: int, tap: int) -> int | None:
        one = self.window
        if not self.transposed:
            return phase * one.stride + tap * one.dilation - one.padding
        shift, rest = divmod(phase + one.padding - tap * one.dilation, one.stride)
        return None if rest else shift

    @cached_property
    def margin(self) -> int:
        """Zeros before the first element of the input; elements that no result needs, where it is negative."""
        shifts = (self._shift(*one) for one in itertools.product(range(self.phases), range(self.window.taps)))
        return -min(one for one in shifts if one is not None)

    @property
    def reach(self) -> int:
        """The last shift."""
        return max(self.taps_of_shifts)

    @property
    def all_met(self) -> bool:
        """Whether every phase has taps."""
        return len({phase for taps in self.taps_of_shifts.values() for phase in taps}) == self.phases

    @property
    def margin_rows(self) -> int:
        return max(0, -(-self.margin // self.modulus))

    @property
    def more_rows(self) -> int:
        """Rows beyond one for each position, so that what is read behind an end are the zeros of the next beginning."""
        return max(0, -(-(self.reach + 1 - self.margin) // self.modulus) - 1)


@dataclass(frozen=True)
class Pair:
    """A shift along depth and one along height, and the taps there."""

    taps: tuple[int, ...]  # numbers in a filter without the width, for each kind whose rows it is for; -1: none
    phase: int  # of the copied input: depth's times height's modulus, plus height's
    depth: int  # rows of the copied input along depth, and along height
    height: int


@dataclass(frozen=True)
class Slot:
    """What one load brings for all shifts along the width that it serves."""

    phase: int  # of the copied input, along the width
    shifts: tuple[int, ...]  # in rows of that phase


@dataclass(frozen=True)
class Geometry:
    """What follows from a convolution's windows, and its channels and filters at the task's own sizes."""

    convolution: Convolution

    def weight_at(self, group: str, filter: str) -> str:
        """Where the taps begin that channel c of a group has for a filter, in a kernel."""
        if self.convolution.transposed:
            return f"((long long)({group} * channels + c) * filters + {filter}) * TAPS"
        return f"((long long)({group} * filters + {filter}) * channels + c) * TAPS"

    @property
    def planes(self) -> int:
        """Channels of a group are so few that eight, or twice eight, lie side by side; 0: rows of all channels."""
        held = self.convolution.channels.size * self.parts
        return 0 if held > 16 else 1 if held <= 8 else 2

    @property
    def parts(self) -> int:
        """Elements of k for a channel: f32 that must be exact takes three products of f16."""
        return 3 if self.convolution.is_exact else 1

    @property
    def positions(self) -> int:
        """Of a tile, by 64 rows: as many as registers have room for; exact sums are sums of sums."""
        return 192 if self.convolution.is_exact else 256

    @property
    def rest(self) -> int:
        """Elements of k of a position beyond the eight of the first plane, where those of neighbours lie beside them in
        a row of the second; 0: a row of each plane is of one position."""
        beyond = self.convolution.channels.size * self.parts - 8
        few = self.parts > 1 and self.planes == 2 and beyond <= 4
        return beyond if few and self.axes[2].reach >= self.axes[2].modulus else 0

    @property
    def neighbours(self) -> int:
        """Positions whose elements lie in a row of the second plane, where it has those of several."""
        return min(8 // self.rest, max(len(one.shifts) for one in self.slots))

    @property
    def by_halves(self) -> bool:
        """Whether exact sums are made of one half of the positions while those of the other are added up: where a row
        of taps takes the tensor cores longer than that, and has so few slots that those of two rows fit."""
        long = len(self.slots) <= 2 and len(self.slots) * self.planar_steps > 4
        return self.parts > 1 and self.planes > 0 and long and self.convolution.across is None

    @property
    def copied(self) -> DType:
        """Elements of the copied input, and of packed weights."""
        return DType.BF16 if self.convolution.element is DType.BF16 else DType.F16

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        width = self._windows[2]
        return *self._outer, Axis(width, self.convolution.transposed, self._phases(width))

    @property
    def _windows(self) -> tuple[Window, Window, Window]:
        given = self.convolution.windows
        depth, height, width = (*(_NO_WINDOW,) * (3 - len(given)), *given)
        return depth, height, width

    @property
    def _outer(self) -> tuple[Axis, Axis]:
        transposed = self.convolution.transposed
        depth, height = (Axis(each, transposed, each.stride if transposed else 1) for each in self._windows[:2])
        return depth, height

    def _phases(self, width: Window) -> int:
        """Enough to fill the rows of a product."""
        one = self.convolution
        phases = width.stride if one.transposed else 1
        if self.row_kinds > 1:
            return phases
        most = 2 * ROWS_OF_PRODUCT if self._few_channels and phases == 1 else ROWS_OF_PRODUCT
        while phases * 2 <= _MOST_PHASES and one.filters.size * phases * 2 <= most:
            phases *= 2
            most = ROWS_OF_PRODUCT
        return phases

    @property
    def _few_channels(self) -> bool:
        return self.planes == 1 and self.parts == 1 and self.convolution.channels.size <= 4

    @property
    def fold(self) -> int:
        """Neighbouring elements of the input that lie in one row of a plane, four channels each."""
        return 2 if self._few_channels and self.axes[2].modulus % 2 == 0 else 1

    @property
    def width_phases(self) -> int:
        """Phases of the copied input along the width."""
        return self.axes[2].modulus // self.fold

    @property
    def phases(self) -> int:
        return self.axes[2].phases

    @cached_property
    def row_phases(self) -> tuple[int, ...]:
        """Phases of the width that are rows of the product: those that a tap meets. What is done over channels is done
        of all."""
        met = {phase for taps in self.axes[2].taps_of_shifts.values() for phase in taps}
        return tuple(range(self.phases)) if self.convolution.across is not None else tuple(sorted(met))

    @property
    def rows_of_filter(self) -> int:
        """A power of two: rows of zeros where phases are not."""
        return 1 << (len(self.row_phases) - 1).bit_length()

    @cached_property
    def row_kinds(self) -> int:
        """Kinds of results that are rows of one product, those of the height or all: where filters are so few that
        they fill it only so, and every kind has taps. What a tap of one kind reads others do not read again."""
        one = self.convolution
        if not one.transposed or one.across is not None or any(each.is_whole for each in one.epilogue_inputs):
            return 1
        depth, height = self._outer
        rows = one.filters.size << (self._windows[2].stride - 1).bit_length()
        for kinds in (depth.phases * height.phases, height.phases):
            fits = kinds in (2, 4) and kinds * rows <= ROWS_OF_PRODUCT  # a warp's 16 rows are of one kind
            if fits and depth.all_met and height.all_met:
                return kinds
        return 1

    @cached_property
    def kinds(self) -> tuple[tuple[Pair, ...], ...]:
        """For every phase of depth and height: the taps that its results are made from. Those of kinds that are rows of
        one product are with the first of them."""
        depth, height, _ = self.axes
        every = list(itertools.product(range(depth.phases), range(height.phases)))
        found = []
        for place in range(len(every)):
            here = every[place : place + self.row_kinds] if place % self.row_kinds == 0 else []
            pairs = []
            for (at_d, of_d), (at_h, of_h) in itertools.product(
                depth.taps_of_shifts.items(), height.taps_of_shifts.items()
            ):
                taps = [of_d[d] * height.window.taps + of_h[h] if d in of_d and h in of_h else -1 for d, h in here]
                copy = at_d % depth.modulus * height.modulus + at_h % height.modulus
                if any(tap >= 0 for tap in taps):
                    pairs.append(Pair(tuple(taps), copy, at_d // depth.modulus, at_h // height.modulus))
            found.append(tuple(pairs))
        return tuple(found)

    @property
    def is_filled(self) -> bool:
        """Whether all results are stored once before, because no tap meets at least half of the kinds."""
        if self.convolution.across is not None or any(one.is_whole for one in self.convolution.epilogue_inputs):
            return False
        return self.row_kinds == 1 and 2 * sum(1 for kind in self.kinds if kind) <= len(self.kinds)

    @property
    def is_copied_ahead(self) -> bool:
        """Whether the product copies the input itself, ahead of what it multiplies: where it multiplies for longer than
        two warps of each block take to copy."""
        one = self.convolution
        channels, wide = one.channels.size * one.groups, self.axes[2].window.length.size
        if one.element is not DType.F32 or one.is_exact or self.planes or wide % 4:
            return False
        if self.rows_of_filter > 1 or any(axis.modulus > 1 for axis in self.axes) or channels > _MOST_COPIED_AHEAD:
            return False
        if one.groups > 1 and one.channels.size % 8:
            return False
        chunks = min(8, 1 << (-(-channels // 8) - 1).bit_length())
        piece = 256 // chunks
        in_pieces = -(-wide // piece) * piece / wide  # of lines: a piece at an end takes as long as any
        least = LEAST_PRODUCTS_AHEAD * in_pieces * chunks * 8 / channels  # and so does one of fewer channels
        return self._products_of_element >= least and self._elements >= LEAST_COPIED_AHEAD

    @property
    def _elements(self) -> int:
        """Of the input."""
        one = self.convolution
        lengths = (each.length.size for each in one.windows)
        return math.prod(lengths) * one.channels.size * one.groups * one.batch.size

    @property
    def _products_of_element(self) -> float:
        one = self.convolution
        strides = 1 if one.transposed else math.prod(each.stride for each in one.windows)
        return one.filters.size * math.prod(each.taps for each in one.windows) / strides

    @property
    def has_narrow_tiles(self) -> bool:
        """Whether tiles have 64 rows where there are more: then shared memory is read less for as many products. With
        lines that follow each other in the result they are stored later, which is no loss where the input is copied
        meanwhile."""
        one = self.convolution
        plain = not one.is_exact and not self.planes and one.across is None and self.rows_of_filter == 1
        return plain and (not one.transposed or self.is_copied_ahead)

    @cached_property
    def made(self) -> tuple[int, ...]:
        """The kinds that the product has jobs for."""
        if self.row_kinds > 1:
            return tuple(range(0, len(self.kinds), self.row_kinds))
        return tuple(place for place, kind in enumerate(self.kinds) if kind or not self.is_filled)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        width = self.axes[2]
        found: list[Slot] = []
        for phase in range(self.width_phases):
            met = [at for at in width.taps_of_shifts if at % width.modulus // self.fold == phase]
            shifts = sorted({at // width.modulus for at in met})
            found += [Slot(phase, one) for one in self._cut(shifts)]
        return tuple(found)

    def _cut(self, shifts: list[int]) -> list[tuple[int, ...]]:
        """Shifts in groups that one slot serves; a planar one serves all between its first and last."""
        farthest = self._most_shifts - 1 if self.planes else _FARTHEST
        found: list[list[int]] = []
        for one in shifts:
            if found and one - found[-1][0] <= farthest:
                found[-1].append(one)
            else:
                found.append([one])
        return [tuple(range(one[0], one[-1] + 1)) if self.planes else tuple(one) for one in found]

    @property
    def _most_shifts(self) -> int:
        """Of a planar slot: as many as a row of weights has room for."""
        fits = (most for most in range(1, 2 * _PLANAR_STEPS + 1) if len(self._chunks(most)) <= 2 * _PLANAR_STEPS)
        return max(fits)

    def _chunks(self, shifts: int) -> list[tuple[int, int]]:
        """Eights of k in a planar slot of so many shifts: their plane, and their row for the slot's first position."""
        if self.rest:
            return [(0, row) for row in range(shifts)] + [(1, row) for row in range(0, shifts, 8 // self.rest)]
        return [(plane, row) for row in range(shifts) for plane in range(self.planes)]

    @cached_property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """Those of the longest slot, an even number: the last one twice, or the next."""
        found = self._chunks(max(len(one.shifts) for one in self.slots))
        if len(found) % 2:
            found.append(found[-1] if self.rest else (0, found[-1][1] + 1))
        return tuple(found)

    @cached_property
    def elements(self) -> tuple[tuple[int, int], ...]:
        """Of each element of k in a planar slot: how many shifts behind the first, and its number among those of a
        position; -1 where there is none."""
        longest = max(len(one.shifts) for one in self.slots)
        found: list[tuple[int, int]] = []
        for place, (plane, row) in enumerate(self.chunks):
            twice = (plane, row) in self.chunks[:place]
            for i in range(8):
                away, number = (i // self.rest, 8 + i % self.rest) if plane and self.rest else (0, 8 * plane + i)
                given = not twice and away < 8 // max(1, self.rest) and row + away < longest
                found.append((row + away, number) if given else (0, -1))
        return *found, *((0, -1),) * ((1 << (len(found) - 1).bit_length()) - len(found))  # a row has a power of two

    @property
    def tail_depth(self) -> int:
        """Rows of zeros behind the last image, along depth: as far as a result reads, and whole slots of planes."""
        axis = self.axes[0]
        return axis.reach // axis.modulus if self.planes else axis.margin_rows

    @property
    def tail_height(self) -> int:
        """The same along height."""
        axis = self.axes[1]
        return 1 + (axis.reach // axis.modulus if self.planes else axis.margin_rows)

    @property
    def halo(self) -> int:
        """Rows of a slot behind its positions, without lines for further taps of the height."""
        if self.planes:
            return 2 * self.planar_steps
        return max(one.shifts[-1] - one.shifts[0] for one in self.slots)

    @cached_property
    def lines_of_kinds(self) -> tuple[int, ...]:
        """For each kind: the taps of height beside each tap of depth. Strided, several taps of depth have one place in
        copies of their own."""

        def of_depth(pair: Pair) -> tuple[int, int]:
            return pair.depth, pair.phase // self.axes[1].modulus

        return tuple(sum(1 for pair in kind if of_depth(pair) == of_depth(kind[0])) or 1 for kind in self.kinds)

    @property
    def more_lines(self) -> int:
        """Lines of the copied input between the first and the last tap of the height, which a slot may serve all; 0: a
        slot is for one of them."""
        height = self.axes[1]
        if height.modulus > 1 or (self.parts > 1 and (not self.planes or self.by_halves or len(self.slots) > 1)):
            return 0
        heights = [sorted({pair.height for pair in kind}) for kind in self.kinds if kind]
        if any(len({after - one for one, after in itertools.pairwise(each)}) > 1 for each in heights):
            return 0
        if len({len(each) for each in heights}) > 1:  # a slot is as large as for the most of them
            return 0
        return max(each[-1] - each[0] for each in heights)

    @property
    def width_blocks(self) -> int:
        """Blocks of weights for one pair of taps: one for each shift, or one for each slot."""
        return len(self.slots) if self.planes else sum(len(one.shifts) for one in self.slots)

    @property
    def planar_steps(self) -> int:
        """Steps of 16 along k."""
        return len(self.chunks) // 2
