"""Scans across rows: a thread goes down its own columns, with several rows' loads under way."""

from __future__ import annotations

import math

from tilewright.playbook.cpp_helpers import COMBINERS, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.reader import Leaf, Read
from tilewright.playbook.places.text import Known, Mode, each_element, kernel_lines, product_text, width_line
from tilewright.playbook.scans.program import ScanProgram
from tilewright.playbook.scans.structures import ScanKernel

_MANY_COLUMNS = 1 << 18  # from here on there are threads enough to have loads under way


def column_of(program: ScanProgram) -> Variable | None:
    """The loop variable along which results lie side by side, where it is not the scan's own."""
    last = program.placed.variables[-1]
    factors = [one.place.factor(last) for one in program.placed.outputs]
    fits = last != program.along and all(factor is not None and factor.is_always(1) for factor in factors)
    return last if fits else None


def scan_columns(program: ScanProgram, op_line: str, quick: bool = True) -> str:
    column = column_of(program)
    assert column is not None
    plan = PlanLines(program.placed.as_rows(), op_line)
    rest = tuple(one for one in program.rows if one != column)
    slabs, steps, vectors, chunks = (plan.name(one) for one in ("slabs", "steps", "vectors", "chunks"))
    few = math.prod(one.size.own for one in program.rows) < _MANY_COLUMNS
    plan.add("tune", "THREADS = 64 | 128 | 32")
    plan.add("tune", f"AHEAD = {'32 | 16 | 8' if few else '8 | 16 | 4'}", "rows whose loads are under way")
    kernel = ScanKernel(program, plan, column, quick)
    width_line(plan, kernel)
    plan.add("let", f"{slabs} = {product_text(rest)}, {steps} = {program.along.size.text}")
    plan.add("let", f"{vectors} = {product_text((column,))} / WIDTH, {chunks} = ceil_div({vectors}, THREADS)")
    plan.add("need", f"{slabs} * {chunks} <= {MOST_32_BIT} and {steps} <= {MOST_32_BIT}")
    at = kernel.variable(column)
    body = [
        "const int vector = static_cast<int>(blockIdx.x % chunks) * THREADS + threadIdx.x;",
        "if (vector >= vectors) return;",
        f"const int {at} = vector * WIDTH;",
        *kernel.split(rest, "(blockIdx.x / chunks)"),
        *_body(kernel),
    ]
    more = [("int steps", steps), ("int vectors", vectors), ("unsigned chunks", chunks)]
    signature = kernel.signature(tuple(one.name for one in program.placed.outputs), more)
    name = f"{program.placed.name}_columns"
    plan.launch(name, f"{slabs} * {chunks}", "THREADS", signature.given)
    header = (
        f"{program.placed.name}, a scan across rows: a thread owns a 16-byte vector of columns and goes down "
        "them.\n\nNeighbouring threads own neighbours, so every row is read and written in whole lines. The loads of "
        "AHEAD rows are issued together; nothing passes between threads."
    )
    combiners = dict.fromkeys(COMBINERS[one.combiner] for one in program.scans)
    pieces = [[VECTOR], *([one] for one in (*kernel.forms.helpers(), *combiners))]
    text = kernel_lines(signature, "__launch_bounds__(THREADS)", name, body)
    return fragment(header, plan, includes(program.placed.as_rows()), *pieces, text).file()


def _body(kernel: ScanKernel) -> list[str]:
    along = kernel.variable(kernel.scan.along)
    whole = (Mode.VECTOR, Mode.REVERSED)
    leaves = kernel.program.leaves_of(kernel.program.targets)
    reads = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Read) and kernel.modes[name] in whole}
    names = {name: kernel.namer.tensors[name] for name in reads}
    scans = [(one, kernel.names[one.leaf]) for one in kernel.scan.scans]

    def element(name: str, leaf: Leaf, known: Known) -> str:
        if name in reads:
            i = "WIDTH - 1 - i" if kernel.modes[name] is Mode.REVERSED else "i"
            return f"{names[name]}_here[k].at[{i}]"
        return kernel.load(leaf, known, "i" if not isinstance(leaf, Read) or kernel.modes[name] is Mode.EACH else "")

    loads = [
        line
        for name, read in reads.items()
        for line in kernel.load_vector(read, kernel.modes[name], {}, f"{names[name]}_here[k]")
    ]
    inner, texts = kernel.write(kernel.scan.inner, {}, element)
    step, known = [*inner], {}
    for one, name in scans:
        taken = f"{name}_sum[i] = {one.combiner}{{}}({name}_sum[i], {texts[one.value].text});"
        kept = f"const {one.kind.cpp} {name} = {name}_sum[i];"
        step += [kept, taken] if one.before else [taken, kept]
        known[kernel.value_of(one)] = Text(name)
    outputs = kernel.program.outputs
    made, texts = kernel.write(tuple(one.value for one in outputs), known, element)
    step += made
    step += [f"{kernel.pointer(one.name)}_made.at[i] = {kernel.stored(one, texts[one.value])};" for one in outputs]
    place = f"const int {along} = first + k;"
    row = [place, f"if ({along} >= steps) break;"]
    row += [f"Vector<{one.dtype.cpp}> {kernel.pointer(one.name)}_made;" for one in outputs]
    row += each_element(step)
    for output in outputs:
        target, where = kernel.pointer(output.name), kernel.index(output.place, {})
        row.append(f"*reinterpret_cast<Vector<{output.dtype.cpp}>*>({target} + {where}) = {target}_made;")
    each = ["#pragma unroll", "for (int k = 0; k < AHEAD; ++k) {"]
    body = [f"Vector<{read.dtype.cpp}> {names[name]}_here[AHEAD];" for name, read in reads.items()]
    if reads:
        body += [*each, *indented([place, f"if ({along} < steps) {{", *indented(loads), "}"]), "}"]
    body += [*each, *indented(row), "}"]
    starts = []
    for one, name in scans:
        starts += [f"{one.kind.cpp} {name}_sum[WIDTH];", "#pragma unroll"]
        starts += [f"for (int i = 0; i < WIDTH; ++i) {name}_sum[i] = {one.start};"]
    return [*starts, "for (int first = 0; first < steps; first += AHEAD) {", *indented(body), "}"]
