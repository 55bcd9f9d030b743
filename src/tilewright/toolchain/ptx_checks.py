"""What a finished build may not contain: calls that nothing defines, writes to module globals, reads of clocks and of
other registers that tell one call, or one multiprocessor, from the next.

Works on the PTX, so it sees through macros, templates and headers alike. Only what the launched kernels reach counts.
Addresses of globals are followed through registers, without regard to order: an address used for anything but a load
counts as a write, and so does one whose bits are compared, or taken apart and loaded from. That refuses a few harmless
programs, such as one that hands a table's address to a function that was not inlined; it lets no store through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.kernel_file.assembly import assembly_is_plain
from tilewright.records import FailureReason
from tilewright.records.reaching import reached
from tilewright.toolchain.ptx_text import PtxFunction, PtxModule, PtxStatement, identifiers

# The assertion handler ends the kernel with an error, which is what a failed assertion should do.
ALLOWED_EXTERNAL = frozenset({"__assertfail"})

_WHY_EXTERNAL = {
    "vprintf": "printf is not available in a kernel file",
    "malloc": "memory is the plan's to give: declare a scratch buffer",
    "free": "memory is the plan's to give: declare a scratch buffer",
}
_CLOCK = re.compile(r"%(?:clock(?:64|_hi)?|globaltimer(?:_lo|_hi)?)\b")
# The number of the launch, the graph that runs, performance counters: a kernel could behave by the call.
_CALL_MARK = re.compile(r"%(?:gridid|current_graph_exec|pm[0-7](?:_64)?)\b")
# Where a block happens to run: its work may not depend on that either.
_PLACE_MARK = re.compile(r"%(?:smid|nsmid|warpid|nwarpid)\b")
# Where libcu++ reads the clock while it waits: the clock, the polling loop, and then one of its own primitives.
_WAIT_FILES = ("/cuda/std/__cuda/chrono.h", "/cuda/std/__thread/threading_support.h", ".h")
_MAY_SEE_TIME = re.compile(
    r"(?:wait|acquire)_(?:for|until)|poll_with_backoff|chrono|__cccl|##|%:|^[ \t]*#[ \t]*(?:line\b|\d)", re.MULTILINE
)
_GUARD = re.compile(r"^@!?%?[\w$]+\s*")
_OPCODE = re.compile(r"[\w.:]+")
_BRACKET = re.compile(r"\[([^\]]*)\]")

# Instructions whose address in brackets is only read. Anything else that takes a tainted address writes through it.
_READS = ("ld.", "ldu.", "wmma.load.", "applypriority.")
_COPIES = ("cp.async",)  # first bracket is the destination, the others are read
# Instructions that may compute an address from an address; the destination is then one, too.
_DATA = re.compile(
    r"^(?:mov|add|sub|mul|mad|cvta|cvt|selp|and|or|xor|shl|shr|min|max|lop3|prmt|bfi|shf|not|neg|slct)\b"
)
# Of these, the ones that leave an address an address. The rest take it apart.
_AFFINE = re.compile(r"^(?:mov|add|sub|or|cvta|selp)\b")
_SPACE_TESTS = ("isspacep",)
_MANGLED = "\0"  # behind a symbol's name: bits of its address


@dataclass(frozen=True)
class PtxFinding:
    """One thing a build may not contain."""

    reason: FailureReason
    message: str
    at: int  # index into the module's locations; -1 where unknown


def check_module(module: PtxModule, entries: Iterable[str], source: str) -> list[PtxFinding]:
    """Everything wrong with what the entries reach, external calls first. `source` is the kernel file's text."""
    functions = _reachable(module, entries)
    findings = [finding for function in functions for finding in _external_calls(module, function)]
    findings += [finding for function in functions for finding in _told_apart(module, function, source)]
    findings += _global_writes(module, functions)
    return findings


# -- what the entries reach --


def _reachable(module: PtxModule, entries: Iterable[str]) -> list[PtxFunction]:
    def called(name: str) -> list[str]:
        """A function whose address is taken may be called from anywhere, so a mention is a call."""
        words = (word for statement in module.functions[name].statements for word in identifiers(statement.text))
        return [word for word in words if word in module.functions]

    found = reached([name for name in entries if name in module.functions], called)
    return [function for name, function in module.functions.items() if name in found]


def _external_calls(module: PtxModule, function: PtxFunction) -> list[PtxFinding]:
    findings = []
    for statement in function.statements:
        if not module.external:
            break
        for name in identifiers(statement.text):
            if name in module.external and name not in ALLOWED_EXTERNAL:
                why = _WHY_EXTERNAL.get(name, "define it in the file, or call something that is")
                text = f"the code calls {name}, which nothing here defines; {why}"
                findings.append(PtxFinding(FailureReason.EXTERNAL, text, statement.at))
    return findings


def _told_apart(module: PtxModule, function: PtxFunction, source: str) -> list[PtxFinding]:
    """Reads of clocks, and of registers that tell which call it is or where it runs."""
    told = ((_CLOCK, "the clock ", "time"), (_CALL_MARK, "", "which call it is"), (_PLACE_MARK, "", "where it runs"))
    findings = []
    for pattern, kind, what in told:
        for statement in function.statements:
            found = pattern.search(statement.text)
            if found is not None and not (kind and _is_library_wait(module, statement, source)):
                text = f"the code reads {kind}{found.group()}; a kernel's work may not depend on {what}: remove it"
                findings.append(PtxFinding(FailureReason.DEVICE_CALL, text, statement.at))
    return findings


def _is_library_wait(module: PtxModule, statement: PtxStatement, source: str) -> bool:
    """Whether the clock is read by cuda::barrier and its kin, which back off longer the longer they have waited.

    Their untimed waits tell the kernel nothing of the time. Files that could be asking for a timed wait, or that play
    with names or line numbers, are not given the benefit of the doubt.
    """
    if _MAY_SEE_TIME.search(source) or not assembly_is_plain(source):
        return False
    files = [file for file, _ in module.calls_behind(statement.at)]
    return len(files) > 2 and all(file.endswith(end) for file, end in zip(files, _WAIT_FILES, strict=False))


# -- writes through parameters --

_LOAD_PARAMETER = re.compile(r"^((?:@!?%?[\w$]+\s*)?)ld\.param(?:\.v\d)?\.\w+\s+(.+?),\s*\[([^\]]*)\]$")


def stored_parameters(entry: PtxFunction) -> frozenset[int]:
    """The numbers of an entry's parameters that it may store through: whatever is done with them but a load."""
    names = re.findall(rf"\b{re.escape(entry.name)}_param_(\d+)\b", entry.declaration)
    symbols = {f"{entry.name}_param_{number}" for number in names}
    # A parameter's value is what is followed here, and so a load of it is a move.
    moved = tuple(replace(one, text=_LOAD_PARAMETER.sub(r"\1mov.b64 \2, \3", one.text)) for one in entry.statements)
    written = _written_in(replace(entry, statements=moved), symbols)
    return frozenset(int(symbol.rpartition("_")[2]) for symbol, _ in written)


# -- writes to globals --


def _global_writes(module: PtxModule, functions: list[PtxFunction]) -> list[PtxFinding]:
    symbols = set(module.variables)
    findings: dict[str, PtxFinding] = {}
    mentioned: set[str] = set()
    for function in functions:
        relevant = [s for s in function.statements if not symbols.isdisjoint(identifiers(s.text))]
        if not relevant:
            continue
        for statement in relevant:
            mentioned |= symbols.intersection(identifiers(statement.text))
        for symbol, at in _written_in(function, symbols):
            findings.setdefault(symbol, _write_finding(symbol, at))
    # A global that holds another's address hands it to whoever loads it.
    for holder in mentioned:
        for symbol in identifiers(module.variables[holder]):
            if symbol in symbols:
                findings.setdefault(symbol, _write_finding(symbol, -1))
    return list(findings.values())


def _write_finding(symbol: str, at: int) -> PtxFinding:
    text = (
        f"a launched kernel writes the module global {symbol}, or lets its address out; "
        "nothing may survive a call: use a scratch buffer, or make a table that is only read `const`"
    )
    return PtxFinding(FailureReason.DEVICE_STATE, text, at)


def _written_in(function: PtxFunction, symbols: set[str]) -> list[tuple[str, int]]:
    """The symbols whose address a function uses for anything but a load, with the place of the first such use."""
    holds: dict[str, set[str]] = {}  # register -> symbols whose address it may hold
    changed = True
    while changed:
        changed = False
        for statement in function.statements:
            changed |= _propagate(statement, symbols, holds)
    written = []
    for index, statement in enumerate(function.statements):
        misused = _misused(statement, symbols, holds)
        if misused and not _goes_to_assertion(function, index):
            written += [(symbol, statement.at) for symbol in misused]
    return written


def _split(statement: PtxStatement) -> tuple[str, str]:
    """Opcode and operands of an instruction, without its guard."""
    text = _GUARD.sub("", statement.text)
    found = _OPCODE.match(text)
    return (found.group(), text[found.end() :]) if found else ("", text)


def _addresses(text: str, symbols: set[str], holds: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for word in identifiers(text):
        if word in symbols:
            found.add(word)
        found |= holds.get(word, set())
    return found


def _propagate(statement: PtxStatement, symbols: set[str], holds: dict[str, set[str]]) -> bool:
    opcode, operands = _split(statement)
    if not _DATA.match(opcode):
        return False
    destination, _, sources = operands.partition(",")
    if "{" in destination:  # mov.b64 {%r1, %r2}, %rd1
        destination, _, sources = operands.partition("}")
        opcode = "prmt"  # takes its operand apart, as this does
    found = _addresses(sources, symbols, holds)
    if found:
        kept = _addresses(_address_operands(opcode, sources), symbols, holds)
        found = kept | {symbol.rstrip(_MANGLED) + _MANGLED for symbol in found - kept}
    changed = False
    for register in identifiers(destination):
        if found - holds.setdefault(register, set()):
            holds[register] |= found
            changed = True
    return changed


def _address_operands(opcode: str, sources: str) -> str:
    """Those operands which, being addresses, make the result one; in the others an address is taken apart."""
    if opcode.startswith("mad"):
        return sources.rpartition(",")[2]
    return sources if _AFFINE.match(opcode) else ""


def _misused(statement: PtxStatement, symbols: set[str], holds: dict[str, set[str]]) -> set[str]:
    opcode, operands = _split(statement)
    guard = _GUARD.match(statement.text)
    found = _addresses(guard.group(), symbols, holds) if guard else set()
    if opcode.startswith(_READS):
        found |= {symbol for symbol in _addresses(operands, symbols, holds) if symbol.endswith(_MANGLED)}
    elif opcode.startswith(_COPIES):
        brackets = _BRACKET.findall(operands)
        found |= _addresses(brackets[0] if brackets else operands, symbols, holds)
    elif _DATA.match(opcode):
        found |= _addresses(operands, symbols, holds) if ".cc" in opcode else set()
    elif not opcode.startswith((".", *_SPACE_TESTS)) and "prefetch" not in opcode:
        found |= _addresses(operands, symbols, holds)
    return {symbol.rstrip(_MANGLED) for symbol in found}


def _goes_to_assertion(function: PtxFunction, index: int) -> bool:
    """Whether a statement passes its value to the assertion handler: the strings of an assertion are globals."""
    if not function.statements[index].text.startswith("st.param"):
        return False
    for statement in function.statements[index + 1 :]:
        opcode, operands = _split(statement)
        if opcode.startswith("call"):
            return not ALLOWED_EXTERNAL.isdisjoint(identifiers(operands))
    return False
