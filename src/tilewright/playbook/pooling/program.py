"""What a pooling task computes: the windows, what goes into them, and what is made of the result."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.indices import Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, merged, whole_program
from tilewright.playbook.places.reader import PlaceReader, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import TracedNode

MAXIMA = frozenset(("max_pool2d_with_indices", "max_pool3d_with_indices"))
MEANS = frozenset(("avg_pool1d", "avg_pool2d", "avg_pool3d"))
POOLS = MAXIMA | MEANS


@dataclass(frozen=True)
class Window:
    """Along one dimension. `inside` counts the input's places, `outside` the result's."""

    inside: Variable
    outside: Variable
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """From its first element to its last."""
        return (self.kernel - 1) * self.dilation + 1


@dataclass(frozen=True)
class PoolProgram:
    placed: PlacedProgram
    leaf: str  # stands for the pooled value
    windows: tuple[Window, ...]  # one to three, the innermost last
    value: int  # of the input's element
    is_mean: bool
    divisor: int | None  # of a mean, where it is the same everywhere
    counts_padding: bool
    is_inside: bool  # no window reaches past the end of the padded input

    @property
    def planes(self) -> tuple[Variable, ...]:
        """The loop variables that number the planes."""
        own = {one.outside for one in self.windows}
        return tuple(one for one in self.placed.variables if one not in own)

    @property
    def start(self) -> str:
        """What changes nothing."""
        return "0.0f" if self.is_mean else "-INFINITY"


def pool_program(traced: TracedTask) -> PoolProgram:
    """The one pooling of the task. Raises `NotSupported` for anything else."""
    reader = PlaceReader(traced, PLACE_RULES, POOLS)
    placed = whole_program(reader, "where it pools")
    if len(placed.wholes) != 1:
        raise NotSupported(f"the playbook writes one pooling at a time, and here are {len(placed.wholes)}")
    ((leaf, whole),) = placed.wholes.items()
    node = reader.nodes[whole.node]
    windows, padded = _windows(reader, node, whole)
    inside = {one.outside: one.inside for one in windows}
    places = tuple(
        of_variable(inside[place.atoms[0]]) if len(place.terms) == 1 and place.atoms[0] in inside else place
        for place in whole.places
    )
    value = reader.convert(reader.argument(node, 0, places), NumberKind.FLOAT)
    if any(isinstance(one, Whole) for name, one in reader.leaves.items() if name not in placed.leaves):
        raise NotSupported("the playbook writes one pooling at a time, not one of another")
    placed = placed.renewed(reader, value)
    placed = replace(placed, leaves={**placed.leaves, leaf: replace(whole, places=())})  # the windows say where
    placed = merged(placed, frozenset(one.outside for one in windows))
    mean = node.target in MEANS
    divisor, counts = _divisor(reader, whole.node, windows, padded) if mean else (None, True)
    return PoolProgram(placed, leaf, windows, value, mean, divisor, counts, not padded)


def _windows(reader: PlaceReader, node: TracedNode, whole: Whole) -> tuple[tuple[Window, ...], bool]:
    """The windows over dimensions that have any, and whether the last may reach over the padding."""
    mean = node.target in MEANS
    given = reader.whole_numbers(whole.node, 1, "kernel_size")[0]
    rank = len(given)
    lists = [given]
    for position, keyword, default in ((2, "stride", given), (3, "padding", (0,)), (4, "dilation", (1,))):
        found = () if mean and keyword == "dilation" else reader.whole_numbers(whole.node, position, keyword)[0]
        found = found or default
        lists.append(found if len(found) == rank else found * rank)
    sizes = reader.shape(reader.source(node))[-rank:]
    ceil = reader.flag(node, 4 if mean else 5, "ceil_mode")
    windows = []
    for place, size, kernel, stride, padding, dilation in zip(whole.places[-rank:], sizes, *lists, strict=True):
        if not place.terms and kernel == 1 and padding == 0:
            continue  # a dimension that was put in to pool along the other
        outside = place.atoms[0] if len(place.terms) == 1 and place.constant.is_always(0) else None
        if not isinstance(outside, Variable) or not place.terms[0][1].is_always(1):
            raise NotSupported(f"the playbook writes the result of {node.target} in its own order, not regrouped")
        inside = Variable(f"in_{outside.name.removeprefix('at_').removeprefix('y_')}", size)
        windows.append(Window(inside, outside, kernel, stride, padding, dilation))
    return tuple(windows), ceil


def _divisor(reader: PlaceReader, node: int, windows: tuple[Window, ...], ceil: bool) -> tuple[int | None, bool]:
    """What a sum is divided by, where it is the same in every window; and whether padding is counted."""
    override = reader.whole_number(node, 6, "divisor_override", 0)[0]
    if override:
        return override, True
    counts = reader.flag(reader.nodes[node], 5, "count_include_pad", True)
    count = 1
    for one in windows:
        count *= one.kernel
    same = not ceil and (counts or all(one.padding == 0 for one in windows))
    return (count if same else None), counts
