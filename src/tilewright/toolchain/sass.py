"""SASS of a build: listings with kernel file lines, and counts of notable instructions."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.records import KERNEL_FILE_NAME, Build
from tilewright.toolchain.nvrtc import INSTALL_TOOLS, ToolchainError, find_toolkit

DISASSEMBLY_SECONDS = 120.0

# Notable instructions by importance: name -> pattern of opcodes. A name with a width counts accesses of that width; the
# plain name counts all.
HIGHLIGHTS: dict[str, str] = {
    "HMMA": r"HMMA\.\d",  # not HFMA2.MMA, which is plain arithmetic
    "IMMA": r"[IQ]MMA\.",
    "DMMA": r"DMMA\.",
    "HGMMA": r"[HQI]GMMA\.",
    "UTCMMA": r"UTC\w*MMA",
    "UTMALDG": r"UTMALDG",
    "UTMASTG": r"UTMASTG",
    "UBLKCP": r"UBLKCP",
    "LDGSTS": r"LDGSTS",
    "LDSM": r"LDSM",
    "STSM": r"STSM",
    "SYNCS": r"SYNCS",
    "LDG": r"LDG\b",
    "LDG.128": r"LDG\.(?:\w+\.)*128\b",
    "STG": r"STG\b",
    "STG.128": r"STG\.(?:\w+\.)*128\b",
    "LDS": r"LDS\b",
    "STS": r"STS\b",
    "LDL": r"LDL\b",
    "STL": r"STL\b",
    "BAR": r"BAR\.|UCGABAR",
    "SHFL": r"SHFL",
    "REDUX": r"C?REDUX",
    "RED": r"U?RED(?:G|S)?\b",
    "ATOM": r"U?ATOM(?:G|S)?\b",
    "MUFU": r"MUFU",
    "FFMA": r"FFMA2?\b",
    "HFMA2": r"HFMA2",
    "DFMA": r"DFMA",
    "CALL": r"CALL",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in HIGHLIGHTS.items()}

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+),", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;\s*(?:/\*.*)?$")
_LINE = re.compile(r'(?:File|inlined at) "([^"]*)", line (\d+)')
_LOADS_CONSTANT = re.compile(r"^HFMA2.* -RZ, RZ,")  # used by the compiler to move a constant
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_GUARD = re.compile(r"^@!?U?P\w+\s+")


@dataclass(frozen=True)
class SassInstruction:
    address: int
    text: str
    line: int | None  # of the kernel file
    target: int | None = None  # of a branch: its target address
    callers: tuple[int, ...] = ()  # kernel file lines that it was inlined at, innermost first

    @property
    def opcode(self) -> str:
        return _GUARD.sub("", self.text).partition(" ")[0]


@dataclass(frozen=True)
class SassListing:
    """The machine code of one launched kernel."""

    kernel: str  # the C++ name expression
    symbol: str
    instructions: tuple[SassInstruction, ...]

    def __str__(self) -> str:
        lines = [f"{self.kernel}  ({self.symbol})"]
        for instruction in self.instructions:
            place = f"line {instruction.line}" if instruction.line is not None else ""
            lines.append(f"  {instruction.address:05x}  {instruction.text:<70}  {place}".rstrip())
        return "\n".join(lines)


def disassemble(build: Build) -> tuple[SassListing, ...]:
    """The listing of every launched kernel; raises `ToolchainError` without nvdisasm."""
    tool = find_toolkit().nvdisasm
    if tool is None:
        raise ToolchainError(f"nvdisasm was not found; run: {INSTALL_TOOLS}")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as directory:
        cubin = Path(directory) / "kernel.cubin"
        cubin.write_bytes(build.cubin)
        try:
            done = subprocess.run(
                [tool, "-c", "-gi", cubin], capture_output=True, text=True, timeout=DISASSEMBLY_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"nvdisasm could not be run: {error}") from error
    if done.returncode != 0:
        raise ToolchainError(f"nvdisasm failed: {done.stderr.strip() or done.returncode}; reinstall: {INSTALL_TOOLS}")
    sections = _sections(done.stdout)
    return tuple(
        SassListing(kernel.expression, kernel.symbol, _instructions(sections.get(kernel.symbol, "")))
        for kernel in build.kernels
    )


def sass_text(build: Build) -> str:
    """The SASS of every launched kernel as text."""
    return "\n\n".join(str(listing) for listing in disassemble(build))


def highlights(build: Build) -> dict[str, dict[str, int]]:
    """Counts of notable instructions per kernel expression, without zeros."""
    return {listing.kernel: count_highlights(listing) for listing in disassemble(build)}


def count_highlights(listing: SassListing) -> dict[str, int]:
    counts = dict.fromkeys(_PATTERNS, 0)
    for instruction in listing.instructions:
        opcode = instruction.opcode
        for name, pattern in _PATTERNS.items():
            if pattern.match(opcode) and not _LOADS_CONSTANT.search(instruction.text):
                counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def _sections(text: str) -> dict[str, str]:
    starts = list(_SECTION.finditer(text))
    ends = [found.start() for found in starts[1:]] + [len(text)]
    return {found.group(1): text[found.end() : end] for found, end in zip(starts, ends, strict=True)}


def _instructions(section: str) -> tuple[SassInstruction, ...]:
    instructions: list[SassInstruction] = []
    labels: dict[str, int] = {}  # and the number of the instruction that follows
    lines: list[int] = []
    open_chain = False  # whether the previous line was a location: an inlining chain
    for text in section.splitlines():
        if "//##" in text:
            if not open_chain:
                lines = []
            open_chain = True
            found_lines = [int(number) for file, number in _LINE.findall(text) if file == KERNEL_FILE_NAME]
            lines += [line for line in found_lines if line not in lines]  # each location of a chain appears twice
            continue
        open_chain = False
        if label := _LABEL.match(text):
            labels[label.group(1)] = len(instructions)
        found = _INSTRUCTION.match(text)
        if found is not None:
            place, callers = (lines[0], tuple(lines[1:])) if lines else (None, ())
            instructions.append(SassInstruction(int(found.group(1), 16), found.group(2), place, callers=callers))
    # Padding after the final branch.
    while instructions and instructions[-1].text == "NOP":
        instructions.pop()
    return tuple(_with_target(one, instructions, labels) for one in instructions)


def _with_target(one: SassInstruction, code: list[SassInstruction], labels: Mapping[str, int]) -> SassInstruction:
    found = _BRANCH.search(one.text)
    number = labels.get(found.group(1), len(code)) if found else len(code)
    return replace(one, target=code[number].address) if number < len(code) else one
