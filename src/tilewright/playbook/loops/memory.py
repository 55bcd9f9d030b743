"""Memory planning: scratch buffers whose lives do not meet share a slot, so that long programs need few of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.ir import Expr, Node, Program, rewrite
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType


@dataclass
class Slot:
    """A flat piece of scratch memory."""

    name: str
    dtype: DType
    size: Size


@dataclass
class Memory:
    slots: list[Slot] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # from buffers to the memory they lie in


def with_copies(program: Program, groups: list[Group]) -> list[Group]:
    """The groups, and at their end copies into inputs whose new content cannot be written where it is computed.

    It can where every element of the old content is read by nothing but the thread that then writes it.
    """
    made = list(groups)
    for name, target in program.changed.items():
        writer = next(one for one in made if name in one.written)
        member = next(one for one in writer.members if one.node.buffer.name == name)
        if _is_safe(program, made, writer, member, target):
            continue
        buffer = program.buffers[name]
        kept = program.buffer(f"{name}_kept", buffer.shape, buffer.dtype)
        member.node.buffer = kept
        writer.written = {one.name: None for node in writer.nodes for one in node.writes}
        for one in made:  # what was read of the new content is read of the copy's source
            if name in one.read:
                _renamed(one, name, kept.name)
        indices = program.indices
        loops = tuple(indices.var(f"{name}v{dim}", size) for dim, size in enumerate(buffer.shape))
        flat = indices.of(indices.var("row", program.numel(buffer)))
        places = indices.unravel(flat, buffer.shape)
        body = program.exprs.load(kept, places)
        node = Node("pointwise", buffer, loops, body, places)
        program.nodes.append(node)
        made.append(Group("rows", program.numel(buffer), [Member(node, body, places, None)]))
    return made


def _is_safe(program: Program, groups: list[Group], writer: Group, member: Member, target: str) -> bool:
    if any(target in one.read for one in groups if one is not writer):
        return False
    if target not in writer.read:
        return True
    if any(index.lookups for one in writer.members for load in one.loads for index in load.places):
        return False  # threads without a row look up nothing, where a launch changes what it reads
    buffer = program.buffers[target]
    strides = program.indices.strides(buffer.shape)
    own = program.indices.ravel(member.target, strides)
    loads = [(one, load) for one in writer.members for load in one.loads if load.buffer == target]
    same = all(program.indices.ravel(load.places, strides) is own for _, load in loads)
    alone = member.columns is not None or all(one.columns is None for one in writer.members)  # no lanes share it
    return same and alone and writer.kind == "rows" and all(one.columns is member.columns for one, _ in loads)


def _renamed(group: Group, name: str, other: str) -> None:
    def moved(load: Expr) -> Expr | None:
        own = load.buffer == name
        return load.world.expr("load", load.args, load.kind, (other, load.places)) if own else None

    for member in group.members:
        member.node.become(*member.node.rewritten(moved))
        member.body = rewrite(member.body, None, moved)
        member.__post_init__()
    group.__post_init__()


def planned(program: Program, groups: list[Group]) -> Memory:
    """Slots for everything that goes from one launch to another; a slot is free from the launch after its last use."""
    aliases = {one.initial: one.buffer.name for one in program.nodes if one.initial}  # a scatter changes it
    last: dict[str, int] = {}
    for place, group in enumerate(groups):
        for name in (*group.read, *group.written):
            last[_final(aliases, name)] = place
    memory, used = Memory(), dict[str, Slot]()
    for place, group in enumerate(groups):
        for name in dict.fromkeys(_final(aliases, one) for one in group.written):
            buffer = program.buffers[name]
            if buffer.role != "scratch" or name in used or last[name] == place:
                continue
            taken = {id(slot) for other, slot in used.items() if last[other] >= place}
            free = [slot for slot in memory.slots if slot.dtype is buffer.dtype and id(slot) not in taken]
            if not free:
                free = [Slot(f"scratch{len(memory.slots)}", buffer.dtype, program.sizes.one)]
                memory.slots += free
            numel = program.numel(buffer)
            best = min(free, key=lambda slot: abs(slot.size.own - numel.own))
            best.size, used[name] = best.size.largest(numel), best
    memory.names = {name: slot.name for name, slot in used.items()}
    memory.names |= {name: name for name in (*program.inputs, *program.outputs)} | program.changed
    memory.names |= {one: memory.names[_final(aliases, one)] for one in aliases if _final(aliases, one) in memory.names}
    return memory


def _final(aliases: dict[str, str], name: str) -> str:
    while name in aliases:
        name = aliases[name]
    return name
