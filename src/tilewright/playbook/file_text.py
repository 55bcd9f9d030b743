"""A kernel file put together: comment, launch plan, helpers, kernels.

A structure writes a `Fragment`. Alone it is a file; several stand in one file, each in a namespace of its own, so that
what one launch leaves in a scratch tensor the next one's program reads. Its code may say `unrolled for (...)` and
`rolled for (...)`, which become the pragmas that loops need.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.kernel_file.op_line import size_expression
from tilewright.playbook.cpp_pieces import READ_ONCE
from tilewright.playbook.cpp_text import Namer, indented
from tilewright.playbook.row_program import COLS, ProgramInput, Reduce, RowProgram
from tilewright.records import Dimension, DType, Task

_COMMENT_WIDTH = 118
_NEED_WIDTH = 100
_LINE_WIDTH = 120
MOST_32_BIT = 2000000000
_MOST_LINES, _LONGEST_LINE = 100, 1000  # of a plan
_MOST_CACHED = "device.l2"  # bytes: a larger tensor pushes itself out of the cache
_CONTINUATION = "//!             "
_LOOP = re.compile(r"^( *)(un)?rolled (?=for )", re.MULTILINE)


Entry = tuple[str, str]  # a line of the plan and the remark beside it


@dataclass
class PlanLines:
    """Plan lines in order; names that the plan introduces avoid the op's own, and @word in a line stands for such."""

    program: RowProgram
    op_line: str
    entries: list[Entry] = field(default_factory=list)  # those of the structure itself

    @property
    def head(self) -> list[Entry]:
        """What comes before them: the op, its results, and what the program asks of its tensors."""
        directives = [("op", self.op_line), *(("out", line) for line in self.program.out_lines)]
        directives += [("need", need) for need in _joined(self.program.shape_needs)]
        return [(_directive(*one), "") for one in directives]

    @property
    def names(self) -> list[str]:
        """The names that the structure's lines give to numbers, constants, scratch buffers and tensor maps."""
        return [one for one, _ in self._named]

    @property
    def constants(self) -> list[str]:
        """Those that the code has too."""
        return [one for one, directive in self._named if directive in ("const", "tune")]

    @property
    def _named(self) -> list[tuple[str, str]]:
        """Every name with the directive that gives it."""
        found: list[tuple[str, str]] = []
        for line, _ in self.entries:
            directive, _, rest = line.removeprefix("//! ").partition(" ")
            if directive in ("let", "const", "tune", "map"):
                found += [(one, directive) for one in re.findall(r"(?:^|, )(\w+) = ", rest.strip())]
            elif directive == "scratch":
                found.append((rest.strip().partition(":")[0], directive))
        return found

    def sizes(self) -> tuple[str, str]:
        """The numbers of rows and of columns, under names of the plan."""
        rows, cols = self.name("rows"), self.name("cols")
        self.add("let", f"{cols} = {self.program.cols}, {rows} = {self.program.rows}")
        for number, name in self.program.span_constants.items():
            self.add("const", f"{name} = {number}", "columns for which a tensor has one element, or all of its own")
        if self.program.span_constants:
            self.add("need", f"{cols} <= {MOST_32_BIT}", "so that a 32-bit division finds an element that is broadcast")
        return rows, cols

    def inner(self) -> str:
        """How far apart the elements of a row are, or how long its runs: see `Layout`."""
        inner = self.name("inner")
        self.add("let", f"{inner} = {self.program.inner}")
        return inner

    def limits(self, rows: str, cols: str) -> None:
        """What 32 bits ask for, where rows are divided or columns numbered in so many."""
        if has_parts(self.program):
            self.add("need", f"{rows} <= {MOST_32_BIT}", "so that a 32-bit division finds a broadcast row")
        self.index_limit(cols)

    def index_limit(self, cols: str) -> None:
        if any(isinstance(one, Reduce) and one.op.finds_place for one in self.program.values):
            self.add("need", f"{cols} <= {MOST_32_BIT}", "an index fits an int")

    def width(self, cols: str) -> None:
        """As many elements as 16 bytes hold, where rows are a whole number of those."""
        size = 16 // self.program.widest.itemsize
        units = [cols, *self.program.span_units]
        whole = " and ".join(f"{one} % {size} == 0" for one in units)
        self.add("const", f"WIDTH = {size} if {whole} else 1", "elements per load")

    def read_once(self, elements: str) -> None:
        """Whether tensors of so many elements are read as what no cache can hold: see `READ_ONCE`."""
        size = max((one.dtype.itemsize for one in self.program.tensors), default=4)
        large = f"{elements} * {size} > {_MOST_CACHED}"
        self.add("const", f"ONCE = 1 if device.cc == 90 and {large} else 0", "lines of large tensors are to stay")

    def name(self, wanted: str) -> str:
        """A name for the plan that no parameter or result has."""
        taken = {one.name for one in self.program.tensors} | _words(self.op_line)
        while wanted in taken:
            wanted += "_"
        return wanted

    def _worded(self, text: str) -> str:
        return re.sub(r"@(\w+)", lambda found: self.name(found[1]), text)

    def add(self, directive: str, text: str, remark: str = "") -> None:
        self.entries.append((_directive(directive, self._worded(text)), remark))

    def launch(self, kernel: str, grid: str, block: str, arguments: list[str], rest: str = "") -> None:
        head = self._worded(f"//! launch  {kernel}<<<{grid}, {block}>>>(")
        arguments = [self._worded(one) for one in arguments]
        listed = ", ".join(arguments) + ")" + rest
        if len(head) + len(listed) <= 120:
            self.entries.append((head + listed, ""))
            return
        self.entries.append((head, ""))
        whole = ", ".join(arguments) + ")" + rest.replace(" ", "\0")  # a line ends only where a bracket is open
        wrapped = textwrap.wrap(whole, 104, break_long_words=False, break_on_hyphens=False)
        self.entries += [(f"//!             {line}".replace("\0", " "), "") for line in wrapped]


def plan_entry(directive: str, text: str) -> Entry:
    return _directive(directive, text), ""


def _directive(directive: str, text: str) -> str:
    return f"//! {directive:<7} {text}"


def _plan_text(entries: list[Entry]) -> list[str]:
    """The lines, with remarks in one column where they fit."""
    fitting = [(line, remark) for line, remark in entries if remark and len(line) + len(remark) + 4 <= _LINE_WIDTH]
    column = max((len(line) for line, _ in fitting), default=0)
    lines: list[str] = []
    for line, remark in entries:
        shown = f"{line:<{column}}  # {remark}"
        if len(shown) > _LINE_WIDTH:
            shown = f"{line}  # {remark}" if (line, remark) in fitting else line
        lines.append(shown if remark else line)
    return lines


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _joined(needs: tuple[str, ...]) -> list[str]:
    """Dtypes first; then the conditions on one tensor in one line."""
    lines = [one for one in needs if " and " in one]
    rest = [one for one in needs if " and " not in one]
    for tensor in dict.fromkeys(one.split(".")[0] for one in rest):
        line = ""
        for need in (one for one in rest if one.split(".")[0] == tensor):
            joined = f"{line} and {need}"
            if not line or " or " in joined or len(joined) > _NEED_WIDTH:
                lines += [line] if line else []
                line = need
            else:
                line = joined
        lines.append(line)
    return lines


@dataclass(frozen=True)
class KernelSignature:
    """The parameters of a kernel and the arguments the plan gives for them."""

    declared: list[str]
    given: list[str]

    @classmethod
    def of(cls, program: RowProgram, namer: Namer, sizes: list[tuple[str, str]]) -> KernelSignature:
        """Tensors, then `sizes` as (declaration, plan expression), then row parts and numbers."""
        pairs: list[tuple[str, str]] = []
        for one in program.tensors:
            read = isinstance(one, ProgramInput)
            if read or not one.in_place:
                constant = "const " if read and not one.in_place else ""
                pairs.append((f"{constant}{one.dtype.cpp}* __restrict__ {namer.tensors[one.name]}", one.name))
        pairs += sizes
        pairs += [pair for one in program.inputs for pair in _part_parameters(namer, one)]
        pairs += [
            (f"{program.kinds[program.values.index(parameter)].cpp} {name}", parameter.expression)
            for parameter, name in namer.parameters.items()
            if parameter != COLS
        ]
        return cls([declaration for declaration, _ in pairs], [expression for _, expression in pairs])

    def kernel(self, qualifiers: str, name: str, body: list[str]) -> list[str]:
        return [*self._head(qualifiers, name), *indented(body), "}"]

    def _head(self, qualifiers: str, name: str) -> list[str]:
        """Up to the opening brace."""
        head = f"__global__ void {qualifiers} {name}(".replace("  ", " ")
        one_line = head + ", ".join(self.declared) + ") {"
        if len(one_line) <= 120:
            return [one_line]
        first = f"__global__ void {qualifiers}".rstrip()
        indent = f"    {name}("
        whole = [one.replace(" ", "\0") for one in self.declared]  # a parameter stays on one line
        wrapped = textwrap.wrap(
            ", ".join(whole) + ")\0{",
            120,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [first, *(line.replace("\0", " ") for line in wrapped)]


def _part_parameters(namer: Namer, one: ProgramInput) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for number, part in enumerate(one.parts or ()):
        name = namer.tensors[one.name]
        if part.divisor:
            found.append((f"unsigned {name}_divisor_{number}", part.divisor))
        if part.modulus:
            found.append((f"unsigned {name}_modulus_{number}", part.modulus))
    if one.spans:
        found.append((f"int {namer.tensors[one.name]}_cols", one.own_cols))
    return found


def has_parts(program: RowProgram) -> bool:
    return any(one.parts for one in program.inputs)


def includes(program: RowProgram, *more: str) -> list[str]:
    dtypes = {one.dtype for one in program.tensors}
    names = list(more)
    names += ["cuda_bf16.h"] if DType.BF16 in dtypes else []
    names += ["cuda_fp16.h"] if DType.F16 in dtypes else []
    return [f"#include <{name}>" for name in sorted(names)]


def _comment(text: str) -> list[str]:
    """A comment of one or more paragraphs."""
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        lines += ["//"] * bool(lines)
        wrapped = textwrap.wrap(" ".join(paragraph.split()), _COMMENT_WIDTH - 3, break_on_hyphens=False)
        lines += [f"// {line}" for line in wrapped]
    return lines


@dataclass(frozen=True)
class Fragment:
    """A structure's share of a file: a comment, plan lines, and pieces of code in order."""

    header: str
    plan: PlanLines
    includes: list[str]
    pieces: tuple[list[str], ...]

    def file(self) -> str:
        """The fragment as a file of its own."""
        return _file(self.header, [*self.plan.head, *self.plan.entries], self.includes, *self.pieces)


def file_of(write: Callable[[str], Fragment], op_line: str) -> str:
    """What a structure writes, as a file of its own."""
    return write(op_line).file()


def fragment(header: str, plan: PlanLines, includes: list[str], *pieces: list[str]) -> Fragment:
    if "ONCE" in plan.constants:
        pieces = ([READ_ONCE], *pieces)
    return Fragment(header, plan, includes, pieces)


def joined_file(header: str, head: list[Entry], parts: dict[str, Fragment]) -> str:
    """A file of several fragments, whose launches run in this order.

    Every fragment has a namespace, after which its plan's names are called too; `head` has the op, the results, and all
    that the fragments' programs name and do not say themselves, such as the scratch tensor between two of them.
    """
    entries = list(head)
    pieces: list[list[str]] = []
    for label, part in parts.items():
        names = {one: f"{label.upper()}_{one}" if one.isupper() else f"{label}_{one}" for one in part.plan.names}
        entries += [(_renamed(line, names, label), remark) for line, remark in part.plan.entries]
        own = [f"constexpr auto {one} = {names[one]};" for one in part.plan.constants]
        pieces += [[*_comment(part.header), f"namespace {label} {{"], own, *part.pieces, [f"}}  // namespace {label}"]]
    included = sorted({line for part in parts.values() for line in part.includes})
    return _file(header, _fitting(entries), included, *pieces)


def _fitting(entries: list[Entry]) -> list[Entry]:
    """The plan in no more lines than a file may have: where there are more, long ones are not wrapped, and names share
    lines, longer ones only where they must."""
    for width in (_LINE_WIDTH, _LONGEST_LINE // 2):
        if len(entries) > _MOST_LINES:
            entries = _joined_lines(entries, width)
    return entries


def _joined_lines(entries: list[Entry], width: int) -> list[Entry]:
    found: list[Entry] = []
    for line, remark in entries:
        before = found[-1][0] if found else ""
        goes_on = line.startswith(_CONTINUATION)
        if goes_on and len(before) + len(line) < _LONGEST_LINE:
            found[-1] = (f"{before} {line.removeprefix(_CONTINUATION).strip()}", remark)
        elif _is_let(line) and _is_let(before) and not (remark or found[-1][1]) and len(before) + len(line) < width:
            found[-1] = (f"{before}, {line.removeprefix('//! let').strip()}", "")
        else:
            found.append((line, remark))
    return found


def _is_let(line: str) -> bool:
    return line.startswith("//! let ")


def _renamed(line: str, names: dict[str, str], label: str) -> str:
    line = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), line)
    return line.replace("//! launch  ", f"//! launch  {label}::", 1)


def _file(header: str, entries: list[Entry], *pieces: list[str]) -> str:
    """The file: its parts with an empty line between them, and the pragmas of loops."""
    parts = [_comment(header), _plan_text(entries), *pieces]
    text = "\n\n".join("\n".join(lines).rstrip("\n") for lines in parts if lines) + "\n"
    return _LOOP.sub(lambda found: f"#pragma unroll{'' if found[2] else ' 1'}\n{found[1]}", text)


def _least_size(one: Dimension, task: Task) -> str:
    """`x.shape[2] >= 2 or x.shape[0] > 1`; "" where no tensor has the size."""
    own = size_expression(one.name, task)
    others = [
        (size_expression(other.name, task), task.least_of(other)) for other in task.free if other.name in one.unless
    ]
    lifted = [f"{size} > {least}" for size, least in others if size is not None]
    return " or ".join([f"{own} >= {one.at_least}", *lifted]) if own is not None else ""


def with_least_sizes(text: str, task: Task) -> str:
    """The file with a need for every size below which the reference raises: a kernel would answer there too."""
    bounded = [one for one in task.free if one.varies and one.at_least > 1 and not one.branches]
    needs = [_directive("need", need) for one in bounded if (need := _least_size(one, task))]
    lines = text.splitlines()
    place = max((number for number, line in enumerate(lines) if line.startswith("//! need")), default=None)
    if place is None or not needs:
        return text
    while lines[place + 1].startswith("//!     "):  # a condition that goes on
        place += 1
    return "\n".join([*lines[: place + 1], *needs, *lines[place + 1 :], ""])
