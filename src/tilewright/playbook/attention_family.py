"""Attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.playbook.attention import decode, flash, flash_f32, hopper, hopper_parts
from tilewright.playbook.attention.apart import taken_apart
from tilewright.playbook.attention.program import PRODUCTS, SOFTMAXES, Attention, attention_program
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.gemms.catalogue import PRODUCTS as PRODUCTS_FAMILY

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


def _matches(traced: TracedTask) -> Schedules | None:
    """Two GEMMs with a softmax between them."""
    gemms = sum(node.target in PRODUCTS for node in traced.traces[0].nodes)
    if gemms != 2 or not SOFTMAXES & set(traced.targets):
        return None
    made = attention_program(traced)
    if max(made.depth.size.own, made.column.size.own) > _LONGEST_HEAD:
        return PRODUCTS_FAMILY.matches(taken_apart(traced))
    found = [Structure(id, summary, partial(write, made)) for id, summary, takes, write in _WAYS if takes(made)]
    on_hopper = traced.task.profile.arch == "sm_90a"
    here = tuple(one for one in found if on_hopper or "hopper" not in one.id)
    return Schedules(here, tuple(one for one in found if one not in here))


ATTENTION = Family("attention", frozenset(), _matches)
