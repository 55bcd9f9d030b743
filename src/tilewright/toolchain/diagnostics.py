"""Parses the compiler's log into diagnostics at lines of the kernel file.

Errors inside headers move to the line of the file that caused them, where the log names it; warnings inside headers are
dropped. The prelude, the signature tables and this machine's paths do not appear.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.records import KERNEL_FILE_NAME, BuildRequest, Diagnostic, Severity
from tilewright.toolchain.nvrtc import INSTALL_CUTE, Toolkit
from tilewright.toolchain.ptx_text import line_of_ptx_line
from tilewright.toolchain.translation_unit import PRELUDE_NAME, SIGNATURE_NAME, TranslationUnit

MAX_DIAGNOSTICS = 50
MAX_NOTES = 16
MAX_NOTE_CHARACTERS = 600
MAX_MESSAGE_CHARACTERS = 4000  # types of template libraries can take hundreds of kilobytes

_NAME_MAP = "__nv_name_map"
_END = "end of source"
_NAME_PRAGMA = "#pragma nv_mangled_name "
_HEAD = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?P<kind>catastrophic error|internal error|error|warning|remark|note)"
    r"(?: #(?P<number>\d+)(?:-D)?)?: (?P<message>.*)$"
)
_AT_END = re.compile(r"^At end of source: error(?: #\d+(?:-D)?)?: (?P<message>.*)$")
_CARET = re.compile(r"^\s*\^\s*$")
_AT_LINE = re.compile(r"at line (\d+) of \"?([^\"\s]+)\"?")
_PTXAS_AT = re.compile(r"^ptxas .*?, line (\d+); (error|warning|fatal)\s*: (.*)$")
_PTXAS = re.compile(r"^ptxas (error|warning|fatal|info)\s*: (.*)$")
_QUOTED = re.compile(r"'([^']+)'")
_ADVICE_CODE = re.compile(r"\(C\d+\)")
_NO_FILE = re.compile(r"cannot open source file \"((?:[\w+-][\w.+-]*/)*)([\w+-][\w.+-]*)\"")

_SEVERITY = {"warning": Severity.WARNING, "remark": Severity.REMARK}


@dataclass
class _Message:
    file: str
    line: int
    kind: str
    text: str
    body: list[str]

    def split(self) -> tuple[list[str], str, int, list[str]]:
        """Continuation of the message, the source line, the column, and what follows the caret."""
        for index, line in enumerate(self.body):
            if index and _CARET.match(line):
                # The compiler indents both lines by two; tabs of the source stand in both. It counts bytes.
                source_line = self.body[index - 1][2:]
                before = source_line.encode()[: line.index("^") - 2].decode(errors="ignore")
                return self.body[: index - 1], source_line, len(before) + 1, self.body[index + 1 :]
        return self.body, "", 0, []


def read_log(
    log: str, ptx: str, request: BuildRequest, unit: TranslationUnit, toolkit: Toolkit
) -> tuple[Diagnostic, ...]:
    """The messages about the kernel file, in the log's order, with internal file names."""
    reader = _LogReader(ptx, request, unit, toolkit)
    for message in _messages(log):
        reader.add(message)
    for line in log.splitlines():
        reader.add_ptxas(line)
    reader.finish()
    return tuple(reader.found[:MAX_DIAGNOSTICS])


def with_file_name(diagnostics: tuple[Diagnostic, ...], name: str) -> tuple[Diagnostic, ...]:
    """The diagnostics with the kernel file named `name`."""
    return tuple(
        replace(
            diagnostic,
            file=name if diagnostic.file == KERNEL_FILE_NAME else diagnostic.file,
            notes=tuple(note.replace(KERNEL_FILE_NAME, name) for note in diagnostic.notes),
        )
        for diagnostic in diagnostics
    )


def _messages(log: str) -> list[_Message]:
    messages: list[_Message] = []
    open_message = False
    for line in log.splitlines():
        head = _HEAD.match(line)
        at_end = _AT_END.match(line)
        if head is not None:
            messages.append(_Message(head["file"], int(head["line"]), head["kind"], head["message"].strip(), []))
            open_message = True
        elif at_end is not None:
            messages.append(_Message(_END, 0, "error", at_end["message"].strip(), []))
            open_message = True
        elif not line.strip():
            open_message = False
        elif open_message and line.startswith(" "):
            messages[-1].body.append(line)
    return messages


class _LogReader:
    def __init__(self, ptx: str, request: BuildRequest, unit: TranslationUnit, toolkit: Toolkit) -> None:
        self.found: list[Diagnostic] = []
        self.ptx = ptx
        self.request = request
        self.unit = unit
        self.toolkit = toolkit
        self.source_lines = request.source.split("\n")
        # Longest first: one include directory lies inside another.
        self.prefixes = sorted((f"{directory}/" for directory in toolkit.search_path), key=len, reverse=True)
        self.missing: set[str] = set()
        self.after_the_file: list[str] = []  # errors in the signature tables after the file
        self.dropped = False  # whether the last message was dropped, and with it its notes

    def add(self, message: _Message) -> None:
        if message.kind == "note":
            self._add_note(message)
        elif message.file == _NAME_MAP:
            self._add_missing_kernel(message)
        elif message.file == PRELUDE_NAME:
            self._add_constant(message)
        elif message.file == SIGNATURE_NAME:
            self.dropped = True
            if message.kind not in _SEVERITY:
                self.after_the_file.append(message.text)
        elif message.file == _END:
            self.dropped = False
            self._add_at(self._last_line(), f"at the end of the file: {message.text}")
        else:
            self._add_message(message)

    def finish(self) -> None:
        """Errors after the file's end, without others, mean that its last declaration is unfinished."""
        if self.after_the_file and not any(d.severity is Severity.ERROR for d in self.found):
            expected = next((text for text in self.after_the_file if text.startswith("expected")), "")
            text = "the last declaration of the file is not finished"
            self._add_at(self._last_line(), f"{text}: {expected}" if expected else text)

    def _add_message(self, message: _Message) -> None:
        severity = _SEVERITY.get(message.kind, Severity.ERROR)
        if severity is not Severity.ERROR and PRELUDE_NAME in message.text:
            self.dropped = True  # redefining a prelude macro is allowed
            return
        continuation, source_line, column, trailer = message.split()
        notes = [line.strip() for line in trailer if line.strip() not in ("detected during:", "")]
        file, line = message.file, message.line
        if file != KERNEL_FILE_NAME:
            if severity is not Severity.ERROR:
                self.dropped = True
                return
            inside = f"in {self._clean(file)}({line}): {source_line.strip()}"
            causes = (place for note in trailer for place in _AT_LINE.findall(note))
            line_in_file = next((int(number) for number, name in causes if name == KERNEL_FILE_NAME), None)
            if line_in_file is None:
                file = self._clean(file)
            else:
                file, line, column = KERNEL_FILE_NAME, line_in_file, 0
                source_line = self._source_line(line)
                notes.insert(0, inside)
        text = " ".join([message.text, *(part.strip() for part in continuation)])
        no_file = _NO_FILE.search(text)
        if no_file is not None and no_file[1].startswith(("cute/", "cutlass/")) and self.toolkit.cute_include is None:
            notes.append(f"CuTe's headers were not found on this machine; run: {INSTALL_CUTE}")
        elif no_file is not None:
            text += self._near_header(no_file[1], no_file[2])
        self.dropped = False
        internal = (self.unit.namespace, PRELUDE_NAME, SIGNATURE_NAME)
        shown = [note for note in notes if not any(name in note for name in internal)][:MAX_NOTES]
        kept = [self._clean(note)[:MAX_NOTE_CHARACTERS] for note in shown]
        self.found.append(Diagnostic(severity, file, line, column, self._clean(text), source_line, tuple(kept)))

    def _near_header(self, folder: str, name: str) -> str:
        known: set[str] = set()
        for directory in self.toolkit.search_path:
            with contextlib.suppress(OSError):
                known.update(os.listdir(Path(directory, folder)))
        near = difflib.get_close_matches(name, sorted(known), n=1)
        return f"; did you mean <{folder}{near[0]}>?" if near else ""

    def _add_note(self, message: _Message) -> None:
        if self.dropped or not self.found:
            return
        last = self.found[-1]
        if len(last.notes) < MAX_NOTES and self.unit.namespace not in message.text:
            note = self._clean(f"{message.file}({message.line}): {message.text}")[:MAX_NOTE_CHARACTERS]
            self.found[-1] = replace(last, notes=(*last.notes, note))

    def _add_missing_kernel(self, message: _Message) -> None:
        self.dropped = True
        _, source_line, _, _ = message.split()
        kernel = source_line.removeprefix(_NAME_PRAGMA).strip()
        if kernel in self.missing or not source_line.startswith(_NAME_PRAGMA):
            return
        self.missing.add(kernel)
        line = line_of_kernel(self.request, kernel)
        text = describe_missing_kernel(self.request, kernel, message.text)
        named = re.search(rf"\b{re.escape(base_name(kernel))}\b", self._source_line(line))
        self._add_at(line, text, column=named.start() + 1 if named else 0)

    def _add_constant(self, message: _Message) -> None:
        self.dropped = True
        constant = dict(self.unit.constant_lines).get(message.line)
        if constant is not None and message.kind not in _SEVERITY:
            text = f"the constant {constant} cannot be defined: {message.text}; give it another name or value"
            defines = re.compile(rf"//!\s*(?:tune|const)\b.*\b{re.escape(constant)}\s*=")
            lines = (number for number, line in enumerate(self.source_lines, start=1) if defines.match(line))
            self._add_at(next(lines, 0), text)

    def add_ptxas(self, line: str) -> None:
        """Messages of ptxas: faulty inline assembly, exceeded limits, advice with a code."""
        located = _PTXAS_AT.match(line)
        if located is not None:
            place = line_of_ptx_line(self.ptx, int(located[1]), KERNEL_FILE_NAME)
            severity = Severity.WARNING if located[2] == "warning" else Severity.ERROR
            self._add_at(place or 0, f"inline assembly: {located[3]}", severity)
            return
        plain = _PTXAS.match(line)
        if plain is None or (plain[1] == "info" and not _ADVICE_CODE.search(plain[2])):
            return
        if plain[1] == "fatal" and any(d.severity is Severity.ERROR for d in self.found):
            return  # only says that there were errors
        severity = Severity.ERROR if plain[1] in ("error", "fatal") else Severity.WARNING
        symbol = _QUOTED.search(plain[2])
        self._add_at(line_of_kernel(self.request, symbol[1]) if symbol else 0, f"assembler: {plain[2]}", severity)

    def _add_at(self, line: int, text: str, severity: Severity = Severity.ERROR, column: int = 0) -> None:
        source_line = self._source_line(line)
        self.found.append(Diagnostic(severity, KERNEL_FILE_NAME, line, column, self._clean(text), source_line))

    def _last_line(self) -> int:
        return max((n for n, line in enumerate(self.source_lines, start=1) if line.strip()), default=1)

    def _source_line(self, line: int) -> str:
        return self.source_lines[line - 1] if 0 < line <= len(self.source_lines) else ""

    def _clean(self, text: str) -> str:
        for prefix in self.prefixes:
            text = text.replace(prefix, "")
        return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + " ..."


# -- where a file declares and launches its kernels, by text search --

_GLOBAL = re.compile(r"\b__global__\b")
_ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__cluster_dims__|__maxnreg__|__block_size__)\s*\(")
_DECLARED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


def kernels_declared(source: str) -> dict[str, int]:
    """The names that follow `__global__`, with the line each stands on."""
    names: dict[str, int] = {}
    for found in _GLOBAL.finditer(source):
        text = source[found.end() : found.end() + 2000]
        start = 0
        while attribute := _ATTRIBUTE.search(text, start):
            close = _closing(text, attribute.end())
            if close is None or _DECLARED.search(text[start : attribute.start()]):
                break
            start = close
        declared = _DECLARED.search(text, start)
        if declared is not None:
            line = source.count("\n", 0, found.end() + declared.start()) + 1
            names.setdefault(declared.group(1), line)
    return names


def line_of_kernel(request: BuildRequest, kernel: str) -> int:
    """The `launch` line of a kernel (by name expression or symbol), else its declaration's, else 0."""
    base = base_name(kernel)
    for expression in request.kernels:
        # A symbol holds the name with its length in front: _Z4siluPKf.
        name = base_name(expression)
        if f"{len(name)}{name}" in kernel:
            base = name
    for number, line in enumerate(request.source.split("\n"), start=1):
        if re.match(rf"//!\s*launch\s+(?:\w+::)*{re.escape(base)}\s*<", line):
            return number
    return kernels_declared(request.source).get(base, 0)


def describe_missing_kernel(request: BuildRequest, kernel: str, compiler_says: str) -> str:
    """Why a kernel of the plan was not found, with the closest match."""
    base = base_name(kernel)
    declared = kernels_declared(request.source)
    if base in declared:
        found = f"the plan launches {kernel}, but the kernel {base} (line {declared[base]})"
        if "overloaded function" in compiler_says:
            return f"{found} is declared more than once; give each its own name"
        if "<" not in kernel and "function template" in compiler_says:
            return f"{found} is a template; write its arguments, as in `launch {base}<...><<<`"
        if "<" in kernel and "operand types are incompatible" in compiler_says:
            return f"{found} is no template; write `launch {base}<<<`"
        wrong = "does not take these template arguments" if "<" in kernel else "cannot be named like this"
        return f"{found} {wrong}: {compiler_says}"
    if re.search(rf"^(?!\s*//).*\b{re.escape(base)}\s*\(", request.source, re.MULTILINE):
        return (
            f"the plan launches {kernel}, which is not a __global__ function; declare it `__global__ void {base}(...)`"
        )
    near = difflib.get_close_matches(base, declared, n=1)
    if near:
        return f"the plan launches {kernel}, which the code does not define; did you mean {near[0]}?"
    known = ", ".join(declared) if declared else "none; write one with __global__"
    return f"the plan launches {kernel}, which the code does not define; its kernels: {known}"


def base_name(kernel: str) -> str:
    """`gemm` of `ns::gemm<128, __half>`."""
    return kernel.partition("<")[0].rpartition("::")[2].strip()


def _closing(text: str, start: int) -> int | None:
    """The position behind the parenthesis that closes the one just before `start`."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return None
