"""Attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.attention import decode, flash, flash_f32, hopper
from tilewright.playbook.attention.draft import draft
from tilewright.playbook.attention.program import PRODUCTS, SOFTMAX, attention_program
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, Structure, TracedTask

_LONGEST_HEAD = 256  # beyond that a row of sums does not fit into registers: two products and a softmax between them


def _claims(traced: TracedTask) -> bool:
    """Products with a softmax between them that can be written as one kernel; others are products' to write."""
    products = sum(node.target in PRODUCTS for node in traced.traces[0].nodes)
    if products != 2 or SOFTMAX not in traced.targets:
        return False
    try:
        made = attention_program(traced)
    except NotSupported:
        return False
    return max(made.depth.size.own, made.column.size.own) <= _LONGEST_HEAD


def _answer(traced: TracedTask) -> Answer:
    made = attention_program(traced)
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
    if flash_f32.can_write(made):
        summary = "tensor cores with f32 as two TF32 parts: scores and weights in registers"
        later.append(Structure("attention-flash-parts", summary, partial(flash_f32.flash_f32, made)))
    return Answer(first, tuple(later), (first, *later))


ATTENTION = Family("attention", frozenset(), _claims, _answer)
