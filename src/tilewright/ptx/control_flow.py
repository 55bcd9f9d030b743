"""Basic blocks and immediate post-dominators: where divergent threads reconverge. Independent of block order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ptx.syntax import Function, Instruction, Label, PtxError, SymbolOperand

_LEAVES = ("ret", "exit")
_BRANCHES = ("bra", "brx")
_MOST_WAYS_OUT = 64  # with more, all count alike


@dataclass(frozen=True)
class Block:
    """A basic block: instructions `start` to `end - 1`."""

    start: int
    end: int
    successors: tuple[int, ...]  # block indices; the fall-through first
    leaves: bool  # its last instruction leaves the function


@dataclass(frozen=True)
class ControlFlow:
    """The control flow graph of one function; None stands for the exit.

    Early exits (a guarded `ret` or `exit`, a `trap`, every exit but the main one) are no edges to the exit, so that the
    other threads reconverge as early as possible.
    """

    blocks: tuple[Block, ...]
    post_dominators: tuple[int | None, ...]  # immediate, per block
    reconvergence: dict[int, int | None]  # divergent branch -> instruction where threads reconverge
    loops: dict[int, frozenset[int]]  # first instruction of a loop -> its back branches


def flow(function: Function) -> ControlFlow:
    """Blocks, post-dominators and reconvergence points. Raises `PtxError` for an invalid branch."""
    if not function.body:
        return ControlFlow((), (), {}, {})
    blocks = _blocks(function)
    successors = [block.successors for block in blocks]
    post_dominators = immediate_post_dominators(successors, _main_way_out(successors, blocks))
    reconvergence: dict[int, int | None] = {}
    for block, meeting in zip(blocks, post_dominators, strict=True):
        last = function.body[block.end - 1]
        if last.opcode == "brx" or (last.opcode == "bra" and last.guard is not None):
            reconvergence[block.end - 1] = None if meeting is None else blocks[meeting].start
    return ControlFlow(blocks, post_dominators, reconvergence, _loops(function, blocks))


def _loops(function: Function, blocks: Sequence[Block]) -> dict[int, frozenset[int]]:
    """Loops whose back edges are all branches."""
    back: dict[int, set[int]] = {}
    falls: set[int] = set()
    for tail, head in _back_edges([block.successors for block in blocks]):
        last, start = blocks[tail].end - 1, blocks[head].start
        if start in branch_targets(function, function.body[last]):
            back.setdefault(start, set()).add(last)
        else:
            falls.add(start)
    return {start: frozenset(branches) for start, branches in back.items() if start not in falls}


def branch_targets(function: Function, instruction: Instruction) -> tuple[int, ...]:
    """Instruction indices a `bra` or `brx.idx` can jump to; empty for any other instruction."""
    if instruction.opcode == "bra":
        label = instruction.operands[-1] if instruction.operands else None
        if not isinstance(label, Label):
            raise PtxError("a branch needs a label of this function", instruction.ptx_line, instruction.text)
        return (_position(function, label.name, instruction),)
    if instruction.opcode == "brx":
        table = instruction.operands[-1] if instruction.operands else None
        names = function.branch_targets.get(table.name) if isinstance(table, SymbolOperand) else None
        if names is None:
            raise PtxError("an indexed branch needs a .branchtargets table", instruction.ptx_line, instruction.text)
        return tuple(dict.fromkeys(_position(function, name, instruction) for name in names))
    return ()


def _position(function: Function, name: str, instruction: Instruction) -> int:
    position = function.labels.get(name)
    if position is None:
        raise PtxError(f"no label `{name}` in this function", instruction.ptx_line, instruction.text)
    return position


def _blocks(function: Function) -> tuple[Block, ...]:
    body = function.body
    targets: dict[int, tuple[int, ...]] = {}
    starts = {0}
    for index, instruction in enumerate(body):
        if instruction.opcode in _BRANCHES:
            targets[index] = branch_targets(function, instruction)
            starts.update(targets[index])
            starts.add(index + 1)
        elif instruction.guard is None and (instruction.opcode in _LEAVES or instruction.opcode == "trap"):
            starts.add(index + 1)
    ordered = sorted(start for start in starts if start < len(body))
    block_at = {start: block for block, start in enumerate(ordered)}
    blocks: list[Block] = []
    for start, end in zip(ordered, [*ordered[1:], len(body)], strict=True):
        last = body[end - 1]
        goes_on = last.guard is not None or (last.opcode not in (*_LEAVES, *_BRANCHES) and last.opcode != "trap")
        reached = dict.fromkeys(((end,) if goes_on else ()) + targets.get(end - 1, ()))
        successors = tuple(block_at[position] for position in reached if position < len(body))
        # Falling off the end returns, as `ret` does.
        leaves = len(body) in reached or (last.opcode in _LEAVES and last.guard is None)
        blocks.append(Block(start, end, successors, leaves))
    return tuple(blocks)


def _main_way_out(successors: Sequence[Sequence[int]], blocks: Sequence[Block]) -> list[bool]:
    """The exit that most blocks lead to; the last one on a tie."""
    ways = [index for index, block in enumerate(blocks) if block.leaves]
    if not 1 < len(ways) <= _MOST_WAYS_OUT:
        return [block.leaves for block in blocks]
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(block)
    leading: list[tuple[int, int]] = []
    for way in ways:
        seen = [False] * len(blocks)
        _mark(predecessors, way, seen)
        leading.append((sum(seen), way))
    main = max(leading)[1]
    return [index == main for index in range(len(blocks))]


def immediate_post_dominators(successors: Sequence[Sequence[int]], leaves: Sequence[bool]) -> tuple[int | None, ...]:
    """The immediate post-dominator of each block; None where that is the exit.

    By Cooper, Harvey and Kennedy's iteration over the reversed graph. Blocks without a path to the exit (endless loops,
    `trap`) are handled separately, as if each endless loop had an edge from its end to the exit.
    """
    exit_block = len(successors)
    predecessors: list[list[int]] = [[] for _ in range(exit_block + 1)]
    for block, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(block)
    predecessors[exit_block] = [block for block in range(exit_block) if leaves[block]]
    reaches_exit = [False] * (exit_block + 1)
    _mark(predecessors, exit_block, reaches_exit)
    if not all(reaches_exit):
        predecessors[exit_block] += _ends_of_endless(successors, predecessors, reaches_exit)
    edges = [
        [successor for successor in following if reaches_exit[successor] == reaches_exit[block]]
        for block, following in enumerate(successors)
    ]
    for block in predecessors[exit_block]:
        edges[block].append(exit_block)
    order: list[int] = []  # post-order against the edges, from the exit
    _walk(predecessors, exit_block, [False] * (exit_block + 1), order)
    order.reverse()
    immediate = _iterate(edges, order, exit_block)
    return tuple(None if block == exit_block else block for block in immediate)


def _iterate(edges: Sequence[Sequence[int]], order: list[int], exit_block: int) -> list[int]:
    rank = [0] * (exit_block + 1)
    for position, block in enumerate(order):
        rank[block] = position
    immediate = [-1] * (exit_block + 1)
    immediate[exit_block] = exit_block
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            meeting = -1
            for successor in edges[block]:
                if immediate[successor] < 0:
                    continue
                other, meeting = successor, successor if meeting < 0 else meeting
                while other != meeting:  # up to the common post-dominator
                    while rank[other] > rank[meeting]:
                        other = immediate[other]
                    while rank[meeting] > rank[other]:
                        meeting = immediate[meeting]
            if meeting != immediate[block]:
                immediate[block] = meeting
                changed = True
    return immediate[:exit_block]


def _ends_of_endless(
    successors: Sequence[Sequence[int]], predecessors: list[list[int]], reaches_exit: list[bool]
) -> list[int]:
    """One block per endless loop or dead end: the tail of the loop if there is one."""
    visited = list(reaches_exit)
    finished: list[int] = []
    for block in range(len(successors)):
        if not visited[block]:
            _walk(predecessors, block, visited, finished)
    loop_ends = {tail for tail, _ in _back_edges(successors)}
    connected = list(reaches_exit)
    ends: list[int] = []
    # Terminal components finish last (Kosaraju).
    for block in reversed(finished):
        if connected[block]:
            continue
        loop = [False] * len(reaches_exit)
        _mark(successors, block, loop)
        ends.append(max((tail for tail in loop_ends if loop[tail]), default=block))
        _mark(predecessors, block, connected)
    return ends


def _mark(edges: Sequence[Sequence[int]], start: int, seen: list[bool]) -> None:
    seen[start] = True
    pending = [start]
    while pending:
        for following in edges[pending.pop()]:
            if not seen[following]:
                seen[following] = True
                pending.append(following)


def _walk(edges: Sequence[Sequence[int]], start: int, seen: list[bool], finished: list[int]) -> None:
    """Depth-first search from `start`; appends blocks to `finished` in post-order."""
    seen[start] = True
    stack = [(start, iter(edges[start]))]
    while stack:
        block, remaining = stack[-1]
        for following in remaining:
            if not seen[following]:
                seen[following] = True
                stack.append((following, iter(edges[following])))
                break
        else:
            finished.append(block)
            stack.pop()


def _back_edges(successors: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """The back edges of a depth-first search from the entry."""
    unseen, open_, done = 0, 1, 2
    state = [unseen] * len(successors)
    edges: list[tuple[int, int]] = []
    state[0] = open_
    stack = [(0, iter(successors[0]))]
    while stack:
        block, remaining = stack[-1]
        for following in remaining:
            if state[following] == open_:
                edges.append((block, following))
            elif state[following] == unseen:
                state[following] = open_
                stack.append((following, iter(successors[following])))
                break
        else:
            state[block] = done
            stack.pop()
    return tuple(edges)
