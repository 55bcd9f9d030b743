"""PTX types and register widths, special registers, and parsing of instruction modifiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ptx.syntax import Address, Instruction, Negated, Operand, Pair, Register, Tuple_, UnsupportedPtx, Vector

# Bytes of a value of a type in memory.
TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bsu" for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("f16", "bf16"), 2),
    **dict.fromkeys(("f32", "f16x2", "bf16x2", "tf32"), 4),
    "f64": 8,
    "b128": 16,
}

# Bytes of one lane of a register, by the type it was declared with; 0 is a predicate.
REGISTER_BYTES = {"pred": 0, **{name: max(size, 2) for name, size in TYPE_BYTES.items()}}

_CACHE_HINTS = frozenset(
    (
        *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
        *("L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"),
    )
)
_CACHE_OPERATORS = frozenset(("ca", "cg", "cs", "lu", "cv", "wb", "wt"))

# Special registers, each at its number in the core: the order of interpreter.h.
_SPECIALS = (
    *("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z"),
    *("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"),
    *("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"),
    *("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"),
    *("%clock", "%clock_hi", "%dynamic_smem_size", "%total_smem_size", "%zero", "%one", "%envreg1", "%envreg2"),
    *(f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for axis in "xyz"),
    *("%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%aggr_smem_size", "%clock64"),
    *("%globaltimer", "%globaltimer_hi"),
)
_SPECIAL_NUMBERS = {name: number for number, name in enumerate(_SPECIALS)}
_SAME_AS = {
    "%globaltimer_lo": "%globaltimer",
}


def special_number(name: str) -> int | None:
    """The interpreter's number of a special register; None if unsupported."""
    return _SPECIAL_NUMBERS.get(_SAME_AS.get(name, name))


def unsupported(instruction: Instruction, why: str) -> UnsupportedPtx:
    """An error that names what is unsupported, with the PTX and source lines."""
    source = "".join(f" ({place.file}:{place.line})" for place in instruction.places[:1])
    return UnsupportedPtx(f"not supported by the emulator{source}: {why}", instruction.ptx_line, instruction.text)


@dataclass
class Modifiers:
    """The modifiers of one instruction, consumed one by one; none may remain."""

    instruction: Instruction
    left: list[str]

    @staticmethod
    def of(instruction: Instruction) -> Modifiers:
        return Modifiers(instruction, list(instruction.modifiers))

    def flag(self, name: str) -> bool:
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def one_of(self, *names: str) -> str | None:
        """The first modifier that is among the names, taken."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        return None

    def need(self, *names: str) -> str:
        found = self.one_of(*names)
        if found is None:
            raise unsupported(self.instruction, f"none of .{', .'.join(names)} among its modifiers")
        return found

    def type(self, *allowed: str) -> str:
        """The last modifier, which is the type."""
        if not self.left:
            raise unsupported(self.instruction, "no type")
        name = self.left.pop()
        if name not in allowed:
            raise unsupported(self.instruction, f"the type .{name}")
        return name

    def cache_hints(self) -> bool:
        """Consume cache hints, which are ignored. True if a cache policy is among the operands."""
        policy = self.flag("L2::cache_hint")
        self.left = [name for name in self.left if name not in _CACHE_HINTS and name not in _CACHE_OPERATORS]
        return policy

    def finish(self, *counts: int) -> tuple[Operand, ...]:
        """Check that no modifier remains; returns the operands, checked against the counts if given."""
        if self.left:
            raise unsupported(self.instruction, f"the modifier .{self.left[0]}")
        return operands_of(self.instruction, *counts) if counts else self.instruction.operands


def only_type(instruction: Instruction, *allowed: str) -> str:
    """The type of an instruction that has no other modifier."""
    modifiers = Modifiers.of(instruction)
    name = modifiers.type(*allowed)
    modifiers.finish()
    return name


def only_flags(instruction: Instruction, *allowed: str) -> None:
    """Refuse all modifiers except these, which are ignored."""
    modifiers = Modifiers.of(instruction)
    for name in allowed:
        modifiers.flag(name)
    modifiers.finish()


def operands_of(instruction: Instruction, *counts: int) -> tuple[Operand, ...]:
    """The operands, checked against the allowed counts."""
    if len(instruction.operands) not in counts:
        expected = " or ".join(map(str, counts))
        raise unsupported(instruction, f"{len(instruction.operands)} operands where {expected} are expected")
    return instruction.operands


def pair_of(operand: Operand | None) -> tuple[Operand | None, Operand | None]:
    """The two destinations of `d|p`; a lone one is the first."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


def items_of(operand: Operand) -> tuple[Operand | None, ...]:
    """The registers of a vector; anything else stands alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def registers_of(operand: Operand | None) -> Iterator[str]:
    """Names of the registers in an operand."""
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, Negated):
        yield operand.register.name
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        for coordinate in operand.coordinates:
            yield from registers_of(coordinate)
    elif isinstance(operand, (Vector, Tuple_)):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
