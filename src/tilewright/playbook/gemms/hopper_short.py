"""A product with a short k as text: both operands become f16 parts in one launch; then storing is the work.

Each operand is a few megabytes, and two kernels one after the other take longer to begin than to split them: for 32768
x 32 times 32 x 32768, of 1,065 us on an H200, one launch saves 16.

The order of the stores decides about the rest. Merely storing that result takes 944 us where whoever is ready takes the
next tile of a row of tiles, 946 with strips of two tiles, 962 with four, 1,000 where blocks have their tiles in turns,
and more where each stays in its columns: what is written at the same time lies the farther apart. But whoever takes
single tiles loads the more, all of the second operand for each: with all launches it took 1,008 us with strips of two,
1,017 with four and 1,022 with single tiles; and 999 with two where the producer's registers go to the consumers. Of k =
64, where strips of eight are best, that made 1,117 of 1,136. All that a tile needs, its scales too, comes by TMA before
its turn.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.hopper_consumer import slot_descriptors, slot_steps
from tilewright.playbook.gemms.hopper_form import Form, kernel, kernel_parameters
from tilewright.playbook.gemms.hopper_kernel import operand_loads
from tilewright.playbook.gemms.hopper_sorted import NUMBERS
from tilewright.playbook.gemms.hopper_store import finishing, pair_functions
from tilewright.playbook.gemms.hopper_text import BARRIERS, tma, wgmma
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/hopper_short")


def short_parameters(form: Form) -> list[tuple[str, str]]:
    """Declarations of the kernel that splits both operands, and what the plan gives for them."""
    pairs: list[tuple[str, str]] = []
    for name, one in (("a", form.product.a), ("b", form.product.b)):
        pairs += [(f"const float* __restrict__ {name}", one.tensor)]
        pairs += [(f"__half* __restrict__ {name}_parts", f"@{name}_parts")]
        pairs += [(f"float* __restrict__ {name}_scales", f"@{name}_scales")]
        pitches = (one.pitch.expression, one.batch_pitch.expression, f"@{name}_pitch")
        names = (f"{name}_pitch", f"{name}_matrix_pitch", f"{name}_parts_pitch")
        pairs += [(f"long long {word}", pitch) for word, pitch in zip(names, pitches, strict=True)]
    pairs += [("int* __restrict__ wide", "@wide")]
    return [*pairs, *((f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch"))]


def short_text(form: Form) -> list[str]:
    """The kernel that splits both operands, and what it calls."""
    operands = (("a", form.product.a, "M", "tile"), ("b", form.product.b, "N", "(tile - tiles_m)"))
    kinds = {one.along_k for _, one, _, _ in operands}
    text = _CUDA["tiles"] + (_CUDA["rows"] if True in kinds else "") + (_CUDA["columns"] if False in kinds else "")
    body = [
        "cudaTriggerProgrammaticLaunchCompletion();  // what comes next may begin to be launched",
        "const int tiles_m = (M + 127) / 128, tiles = tiles_m + (N + 127) / 128;",
        "const long long tile = blockIdx.x % tiles, z = blockIdx.x / tiles;",
        "bool is_wide;",
    ]
    for name, one, size, number in operands:
        along, outer = ("rows", size) if one.along_k else ("columns", "K")
        step = (f" * {name}_pitch", f" * {name}_parts_pitch") if one.along_k else ("", "")
        body += [
            "if (tile < tiles_m) {" if name == "a" else "} else {",
            f"  const long long first = {number} * 128, high = z * {outer} * {name}_parts_pitch;",
            f"  is_wide = split_128_{along}<{name.upper()}_WIDTH>(",
            f"      {name} + z * {name}_matrix_pitch + first{step[0]}, {name}_pitch,",
            f"      {name}_parts + high + first{step[1]}, (long long)batch * {outer} * {name}_parts_pitch,",
            f"      {name}_parts_pitch, {name}_scales + z * whole_lines({size}) + first, {size} - (int)first, K);",
        ]
    body += [
        "}",
        "const int any_is = __syncthreads_or(is_wide);",
        "if (threadIdx.x == 0) wide[1 + blockIdx.x] = any_is;",
        "if (threadIdx.x == 0 && blockIdx.x == 0) wide[0] = 0;  // tiles that are taken",
    ]
    return [*text.splitlines(), *kernel("256, 4", "split_both", short_parameters(form), body)]


def short_product_text(form: Form) -> list[str]:
    """The product, and what it calls."""
    a, b = form.product.a, form.product.b
    narrow = {one.along_k for one in (a, b)}
    swizzles = tuple(64 if one else 128 for one in sorted(narrow))
    constants = [line for line in _CUDA["constants"].splitlines() if False in narrow or "BOX_BYTES" not in line]
    pieces = [
        *constants,
        "",
        *BARRIERS.splitlines(),
        *tma(boxes=False, rows=True).splitlines(),
        *_CUDA["line"].splitlines(),
        *NUMBERS.splitlines(),
        *_CUDA["scale_at"].splitlines(),
        "",
        *wgmma((128,), form.kind, (not a.along_k, not b.along_k), swizzles).splitlines(),
        "",
        *pair_functions(form),
        *form.finish_function,
        *([""] if form.finish.function else []),
        *_CUDA["tile"].splitlines(),
        "",
    ]
    loads, (a_slots, b_slots), (a_step, b_step) = operand_loads(form), slot_descriptors(form, "kept"), slot_steps(form)
    words: dict[str, str | list[str]] = {
        "producer": _CUDA["producer"],
        "loads_of_a": loads["a"],
        "loads_of_b": loads["b"],
        "consumers": _CUDA["consumer"],
        "a_slots": a_slots,
        "b_slots": b_slots,
        "a_step": a_step,
        "b_step": b_step,
        "half": "WIDTH * BK * 2" if b.along_k else "WIDTH / 64 * BOX_BYTES",
        "finish": [*finishing(form, form.finish), *_CUDA["rows_of_results"].splitlines()],
    }
    body = worded(_CUDA["body"], words).splitlines()
    return [*pieces, *kernel("THREADS, 2 / SIDES", "product", kernel_parameters(form), body)]
