"""One request to one result, in this process: assemble, compile, read back, check. Knows no cache and no limits."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import replace

from tilewright import records
from tilewright.records import KERNEL_FILE_NAME, BuildFailure, BuildRequest, Diagnostic, FailureReason, Severity
from tilewright.toolchain.diagnostics import line_of_kernel, read_log
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.nvrtc import COMPILATION, OUT_OF_MEMORY, SUCCESS, Compilation, load_nvrtc
from tilewright.toolchain.ptx_checks import PtxFinding, check_module, stored_parameters
from tilewright.toolchain.ptx_text import PtxModule, parse_ptx
from tilewright.toolchain.toolkit import Toolkit
from tilewright.toolchain.translation_unit import (
    TranslationUnit,
    assemble,
    check_against_entry,
    include_options,
    read_signature,
)

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
    """Build one request with NVRTC. The kernel file is called by its internal name in every diagnostic."""
    started = time.perf_counter()
    unreadable = _unreadable(request)
    if unreadable is not None:
        return _failure(request, key, FailureReason.DIAGNOSTICS, (unreadable,), "", started)
    unit = assemble(request)
    nvrtc = load_nvrtc(toolkit.library, toolkit.builtins)
    # Where there is a driver NVRTC keeps what it made, and what comes from there has no log to read resources from.
    options = (*unit.options, "--no-cache", *include_options(toolkit))
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
    """Text the compiler cannot be given at all."""
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
    """The assembler, asked to be verbose, keeps to itself that a kernel has too much shared memory."""
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


# -- what a compiled kernel uses: from the assembler's log, the sections of the cubin, and the PTX directives --


def read_resources(log: str, cubin: bytes) -> dict[str, records.Resources]:
    """The resources of every entry function the log speaks of, by symbol."""
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
    """The block size an entry's launch bounds admit, from its PTX directives."""
    dimensions = _dimensions(declaration, "maxntid") or _dimensions(declaration, "reqntid")
    return dimensions[0] * dimensions[1] * dimensions[2] if dimensions else None


def cluster_shape(declaration: str) -> records.Dim3 | None:
    """The cluster an entry was compiled for, if any."""
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
