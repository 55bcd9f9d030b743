"""The first version of a product: square tiles through shared memory, right at any size and on any GPU."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.products.finish_text import kept_sum, skipped_tile
from tilewright.playbook.products.plan_text import TILE_GROUP, Choices, ProductText
from tilewright.playbook.products.program import Contraction


def draft_product(product: Contraction, op_line: str, choices: Choices = Choices.NONE) -> Fragment:
    """A thread for every sum; tiles of both operands are read once per block."""
    text = ProductText(product, op_line, quick=False, choices=choices)
    text.plan.add("const", "TILE = 16")
    text.plan.add("let", "@tiles = ceil_div(@m, TILE) * ceil_div(@n, TILE)")
    skipped = skipped_tile(text.product, "TILE", "TILE")
    body = [
        "__shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];  // [m or n][k]",
        "const int x = threadIdx.x, y = threadIdx.y;",
        *text.tile_lines("TILE", "TILE"),
        "float total = 0.0f;",
        f"const int k_end = {skipped} ? 0 : k;" if skipped else "const int k_end = k;",
        "for (int k0 = 0; k0 < k_end; k0 += TILE) {",
        *indented(_load(product, "a", "m") + _load(product, "b", "n")),
        "  __syncthreads();",
        "  const bool overflown = fabsf(total) > 3.4028235e38f;  // for good: the next part may overflow otherwise",
        "  float part = overflown ? total : 0.0f;  // a short sum of its own: long ones round more",
        "  unrolled for (int i = 0; i < TILE; ++i) part = fmaf(a_tile[y][i], b_tile[x][i], part);",
        "  total = overflown ? part : total + part;",
        "  __syncthreads();",
        "}",
        "if (m0 + y >= m || n0 + x >= n) return;",
        f"const long long row = {text.first_row} + m0 + y;",
        "const int column = n0 + x;",
        "const long long at = row * n + column;",
        f"const float sum = {kept_sum(text.product, 'total', '(m0 + y)', 'column')};",
        f"c[at] = {text.stored(text.finish.call('sum'))};",
    ]
    header = (
        f"{text.name}, a first version: simple, and right at any size.\n\nA block computes a tile of sums, a thread "
        "one of them. It goes along k in steps; of each step the block brings both operands' tiles to shared memory "
        "once."
    )
    parameters, grid = [*text.parameters(), *text.finish.parameters], f"@tiles{text.matrices}"
    kernel = text.launched(f"{text.name}_product", grid, "dim3(TILE, TILE)", parameters, "TILE * TILE", body)
    return text.fragment(header, [TILE_GROUP], text.finish.function, kernel)


def _load(product: Contraction, name: str, rows: str) -> list[str]:
    """An operand's tile, read along the axis whose elements are neighbours."""
    operand = product.a if name == "a" else product.b
    row, k = ("y", "x") if operand.along_k else ("x", "y")
    at_row, at_k = f"({rows}0 + {row})", f"(k0 + {k})"
    place = (
        f"static_cast<long long>{at_row} * {name}_pitch + {at_k}"
        if operand.along_k
        else f"static_cast<long long>{at_k} * {name}_pitch + {at_row}"
    )
    inside = f"{rows}0 + {row} < {rows} && k0 + {k} < k_end"
    return [f"{name}_tile[{row}][{k}] = {inside} ? static_cast<float>({name}[{place}]) : 0.0f;"]
