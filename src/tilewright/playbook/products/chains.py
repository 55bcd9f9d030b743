"""Files of several stages: products, then rows of what they have stored, as launches one after the other."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.playbook.catalogue import Way
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file
from tilewright.playbook.products.plan_text import Choices
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.products.reading import Chain
from tilewright.playbook.row_program import RowProgram

ChooseWay = Callable[[RowProgram], Way]
WriteProduct = Callable[[Contraction, str, Choices], Fragment]


def chain_text(chain: Chain, write: WriteProduct, choose: ChooseWay, op_line: str) -> str:
    """The whole file: every product by one structure, all rows by one choice of ways."""
    if chain.contraction is not None:
        return write(chain.contraction, op_line, Choices.ALL).file()
    products = [one for one in chain.stages if isinstance(one, Contraction)]
    parts: dict[str, Fragment] = {}
    choices = Choices.TILES if len(products) < 3 else Choices.NONE
    for number, stage in enumerate(chain.stages, 1):
        if isinstance(stage, Contraction):
            parts[f"stage_{number}"] = write(stage, op_line, choices)
        else:
            parts[f"stage_{number}"] = choose(stage.program).fragment(op_line)
    header = f"{chain.task.name} in {len(chain.stages)} stages, each of which stores what later ones read."
    return joined_file(header, _head(chain, products[0], op_line), parts)


def _head(chain: Chain, first: Contraction, op_line: str) -> list[Entry]:
    entries = PlanLines(first.finish, op_line).head
    for one in chain.scratch:
        sizes = ", ".join(extent.expression for extent in one.extents)
        entries.append((f"//! scratch {one.name}: {one.dtype}[{sizes}]", ""))
    return entries
