"""Files of several stages: products, then rows of what they have stored, as launches one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.playbook.analysis import row_program
from tilewright.playbook.catalogue import Way, draft_way, ways
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file
from tilewright.playbook.products.layouts import Tensor
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.products.reading import Chain, RowsStage, size_places
from tilewright.playbook.row_program import RowProgram
from tilewright.records import Task, TensorInput

WriteProduct = Callable[[Contraction, str], Fragment]


@dataclass(frozen=True)
class RowsPart:
    """The rows of a chain as a program, and the ways to write it: the draft, then those that pay."""

    program: RowProgram
    draft: Way
    ways: tuple[Way, ...]


def rows_part(chain: Chain, traced: TracedTask) -> RowsPart | None:
    """What is left after the products; None where they are all there is."""
    last = chain.stages[-1]
    if not isinstance(last, RowsStage):
        return None
    task = _task_of(last, chain.task)
    program = row_program(TracedTask(task, last.graph.traces, traced.probes))
    return RowsPart(program, draft_way(program), ways(program))


def _task_of(stage: RowsStage, task: Task) -> Task:
    """The task that begins where the products end: what they have stored are inputs of it."""
    named = {str(node.arguments[0]) for node in stage.graph.nodes if node.target == "input"}
    stored = tuple(_as_input(one, task) for one in stage.inputs)
    own = tuple(one for one in task.inputs if not isinstance(one, TensorInput) or one.name in named)
    outputs = tuple(one for one in task.outputs if one.name in stage.outputs)
    return replace(task, inputs=(*stored, *own), outputs=outputs)


def _as_input(tensor: Tensor, task: Task) -> TensorInput:
    names = {expression: name for name, expression in size_places(task).items()}
    ones = [one.name for one in task.dimensions if one.size == 1 and not one.varies]
    dimensions = []
    for extent in tensor.extents:
        known = names.get(extent.expression) or (ones[0] if extent.is_one and ones else None)
        if known is None:
            raise NotSupported("the playbook cannot tell a size between two stages from the inputs' shapes")
        dimensions.append(known)
    return TensorInput(tensor.name, tensor.dtype, tuple(dimensions))


def chain_text(chain: Chain, write: WriteProduct, way: Way | None, op_line: str) -> str:
    """The whole file: every product by one structure, the rows by one way."""
    if chain.contraction is not None:
        return write(chain.contraction, op_line).file()
    products = [one for one in chain.stages if isinstance(one, Contraction)]
    parts: dict[str, Fragment] = {}
    for number, product in enumerate(products, 1):
        label = "product" if len(products) == 1 else f"product_{number}"
        parts[label] = write(product, op_line)
    if way is not None:
        parts["rows"] = way.fragment(op_line)
    counted = "a product" if len(products) == 1 else f"{len(products)} products"
    header = (
        f"{chain.task.name}: {counted}{', then rows of what was stored' if way else ''}, one launch after the other."
    )
    return joined_file(header, _head(chain, products[0], op_line), parts)


def _head(chain: Chain, first: Contraction, op_line: str) -> list[Entry]:
    entries = PlanLines(first.finish, op_line).head
    for one in chain.scratch:
        sizes = ", ".join(extent.expression for extent in one.extents)
        entries.append((f"//! scratch {one.name}: {one.dtype}[{sizes}]", ""))
    return entries
