"""Source places: `.file` names and `.loc` positions, with the chain of calls they were inlined through."""

from __future__ import annotations

import re

from tilewright.ptx.lexer import IDENTIFIER, Cursor
from tilewright.ptx.syntax import Place, PtxError

_LOC = re.compile(
    r"(\d{1,9})\s+(\d{1,9})(?:\s+(\d{1,9}))?"
    rf"(?:\s*,\s*function_name\s+{IDENTIFIER}(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d{{1,9}})\s+(\d{{1,9}})\s+(\d{{1,9}}))?",
    re.ASCII,
)
_DEEPEST_CHAIN = 64

Position = tuple[int, int, int]  # file index, line, column


class Location:
    """One `.loc`, before file names are known."""

    __slots__ = ("depth", "inlined_at", "position", "ptx_line", "resolved")

    def __init__(self, position: Position, inlined_at: Location | None, ptx_line: int) -> None:
        self.position = position
        self.inlined_at = inlined_at
        self.ptx_line = ptx_line
        self.depth: int = 0 if inlined_at is None else inlined_at.depth + 1
        self.resolved: Place | None = None


class PlaceTable:
    """The files and locations of a module. File names come after the code that uses them."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}
        self._latest: dict[Position, Location] = {}

    def read_file(self, cursor: Cursor) -> None:
        """What follows `.file`: `1 "kernel.cu"`, perhaps with a time stamp and a size."""
        index = cursor.integer("the index of a file")
        self._files[index] = cursor.string("the name of a file")
        while cursor.accept(","):
            cursor.integer("the time or size of a file")

    def start_function(self) -> None:
        """Inlining chains do not cross functions."""
        self._latest = {}

    def read_loc(self, cursor: Cursor, start: int) -> Location:
        """What follows `.loc`: `1 24 5, function_name $L__info_string0, inlined_at 1 30 3`."""
        found = cursor.match(_LOC)
        if found is None:
            cursor.fail("expected a file, a line and a column", start)
        file, line, column, outer_file, outer_line, outer_column = found.groups()
        ptx_line = cursor.line_at(start)
        outer: Location | None = None
        if outer_file is not None:
            # A place that was itself inlined has a `.loc` of its own before this one: the rest of the chain.
            position = (int(outer_file), int(outer_line), int(outer_column))
            outer = self._latest.get(position)
            if outer is None or outer.depth >= _DEEPEST_CHAIN:
                outer = Location(position, None, ptx_line)
        location = Location((int(file), int(line), int(column or 0)), outer, ptx_line)
        self._latest[location.position] = location
        return location

    def place(self, location: Location) -> Place | None:
        """The place, once all files are known. Line 0 is the compiler's own code: where it was inlined, if anywhere."""
        if location.resolved is None:
            outer = None if location.inlined_at is None else self.place(location.inlined_at)
            file, line, _ = location.position
            if line == 0:
                return outer
            if file not in self._files:
                raise PtxError(f"a .loc names file {file}, and no .file does", location.ptx_line)
            location.resolved = Place(self._files[file], line, outer)
        return location.resolved
