"""Attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.playbook.attention.hopper import can_hopper, can_hopper_parts, hopper, hopper_parts
from tilewright.playbook.attention.mma import can_decode, can_flash, can_flash_f32, decode, flash, flash_f32
from tilewright.playbook.attention.program import PRODUCTS, SOFTMAXES, Attention, attention_program
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.gemms.graph import RESHAPES, SAME, TURNS, renumbered
from tilewright.playbook.gemms.schedules import PRODUCTS as PRODUCTS_FAMILY
from tilewright.playbook.tracing import Items, Node, Trace, TracedNode

_SEEN_AS = RESHAPES | SAME | TURNS | {"expand"}
_NUMBERS = ("mul", "div")


def taken_apart(traced: TracedTask) -> TracedTask:
    """The task with the simpler graph at every probe."""
    return replace(traced, traces=tuple(_Rewriter(trace).rewritten() for trace in traced.traces))


class _Rewriter:
    """One pass from the inputs to the results. `factors` are what nodes are still to be multiplied by."""

    def __init__(self, trace: Trace) -> None:
        self._old = trace
        self._made: list[TracedNode] = []
        self._numbers: dict[int, int] = {}
        self._factors: dict[int, float] = {}  # by new nodes
        self._scaled: dict[int, int] = {}  # new nodes, multiplied after all

    def rewritten(self) -> Trace:
        for index, node in enumerate(self._old.nodes):
            self._numbers[index] = self._new(node)
        return Trace(tuple(self._made), tuple(self._whole(self._numbers[one]) for one in self._old.outputs))

    def _new(self, node: TracedNode) -> int:
        first = node.arguments[0] if node.arguments else None
        source = self._numbers[first.index] if isinstance(first, Node) else None
        if source is not None and node.target in _NUMBERS and isinstance(node.arguments[1], float):
            number = node.arguments[1]
            made = self._add(TracedNode("alias", (Node(source),), {}, node.results))
            self._factors[made] = self._factors.get(source, 1.0) * (number if node.target == "mul" else 1.0 / number)
            return made
        if source is not None and node.target in _SEEN_AS:
            back = self._turned_back(node)
            made = self._add(renumbered(node, self._numbers)) if back is None else back
            self._factors[made] = self._factors.get(source, 1.0)
            return made
        if node.target in PRODUCTS:
            made = self._add(renumbered(node, self._numbers))
            for one in node.arguments[:2]:
                assert isinstance(one, Node)
                self._factors[made] = self._factors.get(made, 1.0) * self._factors.get(self._numbers[one.index], 1.0)
            return self._whole(made)
        for one in (*node.arguments, *node.keywords.values()):
            for item in one.values if isinstance(one, Items) else (one,):
                if isinstance(item, Node):
                    self._numbers[item.index] = self._whole(self._numbers[item.index])
        return self._add(renumbered(node, self._numbers))

    def _add(self, node: TracedNode) -> int:
        self._made.append(node)
        return len(self._made) - 1

    def _whole(self, index: int) -> int:
        """A node with nothing left to be multiplied by."""
        factor = self._factors.get(index, 1.0)
        if factor == 1.0:
            return index
        if index not in self._scaled:
            node = self._made[index]
            self._scaled[index] = self._add(TracedNode("mul", (Node(index), factor), {}, node.results, "Tensor"))
        return self._scaled[index]

    def _turned_back(self, node: TracedNode) -> int | None:
        """Of a permute that undoes another one: what both began with."""
        if node.target != "permute":
            return None
        first = node.arguments[0]
        assert isinstance(first, Node)
        before = self._made[self._numbers[first.index]]
        while before.target in SAME and isinstance(before.arguments[0], Node):
            before = self._made[before.arguments[0].index]
        one, other = node.arguments[1], before.arguments[1] if before.target == "permute" else None
        if not isinstance(one, Items) or not isinstance(other, Items):
            return None
        orders = [tuple(int(str(value)) for value in items.values) for items in (other, one)]
        begun = before.arguments[0]
        assert isinstance(begun, Node)
        return begun.index if [orders[0][place] for place in orders[1]] == sorted(orders[0]) else None


# -- attention: `scaled_dot_product_attention`, and softmax(q @ k^T) @ v as people write it --


# The most promising first: id, summary, what it takes, how it is written.
_SCHEDULES: tuple[tuple[str, str, Callable[[Attention], bool], Callable[[Attention, str], str]], ...] = (
    (
        "attention-split-keys",
        "few rows: blocks share the keys of a head, heads that share keys read them together",
        can_decode,
        decode,
    ),
    (
        "attention-hopper",
        "TMA and wgmma: scores and weights in registers, warpgroups that take turns",
        can_hopper,
        hopper,
    ),
    (
        "attention-flash",
        "tensor cores: scores and weights in registers, the next tile of keys and values under way",
        can_flash,
        flash,
    ),
    (
        "attention-hopper-parts",
        "TMA and wgmma with f32 as two f16 parts: scores and weights in registers",
        can_hopper_parts,
        hopper_parts,
    ),
    (
        "attention-flash-parts",
        "tensor cores with f32 as two TF32 parts: scores and weights in registers",
        can_flash_f32,
        flash_f32,
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
    found = [Structure(id, summary, partial(write, made)) for id, summary, takes, write in _SCHEDULES if takes(made)]
    on_hopper = traced.task.profile.arch == "sm_90a"
    here = tuple(one for one in found if on_hopper or "hopper" not in one.id)
    return Schedules(here, tuple(one for one in found if one not in here))


ATTENTION = Family("attention", frozenset(), _matches)
