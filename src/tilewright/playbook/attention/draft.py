"""The first version: a warp for every row of queries, right for any sizes and types."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    LOG2_E,
    POWER,
    AttentionKernel,
    AttentionPlan,
    inverse_line,
    scale_argument,
)
from tilewright.playbook.cpp_text import indented

_HEADER = """
{name}, a first version: a warp for every row of queries.

The warp goes through the keys one by one. It keeps the greatest score so far, the sum of the weights below it, and the
weighted sum of the values; when a greater score comes, what it has is made smaller. So nothing is stored on the way.
"""

_NAMES = "job query sum greatest weights score before base weight less q_row k_rows v_rows offset i power_of_two"


def draft(made: Attention, op_line: str) -> str:
    plan = AttentionPlan(made, op_line)
    plan.add("const", "DEPTHS = ceil_div(@depth, 32)", "elements of a query that a lane has")
    plan.add("const", "COLUMNS = ceil_div(@columns, 32)", "and of the result")
    plan.add("need", "@heads * @rows <= 2000000000")
    kernel = AttentionKernel(plan, _NAMES)
    text = _kernel(kernel)
    return plan.fragment(_HEADER, (POWER, *kernel.forms.helpers()), text).file()


def _kernel(kernel: AttentionKernel) -> list[str]:
    made, plan = kernel.made, kernel.plan
    row, key, column = (kernel.variable(one) for one in (made.row, made.along, made.column))
    body = [
        "const int lane = threadIdx.x % 32;",
        "const long long job = blockIdx.x * 4ll + threadIdx.x / 32;",
        "if (job >= (long long)heads * rows) return;",
        f"const int {row} = static_cast<int>(job % rows), head = static_cast<int>(job / rows);",
        *kernel.split(made.heads, "head"),
        *_pointers(kernel),
        *kernel.scored(),
        "float query[DEPTHS], sum[COLUMNS] = {}, greatest = -INFINITY, weights = 0.0f;",
        "unrolled for (int i = 0; i < DEPTHS; ++i)",
        "  query[i] = lane + i * 32 < depth ? static_cast<float>(q_row[lane + i * 32]) : 0.0f;",
        f"for (int {key} = 0; {key} < {_end(kernel, row)}; ++{key}) {{",
        *indented(_step(kernel, row, key)),
        "}",
        inverse_line(made, "weights"),
        "unrolled for (int i = 0; i < COLUMNS; ++i) {",
        f"  const int {column} = lane + i * 32;",
        f"  if ({column} >= columns) break;",
        *indented(kernel.stored_lines("sum[i] * inverse")),
        "}",
    ]
    more = [*plan.numbers("heads", "rows", "keys", "depth", "columns"), scale_argument(made)]
    grid = "ceil_div(@heads * @rows, 4)"
    return kernel.launched("rows", grid, "128", "128", body, more)


def _pointers(kernel: AttentionKernel) -> list[str]:
    made, row = kernel.made, kernel.variable(kernel.made.row)
    lines = []
    for name, read, own in (("q_row", made.query, row), ("k_rows", made.key, ""), ("v_rows", made.value, "")):
        place = kernel.first(read.place)
        place += f" + {kernel.pitch(read.place, made.row)} * {own}" if own else ""
        lines.append(f"const {read.dtype.cpp}* {name} = {kernel.pointer(read.tensor)} + {place};")
    return lines


def _end(kernel: AttentionKernel, row: str) -> str:
    offset = kernel.made.scores.causal
    if offset is None:
        return "keys"
    shift = "" if offset.is_always(0) else f" + {kernel.size(offset, 'int')}"
    return f"min(keys, {row}{shift} + 1)"


def _step(kernel: AttentionKernel, row: str, key: str) -> list[str]:
    made = kernel.made
    k_pitch, v_pitch = (kernel.pitch(one.place, made.along) for one in (made.key, made.value))
    score = "score * scale" if made.scores.value is None else f"{LOG2_E}f * scored(score * scale, {row}, {key})"
    return [
        "float score = 0.0f;",
        "unrolled for (int i = 0; i < DEPTHS; ++i)",
        "  if (lane + i * 32 < depth)",
        f"    score += query[i] * static_cast<float>(k_rows[{k_pitch} * {key} + lane + i * 32]);",
        "unrolled for (int offset = 16; offset > 0; offset /= 2) score += __shfl_xor_sync(~0u, score, offset);",
        f"score = {score};",
        "const float before = greatest;",
        "greatest = fmaxf(greatest, score);",
        "const float base = greatest == -INFINITY ? 0.0f : greatest;  // so far every key is masked",
        "const float weight = power_of_two(score - base), less = power_of_two(before - base);",
        "weights = weights * less + weight;",
        "unrolled for (int i = 0; i < COLUMNS; ++i)",
        "  if (lane + i * 32 < columns)",
        f"    sum[i] = sum[i] * less + weight * static_cast<float>(v_rows[{v_pitch} * {key} + lane + i * 32]);",
    ]
