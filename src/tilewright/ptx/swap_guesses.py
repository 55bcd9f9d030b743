"""Finds plain loads that are the initial guess of a compare-and-swap loop, which are no races.

`old = *p; do { seen = old; old = atomicCAS(p, seen, f(seen)); } while (old != seen);` reads `*p` plainly while other
threads swap it. A wrong guess only costs another iteration. CUDA's own `atomicAdd` of bf16 and bf16x2 is such a loop
below sm_90, so the race detector ignores these loads.

A load is a guess if all of this holds in its function:

- every way from it leads to an `atom.cas` that compares with what was loaded;
- when the swap fails, every way leads back to it, with what it returned;
- until the swap succeeds, what was loaded goes through arithmetic only: it is not stored, passed on or used as an
  address, and where a branch depends on it, nothing but arithmetic and loads happens before the swap;
- after a swap that failed, nothing is made of it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.ptx.control_flow import ControlFlow
from tilewright.ptx.operands import registers_of
from tilewright.ptx.syntax import Address, Function, Instruction, Operand, Register

_BRANCHES = ("bra", "brx")
# These compute their first operand from the others, in registers, each lane for itself.
_ARITHMETIC = frozenset(
    (
        *("mov", "cvt", "add", "sub", "mul", "mad", "fma", "div", "rem", "abs", "neg", "min", "max", "sad", "mul24"),
        *("and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "prmt", "bfe", "bfi", "popc", "clz", "brev"),
        *("setp", "set", "selp", "slct", "testp", "copysign", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"),
        *("tanh", "mad24", "bfind", "bmsk", "szext", "dp4a", "dp2a"),
    )
)
_HARMLESS = _ARITHMETIC | {"ld", *_BRANCHES}
# Of bits: numbers may be equal where bits are not, and the swap compares bits.
_EQUALITIES = frozenset((how, f"{kind}{bits}") for how in ("eq", "ne") for kind in "bsu" for bits in (16, 32, 64))
_NOT_PLAIN = frozenset(("volatile", "mmio", "relaxed", "acquire", "nc"))
_OTHER_SPACES = frozenset(("param", "param::entry", "param::func", "const", "local"))

Names = frozenset[str]


def swap_guesses(function: Function, flow: ControlFlow) -> dict[int, Instruction]:
    """Index of a guess -> its swap. Nearly always empty."""
    body = function.body
    swaps = [index for index, one in enumerate(body) if one.opcode == "atom" and "cas" in one.modifiers]
    if not swaps:
        return {}
    search = _Search(body, _successors(body, flow))
    loops = [loop for loop in map(search.loop, swaps) if loop is not None]
    found = {}
    not_plain = _NOT_PLAIN | _OTHER_SPACES
    for load, one in enumerate(body):
        if one.opcode != "ld" or one.guard is not None or not_plain.intersection(one.modifiers):
            continue
        loop = next((loop for loop in loops if search.is_guess(load, loop)), None)
        if loop is not None:
            found[load] = body[loop.swap]
    return found


def _successors(body: tuple[Instruction, ...], flow: ControlFlow) -> list[tuple[int, ...]]:
    """Of each instruction those that may follow it, the next one first; `len(body)` is the end of the function."""
    following: list[tuple[int, ...]] = [(index + 1,) for index in range(len(body))]
    for block in flow.blocks:
        ways = tuple(flow.blocks[successor].start for successor in block.successors)
        following[block.end - 1] = (*ways, len(body)) if block.leaves else ways
    for index, one in enumerate(body):
        if one.opcode in ("ret", "exit") and one.guard is not None:
            following[index] += (len(body),)
    return following


def _written(one: Instruction) -> set[str]:
    """Registers among the first operand, unless it is an address; of a call, all it names."""
    operands = one.operands if one.opcode == "call" else one.operands[:1]
    return {name for operand in operands if not isinstance(operand, Address) for name in registers_of(operand)}


def _read(one: Instruction) -> set[str]:
    writes_first = one.opcode in _ARITHMETIC or one.opcode in ("ld", "atom")
    names = {name for operand in one.operands[1 if writes_first else 0 :] for name in registers_of(operand)}
    return names if one.guard is None else {*names, one.guard.name}


def _register(operands: tuple[Operand, ...], position: int) -> str | None:
    operand = operands[position] if position < len(operands) else None
    return operand.name if isinstance(operand, Register) else None


def _copies(one: Instruction, held: Names) -> Names:
    """The registers that hold a value after the instruction, if `held` did before it."""
    target = _register(one.operands, 0)
    if one.opcode == "mov" and one.guard is None and target is not None and _register(one.operands, 1) in held:
        return held | {target}
    return held - _written(one)


@dataclass(frozen=True)
class _Loop:
    """A swap that is tried again, with what it returned, until it succeeds."""

    swap: int
    compared: str
    sources: Names  # registers that some `mov` may bring to `compared`
    decision: tuple[int, ...]  # from behind the swap to the branch that asks whether it succeeded
    failed: int  # where it goes on when it did not


@dataclass(frozen=True)
class _Search:
    body: tuple[Instruction, ...]
    successors: list[tuple[int, ...]]

    # -- the loop --

    def loop(self, swap: int) -> _Loop | None:
        one = self.body[swap]
        returned, compared = _register(one.operands, 0), _register(one.operands, 2)
        if returned is None or compared is None or returned == compared or one.guard is not None:
            return None
        theirs, ours = frozenset((returned,)), frozenset((compared,))
        asks: dict[str, bool] = {}  # predicate -> its value when the swap succeeded
        passed: list[int] = []
        index = self.successors[swap][0]
        while index < len(self.body) and index != swap and index not in passed:
            one = self.body[index]
            passed.append(index)
            if one.opcode == "bra" and one.guard is not None:
                return self._decided(swap, compared, tuple(passed), asks.get(one.guard.name), theirs)
            if one.opcode not in _ARITHMETIC and one.opcode != "bra":
                return None
            for name in _written(one):
                asks.pop(name, None)
            if one.opcode == "setp" and one.guard is None and len(one.operands) == 3:
                sides = {_register(one.operands, 1), _register(one.operands, 2)}
                predicate = _register(one.operands, 0)
                if predicate is not None and sides & theirs and sides & ours and one.modifiers in _EQUALITIES:
                    asks[predicate] = one.modifiers[0] == "eq"
            theirs, ours = _copies(one, theirs), _copies(one, ours)
            index = self.successors[index][0]
        return None

    def _decided(
        self, swap: int, compared: str, passed: tuple[int, ...], success: bool | None, returned_in: Names
    ) -> _Loop | None:
        branch = passed[-1]
        ways = self.successors[branch]
        if success is None or len(ways) != 2:
            return None
        taken_on_success = success != self.body[branch].guard_negated
        failed = ways[0] if taken_on_success else ways[1]
        inside, reached = self._region((failed,), (swap, len(self.body)))
        if reached != {swap} or not self._holds((failed,), inside, returned_in, swap, compared):
            return None
        return _Loop(swap, compared, self._sources(compared), passed, failed)

    def _sources(self, wanted: str) -> Names:
        moves = [(_register(one.operands, 0), _register(one.operands, 1)) for one in self.body if one.opcode == "mov"]
        found = {wanted}
        while grown := {source for target, source in moves if target in found and source is not None} - found:
            found |= grown
        return frozenset(found)

    # -- the load --

    def is_guess(self, load: int, loop: _Loop) -> bool:
        loaded = _register(self.body[load].operands, 0)
        if loaded is None or loaded not in loop.sources:
            return False
        start = self.successors[load]
        inside, reached = self._region(start, (loop.swap, load, len(self.body)))
        if reached != {loop.swap} or not self._holds(start, inside, frozenset((loaded,)), loop.swap, loop.compared):
            return False
        derived = self._derived(inside, loaded)
        return derived is not None and self._forgotten(loop, derived)

    def _region(self, starts: Iterable[int], stops: tuple[int, ...]) -> tuple[set[int], set[int]]:
        """What may run from the starts until a stop, and the stops that are reached."""
        inside: set[int] = set()
        reached: set[int] = set()
        pending = list(starts)
        while pending:
            index = pending.pop()
            if index in stops:
                reached.add(index)
            elif index not in inside:
                inside.add(index)
                pending += self.successors[index]
        return inside, reached

    def _holds(self, starts: Iterable[int], inside: set[int], held: Names, stop: int, wanted: str) -> bool:
        """Does `wanted` hold at `stop`, whichever way was taken, what `held` do at the starts?"""
        known: dict[int, Names] = {}
        pending = [(index, held) for index in starts]
        while pending:
            index, names = pending.pop()
            before = known.get(index)
            if before is not None and before <= names:
                continue
            known[index] = names = names if before is None else before & names
            if index in inside:
                after = _copies(self.body[index], names)
                pending += [(following, after) for following in self.successors[index]]
        return wanted in known.get(stop, frozenset())

    def _derived(self, inside: set[int], loaded: str) -> Names | None:
        """Registers with something made of the loaded value; None where more is done with it than arithmetic."""
        derived = {loaded}
        grown, branches = True, False
        while grown:
            grown = False
            for index in inside:
                one = self.body[index]
                if derived.isdisjoint(_read(one)):
                    continue
                if one.opcode in _BRANCHES:
                    branches = True
                elif one.opcode not in _ARITHMETIC:
                    return None
                elif not derived.issuperset(_written(one)):
                    derived |= _written(one)
                    grown = True
        if branches and not all(self.body[index].opcode in _HARMLESS for index in inside):
            return None
        return frozenset(derived)

    def _forgotten(self, loop: _Loop, derived: Names) -> bool:
        """Is nothing made of the loaded value after a swap that failed, but by arithmetic that comes to nothing?"""
        for index in (loop.swap, *loop.decision[:-1]):
            derived = self._spread(self.body[index], derived)
        known: dict[int, Names] = {}
        pending = [(loop.failed, derived)]
        while pending:
            index, names = pending.pop()
            before = known.get(index, frozenset())
            if index == len(self.body) or (index in known and names <= before):
                continue
            known[index] = names = names | before
            one = self.body[index]
            if one.opcode not in _ARITHMETIC and not names.isdisjoint(_read(one)):
                return False
            after = self._spread(one, names)
            pending += [(following, after) for following in self.successors[index]]
        return True

    def _spread(self, one: Instruction, derived: Names) -> Names:
        if one.opcode in _ARITHMETIC and not derived.isdisjoint(_read(one)):
            return derived | _written(one)
        return derived if one.guard is not None else derived - _written(one)
