"""C++ statements for the values of a row program, scope by scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tilewright.playbook.cpp_forms import Forms, Text
from tilewright.playbook.naming import Namer
from tilewright.playbook.row_program import Load, Pointwise, ProgramInput, RowProgram
from tilewright.records import DType

_INLINE_LENGTH = 48  # a longer expression gets a name
_INLINE_LOAD_LENGTH = 20  # and a longer load too, where there are several

LoadText = Callable[[ProgramInput], str]


class Statements:
    """Writes values as they are needed: each once per scope, short ones that are used once inside their user."""

    def __init__(self, program: RowProgram, forms: Forms, namer: Namer) -> None:
        self.program = program
        self.forms = forms
        self.namer = namer
        self._inputs = {one.name: one for one in program.inputs}

    def write(
        self, targets: tuple[int, ...], known: dict[int, Text], load: LoadText, named: frozenset[int] = frozenset()
    ) -> tuple[list[str], dict[int, Text]]:
        """Statements after which every target has the text returned. `known` values are at hand; `named` get a name."""
        order = self._order(targets, known)
        uses = Counter(targets)
        for index in order:
            uses.update(self.program.arguments(index))
        loads = sum(isinstance(self.program.values[index], Load) for index in order)
        lines: list[str] = []
        texts = dict(known)
        for index in order:
            text = self._text(index, texts, load)
            simple = self.forms.leaf(index) is not None
            longest = _INLINE_LENGTH
            if loads > 1 and isinstance(self.program.values[index], Load):
                longest = _INLINE_LOAD_LENGTH
            if simple or (uses[index] == 1 and len(text.text) <= longest and index not in named):
                texts[index] = text
                continue
            name = self.namer.of(index)
            lines.append(f"const {self.program.kinds[index].cpp} {name} = {text.text};")
            texts[index] = Text(name)
        return lines, texts

    def row_values(self, targets: tuple[int, ...], known: dict[int, Text]) -> tuple[int, ...]:
        """The values of the row that element values need, and that no scope has yet."""
        found: list[int] = []
        for index in self._order(targets, known):
            if not self.program.varies[index] and self.forms.leaf(index) is None:
                found.append(index)
        inner = {one for index in found for one in self.program.arguments(index)}
        direct = {
            one
            for index in self._order(targets, known)
            if self.program.varies[index]
            for one in self.program.arguments(index)
        }
        return tuple(index for index in found if index in direct or index in targets or index not in inner)

    def closure(self, targets: tuple[int, ...], known: set[int]) -> set[int]:
        return set(self._order(targets, {index: Text("") for index in known}))

    def _order(self, targets: tuple[int, ...], known: dict[int, Text]) -> list[int]:
        wanted: set[int] = set()
        todo = [one for one in targets if one not in known]
        while todo:
            index = todo.pop()
            if index not in wanted:
                wanted.add(index)
                todo += [one for one in self.program.arguments(index) if one not in known]
        return sorted(wanted)

    def _text(self, index: int, texts: dict[int, Text], load: LoadText) -> Text:
        leaf = self.forms.leaf(index)
        if leaf is not None:
            return leaf
        value = self.program.values[index]
        if isinstance(value, Load):
            return read_text(self._inputs[value.input].dtype, load(self._inputs[value.input]))
        assert isinstance(value, Pointwise), f"value {index} is not known yet"
        return self.forms.pointwise(index, [texts[one] for one in value.arguments])


def read_text(dtype: DType, element: str) -> Text:
    """An element as the kind of number a kernel computes with."""
    if dtype in (DType.F32, DType.I64, DType.BOOL):
        return Text(element)
    return Text(f"static_cast<{'float' if dtype.is_float else 'long long'}>({element})")


def write_text(dtype: DType, text: Text) -> str:
    """A computed number as an element."""
    if dtype in (DType.F32, DType.I64, DType.BOOL):
        return text.text
    return f"static_cast<{dtype.cpp}>({text.text})"


def indented(lines: list[str], depth: int = 1) -> list[str]:
    return [("  " * depth + line if line and not line.startswith("#") else line) for line in lines]
