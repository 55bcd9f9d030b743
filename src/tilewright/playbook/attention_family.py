"""Attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.playbook.attention import decode, flash, flash_f32, hopper, hopper_parts
from tilewright.playbook.attention.apart import taken_apart
from tilewright.playbook.attention.draft import draft
from tilewright.playbook.attention.program import PRODUCTS, SOFTMAXES, Attention, attention_program
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.products.catalogue import PRODUCTS as PRODUCTS_FAMILY

# The most promising first: id, summary, what it takes, how it is written.
_WAYS: tuple[tuple[str, str, Callable[[Attention], bool], Callable[[Attention, str], str]], ...] = (
    (
        "attention-split-keys",
        "few rows: blocks share the keys of a head, heads that share keys read them together",
        decode.can_write,
        decode.decode,
    ),
    (
        "attention-hopper",
        "TMA and wgmma: scores and weights in registers, warpgroups that take turns",
        hopper.can_write,
        hopper.hopper,
    ),
    (
        "attention-flash",
        "tensor cores: scores and weights in registers, the next tile of keys and values under way",
        flash.can_write,
        flash.flash,
    ),
    (
        "attention-hopper-parts",
        "TMA and wgmma with f32 as two f16 parts: scores and weights in registers",
        hopper_parts.can_write,
        hopper_parts.hopper_parts,
    ),
    (
        "attention-flash-parts",
        "tensor cores with f32 as two TF32 parts: scores and weights in registers",
        flash_f32.can_write,
        flash_f32.flash_f32,
    ),
)
_LONGEST_HEAD = 256  # beyond that a row of sums does not fit into registers


def _claims(traced: TracedTask) -> bool:
    """Products with a softmax between them that can be written as one kernel; others are products' to write."""
    products = sum(node.target in PRODUCTS for node in traced.traces[0].nodes)
    if products != 2 or not SOFTMAXES & set(traced.targets):
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
    found = [Structure(id, summary, partial(write, made)) for id, summary, takes, write in _WAYS if takes(made)]
    on_hopper = traced.task.profile.arch == "sm_90a"
    later = tuple(one for one in found if on_hopper or "hopper" not in one.id)
    return Answer(first, later, (first, *found))


ATTENTION = Family("attention", frozenset(), _claims, _answer)
