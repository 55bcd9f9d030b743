"""Names inside a function: registers, variables, labels, block by block, each made unique in the function.

Blocks in braces, as calls and inline assembly leave them, declare the same names over and over. The first of a name
keeps it; later ones get `#2`, `#3`..., which no PTX name can contain.
"""

from __future__ import annotations

import re

from tilewright.ptx.declarations import RegisterDeclaration
from tilewright.ptx.operand_text import Named
from tilewright.ptx.syntax import Label, Operand, Register, Special, Symbol, Vector

_COMPONENTS = "xyzwstuv"
_VECTOR_SPECIALS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SCALAR_SPECIALS = (
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "is_explicit_cluster",
    "cluster_ctarank",
    "cluster_nctarank",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "clock",
    "clock_hi",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "globaltimer_hi",
    "reserved_smem_offset_begin",
    "reserved_smem_offset_end",
    "reserved_smem_offset_cap",
    "total_smem_size",
    "aggr_smem_size",
    "dynamic_smem_size",
    "current_graph_exec",
)
_NUMBERED_SPECIAL = re.compile(r"%(?:envreg(?:[12]?\d|3[01])|pm[0-7](?:_64)?|reserved_smem_offset_\d)", re.ASCII)
SPECIALS: dict[str, Special] = {
    name: Special(name)
    for name in (
        *(f"%{name}" for name in _SCALAR_SPECIALS),
        *(f"%{name}" for name in _VECTOR_SPECIALS),
        *(f"%{name}.{component}" for name in _VECTOR_SPECIALS for component in "xyzw"),
    )
}
_DIGITS = "0123456789"


class FunctionNames:
    """All names of one function; hands out the unique ones and remembers which registers the body uses."""

    def __init__(self, module_symbols: set[str]) -> None:
        self.module_symbols = module_symbols
        self.registers: dict[str, str] = {}
        self._times: dict[str, int] = {}
        self._of_register: dict[tuple[int, str], str] = {}

    def use_register(self, declaration: RegisterDeclaration, name: str) -> str:
        """The unique name of a register the body uses. One declared and never used does not exist."""
        key = (id(declaration), name)
        unique = self._of_register.get(key)
        if unique is None:
            unique = self._of_register[key] = self.unique(name)
            self.registers[unique] = declaration.type
        return unique

    def unique(self, name: str) -> str:
        times = self._times.get(name, 0) + 1
        self._times[name] = times
        return name if times == 1 else f"{name}#{times}"


class Scope:
    """One block. Complete once the function has been walked; only then are operands looked up."""

    def __init__(self, function: FunctionNames, parent: Scope | None) -> None:
        self.function = function
        self.parent = parent
        self.labels: dict[str, str] = {}
        self.operands: dict[str, Operand] = {}  # read before in this block, by their text
        self._symbols: dict[str, str] = {}
        self._registers: dict[str, RegisterDeclaration] = {}
        self._ranges: dict[str, RegisterDeclaration] = {}

    @property
    def declares_nothing(self) -> bool:
        return not (self.labels or self._symbols or self._registers or self._ranges)

    def declare_register(self, declaration: RegisterDeclaration) -> bool:
        """False if the block already has that name."""
        table = self._registers if declaration.count is None else self._ranges
        if declaration.name in table:
            return False
        table[declaration.name] = declaration
        return True

    def declare_symbol(self, name: str) -> str | None:
        """The unique name of a variable; None if the block already has that name."""
        if name in self._symbols:
            return None
        self._symbols[name] = self.function.unique(name)
        return self._symbols[name]

    def declare_label(self, name: str) -> str | None:
        if name in self.labels:
            return None
        self.labels[name] = self.function.unique(name)
        return self.labels[name]

    def lookup(self, name: str) -> Named | None:
        scope: Scope | None = self
        while scope is not None:
            found = scope._lookup_here(name)
            if found is not None:
                return found
            scope = scope.parent
        if name in self.function.module_symbols:
            return Symbol(name)
        special = SPECIALS.get(name)
        if special is None and name.startswith("%") and _NUMBERED_SPECIAL.fullmatch(name) is not None:
            return Special(name)
        return special

    def _lookup_here(self, name: str) -> Named | None:
        single = self._registers.get(name)
        if single is not None:
            return self._used(single, name)
        if self._ranges:
            numbered = self._lookup_numbered(name)
            if numbered is not None:
                return numbered
        if name in self._symbols:
            return Symbol(self._symbols[name])
        if name in self.labels:
            return Label(self.labels[name])
        if name[-2:-1] == ".":
            return self._component(name[:-2], name[-1])
        return None

    def _lookup_numbered(self, name: str) -> Named | None:
        # `%r1<5>` is `%r10` to `%r14`, so any of the last digits may belong to the prefix.
        for begin in range(len(name.rstrip(_DIGITS)), len(name)):
            declaration = self._ranges.get(name[:begin])
            if declaration is None or declaration.count is None:
                continue
            number = name[begin:]
            if len(number) < 10 and int(number) < declaration.count and (number[0] != "0" or number == "0"):
                return self._used(declaration, name)
        return None

    def _used(self, declaration: RegisterDeclaration, name: str) -> Named:
        if declaration.lanes == 1:
            return Register(self.function.use_register(declaration, name))
        names = [f"{name}.{component}" for component in _COMPONENTS[: declaration.lanes]]
        return Vector(tuple(Register(self.function.use_register(declaration, item)) for item in names))

    def _component(self, name: str, component: str) -> Named | None:
        """`v.x` of a vector register."""
        whole = self._registers.get(name)
        if whole is None or whole.lanes == 1:
            return None
        index = "xyzw".find(component) if component in "xyzw" else "rgba".find(component)
        if not 0 <= index < whole.lanes:
            return None
        vector = self._used(whole, name)
        item = vector.items[index] if isinstance(vector, Vector) else None
        return item if isinstance(item, Register) else None
