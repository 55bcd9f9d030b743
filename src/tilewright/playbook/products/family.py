"""Products: matrix products in every layout, with pointwise work on their sums and rows after them."""

from __future__ import annotations

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, TracedTask
from tilewright.playbook.products.graph import PRODUCTS as TARGETS
from tilewright.playbook.products.reading import read


def _answer(traced: TracedTask) -> Answer:
    chain = read(traced)
    raise NotSupported(f"the playbook has no structure for {len(chain.stages)} stages with a product yet")


PRODUCTS = Family("products", frozenset(("triu", "tril")), lambda traced: bool(traced.targets & TARGETS), _answer)
