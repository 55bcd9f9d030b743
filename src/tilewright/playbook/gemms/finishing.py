"""What is done with the sums of a product before they are stored, as a pointwise program."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.gemms.layouts import Group, Tensor, together
from tilewright.playbook.gemms.program import Extent
from tilewright.playbook.gemms.tensors import FINISH_RULES, TensorTable
from tilewright.playbook.lowering import Lowering
from tilewright.playbook.places.program import out_lines, shape_needs
from tilewright.playbook.row_program import (
    Load,
    ProgramInput,
    ProgramOutput,
    RowPart,
    RowProgram,
    arguments_of,
    renumbered,
)
from tilewright.records import DType
from tilewright.records.gpu import reached

SUM = "sum_of_products"  # the input of a finish that stands for the sum


def finish_program(table: TensorTable, start: int, cut: int, name: str, columns: int, by_channel: bool) -> RowProgram:
    """From the sums at one node to what is stored at another, under a name. `columns`: how many of the last dimensions
    are that; `by_channel`: whether a tensor may have an element for each of the last rows' dimension."""
    before = table.graph.ancestors(cut, {start, *table.tensors})
    inputs = {one: table.tensors[one].name for one in table.tensors if one in before}
    graph = table.graph.extracted((cut,), {**inputs, start: SUM})
    low = Lowering(table.task, graph.traces, table.traced.probes)
    (item,) = low.run(FINISH_RULES)
    axes = low.input_axes[SUM]
    rows, cols = low.axes.atoms(axes[: len(axes) - columns]), low.axes.atoms(axes[len(axes) - columns :])
    live = sorted(reached([item.value], lambda index: arguments_of(low.values[index])))
    numbers = {old: new for new, old in enumerate(live)}
    values = tuple(renumbered(low.values[old], numbers.__getitem__) for old in live)
    loaded = {value.input for value in values if isinstance(value, Load)}
    tensors = {table.tensors[one].name: table.tensors[one] for one in inputs}
    channels = low.axes.atoms(axes[len(axes) - columns - 1 : len(axes) - columns]) if by_channel else ()
    sizes = [table.extent(one) for one in table.graph.sizes(start)]
    lie = _Rows(rows, cols, channels, sizes[-columns - 1].expression if by_channel else "")
    given = [lie.input(tensors[one], low.axes.atoms(low.input_axes[one])) for one in tensors if one in loaded]
    if SUM not in loaded:
        raise NotSupported("the playbook stores what becomes of sums, not what takes their place")
    down, along = together(sizes[: len(sizes) - columns]), together(sizes[len(sizes) - columns :])
    return RowProgram(
        name=table.task.name,
        inputs=(ProgramInput(SUM, DType.F32, True, None), *given),
        outputs=(ProgramOutput(name, table.tensor_of(cut, name).dtype, numbers[item.value], True),),
        values=values,
        kinds=tuple(low.kinds[old] for old in live),
        out_lines=out_lines(table.traced),
        shape_needs=shape_needs(table.traced),
        rows=down.expression,
        cols=along.expression,
        task_rows=down.size,
        task_cols=along.size,
    )


def columns_of(table: TensorTable, index: int, n: Extent) -> int:
    """How many of the last dimensions are n."""
    if n.is_one:
        return 0
    sizes = [table.extent(one) for one in table.graph.sizes(index)]
    for count in range(1, len(sizes) + 1):
        if together(sizes[len(sizes) - count :]).size == n.size:
            return count
    raise NotSupported("the playbook cannot tell the columns of a product in the shape it is seen in")


@dataclass(frozen=True)
class _Rows:
    """The dimensions of the sums: those of rows and of columns, and the last of the rows' that may stand alone."""

    rows: Group
    cols: Group
    channels: Group
    channel_count: str

    def input(self, tensor: Tensor, axes: Group) -> ProgramInput:
        """How a tensor goes with the sums: one element for each, for each column, row or channel, or a single one."""
        lies: dict[Group, tuple[bool, tuple[RowPart, ...] | None]] = {(): (False, ())}
        if not self.channel_count:
            lies.setdefault(self.cols, (True, ()))
        lies.setdefault(self.rows, (False, None))
        if self.channel_count:
            lies.setdefault(self.channels, (False, (RowPart("", self.channel_count),)))
        lies.setdefault(self.rows + self.cols, (True, None))
        if axes not in lies:
            raise NotSupported(
                f"the playbook does not join {tensor.name} to a product: it has some of its rows and not others"
            )
        varies, parts = lies[axes]
        return ProgramInput(tensor.name, tensor.dtype, varies, parts)
