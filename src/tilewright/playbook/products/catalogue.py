"""Which structures are written for a chain of products, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tilewright.playbook.catalogue import Way
from tilewright.playbook.families import Answer, Structure, TracedTask
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.products.chains import RowsPart, WriteProduct, chain_text, rows_part
from tilewright.playbook.products.draft import draft_product
from tilewright.playbook.products.hopper import can_fuse, can_write, hopper_product
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.products.reading import Chain, read
from tilewright.playbook.products.tensor_cores import tensor_core_product
from tilewright.playbook.products.tiles import tiled_product
from tilewright.playbook.products.vectors import is_vector_product, vector_product
from tilewright.records import DType

_FEW_TILES = 132  # of 128 x 128 sums
_LONG_K = 2048


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
    ways = product_ways(products, traced.task.profile.arch)
    every = tuple(_structure(chain, one, _best(rows)) for one in ways)
    return Answer(draft, every, (draft, *every))


def product_ways(products: list[Contraction], arch: str) -> tuple[ProductWay, ...]:
    """The ways that take every product of a chain on a GPU, the most promising first."""
    if all(is_vector_product(one) for one in products):
        return (ProductWay("product-vector", "a matrix times a vector: its bytes read once", vector_product),)
    cut = any(_is_long(one) for one in products)
    found = _hopper_ways(products, cut) if arch == "sm_90a" else []
    if all(one.has_one_element_type or is_vector_product(one) for one in products):
        strict = any(one.is_strict for one in products)
        summary = f"tensor cores by mma.sync{', f32 as two TF32 parts' if strict else ''}, tiles copied asynchronously"
        found += _with_pieces("product-tensor-cores", summary, tensor_core_product, cut)
    found += _with_pieces("product-tiles", "eight by eight sums of a thread in registers", tiled_product, cut)
    return tuple(found)


def _hopper_ways(products: list[Contraction], cut: bool) -> list[ProductWay]:
    """The ways by TMA and wgmma, which no emulator runs."""
    if not all(is_vector_product(one) or can_write(one) for one in products):
        return []
    if any(one.element is not DType.F32 for one in products):
        found = _with_pieces("product-hopper", "TMA and wgmma: a producer, two consumers", hopper_product, cut)
    else:
        summary = "TMA and wgmma, f32 as two f16 parts that are made first"
        found = _with_pieces("product-hopper-parts", summary, hopper_product, cut)
        summary = "TMA and wgmma, f32 as two f16 parts that are made where they are multiplied"
        fused = _with_pieces("product-hopper-fused", summary, partial(hopper_product, fused=True), cut)
        for way in reversed(fused):
            pieces = way.id.endswith("pieces")
            if all(is_vector_product(one) or can_fuse(one, pieces) for one in products):
                found.insert(0, way)
    return [replace(one, emulable=False) for one in found]


def _with_pieces(id: str, summary: str, write: Callable[..., Fragment], cut: bool) -> list[ProductWay]:
    """A way as it is; and first, where k is long and results are few, with k cut into pieces."""
    found = [ProductWay(id, summary, partial(_either, write))]
    if cut:
        pieces = partial(_either, partial(write, pieces=True))
        found.insert(0, ProductWay(f"{id}-pieces", f"{summary}; k cut into pieces that a second kernel adds", pieces))
    return found


def _either(write: Callable[..., Fragment], product: Contraction, op_line: str) -> Fragment:
    """A product as the way writes it; vectors as vectors."""
    return vector_product(product, op_line) if is_vector_product(product) else write(product, op_line)


def _is_long(product: Contraction) -> bool:
    """Whether tiles of the result are too few to fill a GPU, and k long enough to be cut."""
    tiles = -(-product.m.size // 128) * -(-product.n.size // 128) * product.batch.size
    return tiles < _FEW_TILES and product.k.size >= _LONG_K


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
