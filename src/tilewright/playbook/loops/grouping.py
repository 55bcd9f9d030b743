"""Groups: nodes that one launch computes together.

All members of a group see the same `row`, read what others computed for that row from registers, and have columns of
their own. A reader joins if the place at which it reads a row value is, after splitting its loops at quotients, exactly
the row; the epilogue of a product or of a scan is the same test, where a row is a single result.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, Node, Program, rewrite
from tilewright.playbook.loops.scheduler import factors_of
from tilewright.playbook.loops.sizes import Size


@dataclass(eq=False)
class Member:
    """A node in a group: its body and target as functions of the group's `row` and of a column of its own."""

    node: Node
    body: Expr
    target: tuple[Index, ...]
    columns: Size | None  # None: one value for the whole row

    def __post_init__(self) -> None:
        values = (self.body, *(one for index in self.target for one in index.lookups))
        self.loads: tuple[Expr, ...] = tuple(dict.fromkeys(load for one in values for load in one.loads))

    @property
    def is_row_value(self) -> bool:
        return self.columns is None or self.node.kind == "reduction"


@dataclass(eq=False)
class Group:
    kind: str  # "rows", "product", "attention", "scan", "scatter", "sort"; a pointwise launch is rows without columns
    rows: Size
    members: list[Member]
    flexible: bool = False  # one pointwise node, whose loops can still be divided into rows and columns otherwise
    factors: tuple[Expr, Expr] | None = None  # of a product
    order: int = 0  # where its last node stood in the program
    nodes: list[Node] = field(init=False)
    written: dict[str, None] = field(init=False)
    read: dict[str, None] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = [one.node for one in self.members]
        self.written = {buffer.name: None for one in self.nodes for buffer in one.writes}
        self.read = {name: None for one in self.nodes for name in one.reads}


class Grouping:
    def __init__(self, program: Program) -> None:
        self.program, self.indices = program, program.indices
        self._readers: dict[str, list[Node]] = {}
        for node in program.nodes:
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
        self._serial = 0
        self._groups: dict[int, Group] = {}
        self._heap: list[tuple[float, int, int, Group, Group, Group]] = []

    def run(self) -> list[Group]:
        """Pairs are joined by bytes saved, largest first, never across a third group that lies between."""
        for place, node in enumerate(self.program.nodes):
            self._add(self._alone(node, place))
        kept: list[tuple[float, int, int, Group, Group, Group]] = []
        while self._heap:
            entry = heapq.heappop(self._heap)
            _, _, _, first, second, made = entry
            if self._groups.get(id(first)) is not first or self._groups.get(id(second)) is not second:
                continue
            if self._is_between(first, second):
                kept.append(entry)  # what lies between may itself be joined with one of the two
                continue
            del self._groups[id(first)], self._groups[id(second)]
            self._add(made)
            for one in kept:
                heapq.heappush(self._heap, one)
            kept = []
        return _ordered(sorted(self._groups.values(), key=lambda one: one.order))

    def _add(self, group: Group) -> None:
        for other in sorted(self._groups.values(), key=lambda one: one.order):
            for first, second in ((other, group), (group, other)):
                shared = first.written.keys() & second.read.keys() or first.read.keys() & second.read.keys()
                if not shared or second.written.keys() & first.read.keys():
                    continue
                made = self._joined(first, second)
                saved = self._saving(first, second, made) if made else 0.0
                if made and saved > 0:
                    self._serial += 1
                    made.order = max(first.order, second.order)
                    heapq.heappush(self._heap, (-saved, second.order, self._serial, first, second, made))
        self._groups[id(group)] = group

    # -- a node in a row space --

    def _alone(self, node: Node, order: int) -> Group:
        """The group that a node is by itself."""
        if node.kind in ("scan", "sort"):  # its rows are single results, whose places readers are compared with
            total = self.program.numel(node.buffer)
            rows = self.indices.unravel(self._row(total), node.buffer.shape)
            return Group(node.kind, total, [Member(node, node.body, rows, None)], order=order)
        rows_of = self.program.count(node.loops)
        if node.kind in ("pointwise", "scatter", "attention"):
            kind = "rows" if node.kind == "pointwise" else node.kind
            return Group(kind, rows_of, [self._placed(node, node.loops, (), {})], kind == "rows", order=order)
        factors = factors_of(node)
        member = self._placed(node, node.loops, node.inner, {})
        return Group("product" if factors else "rows", rows_of, [member], factors=factors, order=order)

    def _row(self, rows: Size) -> Index:
        return self.indices.of(self.indices.var("row", rows))

    def _placed(self, node: Node, rows: Sequence[Atom], columns: Sequence[Atom], split: dict[Atom, Index]) -> Member:
        """The member that a node is when these variables, in this order, count the rows and those the columns."""
        row = self._row(self.program.count(rows))
        total = self.program.count(columns)
        places = dict(zip(rows, self.indices.unravel(row, [one.size for one in rows]), strict=True))
        column = self.indices.of(self.indices.var("column", total))
        places |= dict(zip(columns, self.indices.unravel(column, [one.size for one in columns]), strict=True))
        variables = {one: index.rewritten(places) for one, index in split.items()} or places

        def value(one: Expr) -> Expr:
            return rewrite(one, variables)

        target = tuple(one.rewritten(variables, value) for one in node.target)
        has_columns = node.kind == "reduction" or bool(columns)
        return Member(node, rewrite(node.body, variables), target, total if has_columns else None)

    def _fitted(self, node: Node, anchor: Group) -> Member | None:
        """The node as a member of the group's row space, read off the place at which it reads a row value."""
        made = {buffer.name: buffer for one in anchor.members if one.is_row_value for buffer in one.node.writes}
        load = next((one for one in node.loads if one.buffer in made), None)
        if load is not None:
            return self._fitted_at(node, load, anchor.rows)
        if node.kind == "pointwise":  # nothing of the group's is read: the first dimensions may be its rows
            for many in range(len(node.loops), -1, -1):
                if self.program.count(node.loops[:many]) is anchor.rows:
                    return self._placed(node, node.loops[:many], node.loops[many:], {})
        return None

    def _fitted_at(self, node: Node, load: Expr, wanted: Size) -> Member | None:
        loops = (*node.loops, *node.inner) if node.kind == "reduction" else node.loops
        split = self.indices.refine(loops, load.places)
        parts = [atom for index in split.values() for atom, _ in index.terms]
        strides = self.indices.strides(self.program.buffers[load.buffer].shape)
        flat = self.indices.ravel([one.rewritten(split) for one in load.places], strides)
        if not flat.constant.is_always(0) or any(atom.kind != "var" for atom, _ in flat.terms):
            return None
        factors = dict(flat.terms)
        rows = [atom for atom, _ in sorted(flat.terms, key=lambda term: [-one for one in term[1].values])]
        step = self.program.sizes.one
        for one in reversed(rows):
            if factors[one] is not step:
                return None
            step = step * one.size
        if step is not wanted:
            return None
        columns = [one for one in parts if one not in factors]
        inner = {one.name for one in node.inner if not one.size.is_always(1)}
        if node.kind == "reduction" and {one.name for one in columns} != inner:
            return None
        return self._placed(node, rows, columns, split)

    # -- pairs --

    def _agree(self, reader: Member, maker: Member) -> bool:
        """Whether the reader, in its row, wants only what the maker computes for that row."""
        for buffer in maker.node.writes:
            wanted = [one for one in reader.loads if one.buffer == buffer.name]
            if not wanted:
                continue
            strides = self.indices.strides(buffer.shape)
            own = self.indices.ravel(maker.target, strides)
            if not maker.is_row_value or any(self.indices.ravel(one.places, strides) is not own for one in wanted):
                return False
        return True

    def _joined(self, first: Group, second: Group) -> Group | None:
        """One group that does the work of both, the first before the second; None where they agree on no row space."""
        anchors = [one for one in (first, second) if one.kind in ("product", "scan", "attention")]
        if len(anchors) == 2 or {first.kind, second.kind} & {"scatter", "sort"}:
            return None
        anchor = anchors[0] if anchors else None
        if anchor is not None and anchor is not first:
            return None  # a prologue is inlined; what is computed after a product needs its results
        for rows, members in self._row_spaces(first, second):
            extra = [one for one in members if anchor is None or one.node not in anchor.nodes]
            if anchor and any(one.columns is not None for one in extra):
                continue  # the templates of products and scans have a place for single results only
            if all(self._agree(one, other) for one in members for other in members if one is not other):
                return Group(
                    anchor.kind if anchor else "rows", rows, members, factors=anchor.factors if anchor else None
                )
        return None

    def _row_spaces(self, first: Group, second: Group) -> Iterator[tuple[Size, list[Member]]]:
        """Ways to see the nodes of both in the rows of one."""
        if first.flexible and not second.flexible:
            if fit := self._fitted(first.nodes[0], second):
                yield second.rows, [fit, *second.members]
            return
        if first.rows is second.rows and first.flexible == second.flexible:
            yield first.rows, first.members + second.members
        node = second.nodes[0]
        is_free = second.flexible or (len(second.members) == 1 and second.kind == "rows" and node.kind == "reduction")
        if is_free and not first.flexible and (fit := self._fitted(node, first)):
            yield first.rows, [*first.members, fit]

    def _saving(self, first: Group, second: Group, made: Group) -> float:
        """Bytes that need not be moved when two groups are one."""
        saved = 0.0
        both = {id(one) for one in (*first.nodes, *second.nodes)}
        buffers = self.program.buffers
        for name in first.written:
            if name in second.read:
                others = any(id(one) not in both for one in self._readers.get(name, []))
                kept = others or buffers[name].role != "scratch"
                saved += buffers[name].bytes * (1 if kept else 2)
        count = len(first.members) if made.members[0].node is first.nodes[0] else 1
        known = {load: None for member in made.members[:count] for load in member.loads}
        again = {load: None for member in made.members[count:] for load in member.loads if load in known}
        return saved + sum(buffers[load.buffer].bytes for load in again)

    def _is_between(self, first: Group, second: Group) -> bool:
        """Whether something else needs the first and is needed by the second, or the first needs the second."""
        return self._reaches(first, second, through_others=True) or self._reaches(second, first, through_others=False)

    def _reaches(self, start: Group, end: Group, through_others: bool) -> bool:
        stack = [one for one in self._groups.values() if _needs(one, start) and not (through_others and one is end)]
        reached: set[int] = set()
        while stack:
            one = stack.pop()
            if one is end:
                return True
            if id(one) not in reached:
                reached.add(id(one))
                stack += [other for other in self._groups.values() if _needs(other, one)]
        return False


def levels_of(group: Group) -> dict[Member, int]:
    """For every member the number of sweeps that must have ended before it can start."""
    made = {buffer.name: one for one in group.members for buffer in one.node.writes}
    found: dict[Member, int] = {}

    def level(one: Member) -> int:
        if one not in found:
            needed = [made[load.buffer] for load in one.loads if load.buffer in made]
            found[one] = max((level(other) + (other.node.kind == "reduction") for other in needed), default=0)
        return found[one]

    order: list[Member] = []

    def visit(one: Member) -> None:
        if one not in order:
            for load in one.loads:
                if load.buffer in made:
                    visit(made[load.buffer])
            order.append(one)

    for one in group.members:
        visit(one)
        level(one)
    group.members = order
    return found


def _needs(group: Group, other: Group) -> bool:
    return group is not other and not group.read.keys().isdisjoint(other.written)


def _ordered(groups: list[Group]) -> list[Group]:
    """Each after what it needs, else in the order of the program."""
    done: list[Group] = []
    left = list(groups)
    while left:
        ready = next(one for one in left if not any(_needs(one, other) for other in left))
        done.append(ready)
        left.remove(ready)
    return done
