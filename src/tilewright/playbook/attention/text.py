"""What the kernels of attention have in common, as text: where matrices begin, what becomes of a score, and storing."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines
from tilewright.playbook.places.indices import Index, Variable
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.text import PlacedKernel, product_text

LOG2_E = "1.4426950408889634"

POWER = """\
__device__ __forceinline__ float power_of_two(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
"""


class AttentionKernel(PlacedKernel):
    """A kernel being written, for the heads, rows and keys of an attention."""

    def __init__(self, made: Attention, plan: PlanLines) -> None:
        super().__init__(made.placed, plan, None, quick=False)
        self.made = made

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

    def scored(self, row: str = "at_row", key: str = "at_key") -> list[str]:
        """The function from a product, scaled, to a score; nothing where they are the same."""
        made = self.made
        if made.scores.value is None:
            return []
        names = f"int {self.variable(made.row)}, int {self.variable(made.along)}"
        known = {self.value_of(made.score_leaf): Text("product")}
        lines, texts = self.write((made.scores.value,), known, self.load_alone)
        return [
            "// What is made of the product of a query and a key.",
            f"auto scored = [&](float product, {names}) -> float {{",
            *indented([*lines, f"return {texts[made.scores.value].text};"]),
            "};",
        ]

    def stored_lines(self, sum: str) -> list[str]:
        """Statements that store the result at the row and the column, made of the weighted sum."""
        return self.store_each({self.value_of(self.made.result_leaf): Text(sum)})


def plan_sizes(made: Attention, plan: PlanLines) -> dict[str, str]:
    """The plan's names for how many heads, rows, keys there are and how long they are."""
    names = {word: plan.name(word) for word in ("heads", "rows", "keys", "depth", "columns", "scale")}
    plan.add("let", f"{names['heads']} = {product_text(made.heads)}, {names['rows']} = {made.row.size.text}")
    plan.add("let", f"{names['keys']} = {made.along.size.text}, {names['depth']} = {made.depth.size.text}")
    plan.add("let", f"{names['columns']} = {made.column.size.text}")
    least = [f"{names[one]} > 0" for one in ("rows", "keys", "depth", "columns")]
    plan.add("need", " and ".join(least))
    plan.add("need", f"max({names['rows']}, {names['keys']}) <= {MOST_32_BIT} and {names['heads']} <= {MOST_32_BIT}")
    return names


def scale_argument(made: Attention) -> tuple[str, str]:
    """What products are multiplied by, as a parameter and what the plan gives for it.

    Scores that nothing else is made of are in powers of two from the start.
    """
    scale = made.scores.scale
    if made.scores.value is not None:
        return "float scale", scale
    return "float scale", f"{LOG2_E} * {scale}" if "/" not in scale else f"{LOG2_E} * ({scale})"


def is_kept(made: Attention, kernel: AttentionKernel, row: str, key: str) -> str:
    """The test for a key that a row looks at; every key is one without a causal mask."""
    offset = made.scores.causal
    if offset is None:
        return ""
    shift = "" if offset.is_always(0) else f" + {kernel.size(offset, 'int')}"
    return f"{key} <= {row}{shift}"


def literal(size: Size) -> int | None:
    return size.literal
