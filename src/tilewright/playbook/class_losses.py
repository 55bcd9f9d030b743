"""Losses over picked elements: a warp per row, then one block that adds up what blocks came to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.indices import Variable, constant, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.places.text import PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import Known, across_warp, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.templates import sections
from tilewright.playbook.tracing import TracedNode

EXPONENTIALS = frozenset(("_log_softmax", "_softmax", "logsumexp"))
SUMS = frozenset(("sum", "mean"))
_MOST_AGAIN = 8  # results of a row, for each of which the row is gone through again
PICKS = frozenset(("gather", "index", "index_select", "embedding"))


@dataclass(frozen=True)
class Sum:
    """A sum over all rows: the leaf that stands for it, and the row's value."""

    leaf: str
    value: int
    kind: NumberKind


@dataclass(frozen=True)
class LogSum:
    """The logarithm of the sum of a row's exponentials: its leaf, and the value of an element."""

    leaf: str
    value: int
    is_plain: bool = False  # the sum of the elements themselves


@dataclass(frozen=True)
class LossProgram:
    placed: PlacedProgram
    rows: tuple[Variable, ...]
    along: Variable  # what rows are made of
    sums: tuple[Sum, ...]  # empty: the results have one element per row
    log_sums: tuple[LogSum, ...]


def loss_program(traced: TracedTask) -> LossProgram:
    """The rows of the task and what becomes of them. Raises `NotSupported` for anything else."""
    reader = PlaceReader(traced, RULES)
    placed = whole_program(reader, "in a loss")
    totals = {name: one for name, one in placed.wholes.items() if not one.places and _sums_all(reader, one)}
    sums, rows = _sums(reader, totals) if totals else ((), placed.variables)
    placed = placed.renewed(reader, *(one.value for one in sums))
    inner = {name: one for name, one in placed.wholes.items() if name not in totals}
    log_sums, along = _log_sums(reader, inner, rows)
    known: tuple[Sum | LogSum, ...] = (*sums, *log_sums)
    placed = placed.renewed(reader, *(one.value for one in known))
    if along is None or placed.wholes.keys() - {one.leaf for one in known}:
        raise NoMatch
    return LossProgram(placed, rows, along, sums, log_sums)


def _sums(reader: PlaceReader, wholes: dict[str, Whole]) -> tuple[tuple[Sum, ...], tuple[Variable, ...]]:
    """The sums over all rows, and loop variables for the rows."""
    shapes = {name: reader.shape(reader.source(reader.nodes[one.node])) for name, one in wholes.items()}
    plain = {tuple(size for size in shape if not size.is_always(1)) for shape in shapes.values()}
    if len(plain) != 1:
        raise NoMatch
    first = next(iter(shapes.values()))
    rows = tuple(Variable(f"row_{place}", size) for place, size in enumerate(first) if not size.is_always(1))
    zero = constant(reader.book.number(0))
    found = []
    for name, one in wholes.items():
        node, rest = reader.nodes[one.node], iter(rows)
        places = tuple(zero if size.is_always(1) else of_variable(next(rest)) for size in shapes[name])
        kind = reader.summed_kind(node)
        found.append(Sum(name, reader.convert(reader.argument(node, 0, places), kind), kind))
    return tuple(found), rows


def _sums_all(reader: PlaceReader, whole: Whole) -> bool:
    node, dims = reader.nodes[whole.node], reader.whole_numbers(whole.node, 1, "dim")[0]
    return node.target in SUMS and not _sums_logarithms(reader, node, dims)


def _log_sums(
    reader: PlaceReader, wholes: dict[str, Whole], rows: tuple[Variable, ...]
) -> tuple[tuple[LogSum, ...], Variable | None]:
    along: Variable | None = None
    found = []
    for name, one in wholes.items():
        node, dims = reader.nodes[one.node], reader.whole_numbers(one.node, 1, "dim")[0]
        is_plain = node.target not in EXPONENTIALS
        if is_plain and not _sums_logarithms(reader, node, dims):
            raise NoMatch
        node = reader.nodes[reader.source(node)] if is_plain else node
        shape = reader.shape(reader.source(node))
        if len(dims) != 1:
            raise NoMatch
        dim = dims[0] % len(shape)
        own = Variable("at_class", shape[dim])
        if along is not None and along != own:
            raise NoMatch
        along = own
        if any(not place.terms == () and place.atoms[0] not in rows for place in one.places):
            raise NoMatch
        again = math.prod(row.size.own for row in rows if not any(place.mentions(row) for place in one.places))
        if again > _MOST_AGAIN:
            raise NoMatch
        places = (*one.places[:dim], of_variable(own), *one.places[dim:])
        value = reader.convert(reader.argument(node, 0, places), NumberKind.FLOAT)
        found.append(LogSum(name, value, is_plain))
    return tuple(found), along


# -- rules: the value at a place, with what its row comes to as a leaf --


def _log_sum(reader: PlaceReader, index: int, places: Places) -> int:
    return reader.leaf("log_sum", Whole(index, places, ()), NumberKind.FLOAT)


def _log_softmax(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.dimension(node, 1, "dim", len(places))
    value = reader.convert(reader.argument(node, 0, places), NumberKind.FLOAT)
    return reader.point("sub", value, _log_sum(reader, index, (*places[:dim], *places[dim + 1 :])))


def _softmax(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    return reader.point("exp", _log_softmax(reader, index, node, places))


def _logsumexp(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dim = reader.whole_numbers(index, 1, "dim")[0][0]
    kept = reader.flag(node, 2, "keepdim")
    rank = len(places) if kept else len(places) + 1
    own = (*places[: dim % rank], *places[dim % rank + 1 :]) if kept else places
    return _log_sum(reader, index, own)


def _mean(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    """A mean over everything is a sum, divided once."""
    total = reader.leaf("total", Whole(index, places, ()), NumberKind.FLOAT)
    count = reader.book.number(1)
    for size in reader.shape(reader.source(node)):
        count = count.times(size)
    return reader.float_point("div", total, reader.size(count))


def _sums_logarithms(reader: PlaceReader, node: TracedNode, dims: tuple[int, ...]) -> bool:
    """Whether a sum is of a whole row of `log_softmax`, as label smoothing has it."""
    source = reader.nodes[reader.source(node)]
    rank = len(source.result.shape)
    softmax = source.target == "_log_softmax" and len(dims) == 1
    return softmax and dims[0] % rank == reader.dimension(source, 1, "dim", rank)


def _sum(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    dims = reader.whole_numbers(index, 1, "dim")[0]
    if _sums_logarithms(reader, node, dims):  # the logits' sum, less the same logarithm for each of them
        source = reader.source(node)
        dim = dims[0] % len(reader.shape(source))
        own = (*places[:dim], *places[dim + 1 :]) if reader.flag(node, 2, "keepdim") else places
        total = reader.leaf("row_sum", Whole(index, own, ()), NumberKind.FLOAT)
        each = reader.float_point("mul", reader.size(reader.shape(source)[dim]), _log_sum(reader, source, own))
        return reader.point("sub", total, each)
    return reader.leaf("total", Whole(index, places, ()), reader.summed_kind(node))


RULES: dict[str, PlaceRule] = {
    **PLACE_RULES,
    "_log_softmax": _log_softmax,
    "_softmax": _softmax,
    "logsumexp": _logsumexp,
    "mean": _mean,
    "sum": _sum,
}


# -- kernels for losses over picked elements: a warp per row, then one block that adds up what blocks came to --


_CUDA = sections("class_losses")

POWER = _CUDA["power"]
_LOG2_E = "1.44269504f"


class LossKernel(PlacedKernel):
    """A kernel for the rows of a loss being written."""

    def __init__(self, program: LossProgram, plan: PlanLines) -> None:
        super().__init__(program.placed, plan, program.along, quick=False)
        self.loss = program

    def name_of(self, leaf: str) -> str:
        return self.namer.tensors[leaf]


def written(program: LossProgram, op_line: str) -> str:
    plan = PlanLines(program.placed.as_rows(), op_line)
    plan.add("let", f"@rows = {product_text(program.rows)}")
    plan.add("need", f"@rows <= {MOST_32_BIT}")
    kernel = LossKernel(program, plan)
    plan.add("tune", "WARPS = 8 | 4 | 16", "of a block, each with rows of its own")
    plan.add("tune", "TURNS = 1 | 2 | 4", "rows of a warp")
    plan.add("tune", "VECTORS = 8 | 4 | 2", "loads of a thread under way")
    width_line(plan, kernel)
    plan.add("let", "@blocks = ceil_div(@rows, WARPS * TURNS)")
    parts = [(plan.name(f"{kernel.name_of(one.leaf)}_parts"), one) for one in program.sums]
    for name, one in parts:
        dtype = "f32" if one.kind is NumberKind.FLOAT else "i64"
        plan.add("scratch", f"{name}: {dtype}[@blocks]", "what each block's rows come to")
    texts = [_rows_kernel(kernel, [name for name, _ in parts])]
    helpers = [*kernel.forms.helpers(), POWER]
    if program.sums:
        texts.append(_total_kernel(program, plan, [name for name, _ in parts], helpers))
    return fragment(
        _header(program),
        plan,
        includes(program.placed.as_rows()),
        [VECTOR],
        *([one] for one in dict.fromkeys(helpers)),
        *texts,
    ).file()


def _header(program: LossProgram) -> str:
    text = (
        f"{program.placed.name}, every row read once: a warp per row.\n\nThe element that a row picks is read by "
        "itself. The logarithm of the sum of exponentials is found in one pass: each lane keeps the greatest element "
        "it has met and the sum of exponentials below it, and makes the sum smaller when a greater one comes."
    )
    if program.sums:
        text += " Blocks leave the sums of their rows; the second kernel adds those in a fixed order, so runs repeat "
        text += "bit for bit."
    return text


def _rows_kernel(kernel: LossKernel, parts: list[str]) -> list[str]:
    program = kernel.loss
    lines = ["cudaTriggerProgrammaticLaunchCompletion();"] if program.sums else []  # the next launch begins early
    lines += ["const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;"]
    sums = [(one, kernel.name_of(one.leaf)) for one in program.sums]
    lines += [f"{one.kind.cpp} {name}_sum = 0;" for one, name in sums]
    row = ["const unsigned row = (blockIdx.x * TURNS + turn) * WARPS + warp;", "if (row >= rows) break;"]
    row += kernel.split(program.rows, "row")
    row += _lines_of_log_sums(kernel)
    known: Known = {kernel.value_of(one.leaf): Text(kernel.name_of(one.leaf)) for one in program.log_sums}
    if program.sums:
        made, texts = kernel.write(tuple(one.value for one in program.sums), known, kernel.load_alone)
        made += [f"{name}_sum += {texts[one.value].text};" for one, name in sums]
    else:
        made = kernel.store_each(known)
    row += ["if (lane == 0) {", *indented(made), "}"]
    lines += ["for (int turn = 0; turn < TURNS; ++turn) {", *indented(row), "}"]
    for number, (one, name) in enumerate(sums):
        lines += [
            f"__shared__ {one.kind.cpp} {name}_of_warps[WARPS];",
            f"if (lane == 0) {name}_of_warps[warp] = {name}_sum;",
            *(["__syncthreads();"] if number == len(sums) - 1 else []),
        ]
    if sums:
        lines += ["if (threadIdx.x == 0) {"]
        for one, name in sums:
            lines += [
                f"  {one.kind.cpp} {name}_all = 0;",
                f"  for (int other = 0; other < WARPS; ++other) {name}_all += {name}_of_warps[other];",
                f"  {name}_parts[blockIdx.x] = {name}_all;",
            ]
        lines += ["}"]
    more = [(f"{one.kind.cpp}* __restrict__ {name}_parts", part) for (one, name), part in zip(sums, parts, strict=True)]
    more.append(("unsigned rows", "@rows"))
    if program.sums:
        kernel.program = replace(kernel.program, outputs=())
    return kernel.launched("rows", "@blocks", "WARPS * 32", "WARPS * 32", lines, more)


def _lines_of_log_sums(kernel: LossKernel) -> list[str]:
    """One pass along the row."""
    program = kernel.loss
    at = kernel.variable(program.along)
    steps = kernel.size(program.along.size, "int")
    targets = tuple(one.value for one in program.log_sums)
    held, inside = kernel.held(targets, "[k]"), f"{at} < {steps}"
    place = f"const int {at} = (first + k * 32 + lane) * WIDTH;"
    inner, texts = kernel.write(targets, {}, held.element)
    logs = [(one, kernel.name_of(one.leaf)) for one in program.log_sums if not one.is_plain]
    plain = [(one, kernel.name_of(one.leaf)) for one in program.log_sums if one.is_plain]
    lines = [f"float {name} = 0.0f;" for _, name in plain]
    for _, name in logs:
        lines += [f"float {name}_greatest = -1e38f, {name}_powers = 0.0f;"]
    body = held.declared("here[VECTORS]")
    body += over_vectors(guarded(place, inside, held.loads())) if held.reads else []
    body += [f"float {name}_in[VECTORS][WIDTH], {name}_before = {name}_greatest;" for _, name in logs]
    entered = [*inner]
    for one, name in logs:
        entered += [
            f"{name}_in[k][i] = {texts[one.value].text};",
            f"{name}_greatest = fmaxf({name}_greatest, {name}_in[k][i]);",
        ]
    entered += [f"{name} += {texts[one.value].text};" for one, name in plain]
    body += over_vectors(guarded(place, inside, each_element(entered)))
    for _, name in logs:
        body += [f"{name}_powers *= power_of_two(({name}_before - {name}_greatest) * {_LOG2_E});"]
    added = [f"{name}_powers += power_of_two(({name}_in[k][i] - {name}_greatest) * {_LOG2_E});" for _, name in logs]
    body += over_vectors(guarded(place, inside, each_element(added)))
    lines += [f"for (int first = 0; first * WIDTH < {steps}; first += 32 * VECTORS) {{", *indented(body), "}"]
    for _, name in logs:
        lines += [
            f"float {name}_most = {name}_greatest;",
            *across_warp(f"{name}_most = fmaxf({name}_most, __shfl_xor_sync(~0u, {name}_most, offset));"),
            f"{name}_powers *= power_of_two(({name}_greatest - {name}_most) * {_LOG2_E});",
            *across_warp(f"{name}_powers += __shfl_xor_sync(~0u, {name}_powers, offset);"),
            f"const float {name} = {name}_most + logf({name}_powers);",
        ]
    for _, name in plain:
        lines += across_warp(f"{name} += __shfl_xor_sync(~0u, {name}, offset);")
    return lines


def _total_kernel(program: LossProgram, plan: PlanLines, parts: list[str], helpers: list[str]) -> list[str]:
    """One block adds what blocks came to, and makes the results of it."""
    placed = replace(program.placed, taken=())
    kernel = PlacedKernel(placed, plan, None, quick=False)
    lines, known = ["cudaGridDependencySynchronize();  // until the sums of the blocks are there"], {}
    declared: list[tuple[str, str]] = []
    for one, part in zip(program.sums, parts, strict=True):
        name = kernel.namer.tensors[one.leaf]
        wide = "double" if one.kind is NumberKind.FLOAT else "long long"
        lines += [
            f"__shared__ {wide} {name}_of_warps[8];",
            f"{wide} {name}_wide = 0;",
            f"for (int block = threadIdx.x; block < blocks; block += 256) {name}_wide += {name}_parts[block];",
            *across_warp(f"{name}_wide += __shfl_xor_sync(~0u, {name}_wide, offset);"),
            f"if (threadIdx.x % 32 == 0) {name}_of_warps[threadIdx.x / 32] = {name}_wide;",
        ]
        declared.append((f"const {one.kind.cpp}* __restrict__ {name}_parts", part))
        known[kernel.value_of(one.leaf)] = Text(name)
    lines += ["__syncthreads();", "if (threadIdx.x > 0) return;"]
    for one in program.sums:
        name = kernel.namer.tensors[one.leaf]
        wide = "double" if one.kind is NumberKind.FLOAT else "long long"
        lines += [
            f"{wide} {name}_all = 0;",
            f"for (int warp = 0; warp < 8; ++warp) {name}_all += {name}_of_warps[warp];",
            f"const {one.kind.cpp} {name} = static_cast<{one.kind.cpp}>({name}_all);",
        ]
    made, texts = kernel.write(tuple(one.value for one in placed.outputs), known, kernel.load_alone)
    lines += made
    for output in placed.outputs:
        lines.append(f"{kernel.pointer(output.name)}[0] = {kernel.stored(output, texts[output.value])};")
    helpers += kernel.forms.helpers()
    return kernel.launched("total", "1", "256", "256", lines, [*declared, ("int blocks", "@blocks")], rest=" pdl")


def _matches(traced: TracedTask) -> Schedules | None:
    picks = bool(traced.targets & PICKS) and bool(traced.targets & (EXPONENTIALS | SUMS))
    if not picks or not traced.targets <= POINTWISE_RULES.keys() | RULES.keys():
        return None
    program = loss_program(traced)
    summary = "a warp per row, read once in 16-byte vectors, several under way"
    return Schedules((Structure("loss-warps", summary, partial(written, program)),))


CLASS_LOSSES = Family("class losses", frozenset((*EXPONENTIALS, *PICKS)), _matches)
