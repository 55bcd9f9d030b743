"""Slices a kernel down to what decides which global memory it accesses, and whether it does.

Backwards from every access: registers of its address and guard, the branches it depends on (by post-dominators), and
memory where one of these is loaded. Values that are stored, and loops that only compute values, vanish. Accesses whose
values nothing needs become `note` instructions; the others run as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tilewright.ptx.control_flow import branch_targets, immediate_post_dominators
from tilewright.ptx.lower import NOTE
from tilewright.ptx.operands import registers_of
from tilewright.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Sink,
    Space,
    SymbolOperand,
    Tuple_,
    Vector,
)
from tilewright.ptx.value_decisions import Assumed, Memory, computes_products, decided_by_values, leaving_branches

_ENDS = ("ret", "exit", "trap")
_BRANCHES = ("bra", "brx")
_NO_RESULT = frozenset(
    (
        *("st", "red", "cp", "tensormap", "stmatrix", "fence", "membar", "prefetch", "prefetchu", "discard", "bra"),
        *("applypriority", "pmevent", "setmaxnreg", "nanosleep", "griddepcontrol", "brx", *_ENDS, "brkpt"),
    )
)
_SYNCHRONISES = ("bar", "barrier", "mbarrier", "fence", "membar")
_SYSTEM = {"vprintf": "nop", "__assertfail": "trap"}
_CARRY = "%cc"
_ZERO = Immediate(0)
_NOWHERE = Address(_ZERO)
_TOUCHES_MEMORY = frozenset(("st", "atom", "red", "cp", "bar", "barrier", "mbarrier", "wmma", "stmatrix", "trap"))


class NotSliced(Exception):
    """Why a kernel has no slice, as a clause."""


@dataclass(frozen=True)
class Slice:
    module: Module  # the kernel's body sliced, under its own name
    origins: tuple[int | None, ...]  # index in the whole body of each instruction; None: a jump that was put in
    loops: frozenset[int]  # branches back that are left, as such indices
    shared: bool  # whether addresses depend on shared memory
    real: bool  # whether they depend on global memory
    products: bool  # whether they depend on products of matrices, which take too long
    size: int


def slice_kernel(
    module: Module,
    kernel: str,
    *,
    reads: bool,
    valued: frozenset[int] = frozenset(),
    ahead: bool = False,
    assumed: Assumed | None = None,
) -> Slice:
    """`reads`: follow loads too. `valued`: stores, by index, whose values are needed. `ahead`: only what is certain to
    run ahead of griddepcontrol.wait. `assumed`: how values decide. Raises `NotSliced`."""
    function = module.functions[kernel]
    if ahead:
        function = _ahead_of_wait(function)
    work = _Slicing(module, function, _Graph.of(function), assumed)
    work.run(reads, valued)
    return work.result()


def _ahead_of_wait(function: Function) -> Function:
    """Threads end at their wait. Where not all of them wait, others are told by those that do: so they end at whatever
    could tell them."""
    graph = _Graph.of(function)
    waits = [index for index, one in enumerate(function.body) if _waits(one)]
    by_all = all(function.body[at].guard is None and not graph.controls[graph.block_of[at]] for at in waits)

    def ended(one: Instruction) -> Instruction:
        tells = not by_all and one.opcode in ("bar", "barrier", "mbarrier") and "init" not in one.modifiers
        ends = _waits(one) or tells
        return (
            replace(one, opcode="exit", modifiers=(), operands=(), guard=None if tells else one.guard) if ends else one
        )

    return replace(function, body=tuple(map(ended, function.body)))


def _waits(one: Instruction) -> bool:
    return one.opcode == "griddepcontrol" and "wait" in one.modifiers


# -- control flow, with every way out --


@dataclass(frozen=True)
class _Graph:
    starts: tuple[int, ...]  # of blocks, and the end
    successors: tuple[tuple[int, ...], ...]
    meetings: tuple[int | None, ...]  # immediate post-dominator of each block; None: the end
    controls: tuple[tuple[int, ...], ...]  # of each block: the branches, by index, that decide whether it runs
    block_of: tuple[int, ...]

    @staticmethod
    def of(function: Function) -> _Graph:
        body = function.body
        starts = {0, *function.labels.values()}
        starts |= {index + 1 for index, one in enumerate(body) if one.opcode in (*_BRANCHES, *_ENDS) or _fails(one)}
        ordered = [*sorted(start for start in starts if start < len(body)), len(body)]
        number = {start: block for block, start in enumerate(ordered[:-1])}
        successors: list[tuple[int, ...]] = []
        leaves: list[bool] = []
        for end in ordered[1:]:
            last = body[end - 1]
            ends = last.opcode in _ENDS or _fails(last)
            goes_on = last.guard is not None or not (ends or last.opcode in _BRANCHES)
            reached = (*((end,) if goes_on else ()), *branch_targets(function, last))
            successors.append(tuple(dict.fromkeys(number[one] for one in reached if one < len(body))))
            leaves.append(ends or len(body) in reached)
        meetings = immediate_post_dominators(successors, leaves)
        block_of = tuple(block for block in range(len(ordered) - 1) for _ in range(ordered[block], ordered[block + 1]))
        return _Graph(
            tuple(ordered), tuple(successors), meetings, _controls(ordered, successors, leaves, meetings), block_of
        )


def _controls(
    starts: list[int], successors: list[tuple[int, ...]], leaves: list[bool], meetings: tuple[int | None, ...]
) -> tuple[tuple[int, ...], ...]:
    found: list[dict[int, None]] = [{} for _ in successors]
    for block, following in enumerate(successors):
        if len(following) + leaves[block] < 2:
            continue
        for successor in following:
            at: int | None = successor
            while at is not None and at != meetings[block]:
                found[at][starts[block + 1] - 1] = None
                at = meetings[at]
    return tuple(map(tuple, found))


def _fails(one: Instruction) -> bool:
    return _SYSTEM.get(_callee(one)) == "trap"


def _callee(one: Instruction) -> str:
    if one.opcode != "call":
        return ""
    named = next((operand for operand in one.operands if not isinstance(operand, Tuple_)), None)
    return named.name if isinstance(named, SymbolOperand) else "?"


# -- what instructions do --


def written_registers(one: Instruction) -> Iterator[str]:
    first = one.operands[0] if one.operands else None
    if first is None or isinstance(first, Address):
        return
    if one.opcode == "wmma":
        writes = one.modifiers[:1] != ("store",)
    elif one.opcode == "wgmma":
        writes = one.modifiers[:1] == ("mma_async",)
    elif one.opcode in ("bar", "barrier"):
        writes = "red" in one.modifiers
    else:
        writes = one.opcode not in _NO_RESULT and one.opcode != "call"
    if writes:
        yield from registers_of(first)
    if "cc" in one.modifiers:
        yield _CARRY


def used_registers(one: Instruction) -> Iterator[str]:
    if one.guard is not None:
        yield one.guard.name
    writes = set(written_registers(one))
    for position, operand in enumerate(one.operands):
        kept = position or one.opcode == "wgmma" or not writes
        if kept or isinstance(operand, Address):
            yield from registers_of(operand)
    if one.opcode in ("addc", "subc", "madc"):
        yield _CARRY


def _space(one: Instruction) -> str:
    """The state space of a load, a store or an atomic; "" for a generic one."""
    for part in one.modifiers:
        name = part.split("::")[0]
        if name in ("global", "shared", "local", "param", "const"):
            return name
    return ""


@dataclass(frozen=True)
class _Access:
    """What one instruction does to memory."""

    reads: str | None = None  # a space; "": generic; None: it reads none
    writes: str | None = None


def _access(one: Instruction) -> _Access:
    space = _space(one)
    if one.opcode in ("ld", "ldu"):
        return _Access(reads=space)
    if one.opcode == "st":
        return _Access(writes="shared" if "async" in one.modifiers else space)
    if one.opcode in ("atom", "red"):
        return _Access("shared", "shared") if "async" in one.modifiers else _Access(space, space)
    if one.opcode == "ldmatrix":
        return _Access(reads="shared")
    if one.opcode == "stmatrix":
        return _Access(writes="shared")
    if one.opcode == "wmma" and one.modifiers[0] in ("load", "store"):
        return _Access(reads=space) if one.modifiers[0] == "load" else _Access(writes=space)
    if one.opcode == "cp":
        return _copy(one)
    return _Access()


def _copy(one: Instruction) -> _Access:
    names = [part.split("::")[0] for part in one.modifiers if part.split("::")[0] in ("global", "shared")]
    if len(names) < 2 or "prefetch" in one.modifiers:
        return _Access()
    if "tensor" in one.modifiers or "bulk" in one.modifiers:
        return _Access(writes="global", reads="shared") if names[0] == "global" else _Access(names[1], "shared")
    return _Access("global", "shared")


def _noted(one: Instruction) -> Instruction:
    """The instruction that only notes where one accesses global memory."""
    hint = ("L2::cache_hint",)
    operands = list(one.operands)
    if any(part in one.modifiers for part in hint):
        operands[-1] = _ZERO
    if one.opcode in ("ld", "ldu"):
        operands[0] = _without(operands[0], Sink())
    elif one.opcode in ("st", "red"):
        operands[1:] = [_without(operand, _ZERO) for operand in operands[1:]]
    elif one.opcode == "atom":
        operands = [_without(operands[0], Sink()), operands[1], *(_without(one, _ZERO) for one in operands[2:])]
    elif one.opcode == "cp":
        outwards = _copy(one).writes == "global"
        operands = [
            _NOWHERE if isinstance(operand, Address) and (position == 1 if outwards else position != 1) else operand
            for position, operand in enumerate(operands)
        ]
    return replace(one, opcode=NOTE, modifiers=(one.opcode, *one.modifiers), operands=tuple(operands))


def _without(operand: Operand, instead: Operand) -> Operand:
    return Vector(tuple(instead for _ in operand.items)) if isinstance(operand, Vector) else instead


# -- the slice --

_ABSENT, _NOTED, _ASSUMED, _REAL = range(4)


@dataclass
class _Slicing:
    module: Module
    function: Function
    graph: _Graph
    assumed: Assumed | None = None
    _values: frozenset[str] = frozenset()  # registers whose comparisons are assumed
    _kept: dict[int, int] = field(default_factory=dict)  # index -> how
    _waiting: list[int] = field(default_factory=list)
    _writers: dict[str, list[int]] = field(default_factory=dict)  # of registers
    _parameters: dict[str, list[int]] = field(default_factory=dict)  # of .param variables for calls
    _loaded: set[tuple[str, frozenset[str] | None]] = field(default_factory=set)
    _synchronised: bool = False
    _global: bool = False

    def __post_init__(self) -> None:
        own = {one.name for one in self.function.variables if one.space is Space.PARAM}
        self._own = own
        self._access = [_access(one) for one in self.function.body]
        for index, one in enumerate(self.function.body):
            if one.opcode == "tensormap":
                raise NotSliced("it changes tensor maps")
            for name in written_registers(one):
                self._writers.setdefault(name, []).append(index)
            for name in _filled(one, own):
                self._parameters.setdefault(name, []).append(index)
            self._check_call(one)
        self._mixed = any(
            one.opcode == "mapa" or (one.opcode == "cvta" and "to" not in one.modifiers and _space(one) != "global")
            for one in self.function.body
        )
        if self.assumed is not None:
            self._values = decided_by_values(self.function.body, written_registers, used_registers, self._memory)

    def _memory(self, index: int) -> Memory:
        access, one = self._access[index], self.function.body[index]
        spaces = ("shared", "local", "")
        reads, writes = access.reads in spaces, access.writes in spaces
        assumed = self.assumed is not None and self.assumed.loads
        is_load = assumed and access.reads in ("global", "") and one.opcode in ("ld", "ldu")
        return Memory(is_load, reads, writes, one.opcode == "cp", self._roots(one) if reads or writes else None)

    def _check_call(self, one: Instruction) -> None:
        name = _callee(one)
        if not name or name in _SYSTEM:
            return
        called = self.module.functions.get(name)
        if called is None or any(inner.opcode in (*_TOUCHES_MEMORY, "call") for inner in called.body):
            raise NotSliced("it calls a function that was not inlined and uses memory")

    def run(self, reads: bool, valued: frozenset[int]) -> None:
        for index, one in enumerate(self.function.body):
            access = self._access[index]
            if one.opcode == "trap" or _fails(one) or index in valued:
                self._keep(index, _REAL)
            elif access.writes in ("global", "") or (reads and access.reads in ("global", "")):
                self._keep(index, _NOTED)
        while self._waiting:
            self._follow(self._waiting.pop())

    def _keep(self, index: int, how: int) -> None:
        if how == _REAL and self._is_assumed(index):
            how = _ASSUMED
        if self._kept.get(index, _ABSENT) < how:
            self._kept[index] = how
            self._waiting.append(index)

    def _is_assumed(self, index: int) -> bool:
        """Whether it compares values; or is a branch by which they end a loop."""
        one = self.function.body[index]
        if one.opcode == "bra":
            by_values = one.guard is not None and one.guard.name in self._values
            return by_values and len(self._staying(index)) == 1
        made = one.operands[0] if one.operands else None
        is_predicate = isinstance(made, Register) and self.function.registers.get(made.name) == "pred"
        compares = is_predicate and one.opcode in ("setp", "vote", "mov")
        return compares and any(name in self._values for name in used_registers(one))

    def _stores_values(self, index: int) -> bool:
        """Values that are not to be had are no addresses either, though arrays may share their memory."""
        one = self.function.body[index]
        stored = [name for operand in one.operands[1:] for name in registers_of(operand)]
        return one.opcode in ("st", "stmatrix") and bool(stored) and self._values.issuperset(stored)

    def _staying(self, branch: int) -> tuple[int, ...]:
        graph = self.graph
        return leaving_branches(graph.successors, graph.meetings, graph.block_of[branch])

    def _need(self, name: str) -> None:
        for index in self._writers.get(name, ()):
            self._keep(index, _REAL)

    def _follow(self, index: int) -> None:
        one = self.function.body[index]
        real = self._kept[index] == _REAL
        for branch in self.graph.controls[self.graph.block_of[index]]:
            self._keep(branch, _REAL)
        if self._kept[index] == _ASSUMED:
            if one.guard is not None and one.opcode != "bra":
                self._need(one.guard.name)
            return
        if _fails(one):
            if one.guard is not None:
                self._need(one.guard.name)
            return
        for name in used_registers(one if real else _noted(one)):
            self._need(name)
        if not real:
            return
        for operand in one.operands:
            for symbol in _symbols(operand):
                for writer in self._parameters.get(symbol, ()):
                    self._keep(writer, _REAL)
        space = self._access[index].reads
        if space is not None:
            self._load(one, space)

    def _load(self, one: Instruction, space: str) -> None:
        """Memory that a real load reads: its writers bring their values."""
        if space in ("", "global"):
            self._global = True
        spaces = ("shared", "local") if space == "" and self._mixed else (space,)
        for name in spaces:
            if name not in ("shared", "local"):
                continue
            roots = self._roots(one)
            if (name, roots) in self._loaded:
                continue
            self._loaded.add((name, roots))
            for index, access in enumerate(self._access):
                if self._stores_values(index):
                    continue
                if access.writes == name or (access.writes == "" and self._mixed):
                    other = self._roots(self.function.body[index])
                    if roots is None or other is None or roots & other:
                        self._keep(index, _REAL)
            if name == "shared" and not self._synchronised:
                self._synchronise()

    def _synchronise(self) -> None:
        """Exchanges between threads through shared memory run with all that orders them."""
        self._synchronised = True
        counted = any(one.opcode == "mbarrier" for one in self.function.body)
        for index, one in enumerate(self.function.body):
            writes = self._access[index].writes
            copies = one.opcode == "cp" and "prefetch" not in one.modifiers
            if one.opcode in _SYNCHRONISES or (copies and (writes is None or (counted and writes == "shared"))):
                self._keep(index, _REAL)

    def _roots(self, one: Instruction) -> frozenset[str] | None:
        """The variables in which an access may lie; None where that is unknown."""
        place = next((operand for operand in one.operands if isinstance(operand, Address)), None)
        if place is None:
            return None
        found: set[str] = set()
        waiting: list[Operand] = [place.base]
        seen: set[str] = set()
        while waiting:
            operand = waiting.pop()
            if isinstance(operand, SymbolOperand):
                found.add(operand.name)
            for name in registers_of(operand):
                if name in seen:
                    continue
                seen.add(name)
                for index in self._writers.get(name, ()):
                    writer = self.function.body[index]
                    if writer.opcode in ("ld", "ldu", "atom", "shfl", "mapa", "call"):
                        return None
                    waiting += writer.operands[1:]
        dynamic = {one.name for one in (*self.module.variables, *self.function.variables) if not one.size_bytes}
        return frozenset("" if name in dynamic else name for name in found) or None

    # -- the new body --

    def result(self) -> Slice:
        blocks = self._reached()
        body: list[Instruction] = []
        origins: list[int | None] = []
        at: dict[int, int] = {}
        for position, block in enumerate(blocks):
            at[self.graph.starts[block]] = len(body)
            following = blocks[position + 1] if position + 1 < len(blocks) else None
            for one, origin in self._emitted(block, following):
                body.append(one)
                origins.append(origin)
        at[len(self.function.body)] = len(body)
        labels = {name: at[target] for name, target in self.function.labels.items() if target in at}
        labels |= {_label(block): at[self.graph.starts[block]] for block in blocks}
        back = {
            origin
            for index, (one, origin) in enumerate(zip(body, origins, strict=True))
            if origin is not None
            for operand in one.operands
            if isinstance(operand, Label) and labels.get(operand.name, index + 1) <= index
        }
        named = {symbol for one in body for operand in one.operands for symbol in _symbols(operand)}
        variables = tuple(one for one in self.function.variables if one.name in named)
        tables = {
            name: targets for name, targets in self.function.branch_targets.items() if all(t in labels for t in targets)
        }
        made = replace(self.function, body=tuple(body), labels=labels, variables=variables, branch_targets=tables)
        module = replace(self.module, functions={**self.module.functions, self.function.name: made})
        shared = any(name == "shared" for name, _ in self._loaded)
        products = any(computes_products(one) for one in body)
        return Slice(module, tuple(origins), frozenset(back), shared, self._global, products, len(body))

    def _leads(self, block: int) -> tuple[int, ...]:
        """Where a block goes on in the slice."""
        last = self.graph.starts[block + 1] - 1
        one = self.function.body[last]
        decides = one.opcode == "brx" or (one.guard is not None and (one.opcode in ("bra", *_ENDS) or _fails(one)))
        if decides and last not in self._kept:
            meeting = self.graph.meetings[block]
            return () if meeting is None else (meeting,)
        if decides and self._kept[last] == _ASSUMED:
            return tuple(one_ for one_ in self.graph.successors[block] if one_ not in self._staying(last))
        return self.graph.successors[block]

    def _reached(self) -> list[int]:
        seen = {0}
        waiting = [0]
        while waiting:
            for block in self._leads(waiting.pop()):
                if block not in seen:
                    seen.add(block)
                    waiting.append(block)
        return sorted(seen)

    def _emitted(self, block: int, following: int | None) -> Iterator[tuple[Instruction, int | None]]:
        start, end = self.graph.starts[block], self.graph.starts[block + 1]
        body = self.function.body
        last = body[end - 1]
        ends = last.opcode in (*_BRANCHES, *_ENDS) or _fails(last)
        for index in range(start, end - 1 if ends else end):
            how = self._kept.get(index, _ABSENT)
            if how == _ASSUMED:
                sides = (_ZERO, _ZERO if self.assumed is not None and self.assumed.holds else Immediate(1))
                made = body[index].operands[0]
                yield replace(body[index], opcode="setp", modifiers=("eq", "s32"), operands=(made, *sides)), index
            elif how != _ABSENT:
                yield (_plain(body[index]) if how == _REAL else _noted(body[index])), index
        leads = self._leads(block)
        if ends and (self._kept.get(end - 1, _ASSUMED) != _ASSUMED or (last.guard is None and last.opcode != "brx")):
            if not (last.opcode == "bra" and last.guard is None and leads == (following,)):
                yield (replace(last, opcode="trap", modifiers=(), operands=()) if _fails(last) else last), end - 1
            if last.guard is None:
                return
            leads = tuple(one for one in leads if self.graph.starts[one] == end)
        if not leads:
            yield replace(last, opcode="exit", modifiers=(), operands=(), guard=None), None
        elif leads[0] != following:
            yield replace(last, opcode="bra", modifiers=(), operands=(Label(_label(leads[0])),), guard=None), None


def _label(block: int) -> str:
    return f"$slice_{block}"


def _plain(one: Instruction) -> Instruction:
    """A real load without the read-only cache, which no checker watches here."""
    if one.opcode in ("ld", "ldu") and "nc" in one.modifiers:
        return replace(one, modifiers=tuple(part for part in one.modifiers if part != "nc"))
    return one


def _filled(one: Instruction, own: set[str]) -> Iterable[str]:
    """The .param variables of calls that an instruction fills."""
    if one.opcode == "st" and _space(one) == "param":
        return [symbol for symbol in _symbols(one.operands[0]) if symbol in own]
    if one.opcode == "call" and one.operands and isinstance(one.operands[0], Tuple_):
        return [symbol for symbol in _symbols(one.operands[0]) if symbol in own]
    return ()


def _symbols(operand: Operand | None) -> Iterator[str]:
    if isinstance(operand, SymbolOperand):
        yield operand.name
    elif isinstance(operand, Address):
        yield from _symbols(operand.base)
    elif isinstance(operand, (Vector, Tuple_)):
        for item in operand.items:
            yield from _symbols(item)
    elif isinstance(operand, Register):
        return
