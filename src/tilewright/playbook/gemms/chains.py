"""Files of several stages: products, convolutions, and rows of what they have stored, as launches one after another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from tilewright.playbook.catalogue import Schedule
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file
from tilewright.playbook.gemms import convolution_hopper
from tilewright.playbook.gemms.convolution_means import MeansStage
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.program import Extent, Gemm
from tilewright.playbook.gemms.reading import Chain, RowsStage, Stage
from tilewright.playbook.gemms.rest import MoveStage, PoolStage
from tilewright.playbook.gemms.tiles import is_vector_product
from tilewright.playbook.row_program import Constant, Layout, Load, Pointwise, Reduce, Reduction, RowProgram, Value

WriteSums = Callable[[Gemm | Convolution, str, Choices], Fragment]
_MOST_COMBINATIONS = 4096  # of constants in one file
_KINDS = {
    Gemm: "product",
    Convolution: "convolution",
    RowsStage: "rows",
    PoolStage: "windows",
    MoveStage: "places",
    MeansStage: "means",
}
_SMALL_STAGE = 65536  # elements: what is less takes no time however it is written


def with_channels(chain: Chain, op_line: str) -> Chain | None:
    """The chain with work over channels done by the convolutions before it; None where none can do that."""
    stages, stored = list(chain.stages), chain.scratch
    for first, second in zip(chain.stages, chain.stages[1:], strict=False):
        if not isinstance(first, Convolution) or not isinstance(second, RowsStage):
            continue
        name = first.epilogue.outputs[0].name
        others = [one for one in chain.stages if one not in (first, second)]
        alone = name in {one.name for one in stored} and not any(_mentions(one, name, op_line) for one in others)
        joined = replace(first, across=second.program)
        if (
            alone
            and _is_over_channels(second.program, name, len(first.windows))
            and convolution_hopper.can_write(joined)
        ):
            stages[stages.index(first)] = joined
            stages.remove(second)
            stored = tuple(one for one in stored if one.name != name)
    return replace(chain, stages=tuple(stages), scratch=stored) if stored != chain.scratch else None


def with_weights(chain: Chain, op_line: str) -> Chain | None:
    """The chain with a softmax between two products done by them: the first finds the greatest of rows' scores, the
    second makes weights of them. None where there is none."""
    for first, softmax, second in zip(chain.stages, chain.stages[1:], chain.stages[2:], strict=False):
        if not isinstance(first, Gemm) or not isinstance(second, Gemm):
            continue
        if not isinstance(softmax, RowsStage):
            continue
        kind = _softmax_of(softmax.program, first.output.name)
        if kind is None:
            continue
        scores, weights = first.output.name, softmax.program.outputs[0].name
        others = [one for one in chain.stages if one not in (first, softmax, second)]
        alone = {scores, weights} <= {one.name for one in chain.scratch}
        alone = alone and not any(_mentions(one, name, op_line) for one in others for name in (scores, weights))
        whole = (first.batch, first.m, first.n) == (second.batch, second.m, second.k)
        row_major = second.a.tensor == weights and second.a.along_k and second.a.pitch == first.n
        used_once = weights not in (second.b.tensor, *(one.name for one in second.epilogue_inputs))
        if not (alone and whole and row_major and used_once) or first.kept or second.kept:
            continue
        if is_vector_product(first) or is_vector_product(second):  # which are written as vectors, without weights
            continue
        groups = Extent(f"ceil_div({first.n.expression}, 64)", -(-first.n.size // 64))
        stored = tuple(
            replace(one, extents=(*one.extents[:-1], groups)) if one.name == weights else one for one in chain.scratch
        )
        greatest = replace(first, greatest=weights)
        weighing = replace(second, a=replace(second.a, tensor=scores), weighs=weights, empty_rows=kind == "safe")
        stages = tuple(  # by identity, as programs of rows have no hash
            greatest if one is first else weighing if one is second else one
            for one in chain.stages
            if one is not softmax
        )
        return replace(chain, stages=stages, scratch=stored)
    return None


# What a softmax is of a row, after its load; the safe one has weights of zero where all scores are minus infinity.
_SOFTMAXES: dict[str, tuple[Value, ...]] = {
    "plain": (
        Reduce(Reduction.GREATEST, 0),
        Pointwise("sub", (0, 1)),
        Pointwise("exp", (2,)),
        Reduce(Reduction.SUM, 3),
        Pointwise("reciprocal", (4,)),
        Pointwise("mul", (3, 5)),
    ),
    "safe": (
        Reduce(Reduction.GREATEST, 0),
        Constant(-math.inf),
        Pointwise("eq", (1, 2)),
        Constant(0.0),
        Pointwise("where", (3, 4, 1)),
        Pointwise("sub", (0, 5)),
        Pointwise("exp", (6,)),
        Reduce(Reduction.SUM, 7),
        Pointwise("eq", (8, 4)),
        Pointwise("reciprocal", (8,)),
        Pointwise("where", (9, 4, 10)),
        Pointwise("mul", (7, 11)),
    ),
}


def _softmax_of(program: RowProgram, name: str) -> str | None:
    """Which softmax of every row of a tensor it is; None where it is none, or more."""
    whole = program.layout is Layout.ROWS and program.cols == f"{name}.shape[-1]"
    last = [len(program.values) - 1] == [one.value for one in program.outputs]
    kinds = [one for one, values in _SOFTMAXES.items() if program.values == (Load(name), *values)]
    return kinds[0] if whole and last and kinds else None


def _is_over_channels(program: RowProgram, name: str, windows: int) -> bool:
    """Whether rows are the channels of every position of a tensor with this name, each a whole row of its own."""
    inner = " * ".join(f"{name}.shape[{place + 2}]" for place in range(windows))
    whole = {one.name for one in program.inputs if one.is_whole}
    layout = (program.layout, program.cols, program.inner)
    return whole == {name} and layout == (Layout.COLUMNS, f"{name}.shape[1]", inner)


def _mentions(stage: Stage, name: str, op_line: str) -> bool:
    """Whether a stage reads a tensor."""
    if isinstance(stage, Gemm):
        return name in (stage.a.tensor, stage.b.tensor, *(one.name for one in stage.epilogue_inputs))
    if isinstance(stage, Convolution):
        return name in (stage.x, stage.weight, *(one.name for one in stage.epilogue_inputs))
    return any(re.search(rf"\b{name}\b", line) for line, _ in stage.simple.fragment(op_line).plan.entries)


def best_schedules(chain: Chain, write: WriteSums, op_line: str) -> tuple[Schedule, ...]:
    """The most promising way for each stage beside the sums; small ones stay simple, and so do as many as must."""
    stages = chain.rest
    found = [one.best for one in stages]
    combinations = math.prod(_combinations(write(one, op_line, _choices(chain.sums))) for one in chain.sums)
    for place in sorted(range(len(found)), key=lambda one: stages[one].elements):
        tried = combinations * math.prod(_combinations(one.fragment(op_line)) for one in found)
        if stages[place].elements < _SMALL_STAGE or tried > _MOST_COMBINATIONS:
            found[place] = stages[place].simple
    return tuple(found)


def _combinations(part: Fragment) -> int:
    """Of the constants that are left to autotuning."""
    lines = [line for line, _ in part.plan.entries if line.startswith("//! tune")]
    return math.prod(line.count("|") + 1 for line in lines)


def _choices(products: tuple[Gemm | Convolution, ...]) -> Choices:
    return Choices.TILES if len(products) < 3 else Choices.NONE


def chain_text(chain: Chain, write: WriteSums, rows: tuple[Schedule, ...], op_line: str) -> str:
    """The whole file: every product by one structure, each stage of rows by its way."""
    products = chain.sums
    if len(chain.stages) == 1:
        return write(products[0], op_line, Choices.ALL).file()
    waiting = iter(rows)
    parts = {
        label: (
            write(stage, op_line, _choices(products))
            if isinstance(stage, (Gemm, Convolution))
            else next(waiting).fragment(op_line)
        )
        for label, stage in zip(_labels(chain), chain.stages, strict=True)
    }
    header = f"{chain.task.name} in {len(chain.stages)} stages, each of which stores what later ones read."
    if chain.notes:
        header += "\n\n" + " ".join(f"{one[0].upper()}{one[1:]}." for one in chain.notes)
    return joined_file(header, _head(chain, products[0], op_line), parts)


def _labels(chain: Chain) -> list[str]:
    """A name for every stage after what it is, with a number where there are several."""
    kinds = [_KINDS[type(one)] for one in chain.stages]
    return [
        kind if kinds.count(kind) == 1 else f"{kind}_{kinds[: place + 1].count(kind)}"
        for place, kind in enumerate(kinds)
    ]


def _head(chain: Chain, first: Gemm | Convolution, op_line: str) -> list[Entry]:
    entries = PlanLines(first.epilogue, op_line).head
    for one in chain.scratch:
        sizes = ", ".join(extent.expression for extent in one.extents)
        entries.append((f"//! scratch {one.name}: {one.dtype}[{sizes}]", ""))
    return entries
