"""Attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.attention import decode, flash, flash_f32, hopper, hopper_parts
from tilewright.playbook.attention.apart import taken_apart
from tilewright.playbook.attention.draft import draft
from tilewright.playbook.attention.program import PRODUCTS, SOFTMAX, attention_program
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.products.family import PRODUCTS as PRODUCTS_FAMILY

_LONGEST_HEAD = 256  # beyond that a row of sums does not fit into registers


def _claims(traced: TracedTask) -> bool:
    """Products with a softmax between them that can be written as one kernel; others are products' to write."""
    products = sum(node.target in PRODUCTS for node in traced.traces[0].nodes)
    if products != 2 or SOFTMAX not in traced.targets:
        return False
    try:
        attention_program(traced)
    except NotSupported:
        return False
    return True


def _answer(traced: TracedTask) -> Answer:
    made = attention_program(traced)
    if max(made.depth.size.own, made.column.size.own) > _LONGEST_HEAD:
        return PRODUCTS_FAMILY.answer(taken_apart(traced))
    first = Structure("draft-attention", "first version: a warp goes through the keys of its row", partial(draft, made))
    later: list[Structure] = []
    if decode.can_write(made):
        summary = "few rows: blocks share the keys of a head, heads that share keys read them together"
        later.append(Structure("attention-split-keys", summary, partial(decode.decode, made)))
    if hopper.can_write(made):
        summary = "TMA and wgmma: scores and weights in registers, warpgroups that take turns"
        later.append(Structure("attention-hopper", summary, partial(hopper.hopper, made)))
    if flash.can_write(made):
        summary = "tensor cores: scores and weights in registers, the next tile of keys and values under way"
        later.append(Structure("attention-flash", summary, partial(flash.flash, made)))
    if hopper_parts.can_write(made):
        summary = "TMA and wgmma with f32 as two f16 parts: scores and weights in registers"
        later.append(Structure("attention-hopper-parts", summary, partial(hopper_parts.hopper_parts, made)))
    if flash_f32.can_write(made):
        summary = "tensor cores with f32 as two TF32 parts: scores and weights in registers"
        later.append(Structure("attention-flash-parts", summary, partial(flash_f32.flash_f32, made)))
    return Answer(first, tuple(later), (first, *later))


ATTENTION = Family("attention", frozenset(), _claims, _answer)
