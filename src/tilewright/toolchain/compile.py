"""Compiles one request in this process: assemble, compile, read back, check. Without cache and limits."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright import records
from tilewright.kernel_file.source_scan import assembly_is_plain
from tilewright.records import KERNEL_FILE_NAME, BuildFailure, BuildRequest, Diagnostic, FailureReason, Severity
from tilewright.records.gpu import reached
from tilewright.toolchain.diagnostics import line_of_kernel, read_log
from tilewright.toolchain.nvrtc import (
    COMPILATION,
    OUT_OF_MEMORY,
    SUCCESS,
    Compilation,
    ToolchainError,
    Toolkit,
    load_nvrtc,
)
from tilewright.toolchain.ptx_text import PtxFunction, PtxModule, PtxStatement, identifiers, parse_ptx
from tilewright.toolchain.translation_unit import (
    TranslationUnit,
    assemble,
    check_against_entry,
    read_signature,
)

# -- checks of the compiled PTX --

# The assertion handler, which ends the kernel with an error.
ALLOWED_EXTERNAL = frozenset({"__assertfail"})

_WHY_EXTERNAL = {
    "vprintf": "printf is not available in a kernel file",
    "malloc": "memory is the plan's to give: declare a scratch buffer",
    "free": "memory is the plan's to give: declare a scratch buffer",
}
_CLOCK = re.compile(r"%(?:clock(?:64|_hi)?|globaltimer(?:_lo|_hi)?)\b")
# Launch number, running graph, performance counters: a kernel could behave differently from call to call. Environment
# registers likewise, but for the two that hold the grid barrier of cooperative groups.
_CALL_MARK = re.compile(r"%(?:gridid|current_graph_exec|pm[0-7](?:_64)?|envreg(?![12]\b)\d+)\b")
# Where a block runs.
_PLACE_MARK = re.compile(r"%(?:smid|nsmid|warpid|nwarpid)\b")
# Where libcu++ reads the clock while it waits: chrono, the polling loop, and a primitive above.
_WAIT_FILES = ("/cuda/std/__cuda/chrono.h", "/cuda/std/__thread/threading_support.h", ".h")
_MAY_SEE_TIME = re.compile(
    r"(?:wait|acquire)_(?:for|until)|poll_with_backoff|chrono|__cccl|##|%:|^[ \t]*#[ \t]*(?:line\b|\d)", re.MULTILINE
)
_GUARD = re.compile(r"^@!?%?[\w$]+\s*")
_OPCODE = re.compile(r"[\w.:]+")
_BRACKET = re.compile(r"\[([^\]]*)\]")

# Instructions that only read through their address. Any other use of a tracked address counts as a write.
_READS = ("ld.", "ldu.", "wmma.load.", "applypriority.")
_COPIES = ("cp.async",)  # the first address is written, the others are read
# Instructions that may compute an address from an address.
_DATA = re.compile(
    r"^(?:mov|add|sub|mul|mad|cvta|cvt|selp|and|or|xor|shl|shr|min|max|lop3|prmt|bfi|shf|not|neg|slct)\b"
)
# Those whose result still is an address. The others extract bits of it.
_AFFINE = re.compile(r"^(?:mov|add|sub|or|cvta|selp)\b")
_SPACE_TESTS = ("isspacep",)
_MANGLED = "\0"  # suffix of a symbol: bits of its address


@dataclass(frozen=True)
class PtxFinding:
    """One thing a build may not contain."""

    reason: FailureReason
    message: str
    at: int  # index into the module's locations; -1 where unknown


def check_module(module: PtxModule, entries: Iterable[str], source: str) -> list[PtxFinding]:
    """Forbidden calls, reads and writes reachable from the entries, external calls first."""
    functions = _reachable(module, entries)
    findings = [finding for function in functions for finding in _external_calls(module, function)]
    findings += [finding for function in functions for finding in _special_registers(module, function, source)]
    findings += _global_writes(module, functions)
    return findings


# -- reachable code --


def _reachable(module: PtxModule, entries: Iterable[str]) -> list[PtxFunction]:
    def called(name: str) -> list[str]:
        """Any mention counts as a call: a function whose address is taken may be called from anywhere."""
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


def _special_registers(module: PtxModule, function: PtxFunction, source: str) -> list[PtxFinding]:
    """Reads of clocks, and of registers that identify the call or the SM."""
    rules = (
        (_CLOCK, "the clock ", "time"),
        (_CALL_MARK, "", "which call it is"),
        (_PLACE_MARK, "", "where it runs"),
    )
    findings = []
    for pattern, kind, what in rules:
        for statement in function.statements:
            found = pattern.search(statement.text)
            if found is not None and not (kind and _is_library_wait(module, statement, source)):
                text = f"the code reads {kind}{found.group()}; a kernel's work may not depend on {what}: remove it"
                findings.append(PtxFinding(FailureReason.DEVICE_CALL, text, statement.at))
    return findings


def _is_library_wait(module: PtxModule, statement: PtxStatement, source: str) -> bool:
    """Whether the clock is read by the back-off of an untimed wait of cuda::barrier and the like.

    Not accepted in files that may contain a timed wait, or that redefine names or line numbers.
    """
    if _MAY_SEE_TIME.search(source) or not assembly_is_plain(source):
        return False
    files = [file for file, _ in module.calls_behind(statement.at)]
    return len(files) > 2 and all(file.endswith(end) for file, end in zip(files, _WAIT_FILES, strict=False))


# -- writes through parameters --

_LOAD_PARAMETER = re.compile(r"^((?:@!?%?[\w$]+\s*)?)ld\.param(?:\.v\d)?\.\w+\s+(.+?),\s*\[([^\]]*)\]$")


def stored_parameters(entry: PtxFunction) -> frozenset[int]:
    """The numbers of an entry's parameters that it may write through: all uses except loads."""
    names = re.findall(rf"\b{re.escape(entry.name)}_param_(\d+)\b", entry.declaration)
    symbols = {f"{entry.name}_param_{number}" for number in names}
    # The parameter's value is tracked, so loading the parameter is a move.
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
    # A global that holds another's address exposes it to every load.
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
    """The symbols whose address a function uses for anything except loads, with the place of each use."""
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
        opcode = "prmt"  # also extracts parts of its operand
    found = _addresses(sources, symbols, holds)
    if found:
        # Only these operands keep the result an address: of mad the addend, of affine instructions all.
        affine = sources.rpartition(",")[2] if opcode.startswith("mad") else sources if _AFFINE.match(opcode) else ""
        kept = _addresses(affine, symbols, holds)
        found = kept | {symbol.rstrip(_MANGLED) + _MANGLED for symbol in found - kept}
    changed = False
    for register in identifiers(destination):
        if found - holds.setdefault(register, set()):
            holds[register] |= found
            changed = True
    return changed


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
    """Whether a statement passes an argument to the assertion handler, whose strings are globals."""
    if not function.statements[index].text.startswith("st.param"):
        return False
    for statement in function.statements[index + 1 :]:
        opcode, operands = _split(statement)
        if opcode.startswith("call"):
            return not ALLOWED_EXTERNAL.isdisjoint(identifiers(operands))
    return False


# -- compilation --

MAX_LOG_CHARACTERS = 200_000

_UNRESOLVED = re.compile(r"Unresolved extern function '([^']+)'")
_PROPERTIES = re.compile(
    r"Function properties for (\S+)\s*\n[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\s*\n[^\n]*?Used (\d+) registers([^\n]*)"
)
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_DIMENSIONS = r"\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?"


def compile_request(request: BuildRequest, toolkit: Toolkit, key: str) -> records.Build | BuildFailure:
    """Build one request with NVRTC. Diagnostics use the kernel file's internal name."""
    started = time.perf_counter()
    unreadable = _unreadable(request)
    if unreadable is not None:
        return _failure(request, key, FailureReason.DIAGNOSTICS, (unreadable,), "", started)
    unit = assemble(request)
    nvrtc = load_nvrtc(toolkit.library, toolkit.builtins)
    # NVRTC's own cache returns no log, from which resources are read.
    options = (*unit.options, "--no-cache", *(f"-I{folder}" for folder in toolkit.search_path))
    compilation = nvrtc.compile(unit.text, KERNEL_FILE_NAME, options, unit.kernels)
    diagnostics = read_log(compilation.log, compilation.ptx, request, unit, toolkit)
    if compilation.status != SUCCESS:
        return _rejected(request, key, compilation, diagnostics, started)
    module = parse_ptx(compilation.ptx)
    problems = _not_kernels(request, compilation, module)
    if problems:
        return _failure(request, key, FailureReason.DIAGNOSTICS, (*problems, *diagnostics), compilation.log, started)
    symbols = [symbol for symbol in compilation.symbols if symbol is not None]
    findings = check_module(module, symbols, request.source)
    if findings:
        reason = findings[0].reason
        located = tuple(_located(request, module, finding) for finding in findings if finding.reason is reason)
        return _failure(request, key, reason, (*located, *diagnostics), compilation.log, started)
    return records.Build(
        key=key,
        arch=request.arch,
        compiler=toolkit.compiler,
        cubin=compilation.cubin,
        ptx=compilation.ptx,
        kernels=_kernels(unit, compilation, module, symbols),
        warnings=diagnostics,
        seconds=time.perf_counter() - started,
    )


def _kernels(
    unit: TranslationUnit, compilation: Compilation, module: PtxModule, symbols: list[str]
) -> tuple[records.CompiledKernel, ...]:
    resources = read_resources(compilation.log, compilation.cubin)
    kernels = []
    for expression, symbol, table in zip(unit.kernels, symbols, unit.tables, strict=True):
        parameters = read_signature(compilation.ptx, table)
        declaration = module.functions[symbol].declaration
        if parameters is None or symbol not in resources:
            raise ToolchainError(
                f"{symbol}: the compiler's log or tables lack it; this is a defect of the toolchain part"
            )
        check_against_entry(parameters, declaration, symbol)
        if any(parameter.kind is records.ParameterKind.POINTER for parameter in parameters):
            stored = stored_parameters(module.functions[symbol])
            parameters = tuple(
                replace(one, only_read=one.kind is records.ParameterKind.POINTER and number not in stored)
                for number, one in enumerate(parameters)
            )
        kernels.append(
            records.CompiledKernel(
                expression, symbol, parameters, resources[symbol], max_threads(declaration), cluster_shape(declaration)
            )
        )
    return tuple(kernels)


def _unreadable(request: BuildRequest) -> Diagnostic | None:
    """A character that cannot be passed to the compiler."""
    for number, line in enumerate(request.source.split("\n"), start=1):
        bad = next((i for i, letter in enumerate(line) if letter == "\0" or "\ud800" <= letter <= "\udfff"), None)
        if bad is not None:
            text = f"the character U+{ord(line[bad]):04X} cannot be in a source file; remove it"
            return Diagnostic(Severity.ERROR, KERNEL_FILE_NAME, number, bad + 1, text, "")
    return None


def _rejected(
    request: BuildRequest, key: str, compilation: Compilation, diagnostics: tuple[Diagnostic, ...], started: float
) -> BuildFailure:
    log = compilation.log
    if compilation.status == OUT_OF_MEMORY:
        return _failure(request, key, FailureReason.MEMORY, diagnostics, log, started)
    unresolved = _UNRESOLVED.search(log)
    if unresolved is not None:
        module = parse_ptx(compilation.ptx)
        entries = [name for name, function in module.functions.items() if function.is_entry]
        findings = [f for f in check_module(module, entries, request.source) if f.reason is FailureReason.EXTERNAL]
        located = tuple(_located(request, module, finding) for finding in findings) or diagnostics
        return _failure(request, key, FailureReason.EXTERNAL, located, log, started)
    if compilation.status != COMPILATION and not diagnostics:
        raise ToolchainError(f"NVRTC answered {compilation.status}: {log.strip() or 'no log'}")
    if not any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics):
        diagnostics = (*diagnostics, _unexplained(request, log))
    return _failure(request, key, FailureReason.DIAGNOSTICS, diagnostics, log, started)


def _unexplained(request: BuildRequest, log: str) -> Diagnostic:
    """A diagnostic for too much static shared memory, which ptxas -v does not report."""
    used = re.findall(r"Compiling entry function '([^']+)'[^\0]*?Used [^\n]*?(\d+) bytes smem", log)
    if used:
        symbol, size = max(used, key=lambda pair: int(pair[1]))
        text = f"the kernel declares {size} bytes of static shared memory, more than a block may have; use fewer"
        line = line_of_kernel(request, symbol)
    else:
        text, line = "the compiler rejected the file without a message that concerns it; its log has the rest", 0
    return Diagnostic(Severity.ERROR, KERNEL_FILE_NAME, line, 0, text, "")


def _not_kernels(request: BuildRequest, compilation: Compilation, module: PtxModule) -> tuple[Diagnostic, ...]:
    problems = []
    for expression, symbol in zip(request.kernels, compilation.symbols, strict=True):
        function = module.functions.get(symbol or "")
        if function is None or not function.is_entry:
            text = f"the plan launches {expression}, which is not a __global__ function; declare it `__global__ void`"
            line = line_of_kernel(request, expression)
            problems.append(Diagnostic(Severity.ERROR, KERNEL_FILE_NAME, line, 0, text, ""))
    return tuple(problems)


def _located(request: BuildRequest, module: PtxModule, finding: PtxFinding) -> Diagnostic:
    line = module.line_in(KERNEL_FILE_NAME, finding.at) or 0
    lines = request.source.split("\n")
    source_line = lines[line - 1] if 0 < line <= len(lines) else ""
    return Diagnostic(Severity.ERROR, KERNEL_FILE_NAME, line, 0, finding.message, source_line)


def _failure(
    request: BuildRequest,
    key: str,
    reason: FailureReason,
    diagnostics: tuple[Diagnostic, ...],
    log: str,
    started: float,
) -> BuildFailure:
    seconds = time.perf_counter() - started
    return BuildFailure(key, request.arch, reason, diagnostics, log[:MAX_LOG_CHARACTERS], seconds)


# -- resources, from the ptxas log, the cubin's sections and the PTX directives --


def read_resources(log: str, cubin: bytes) -> dict[str, records.Resources]:
    """The resources of every entry function in the log, by symbol."""
    sections = _section_sizes(cubin)
    shared_constants = sections.get(".nv.constant3", 0)  # the module's __constant__ variables
    resources = {}
    for symbol, stack, stores, loads, registers, rest in _PROPERTIES.findall(log):
        barriers, shared = _BARRIERS.search(rest), _SHARED.search(rest)
        own = sum(
            size for name, size in sections.items() if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(symbol)}", name)
        )
        resources[symbol] = records.Resources(
            registers=int(registers),
            spill_store_bytes=int(stores),
            spill_load_bytes=int(loads),
            stack_bytes=int(stack),
            static_smem_bytes=int(shared[1]) if shared else 0,
            constant_bytes=own + shared_constants,
            barriers=int(barriers[1]) if barriers else 0,
        )
    return resources


def max_threads(declaration: str) -> int | None:
    """The largest block that an entry's launch bounds allow."""
    dimensions = _dimensions(declaration, "maxntid") or _dimensions(declaration, "reqntid")
    return dimensions[0] * dimensions[1] * dimensions[2] if dimensions else None


def cluster_shape(declaration: str) -> records.Dim3 | None:
    """The cluster that an entry was compiled for, if any."""
    return _dimensions(declaration, "reqnctapercluster")


def _dimensions(declaration: str, directive: str) -> records.Dim3 | None:
    found = re.search(rf"\.{directive}{_DIMENSIONS}", declaration)
    if found is None:
        return None
    x, y, z = (int(number) if number else 1 for number in found.groups())
    return x, y, z


def _section_sizes(cubin: bytes) -> dict[str, int]:
    """Section name -> size of a 64-bit little-endian ELF file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ToolchainError("the compiler's output is not a 64-bit ELF file; reinstall nvidia-cuda-nvrtc")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + entry_size * index) for index in range(count)]
    names_at = headers[names_index][4]
    sizes = {}
    for name_offset, _, _, _, _, size in headers:
        start = names_at + name_offset
        sizes[cubin[start : cubin.index(b"\0", start)].decode(errors="replace")] = size
    return sizes
