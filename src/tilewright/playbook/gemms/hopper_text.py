"""Device functions of Hopper's products, as text: barriers, TMA, wgmma, and the walk over tiles."""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("gemms/hopper_text")

BARRIERS = _CUDA["barriers"]
SHOW = _CUDA["show"]


def tma(boxes: bool, rows: bool = False) -> str:
    """What brings boxes of the operands, and stores boxes, or rows, of the results."""
    store = _CUDA["store_box"] if boxes else _CUDA["store_row"] if rows else ""
    return _CUDA["tma"] + (store + _CUDA["wait"] + SHOW if store else "")


_SWIZZLES = {32: "SWIZZLE_32 = 3ull << 62", 64: "SWIZZLE_64 = 2ull << 62", 128: "SWIZZLE_128 = 1ull << 62"}


def wgmma(
    widths: tuple[int, ...],
    kind: str,
    transposed: tuple[bool, bool],
    swizzles: tuple[int, ...] = (128,),
    in_registers: bool = False,
) -> str:
    """The functions `wgmma` for sums of these widths and operands of `kind`, f16, bf16 or tf32, and what they need."""
    named = ", ".join(_SWIZZLES[one] for one in swizzles)
    functions = "".join(wgmma_of(width, kind, transposed, in_registers) for width in widths)
    return _CUDA["wgmma"].replace("@swizzles", f"constexpr uint64_t {named};") + functions


def wgmma_of(width: int, kind: str, transposed: tuple[bool, bool], in_registers: bool) -> str:
    """The function `wgmma` for sums of one width; `in_registers`: a is in registers."""
    count, depth = width // 2, 8 if kind == "tf32" else 16
    taken = 4 if in_registers else 1  # operands that name a
    a = "const uint32_t (&a)[4]" if in_registers else "uint64_t a"
    lines = [f"__device__ __forceinline__ void wgmma(float (&d)[{count}], {a}, uint64_t b, int add) {{"]
    lines += [f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + taken + 1}, 0;"']
    lines += [f'               " wgmma.mma_async.sync.aligned.m64n{width}k{depth}.f32.{kind}.{kind} {{"']
    for first in range(0, count, 16):
        listed = ", ".join(f"%{index}" for index in range(first, min(first + 16, count)))
        lines.append(f'               "{listed}{", " if first + 16 < count else "}"}"')
    a_along_m, b_along_n = (int(one) for one in transposed)
    registers = ", ".join(f"%{count + index}" for index in range(4))
    named = f"{{{registers}}}" if in_registers else f"%{count}"
    last = f", {b_along_n}" if in_registers else f", {a_along_m}, {b_along_n}"  # TF32 is contiguous along k
    lines.append(f'               ", {named}, %{count + taken}, p, 1, 1{last if depth == 16 else ""}; }}"')
    for first in range(0, count, 8):
        listed = ", ".join(f'"+f"(d[{index}])' for index in range(first, first + 8))
        lines.append(f"               {':' if first == 0 else ' '} {listed}{',' if first + 8 < count else ''}")
    given = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if in_registers else '"l"(a)'
    lines.append(f'               : {given}, "l"(b), "r"(add));')
    return "\n".join([*lines, "}", ""])
