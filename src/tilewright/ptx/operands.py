"""Types of PTX and the registers that hold them: widths, kinds, and reading an instruction's modifiers.

Knows nothing of frames or opcodes of the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ptx.syntax import Instruction, Unsupported

# Bytes of one lane of a register, by the type it was declared with; 0 is a predicate.
REGISTER_BYTES = {
    "pred": 0,
    **dict.fromkeys(("b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
}

# Bytes of a value of a type in memory.
TYPE_BYTES = {
    **dict.fromkeys(("b8", "u8", "s8"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
}

_CACHE_HINTS = frozenset(
    (
        *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
        *("L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"),
    )
)
_CACHE_OPERATORS = frozenset(("ca", "cg", "cs", "lu", "cv", "wb", "wt"))


def unsupported(instruction: Instruction, why: str) -> Unsupported:
    """`why` says what is not known; the line of PTX and of the source are added."""
    place = instruction.place
    source = f" ({place.file}:{place.line})" if place is not None else ""
    return Unsupported(f"not supported by the emulator{source}: {why}", instruction.ptx_line, instruction.text)


@dataclass
class Modifiers:
    """The modifiers of one instruction, taken one after the other; none may be left over."""

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
        """Takes away hints to caches, which change nothing here. True: a cache policy is among the operands."""
        policy = self.flag("L2::cache_hint")
        self.left = [name for name in self.left if name not in _CACHE_HINTS and name not in _CACHE_OPERATORS]
        return policy

    def finish(self) -> None:
        if self.left:
            raise unsupported(self.instruction, f"the modifier .{self.left[0]}")
