"""What the kernels of attention have in common, as text: where matrices begin, what becomes of a score, and storing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented, worded
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Index, Variable
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.text import PlacedKernel, product_text
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/text")

LOG2_E = "1.4426950408889634"

POWER = _CUDA["power"]
PAIR = _CUDA["pair"]


_COMMON = "product scored shared_row inverse head unit rest lane heads rows keys depth columns scale result"


def _names_in(texts: tuple[str, ...]) -> frozenset[str]:
    """Every name in the texts but those that stand for something else, and but what comments say."""
    bare = (re.sub(r"//.*", "", text) for text in texts)
    return frozenset(word for text in bare for word in re.findall(r"(?<![@\w])[A-Za-z_]\w*", text))


EACH_SCORE = [  # of a thread that has eight keys of two rows, 8 apart, as mma.sync leaves them
    "unrolled for (int j = 0; j < KEYS / 8; ++j)",
    "  unrolled for (int e = 0; e < 4; ++e) {",
    "    const int key = key0 + j * 8 + e % 2;",
]


class AttentionPlan(PlanLines):
    """The launch plan: it begins with how many heads, rows and keys there are, and how long they are."""

    def __init__(self, made: Attention, op_line: str) -> None:
        super().__init__(made.placed.as_rows(), op_line)
        self.made = made
        heads, rows, keys, depth, columns = map(self.name, ("heads", "rows", "keys", "depth", "columns"))
        self.add("let", f"{heads} = {product_text(made.heads)}, {rows} = {made.row.size.text}")
        self.add("let", f"{keys} = {made.along.size.text}, {depth} = {made.depth.size.text}")
        self.add("let", f"{columns} = {made.column.size.text}")
        self.add("need", " and ".join(f"{one} > 0" for one in (rows, keys, depth, columns)))
        self.add("need", f"max({rows}, {keys}) <= {MOST_32_BIT} and {heads} <= {MOST_32_BIT}")

    def lengths(self) -> None:
        """Of a query and a result, as constants."""
        self.add("const", "D = @depth, E = @columns", "elements of a query and of a result")

    def whole_rows(self, elements: int) -> None:
        """Those, and that rows of queries, keys and values begin at whole numbers of so many elements."""
        made = self.made
        sizes = [one for read in (made.query, made.key, made.value) for one in _apart(read.place, made)]
        texts = dict.fromkeys(one.text for one in sizes if one.literal is None or one.literal % elements)
        lengths = dict.fromkeys((self.name("depth"), self.name("columns")))
        needs = [" and ".join(f"{text} % {elements} == 0" for text in lengths)]
        for need in (*needs, *(f"({text}) % {elements} == 0" for text in texts)):
            self.add("need", need, "rows are whole vectors of 16 bytes")
        self.lengths()

    def shared_memory(self, size: str) -> None:
        self.add("let", f"@smem = {size}")
        self.add("need", "@smem <= device.smem_block")

    def tiles(self, rows: str) -> None:
        """Of so many rows of queries, in all heads."""
        self.add("let", f"@tiles = ceil_div(@rows, {rows})")
        self.add("need", "@tiles * @heads <= 2000000000")

    def numbers(self, *words: str) -> list[tuple[str, str]]:
        """Numbers of the plan as parameters of a kernel, under the same names."""
        return [(f"int {word}", self.name(word)) for word in words]

    def fragment(self, header: str, device: Iterable[str], *kernels: list[str], more: tuple[str, ...] = ()) -> Fragment:
        """With what kernels call, as texts; and with headers that tensors do not ask for."""
        pieces = [one.splitlines() for one in device]
        named = header.format(name=self.program.name)
        return fragment(named, self, includes(self.program, *more), *pieces, *kernels)


def pair_text(element: DType) -> str:
    """The function for two numbers of 16 bits."""
    rounded = f"__floats2{'bfloat16' if element is DType.BF16 else 'half'}2_rn"
    return worded(PAIR, {"rounded": rounded, "type": f"{element.cpp}2"})


class AttentionKernel(PlacedKernel):
    """A kernel being written, for the heads, rows and keys of an attention."""

    plan: AttentionPlan

    def __init__(self, plan: AttentionPlan, *texts: str) -> None:
        """`texts` are what the kernel is made of: tensors and variables of the task avoid the names in them."""
        super().__init__(plan.made.placed, plan, None, quick=False)
        self.made = plan.made
        self.namer = Namer(self.rows, _names_in((*texts, _COMMON)))
        self.forms = Forms(self.rows, self.namer, quick=False)
        self.statements = Statements(self.rows, self.forms, self.namer)

    def first(self, place: Index) -> str:
        """Where the matrix of this head begins."""
        made = self.made
        inside = (made.row, made.along, made.depth, made.column)
        kept = tuple((atom, factor) for atom, factor in place.terms if atom not in inside)
        return self.index(Index(kept, place.constant), {})

    def pitch(self, place: Index, variable: Variable) -> str:
        """How far apart neighbours along a variable are."""
        factor = place.factor(variable)
        return "0ll" if factor is None else self.size(factor)

    def scored(self, split: list[str] | None = None) -> list[str]:
        """The function from a product, scaled, to a score; nothing where they are the same.

        `split` finds the row, and the head that has it, from the number of a row among those that share keys.
        """
        made = self.made
        if made.scores.value is None:
            return []
        row = self.variable(made.row) if split is None else "shared_row"
        names = f"int {row}, int {self.variable(made.along)}"
        known = {self.value_of(made.score_leaf): Text("product")}
        lines, texts = self.write((made.scores.value,), known, self.load_alone)
        return [
            "// What is made of the product of a query and a key.",
            f"auto scored = [&](float product, {names}) -> float {{",
            *indented([*(split or []), *lines, f"return {texts[made.scores.value].text};"]),
            "};",
        ]

    def places(self) -> list[tuple[str, str, str]]:
        """Of queries, keys and values: where this head's begin, and how far apart rows are."""
        made = self.made
        found = []
        for name, read, along in (
            ("q", made.query, made.row),
            ("k", made.key, made.along),
            ("v", made.value, made.along),
        ):
            found.append((name, "first", f"{self.pointer(read.tensor)} + {self.first(read.place)}"))
            found.append((name, "pitch", self.pitch(read.place, along)))
        return found

    @property
    def _shift(self) -> str:
        offset = self.made.scores.causal
        return "" if offset is None or offset.is_always(0) else f" + {self.size(offset, 'int')}"

    def ends(self, row: str) -> str:
        """The number of keys that any row before this one looks at; one at least, so that there is a tile."""
        return "keys" if self.made.scores.causal is None else f"max(1, min(keys, {row}{self._shift}))"

    def outside(self, row: str, key: str) -> str:
        """The test for a key that is not there, or that the row does not look at."""
        causal = "" if self.made.scores.causal is None else f" || {key} > {row}{self._shift}"
        return f"{key} >= keys{causal}"

    def masked(self, loop: list[str], score: str, row: str, first_row: str) -> list[str]:
        """Scores of keys that are not there or not looked at, of all rows from the first on; in tiles that have none
        nothing is asked. `loop` goes through a thread's scores, and ends with the line that finds the key."""
        before = loop[-1][: len(loop[-1]) - len(loop[-1].lstrip())]
        outside = self.outside(row, "key")
        if self.made.scores.value is not None:
            scored = f"{LOG2_E}f * scored({score} * scale, {row}, key)"
            return [*loop, f"{before}{score} = {row} < rows && !({outside}) ? {scored} : -INFINITY;", f"{before[2:]}}}"]
        end = "(n + 1) * KEYS"
        causal = "" if self.made.scores.causal is None else f" || {end} > {first_row}{self._shift} + 1"
        each = [*loop, f"{before}if ({outside}) {score} = -INFINITY;", f"{before[2:]}}}"]
        return [f"if ({end} > keys{causal}) {{", *indented(each), "}"]

    def stored_pair(self, first: str, second: str) -> list[str]:
        """A store of two neighbours of 16 bits; nothing where the result is more than the sums, or lies otherwise."""
        made = self.made
        (output,) = made.placed.outputs
        factor = output.place.factor(made.column)
        others = [one for atom, one in output.place.terms if atom != made.column] + [output.place.constant]
        even = all(one.literal is None or one.literal % 2 == 0 for one in others) and made.column.size.own % 2 == 0
        if not (made.is_plain and output.dtype is made.element and factor is not None and factor.is_always(1) and even):
            return []
        pointer, place = self.at(output.name, output.place, {})
        return [f"*reinterpret_cast<uint32_t*>({pointer} + {place}) =", f"    pair({first}, {second});"]

    def stored_lines(self, sum: str) -> list[str]:
        """Statements that store the result at the row and the column, made of the weighted sum."""
        result = self.namer.fresh("result")
        return [
            f"const float {result} = {sum};",
            *self.store_each({self.value_of(self.made.result_leaf): Text(result)}),
        ]


def is_whole(made: Attention, elements: int) -> bool:
    """Whether they do at the task's own sizes."""
    sizes = [one for read in (made.query, made.key, made.value) for one in _apart(read.place, made)]
    return all(one.own % elements == 0 for one in (*sizes, made.depth.size, made.column.size))


def _apart(place: Index, made: Attention) -> list[Size]:
    return [factor for atom, factor in place.terms if atom not in (made.depth, made.column)] + [place.constant]


def scale_argument(made: Attention) -> tuple[str, str]:
    """What products are multiplied by, as a parameter and what the plan gives for it.

    Scores that nothing else is made of are in powers of two from the start.
    """
    scale = made.scores.scale
    if made.scores.value is not None:
        return "float scale", scale
    return "float scale", f"{LOG2_E} * {scale}" if "/" not in scale else f"{LOG2_E} * ({scale})"


def inverse_line(made: Attention, total: str) -> str:
    """What sums are multiplied by at the end."""
    if made.zero_where_masked:
        return f"const float inverse = {total} == 0.0f ? 0.0f : 1.0f / {total};  // a row without keys gives zeros"
    return f"const float inverse = 1.0f / {total};  // a row without keys gives NaN, as softmax does"
