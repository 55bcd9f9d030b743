"""Runs in the child: records the conditions on sizes and numbers that a reference evaluates.

`shape`, `size`, `numel` and `len` of tensors give tracked numbers. Comparisons of tracked numbers are recorded if the
reference or a neighbouring module makes them, and not if torch does: those do not decide the result.
"""

from __future__ import annotations

import ast
import itertools
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.tasks.child.tracked_numbers import Expression, Number, expression_of, is_tracked, plain, tracked

_LONGEST_RANGE = 4096  # longer loops are not tracked
_MOST_QUESTIONS = 2000
_LONGEST_PATH = 6  # stack frames
_HERE = str(Path(__file__).parent)
_LIBRARIES = tuple(
    f"{one}/" for one in {sys.prefix, sys.base_prefix, torch.__path__[0], str(Path(ast.__file__).parent)}
)


@dataclass(frozen=True)
class Place:
    file: str
    line: int
    instruction: int


Key = tuple[Place, str]  # place and text of a condition


@dataclass(frozen=True)
class Range:
    """The values of a loop index."""

    start: Expression
    stop: Expression
    step: Expression


@dataclass(frozen=True)
class Question:
    """A condition on sizes and numbers, with all its values during one call."""

    place: Place
    expression: Expression
    answers: frozenset[bool]


@dataclass
class BranchLog:
    """The conditions of one call. `sizes` are of intermediate tensors; None if one place saw several."""

    questions: dict[Key, Question] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)

    @property
    def answers(self) -> dict[Key, bool]:
        """The values of conditions that had only one."""
        return {key: min(one.answers) for key, one in self.questions.items() if len(one.answers) == 1}

    def differs_from(self, other: BranchLog) -> bool:
        """Whether a condition had a value that it never had in the other call."""
        known: dict[Place, set[bool]] = {}
        for one in other.questions.values():
            known.setdefault(one.place, set()).update(one.answers)
        for key, one in self.questions.items():
            before = other.questions[key].answers if key in other.questions else known.get(one.place, {False, True})
            if not one.answers <= before:
                return True
        return False


class BranchWatch(TorchFunctionMode):
    """Watches one call. `forced` overrides the values of conditions."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], forced: Mapping[Key, bool] | None = None) -> None:
        super().__init__()
        self.asked = BranchLog()
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._forced = forced or {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is torch.Tensor.shape or (name == "size" and len(args) == 1 and not kwargs):
            return _Shape(self._size(args[0], axis, size) for axis, size in enumerate(made))
        if name == "size" and isinstance(made, int):
            axis = args[1] if len(args) > 1 else (kwargs or {}).get("dim", 0)
            return self._size(args[0], axis % args[0].dim(), made)
        if name in ("numel", "nelement") and isinstance(made, int):
            shape = args[0].shape
            return math.prod([self._size(args[0], axis, size) for axis, size in enumerate(shape)])
        return made

    def _size(self, tensor: torch.Tensor, axis: int, size: int) -> Any:
        frame = _asking_frame()
        if frame is None:
            return size
        name = self._names.get(id(tensor))
        if name is not None:
            return tracked(size, Expression.symbol(f"{name}.shape[{axis}]"))
        symbol = f"shape[{axis}] at {_way_to(frame)}"
        self.asked.sizes[symbol] = size if self.asked.sizes.get(symbol, size) == size else None
        return tracked(size, Expression.symbol(symbol))

    def number(self, name: str, value: Number) -> Number:
        return tracked(value, Expression.symbol(name))

    def length(self, thing: Any) -> Any:
        """Replaces `len`, which returns a plain int."""
        return thing.shape[0] if isinstance(thing, torch.Tensor) and thing.dim() else len(thing)

    def range(self, *bounds: Any) -> Any:
        """Replaces `range`; indices are tracked if a bound is and the range is short."""
        numbers = range(*map(plain, bounds))
        frame = _asking_frame()
        if not any(map(is_tracked, bounds)) or len(numbers) > _LONGEST_RANGE or frame is None:
            return numbers
        start, stop, step = bounds if len(bounds) == 3 else (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)
        symbol = f"index at {_way_to(frame)}"
        self.asked.ranges[symbol] = Range(*(expression_of(one) for one in (start, stop, step)))
        return [tracked(number, Expression.symbol(symbol)) for number in numbers]

    def listen(self, expression: Expression, answer: bool) -> bool:
        frame = _asking_frame()
        if frame is None:
            return answer
        is_exit, is_bound = _loop_condition(frame.f_code, frame.f_lasti)
        if is_exit or (is_bound and not expression.symbols.isdisjoint(self.asked.ranges)):
            return answer  # it only ends a loop, or limits its last tile
        place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        key = (place, expression.text)
        before = self.asked.questions.get(key)
        if before is None and len(self.asked.questions) >= _MOST_QUESTIONS:
            return answer
        answer = self._forced.get(key, answer)
        if before is None or answer not in before.answers:
            answers = frozenset({answer}) | (before.answers if before else frozenset())
            self.asked.questions[key] = Question(place, expression, answers)
        return answer


class _Shape(tuple[Any, ...]):
    """Replaces `torch.Size`, whose `numel` is a plain int."""

    def numel(self) -> Any:
        return math.prod(self)

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        return _Shape(found) if isinstance(which, slice) else found

    def __add__(self, other: Any) -> _Shape:
        return _Shape((*self, *other))


def _asking_frame() -> types.FrameType | None:
    """The innermost frame if it is the reference's; None if it is torch's or another library's."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None or not is_own_file(frame.f_code.co_filename):
        return None
    return frame


def _way_to(frame: types.FrameType | None) -> str:
    """The reference's lines and instructions on the stack: a helper may be called from several."""
    way: list[str] = []
    while frame is not None and len(way) < _LONGEST_PATH:
        if is_own_file(frame.f_code.co_filename):
            way.append(f"{frame.f_lineno}.{frame.f_lasti}")
        frame = frame.f_back
    return "<".join(way)


@cache
def is_own_file(name: str) -> bool:
    """Whether a file is the reference's or a neighbour of it, and of no library."""
    return not name.startswith((*_LIBRARIES, "<frozen", str(Path(__file__).parents[2]) + "/"))


Span = tuple[tuple[int, int], tuple[int, int]]


@cache
def _loop_condition(code: types.CodeType, instruction: int) -> tuple[bool, bool]:
    """Whether an instruction is in a loop condition, and whether it is in a call of `min` or `max`."""
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None))
    if None in positions:
        return False, False
    line, end_line, column, end_column = positions
    turns, bounds = _loop_conditions(code.co_filename)

    def within(places: tuple[Span, ...]) -> bool:
        return any(first <= (line, column) and (end_line, end_column) <= last for first, last in places)

    return within(turns), within(bounds)


@cache
def _loop_conditions(file: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The loop conditions of a file, and its calls of `min` and `max`."""
    tree = tree_of(file)
    turns: list[Span] = []
    bounds: list[Span] = []
    for node in ast.walk(tree) if tree is not None else ():
        exits = isinstance(node, ast.If) and all(isinstance(one, (ast.Break, ast.Continue)) for one in node.body)
        if isinstance(node, ast.While) or (isinstance(node, ast.If) and exits and not node.orelse):
            turns.append(_span(node.test))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            bounds.append(_span(node))
    return tuple(turns), tuple(bounds)


def _span(node: ast.expr) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
