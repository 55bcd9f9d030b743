"""The kernel of attention for Hopper, as text: a producer, consumers that take turns, and what differs with f32."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.attention.text import AttentionKernel, AttentionPlan, inverse_line, scale_argument
from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.places.text import product_text
from tilewright.playbook.templates import sections

_CUDA = sections("attention/hopper_kernel")

SIZES = _CUDA["sizes"]
SIZES_OF_PARTS = _CUDA["sizes_of_parts"]
TURNS = _CUDA["turns"]


KERNEL_TEXTS: tuple[str, ...] = (
    SIZES,
    TURNS,
    _CUDA["setup"],
    _CUDA["order"],
    _CUDA["causal_order"],
    _CUDA["producer"],
    _CUDA["consumer"],
    _CUDA["multiply"],
    _CUDA["pack"],
)
KERNEL_TEXTS += (_CUDA["multiply_parts"], _CUDA["pack_parts"], "given_scale jobs tiles section units shares")


@dataclass(frozen=True)
class Places:
    """Where TMA finds boxes: the coordinates of box `box`, of tile `n` of keys, of the rows from `row0` on."""

    q: str
    k: str
    v: str


@dataclass(frozen=True)
class Parts:
    """What there is more where every number is two f16 parts: see `hopper_parts`."""

    begin: list[str]  # statements that find `scale`, of this head
    column_scale: str  # of the column that is stored


def own_lengths(plan: AttentionPlan) -> None:
    """The file is for the task's own lengths of queries and results."""
    depth, columns = plan.made.depth.size.own, plan.made.column.size.own
    plan.add("need", f"device.cc == 90 and @depth == {depth} and @columns == {columns}")


def section_line(plan: AttentionPlan, bytes_each: int) -> None:
    """How many heads have keys and values that half of L2 holds; asked for where rows have different work."""
    if plan.made.scores.causal is not None:
        fitting = f"max(1, device.l2 / 2 / (@keys * (D + E) * {bytes_each}))"
        plan.add("let", f"@section = {fitting} * {product_text(plan.made.sharing)}")


def kernel_text(
    kernel: AttentionKernel, places: Places, more: list[tuple[str, str]], parts: Parts | None = None
) -> list[str]:
    """The kernel, with its launch in the plan."""
    made, plan = kernel.made, kernel.plan
    body = worded(
        _CUDA["setup"],
        {
            "ends": [kernel.ends("row0 + ROWS")],
            "order": (_CUDA["order"] if made.scores.causal is None else _CUDA["causal_order"]).splitlines(),
            "producer": _producer(kernel, places, parts),
            "consumer": _consumer(kernel, parts),
        },
    ).splitlines()
    declared = [(f"const __grid_constant__ CUtensorMap {name}_map", plan.name(f"{name}_map")) for name in "qkv"]
    declared += more
    if made.scores.causal is not None:
        declared += plan.numbers("section", *(() if parts else ("heads",)))
    jobs, scale = "@tiles * @heads", scale_argument(made)
    if parts:
        scale = ("float given_scale", scale[1])
    declared += [*plan.numbers("rows", "keys", "tiles"), ("int jobs", jobs), scale]
    block = "(CONSUMERS + 1) * 128, @smem"
    grid = f"min({jobs}, device.sms)"
    return kernel.launched("flash", grid, block, "(CONSUMERS + 1) * 128, 1", body, declared)


def _producer(kernel: AttentionKernel, places: Places, parts: Parts | None) -> list[str]:
    return worded(
        _CUDA["producer"],
        {
            "heads": kernel.split(kernel.made.heads, "head") if parts is None else [],
            "k_boxes": ["(2 * D / 64)" if parts else "(D / 64)"],
            "v_boxes": ["(2 * E / 64)" if parts else "(E / 64)"],
            "q_place": [places.q],
            "k_place": [places.k],
            "v_place": [places.v],
        },
    ).splitlines()


_EACH_SCORE = ["unrolled for (int i = 0; i < KEYS / 2; ++i) {", "  const int key = key0 + i / 4 * 8 + i % 2;"]


def _consumer(kernel: AttentionKernel, parts: Parts | None) -> list[str]:
    made = kernel.made
    general = made.scores.value is not None
    raised = " - RAISED" if parts else ""
    held = ["float sum[E / 2];", "uint32_t weights[KEYS / 16][4];"]
    if parts:
        held = ["float sum[E / 2] = {}, some[E / 2];", "uint32_t weights[KEYS / 16][4], small_weights[KEYS / 16][4];"]
    added = ["#pragma unroll", "for (int i = 0; i < E / 2; ++i) sum[i] += some[i];"]
    texts = {
        "begin": parts.begin if parts else [],
        "heads": kernel.split(made.heads, "head"),
        "scored": kernel.scored(),
        "held": held,
        "multiply": (_CUDA["multiply_parts"] if parts else _CUDA["multiply"]).splitlines(),
        "masked": kernel.masked(_EACH_SCORE, "score[i]", "row + i % 4 / 2 * 8", "row0 + consumer * 64"),
        "scale": ["" if general else " * scale"],
        "raised": [raised],
        "less": [("greatest[r]" if general else "greatest[r] * scale") + raised],
        "power": ["score[e] - base" if general else "fmaf(score[e], scale, -base)"],
        "pack": (_CUDA["pack_parts"] if parts else _CUDA["pack"]).splitlines(),
        "add_later": ["" if parts else "n < count - 2"],
        "add_last": ["" if parts else "count > 1"],
        "lessen": [f"sum[i] {'= (sum[i] + some[i]) *' if parts else '*='} less[i / 2 % 2];"],
        "add_up": added if parts else [],
        "inverse": [inverse_line(made, "total[r]")],
        "store": _store(kernel, parts),
    }
    return worded(_CUDA["consumer"], texts).splitlines()


def _store(kernel: AttentionKernel, parts: Parts | None) -> list[str]:
    """Neighbours in one store where the result is the sums themselves; else element by element."""
    row, column = kernel.variable(kernel.made.row), kernel.variable(kernel.made.column)
    loop = ["#pragma unroll", "for (int j = 0; j < E / 8; ++j) {"]
    inner = kernel.stored_pair("sum[j * 4 + r * 2] * inverse", "sum[j * 4 + r * 2 + 1] * inverse")
    if inner and not parts:
        inner = [f"const int {column} = j * 8 + lane % 4 * 2;", *inner]
    else:
        scaled = f" * {parts.column_scale.replace('@column', column)}" if parts else ""
        each = [f"const int {column} = j * 8 + lane % 4 * 2 + e;"]
        each += kernel.stored_lines(f"sum[j * 4 + r * 2 + e] * inverse{scaled}")
        inner = ["#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indented(each), "}"]
    lines = [f"const int {row} = row + r * 8;", f"if ({row} < rows) {{"]
    return [*lines, *indented([*loop, *indented(inner), "}"]), "}"]
