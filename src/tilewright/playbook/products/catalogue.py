"""Which structures are written for a chain of products, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.playbook.catalogue import Way
from tilewright.playbook.families import Answer, Structure, TracedTask
from tilewright.playbook.products.chains import RowsPart, WriteProduct, chain_text, rows_part
from tilewright.playbook.products.draft import draft_product
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.products.reading import Chain, read


@dataclass(frozen=True)
class ProductWay:
    """A way to write products, for every product of a chain."""

    id: str
    summary: str
    write: WriteProduct
    emulable: bool = True


def answer(traced: TracedTask) -> Answer:
    """What is written for a task with products in it."""
    chain = read(traced)
    rows = rows_part(chain, traced)
    products = [one for one in chain.stages if isinstance(one, Contraction)]
    draft = _structure(chain, ProductWay("draft-product", "first version: tiles of sums", draft_product), _draft(rows))
    every = tuple(_structure(chain, one, _best(rows)) for one in product_ways(products))
    return Answer(draft, every, (draft, *every))


def product_ways(products: list[Contraction]) -> tuple[ProductWay, ...]:
    """The ways that take every product of a chain, the most promising first."""
    return ()


def _structure(chain: Chain, way: ProductWay, rows: Way | None) -> Structure:
    summary = way.summary if rows is None else f"{way.summary}; then {rows.summary}"
    write = partial(chain_text, chain, way.write, rows)
    suffix = "" if rows is None else f"-then-{rows.id}"
    emulable = way.emulable and (rows is None or rows.emulable)
    return Structure(f"{way.id}{suffix}", summary, write, emulable=emulable)


def _draft(rows: RowsPart | None) -> Way | None:
    return None if rows is None else rows.draft


def _best(rows: RowsPart | None) -> Way | None:
    if rows is None:
        return None
    return next((one for one in rows.ways if one.emulable), rows.draft)
