"""Attention in the IR: a softmax of scores between two products becomes one node, whose scores are never in memory.

What is done with a score between product and softmax, such as a scale, a cap, a mask or a bias, is any expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, Node, Program, rewrite
from tilewright.playbook.loops.narrow import HALVES, formats_of, stripped
from tilewright.records import DType

_MOST_DEPTH = 256  # elements of a head that a block holds
_ENDLESS = float("-inf")


@dataclass(frozen=True)
class Attention:
    """What an attention node computes, by the loops of its result, `key` and `depth`."""

    query: Expr
    keys: Expr
    values: Expr
    score: Expr  # with a load of `scored` where the product of query and key stands
    scored: str
    key: Atom
    depth: Atom
    element: DType
    is_zero_if_empty: bool  # a row without keys is zero, and not NaN


@dataclass(eq=False)
class AttentionNode(Node):
    attention: Attention | None = None

    @property
    def of(self) -> Attention:
        assert self.attention is not None
        return self.attention


def fuse_attention(program: Program) -> None:
    """Every product with the softmax of another product becomes an attention node; what nothing else reads is gone."""
    matcher = _Matcher(program)
    found = [matcher.match(node) or node for node in program.nodes]
    if all(one is node for one, node in zip(found, program.nodes, strict=True)):
        return
    wanted, kept = dict.fromkeys(program.outputs), list[Node]()
    for node in reversed(found):
        if any(one.name in wanted for one in node.writes):
            wanted |= node.reads
            kept.append(node)
    program.nodes = kept[::-1]


class _Matcher:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers = {one.name: node for node in program.nodes for one in node.writes}

    def match(self, node: Node) -> AttentionNode | None:
        if not _is_sum_of_products(node):
            return None
        first, second = node.body.args
        return self._of(node, first, second) or self._of(node, second, first)

    def _of(self, node: Node, weight: Expr, values: Expr) -> AttentionNode | None:
        (key,) = node.inner
        weight, values = self._expanded(weight), stripped(self.program, values)
        is_rounded = weight.op in ("round_bf16", "round_f16")
        weight = weight.args[0] if is_rounded else weight
        if not (is_rounded or node.buffer.dtype in HALVES):
            return None  # nobody asked for terms of 16 bits
        empty, weight = self._without_empty(weight)
        if weight.op != "div" or weight.args[0].op != "exp" or weight.args[0].args[0].op != "sub":
            return None
        term, total = weight.args
        score, largest = term.args[0].args
        if self._reduced(total, "sum", key) is not term or self._reduced(largest, "max", key) is not score:
            return None
        if empty is not None and not self._is_test_of_empty(self._reduced(empty, "min", key), score):
            return None
        return self._placed(node, key, values, score, empty is not None)

    def _placed(self, node: Node, key: Atom, values: Expr, score: Expr, is_zero: bool) -> AttentionNode | None:
        products = [one for one in score.loads if _is_sum_of_products(self.makers.get(one.buffer))]
        if len(products) != 1 or products[0].mask is not None:
            return None
        maker = self.makers[products[0].buffer]
        (depth,) = maker.inner
        places = dict(zip(maker.loops, products[0].places, strict=True))
        factors = [stripped(self.program, rewrite(one, places)) for one in maker.body.args]
        factors.sort(key=lambda one: key in one.variables)
        query, keys = factors
        own = {*node.loops, key, depth}
        shared = (keys.variables | values.variables) - {key, depth}
        columns = values.variables - query.variables - keys.variables - score.variables - {key}
        rows = (query.variables | score.variables) - shared - {key, depth}
        fits = key in keys.variables and key not in query.variables and depth not in values.variables
        if not fits or len(columns) != 1 or not (rows | shared) <= own:
            return None
        (column,) = columns
        formats = [formats_of(self.program, one) for one in (query, keys, values)]
        common = [one for one in (DType.BF16, DType.F16) if all(one in of for of in formats)]
        if not common or max(depth.size.own, column.size.own) > _MOST_DEPTH or min(depth.size.own, key.size.own) < 2:
            return None
        found = Attention(query, keys, values, score, products[0].buffer, key, depth, common[0], is_zero)
        world = node.body.world
        others = [one for one in score.loads if one.buffer != products[0].buffer]
        body = world.expr("attention", (query, keys, values, *others))
        return AttentionNode("attention", node.buffer, node.loops, body, node.target, (), "", None, "", found)

    # -- softmax --

    def _expanded(self, value: Expr) -> Expr:
        """With the bodies of pointwise nodes in place of what they left in scratch memory."""

        def body(load: Expr) -> Expr | None:
            maker = self.makers.get(load.buffer)
            if maker is None or maker.kind != "pointwise" or maker.buffer.role != "scratch":
                return None
            places = dict(zip(maker.loops, load.places, strict=True))
            return self._expanded(rewrite(maker.body, places, mask=load.mask))

        return rewrite(value, None, body)

    def _reduced(self, load: Expr, op: str, key: Atom) -> Expr | None:
        """What is reduced over the keys to the value that is loaded."""
        maker = self.makers.get(load.buffer) if load.op == "load" and load.mask is None else None
        if maker is None or maker.kind != "reduction" or maker.op != op or len(maker.inner) != 1:
            return None
        if maker.inner[0].size is not key.size:
            return None
        places: dict[Atom, Index] = dict(zip(maker.loops, load.places, strict=True))
        places[maker.inner[0]] = self.program.indices.of(key)
        return rewrite(self._expanded(maker.body), places)

    def _without_empty(self, weight: Expr) -> tuple[Expr | None, Expr]:
        """The test that a row has no keys, where its weights are then zero, and the weights of other rows."""
        if weight.op == "where" and weight.args[0].op == "load" and weight.args[1].data == 0.0:
            return weight.args[0], weight.args[2]
        return None, weight

    def _is_test_of_empty(self, test: Expr | None, score: Expr) -> bool:
        return test is not None and test.op == "eq" and test.args[0] is score and test.args[1].data == _ENDLESS


def _is_sum_of_products(node: Node | None) -> bool:
    return (
        node is not None
        and node.kind == "reduction"
        and node.op == "sum"
        and node.body.op == "mul"
        and len(node.inner) == 1
        and node.buffer.role in ("scratch", "output")
    )


@dataclass(frozen=True)
class KeyRange:
    """Keys that a row may look at: `key - row` from `least` and up to `most`, where they are known."""

    least: Index | None
    most: Index | None


def key_range(program: Program, score: Expr, line: Atom, column: Atom) -> KeyRange:
    """From comparisons of row and key outside of which a score is minus infinity."""
    least = most = None
    for test in _tests(score):
        if test.op not in ("le", "lt", "ge", "gt") or any(one.kind != "int" for one in test.args):
            continue
        first, second = (_index_of(program, one) for one in test.args)
        if first is None or second is None:
            continue
        away = first - second if test.op in ("le", "lt") else second - first  # at most 0, or below it
        rest = away - (1 if test.op in ("le", "ge") else 0)  # below zero: the key is looked at
        factors = {atom: factor.literal for atom, factor in rest.terms}
        if factors.keys() != {line, column}:
            continue
        bound = program.indices.number(rest.constant)
        if factors == {column: 1, line: -1}:
            most = most or bound * -1  # key - row < -constant
        elif factors == {column: -1, line: 1}:
            least = least or bound + 1  # key - row > constant
    return KeyRange(least, most)


def _index_of(program: Program, value: Expr) -> Index | None:
    """A whole number as an index expression, where it is one."""
    if value.op == "position":
        return value.index
    if value.op in ("add", "sub"):
        first, second = (_index_of(program, one) for one in value.args)
        if first is None or second is None:
            return None
        return first + second if value.op == "add" else first - second
    return program.indices.number(value.data) if value.op == "constant" and isinstance(value.data, int) else None


def _tests(score: Expr) -> list[Expr]:
    """What holds wherever a score is not minus infinity."""
    if score.op == "add":
        return [test for one in score.args for test in _tests(one)]
    if score.op != "where":
        return []
    test, inside, outside = score.args
    if _is_endless(outside):
        return _holding(test, True) + _tests(inside)
    return _holding(test, False) + _tests(outside) if _is_endless(inside) else []


def _is_endless(value: Expr) -> bool:
    return value.op == "constant" and value.data == _ENDLESS


def _holding(test: Expr, wanted: bool) -> list[Expr]:
    """Comparisons that must hold for the test to be so."""
    if test.op in ("not", "bitwise_not") and test.kind == "bool":
        return _holding(test.args[0], not wanted)
    if test.op == "where" and all(one.op == "constant" for one in test.args[1:]):
        inside, outside = (bool(one.data) for one in test.args[1:])
        return _holding(test.args[0], inside is wanted) if inside is not outside else []
    if test.op in (("and", "bitwise_and") if wanted else ("or", "bitwise_or")):
        return [one for arg in test.args for one in _holding(arg, wanted)]
    if wanted:
        return [test]
    turned = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}.get(test.op)
    return [test.world.expr(turned, test.args, "bool")] if turned else []


def parts_of(node: AttentionNode) -> dict[str, list[Atom]]:
    """The loops by what a block goes through: batch, m (rows), n (columns of the result), keys, depth."""
    own = node.of
    columns = own.values.variables - own.query.variables - own.keys.variables - own.score.variables
    shared = own.keys.variables | own.values.variables
    parts: dict[str, list[Atom]] = {"batch": [], "m": [], "n": [], "keys": [own.key], "depth": [own.depth]}
    for loop in node.loops:
        is_fixed = loop.size.is_always(1)
        parts["n" if loop in columns else "batch" if is_fixed or loop in shared else "m"].append(loop)
    return parts
