"""Pooling: what is read of a graph, and what its kernels have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.playbook.cpp_text import Text
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines
from tilewright.playbook.places.indices import Index, Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, merged, whole_program
from tilewright.playbook.places.reader import PlaceReader, Read, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.text import PlacedKernel, product_text
from tilewright.playbook.places.vectors import Known
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import TracedNode
from tilewright.records import DType

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
        raise NoMatch
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
        raise NoMatch
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
            raise NoMatch
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


# -- what kernels for pooling have in common --


_AXES = ("X", "Y", "Z")
_OWN_NAMES = """
across all_lines along barriers bytes beside cell cells cells_here chunks columns combined entered first_x group left
line made most o one pair planes pooled q r results strips tap target tile tiles top turned two unit units v window
"""
_OWN = frozenset(_OWN_NAMES.split())  # names in the text of the kernels, which no tensor may have

GREATER = """\
// The greater of two; NaN if either is, as in PyTorch.
__device__ __forceinline__ float combined(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
#else
  return a > b || a != a ? a : b;
#endif
}
"""
SUM = "__device__ __forceinline__ float combined(float a, float b) { return a + b; }\n"


class PoolKernel(PlacedKernel):
    """A kernel for pooling being written."""

    def __init__(self, program: PoolProgram, plan: PlanLines, width: int = 0) -> None:
        super().__init__(program.placed, plan, program.windows[-1].inside, True, width, _OWN)
        self.pool = program
        self.axes = dict(zip(_AXES, reversed(program.windows), strict=False))
        self._begins: dict[tuple[str, Index], str] = {}  # where the plane of a unit begins in a tensor
        self.fixed: dict[Size, str] = {}  # sizes that the kernel is built for, by constants of the plan

    @property
    def writes_much(self) -> bool:
        """Whether there are half as many results as elements, or more: reading alone takes as long in any way."""
        sizes = [(one.inside.size.own, one.outside.size.own) for one in self.axes.values()]
        return math.prod(inside for inside, _ in sizes) <= 2 * math.prod(outside for _, outside in sizes)

    def read_once(self) -> None:
        """A line of the plan: whether what windows go over is too large for any cache."""
        sizes = [product_text(self.pool.planes), *(f"({one.inside.size.text})" for one in self.axes.values())]
        self.plan.read_once(" * ".join(sizes))

    @property
    def pooled(self) -> int:
        """The number of the value that stands for the pooled one."""
        return self.value_of(self.pool.leaf)

    def at(self, tensor: str, place: Index, known: Known, shift: str = "") -> tuple[str, str]:
        """By strips, 32 bits count from where the plane begins: 64 for every load would take longer than the loads."""
        zero = place.constant.minus(place.constant)
        outer = Index(tuple(term for term in place.terms if self._is_of_plane(Index((term,), zero))), zero)
        inner = Index(tuple(term for term in place.terms if term not in outer.terms), place.constant)
        extents = [factor.times(atom.size) for atom, factor in inner.terms if isinstance(atom, Variable)]
        if len(extents) < len(inner.terms) or any(one.own < 0 for one in extents):
            return super().at(tensor, place, known, shift)
        if (tensor, outer) not in self._begins:
            self._begins[tensor, outer] = self.namer.fresh(f"{tensor}_plane")
            if extents:
                self.plan.add("need", f"{max(extents, key=lambda one: one.own).text} <= {MOST_32_BIT}")
        # Signed, so that the compiler may take what rows of a window are apart into the loads themselves.
        return self._begins[tensor, outer], f"({self.index(inner, known, shift, 'int')})"

    def size(self, size: Size, kind: str = "long long") -> str:
        return self.fixed.get(size) or super().size(size, kind)

    def _is_of_plane(self, place: Index) -> bool:
        """Whether it is the same in the whole plane."""
        own = (one for axis in self.pool.windows for one in (axis.inside, axis.outside))
        return not place.lookups and not any(place.mentions(one) for one in own)

    def plane_lines(self) -> list[str]:
        """Declarations of where planes begin."""
        types = {one.tensor: f"const {one.dtype.cpp}" for one in self.program.leaves.values() if isinstance(one, Read)}
        types |= {one.name: one.dtype.cpp for one in self.program.outputs}
        return [
            f"{types[tensor]}* {name} = {self.pointer(tensor)} + {self.index(outer, {})};"
            for (tensor, outer), name in self._begins.items()
        ]

    def constants(self) -> list[str]:
        lines = []
        for axis, one in self.axes.items():
            named = {"KERNEL": one.kernel, "STRIDE": one.stride, "PAD": one.padding, "DILATION": one.dilation}
            lines.append(f"constexpr int {', '.join(f'{name}_{axis} = {number}' for name, number in named.items())};")
        return lines

    def pieces(self) -> list[list[str]]:
        return [[one] for one in (*self.forms.helpers(), SUM if self.pool.is_mean else GREATER)]

    def result_lines(self, made: str) -> list[str]:
        """Statements that turn the combined window into results and store them."""
        lines, text = self._divided(made)
        return [*lines, *self.store_each({self.pooled: text})]

    @property
    def is_alone(self) -> bool:
        """Whether the only result is f32, lies in order along rows, and an element is made of the pooled one alone."""
        outputs, x = self.program.outputs, self.pool.windows[-1].outside
        if len(outputs) > 1 or outputs[0].dtype is not DType.F32 or (self.pool.is_mean and self.pool.divisor is None):
            return False
        along = outputs[0].place.factor(x)
        return (
            along is not None
            and along.is_always(1)
            and set(self.program.leaves_of((outputs[0].value,))) == {self.pool.leaf}
        )

    def made_lines(self, made: str, to: str) -> list[str]:
        """Statements that turn the combined window into the only result, put to a place of its own."""
        (one,) = self.program.outputs
        return self.lines_of_each(made, {one.name: to})

    def lines_of_each(self, made: str, to: dict[str, str]) -> list[str]:
        """The same for all results, each put to its own place."""
        outputs = self.program.outputs
        lines, text = self._divided(made)
        inner, texts = self.write(tuple(one.value for one in outputs), {self.pooled: text}, self.load_alone)
        return [*lines, *inner, *(f"{to[one.name]} = {self.stored(one, texts[one.value])};" for one in outputs)]

    def result_address(self) -> str:
        """Where the only result's element at the loop variables is."""
        (one,) = self.program.outputs
        return " + ".join(self.at(one.name, one.place, {}))

    def _divided(self, made: str) -> tuple[list[str], Text]:
        if not self.pool.is_mean:
            return [], Text(made)
        if self.pool.divisor is not None:
            return [f"const float pooled = {made} * (1.0f / {self.pool.divisor});"], Text("pooled")
        lines, factors = [], []
        for axis, one in self.axes.items():
            start = f"{self.variable(one.outside)} * STRIDE_{axis} - PAD_{axis}"
            size = self.size(one.inside.size, "int")
            low = "" if self.pool.counts_padding else f"max({start}, 0)"
            end = f"min({start} + KERNEL_{axis}, {size}{f' + PAD_{axis}' if self.pool.counts_padding else ''})"
            lines.append(f"const int count_{axis.lower()} = {end} - ({low or start});")
            factors.append(f"count_{axis.lower()}")
        lines.append(f"const float pooled = {made} / static_cast<float>({' * '.join(factors)});")
        return lines, Text("pooled")
