"""How a Hopper kernel gets the numbers that its sums are finished with: of neighbours two at once."""

from __future__ import annotations

from tilewright.playbook.products.finish_text import FinishText, kept_sum
from tilewright.playbook.products.hopper_form import Form
from tilewright.records import DType

PAIRED = (DType.F32, DType.F16, DType.BF16)  # element types of which a kernel loads two neighbours at once

_VECTOR_PAIRS = {
    DType.F32: """\
__device__ __forceinline__ float2 pair_at(const float* row, int n, int N) {
  return n < N ? *reinterpret_cast<const float2*>(row + n) : make_float2(0.f, 0.f);
}
""",
    DType.F16: """\
__device__ __forceinline__ float2 pair_at(const __half* row, int n, int N) {
  return n < N ? __half22float2(*reinterpret_cast<const __half2*>(row + n)) : make_float2(0.f, 0.f);
}
""",
    DType.BF16: """\
__device__ __forceinline__ float2 pair_at(const __nv_bfloat16* row, int n, int N) {
  return n < N ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(row + n)) : make_float2(0.f, 0.f);
}
""",
}
_SINGLE_PAIR = """\
template <typename T> __device__ __forceinline__ float2 pair_at(const T* row, int n, int N) {
  return make_float2(n < N ? static_cast<float>(row[n]) : 0.f, n + 1 < N ? static_cast<float>(row[n + 1]) : 0.f);
}
"""


def pair_functions(form: Form) -> list[str]:
    """How neighbours are loaded: two at once where rows are whole numbers of pairs."""
    vectors, inputs = form.tma_store, zip(form.product.finish_inputs, form.finish.inputs, strict=False)
    kinds = [one.dtype for one, text in inputs if one.varies and text != form.staged]
    if not kinds:
        return []
    texts = [_VECTOR_PAIRS[kind] for kind in PAIRED if kind in kinds] if vectors else [_SINGLE_PAIR]
    note = "// Elements n and n + 1 of a row of N" + (", which are a whole number of pairs." if vectors else ".")
    return [note, *"".join(texts).rstrip("\n").splitlines()]


def column_pair(name: str, place: str) -> list[str]:
    """What columns `column` and the next have in shared memory."""
    return [
        f"float2 {name};",
        'asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"',
        f'             : "=f"({name}.x), "=f"({name}.y) : "r"({place} + column * 4));',
    ]


def finish_of_four(form: Form, sums: list[str]) -> list[str]:
    """Statements that make `v` of four sums: columns n and n + 1 of rows m[0] and m[1]."""
    lines: list[str] = []
    values: list[list[str]] = [[] for _ in sums]
    for one in form.finish.inputs:
        if one == form.staged:
            lines += column_pair(one.value, "my_columns")
        elif one.place == "column":
            lines.append(f"const float2 {one.value} = pair_at({one.name}, n, N);")
        if one.place == "at":
            lines += [
                f"const float2 {one.value}_{row} = pair_at({one.name} + row_at[{row}] * N, n, N);" for row in (0, 1)
            ]
        for index, known in enumerate(values):
            row, side = index // 2, "xy"[index % 2]
            known.append(
                f"{one.value}_of_row[{row}]"
                if one.place in ("row", "0")
                else f"{one.value}{'' if one.place == 'column' else f'_{row}'}.{side}"
            )
    for index, (sum, known) in enumerate(zip(sums, values, strict=True)):
        kept = kept_sum(form.product, sum, f"m[{index // 2}]", f"(n + {index % 2})")
        lines.append(f"v[{index}] = {form.finish.of(kept, *known)};")
    return lines


def row_values(finish: FinishText) -> list[str]:
    """Statements that load what rows m[0] and m[1] have one number of each."""
    lines: list[str] = []
    for one in finish.inputs:
        if one.place in ("row", "0"):
            places = ("0", "0") if one.place == "0" else ("row_at[0]", "row_at[1]")
            read = ", ".join(f"static_cast<float>({one.name}[{place}])" for place in places)
            lines.append(f"const float {one.value}_of_row[2] = {{{read}}};")
    return lines
