"""Products and convolutions, with pointwise work on their sums and rows after them."""

from __future__ import annotations

from tilewright.playbook.families import Family
from tilewright.playbook.products.catalogue import answer
from tilewright.playbook.products.graph import CONVOLUTION
from tilewright.playbook.products.graph import PRODUCTS as MATRIX_PRODUCTS

TARGETS = MATRIX_PRODUCTS | {CONVOLUTION}
_KEPT = TARGETS | {"triu", "tril", "diag_embed"}

PRODUCTS = Family("products", _KEPT, lambda traced: bool(traced.targets & TARGETS), answer)
