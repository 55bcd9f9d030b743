"""The body of a kernel that pools by strips."""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.places.vectors import each_element, zero_of
from tilewright.playbook.pooling.kernel import PoolKernel
from tilewright.playbook.row_program import Load

_LONG_WINDOW = 6  # taps from which a thread slides along several results


def slides(kernel: PoolKernel) -> bool:
    """Whether windows along a row share so much that a thread makes several neighbours."""
    x = kernel.axes["X"]
    return "Y" not in kernel.axes and x.stride == 1 and x.kernel >= _LONG_WINDOW


def strip_body(kernel: PoolKernel) -> list[str]:
    axes = kernel.axes
    lines = [
        "extern __shared__ __align__(32) float all_lines[];",
        "float* line = all_lines + threadIdx.y * LINES * cells;",
        "const unsigned unit = blockIdx.x * TEAMS + threadIdx.y;",
        "const int first_x = static_cast<int>(unit % tiles) * tile, from_x = first_x * STRIDE_X - left;",
        f"const int end_x = unit < units ? min(first_x + tile, {kernel.size(axes['X'].outside.size, 'int')}) : 0;",
        "// The column after the last that a window looks at.",
        f"const int {kernel.variable(axes['X'].inside)}_end = min({kernel.size(axes['X'].inside.size, 'int')}, "
        "(end_x - 1) * STRIDE_X - PAD_X + REACH_X);",
        "auto rest_of_unit = unit / tiles;",
    ]
    if "Y" in axes:
        lines += [
            "const int first_y = static_cast<int>(rest_of_unit % strips) * ROWS;",
            "rest_of_unit /= strips;",
        ]
    if "Z" in axes:
        lines += ["const int first_z = static_cast<int>(rest_of_unit % chunks) * DEPTH;", "rest_of_unit /= chunks;"]
    lines += kernel.split(kernel.pool.planes, "rest_of_unit")
    if "Z" in axes:
        rest = [*_plane_function(kernel), *_walk(kernel)]
    else:
        rest = [*_entered(kernel), *_over_rows([*_combined_rows(kernel), *_cell_stores("line")])]
        rest += ["wait_for_team();", *(_slide(kernel) if slides(kernel) else _rows(kernel, "line"))]
    return [*lines, *kernel.plane_lines(), *_margins(kernel), *rest]


def _margins(kernel: PoolKernel) -> list[str]:
    return [
        "// Cells beside what is loaded.",
        "constexpr int LOADED_CELLS = LANES * VECTORS * WIDTH;",
        "rolled for (int beside = threadIdx.x; beside < cells - LOADED_CELLS; beside += LANES) {",
        "  unrolled for (int r = 0; r < LINES; ++r) {",
        f"    line[r * cells + (beside < MARGIN ? beside : beside + LOADED_CELLS)] = {kernel.pool.start};",
        "  }",
        "}",
    ]


# -- columns --


def _entered(kernel: PoolKernel) -> list[str]:
    """All rows that the strip needs, loaded before any is used."""
    axes = kernel.axes
    in_x = kernel.variable(axes["X"].inside)
    held = kernel.held((kernel.pool.value,), "[v][j]")
    place = [f"const int {in_x} = from_x + (v * LANES + static_cast<int>(threadIdx.x)) * WIDTH;"]
    tests = ["unit < units", f"{in_x} >= 0", f"{in_x} < {in_x}_end"]
    if "Y" in axes:
        in_y = kernel.variable(axes["Y"].inside)
        place = ["if (!row_is_used(j)) continue;", *place, f"const int {in_y} = first_y * STRIDE_Y - PAD_Y + j;"]
        tests += [f"{in_y} >= 0", f"{in_y} < {kernel.size(axes['Y'].inside.size, 'int')}"]
    if "Z" in axes:
        in_z = kernel.variable(axes["Z"].inside)
        tests += [f"{in_z} >= 0", f"{in_z} < {kernel.size(axes['Z'].inside.size, 'int')}"]
    place.append(f"const bool is_inside = {' && '.join(tests)};")
    inner, texts = kernel.write((kernel.pool.value,), {}, held.element)
    entering = [*inner, f"entered[v][j][i] = {texts[kernel.pool.value].text};"]
    computed = not isinstance(kernel.program.values[kernel.pool.value], Load)
    bare = bool(held.reads) and not computed and not any(one.conditions for one in held.reads.values())
    if not bare:  # what is computed from nothing is not what changes nothing
        entering = [f"entered[v][j][i] = {kernel.pool.start};", "if (is_inside) {", *indented(entering), "}"]
    lines, begun = held.declared("here[VECTORS][LOADED]"), []
    for name, read in held.reads.items():
        start = f"static_cast<{read.dtype.cpp}>({kernel.pool.start})" if bare else zero_of(read.dtype.cpp)
        begun.append(f"{held.name(name)}[v][j].at[i] = {start};")
    loading = [*place, *each_element(begun), "if (is_inside) {", *indented(held.loads()), "}"]
    lines += _over("j", "LOADED", loading) if held.reads else []
    place = place if not bare else place[:1] if "Y" in axes else []
    taken = _over("j", "LOADED", [*place, *each_element(entering)])
    return [*lines, "float entered[VECTORS][LOADED][WIDTH];", *taken]


def _over_rows(lines: list[str]) -> list[str]:
    return _over("r", "ROWS", lines)


def _over(name: str, count: str, lines: list[str]) -> list[str]:
    """For every vector of a thread, and for every row of the loaded ones or of the result's."""
    return [
        "unrolled for (int v = 0; v < VECTORS; ++v) {",
        f"  unrolled for (int {name} = 0; {name} < {count}; ++{name}) {{",
        *indented(lines, 2),
        "  }",
        "}",
    ]


def _combined_rows(kernel: PoolKernel) -> list[str]:
    """`columns`: what the rows of one window come to."""
    if "Y" not in kernel.axes:
        return ["Vector<float> columns;", *each_element(["columns.at[i] = entered[v][0][i];"])]
    combining = [
        "columns.at[i] = entered[v][r * STRIDE_Y][i];",
        "unrolled for (int tap = 1; tap < KERNEL_Y; ++tap) {",
        "  columns.at[i] = combined(columns.at[i], entered[v][r * STRIDE_Y + tap * DILATION_Y][i]);",
        "}",
    ]
    return ["Vector<float> columns;", *each_element(combining)]


def _cell_stores(line: str) -> list[str]:
    place = f"{line} + r * cells + MARGIN + (v * LANES + threadIdx.x) * WIDTH"
    return [f"*reinterpret_cast<Vector<float>*>({place}) = columns;"]


# -- rows --


def _rows(kernel: PoolKernel, line: str) -> list[str]:
    """The last combination: along the row, from shared memory."""
    axes, out_x = kernel.axes, kernel.variable(kernel.axes["X"].outside)
    row = "made_row * cells + " if "Y" in axes else ""
    each = [
        f"const float* cell = {line} + {row}{out_x} * STRIDE_X - PAD_X - from_x + MARGIN;",
        "float made = cell[0];",
        "unrolled for (int tap = 1; tap < KERNEL_X; ++tap) made = combined(made, cell[tap * DILATION_X]);",
        *kernel.result_lines("made"),
    ]
    lines = [
        "#pragma unroll RESULTS",
        f"for (int {out_x} = first_x + threadIdx.x; {out_x} < end_x; {out_x} += LANES) {{",
        *indented(each),
        "}",
    ]
    if "Y" not in axes:
        return lines
    out_y = kernel.variable(axes["Y"].outside)
    return [
        "unrolled for (int made_row = 0; made_row < ROWS; ++made_row) {",
        f"  const int {out_y} = first_y + made_row;",
        f"  if ({out_y} >= {kernel.size(axes['Y'].outside.size, 'int')}) continue;",
        *indented(lines),
        "}",
    ]


def _slide(kernel: PoolKernel) -> list[str]:
    """The same where windows share most of their cells: PER results of a thread, a dilation apart."""
    x = kernel.axes["X"]
    out_x = kernel.variable(x.outside)
    making = [
        "float window[PER + KERNEL_X - 1];",
        "unrolled for (int m = 0; m < PER + KERNEL_X - 1; ++m) {",
        "  window[m] = line[left - PAD_X + MARGIN + first + m * DILATION_X];",
        "}",
        *(_doubled(kernel) if not kernel.pool.is_mean or x.kernel & (x.kernel - 1) == 0 else _tapped(kernel)),
    ]
    storing = _slid_stores(kernel, out_x)
    results = ["float* results = line + cells;"]
    if kernel.is_alone:
        first = re.sub(rf"\b{out_x}\b", "first_x", kernel.result_address())
        results = [f"float* target = {first};", "float* results = line + cells + (BULK ? into_vector(target) : 0);"]
        together = ["  store_together(target, results, end_x - first_x);", "  return;"]
        storing = ["if constexpr (BULK) {", *together, "}", *storing]
    return [
        *results,
        "// Neighbouring threads are PER results apart, which is odd: they meet different banks.",
        "const int group = threadIdx.x % GROUPS, phase = threadIdx.x / GROUPS;",
        "rolled for (int base = 0; base < tile && phase < DILATION_X; base += GROUPS * DILATION_X * PER) {",
        "  const int first = base + group * DILATION_X * PER + phase;",
        *indented(making),
        "}",
        *storing,
    ]


def _slid_stores(kernel: PoolKernel, out_x: str) -> list[str]:
    """Results in order, by threads."""
    made = [f"const float made = results[{out_x} - first_x];"]
    made += [f"*({kernel.result_address()}) = made;"] if kernel.is_alone else kernel.result_lines("made")
    return [
        "wait_for_team();",
        "#pragma unroll PER",
        f"for (int {out_x} = first_x + threadIdx.x; {out_x} < end_x; {out_x} += LANES) {{",
        *indented(made),
        "}",
    ]


def _kept(kernel: PoolKernel) -> list[str]:
    """What is made of a window, for the stores: the result where it is alone, or what it is made of."""
    place = "results[first + m * DILATION_X]"
    return kernel.made_lines("made", place) if kernel.is_alone else [f"{place} = made;"]


def _tapped(kernel: PoolKernel) -> list[str]:
    return [
        "unrolled for (int m = 0; m < PER; ++m) {",
        "  float made = window[m];",
        "  unrolled for (int tap = 1; tap < KERNEL_X; ++tap) made = combined(made, window[m + tap]);",
        *indented(_kept(kernel)),
        "}",
    ]


def _doubled(kernel: PoolKernel) -> list[str]:
    """The same in fewer steps: windows of twice as many taps are two that follow each other, or overlap at the end."""
    taps = kernel.axes["X"].kernel
    whole = 1 << (taps.bit_length() - 1)
    made = "window[m]" if whole == taps else f"combined(window[m], window[m + KERNEL_X - {whole}])"
    return [
        "// Two windows of half as many taps make one.",
        f"unrolled for (int taps = 1; taps < {whole}; taps *= 2) {{",
        "#pragma unroll",
        "  for (int m = 0; m + taps < PER + KERNEL_X - 1; ++m) window[m] = combined(window[m], window[m + taps]);",
        "}",
        "unrolled for (int m = 0; m < PER; ++m) {",
        f"  const float made = {made};",
        *indented(_kept(kernel)),
        "}",
    ]


# -- planes --


def _plane_function(kernel: PoolKernel) -> list[str]:
    """A function of the kernel: what the rows of a plane come to."""
    in_z = kernel.variable(kernel.axes["Z"].inside)
    body = [*_entered(kernel), *_over_rows([*_combined_rows(kernel), "made[v][r] = columns;"])]
    return [f"const auto plane_of = [&](int {in_z}, Vector<float> (&made)[VECTORS][ROWS]) {{", *indented(body), "};"]


def _walk(kernel: PoolKernel) -> list[str]:
    """Through the planes of a chunk, with what later windows need kept in registers."""
    z = kernel.axes["Z"]
    out_z = kernel.variable(z.outside)
    combining = [
        "columns.at[i] = planes[0][v][r].at[i];",
        "unrolled for (int tap = 1; tap < KERNEL_Z; ++tap) {",
        "  columns.at[i] = combined(columns.at[i], planes[tap * DILATION_Z][v][r].at[i]);",
        "}",
    ]
    step = [
        "unrolled for (int q = KEPT; q < REACH_Z; ++q) {",
        f"  if (plane_is_used(q)) plane_of({out_z} * STRIDE_Z - PAD_Z + q, planes[q]);",
        "}",
        "float* turned = line + turn * ROWS * cells;",
        *_over_rows(
            [
                "Vector<float> columns;",
                *each_element(combining),
                *_cell_stores("turned"),
                "unrolled for (int q = 0; q < KEPT; ++q) {",
                "  if (plane_is_used(q + STRIDE_Z)) planes[q][v][r] = planes[q + STRIDE_Z][v][r];",
                "}",
            ]
        ),
        "wait_for_team();",
        *_rows(kernel, "turned"),
        "turn ^= 1;",
    ]
    return [
        "Vector<float> planes[REACH_Z][VECTORS][ROWS];  // what rows come to, of planes that a window reaches",
        "unrolled for (int q = 0; q < KEPT; ++q) {",
        "  if (plane_is_used(q)) plane_of(first_z * STRIDE_Z - PAD_Z + q, planes[q]);",
        "}",
        "int turn = 0;",
        f"const int end_z = min(first_z + DEPTH, {kernel.size(z.outside.size, 'int')});",
        f"for (int {out_z} = first_z; {out_z} < end_z; ++{out_z}) {{",
        *indented(step),
        "}",
    ]
