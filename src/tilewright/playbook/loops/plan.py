"""The launch plan: sizes as `let` lines, outputs, scratch buffers, conditions and launches."""

from __future__ import annotations

import re
import textwrap

from tilewright.playbook.loops.sizes import Size

_WIDTH = 118


class Plan:
    def __init__(self, op_line: str, taken: set[str]) -> None:
        self.op_line = op_line
        self._taken = {*taken, *re.findall(r"\w+", op_line)}
        self._names: dict[Size, str] = {}
        self._lets: list[str] = []
        self.head: list[str] = []  # after the op line
        self.tail: list[str] = []  # after the sizes

    def name(self, wanted: str) -> str:
        """A name that nothing else has."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted

    def size(self, size: Size) -> str:
        """A literal, or the name that a `let` line gives to the size."""
        if size.literal is not None:
            return str(size.literal)
        if size not in self._names:
            text = self._text(size)
            self._names[size] = self.name(f"n{len(self._names)}")
            self._lets.append(f"{self._names[size]} = {text}")
        return self._names[size]

    def _text(self, size: Size) -> str:
        if size.form[0] == "text":
            return str(size.form[1])
        sign, *operands = size.form
        a, b = (self.size(one) for one in operands if isinstance(one, Size))
        a, b = (f"({one})" if one.startswith("-") else one for one in (a, b))
        if sign in ("ceil_div", "max"):
            return f"{sign}({a}, {b})"
        return f"next_pow2({a})" if sign == "next_pow2" else f"{a} {sign} {b}"

    @property
    def lines(self) -> list[str]:
        lines = [f"//! op      {self.op_line}", *(f"//! {one}" for one in self.head)]
        line = ""
        for one in self._lets:
            if line and len(line) + len(one) > _WIDTH - 14:
                lines.append(f"//! let     {line}")
                line = ""
            line += f"{', ' if line else ''}{one}"
        lines += [f"//! let     {line}"] if line else []
        return [*lines, *(f"//! {one}" for one in self.tail)]

    def launch(self, kernel: str, grid: str, block: str, arguments: list[str]) -> None:
        head = f"launch  {kernel}<<<{grid}, {block}>>>("
        listed = ", ".join(arguments) + ")"
        if len(head) + len(listed) <= _WIDTH:
            self.tail.append(head + listed)
            return
        wrapped = textwrap.wrap(listed, 104, break_long_words=False, break_on_hyphens=False)
        self.tail.append("\n".join([head, *(f"//!             {line}" for line in wrapped)]))
