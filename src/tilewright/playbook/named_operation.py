"""What the grammar of words knows of an operation: how it is said, what it takes, and what it is in PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from tilewright.records import DType

NUMBER = r"(-?(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:e[-+]?\d+)?)"  # of "0..1" the first is 0
WHOLE_NUMBER = r"(\d+)"

# A dimension of a tensor: one of the value at hand, counted as PyTorch does, or a dimension of the task by its name.
DimensionOf = int | str
LEADING = "..."  # of a result: the dimensions of the value at hand but as many of the last as are named after it
ALL = "*"  # of a result: the dimensions of the value at hand
UNKNOWN = ""  # of a result: a dimension that no tensor can be said to have


@dataclass(frozen=True)
class Tensor:
    """A tensor that an operation takes. Without `dimensions` it is like the value at hand."""

    name: str
    dimensions: tuple[DimensionOf, ...] | None = None
    dtype: DType | None = None  # where it is not that of the elements
    values: str = ""  # how it is drawn, where the usual will not do; the words of task.toml


@dataclass(frozen=True)
class Number:
    """A number that becomes a parameter of the reference: one of those said, by its place among them."""

    name: str
    place: int = 0


Extra = Tensor | Number


class Effect(str, Enum):
    """What an operation does to the value at hand."""

    ELEMENTS = "keeps every element"
    WHOLE_ROW = "keeps every element, and needs the whole row"
    REDUCES = "leaves one element per row"
    RESHAPES = "gives a tensor of another shape"


class Form(str, Enum):
    """How an operation may be said."""

    FUNCTION = "as a name: gelu, gelu(x), gelu of x"
    ACTION = "as something done to the value at hand: add bias, scale by 2"


@dataclass(frozen=True)
class NamedOperation:
    """`code` is Python in which {v} is the value at hand, {0}, {1} the numbers said, {name} an extra, {over} the
    dimension it goes over (`dim=-1`) and {over_kept} the same with `keepdim=True`. Of several lines the last is the
    result, which `results` names where it is a tuple; nothing can follow that.
    """

    name: str  # in the kernel's name
    says: str  # in the reference's docstring
    pattern: str  # of the words, without articles
    code: str
    effect: Effect = Effect.ELEMENTS
    extras: tuple[Extra, ...] = ()
    assumption: str = ""
    defaults: tuple[str, ...] = ()  # of numbers that need not be said
    form: Form = Form.FUNCTION
    needs_positive: bool = False
    makes_positive: bool = False
    takes: Tensor | None = None  # the value at hand, where the operation expects more of it than elements
    gives: tuple[DimensionOf, ...] | None = None  # the dimensions of the result, where the effect is to reshape
    dtype: DType | None = None  # of the elements where no dtype was said
    results: tuple[str, ...] = ()
    even: int | None = None  # a dimension of the value at hand that must be
    whole: int = 0  # so many of the first numbers are whole
    several: bool = False  # it may go over several dimensions at once, and over all
    elsewhere: NamedOperation | None = None  # the same over a dimension that is not the last
    leads: bool = False  # "matmul + bias + gelu", "matmul with relu": what is named after it is done after it

    def match(self, clause: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern, clause)

    @property
    def goes_over(self) -> bool:
        """Whether a dimension can be said."""
        return "{over" in self.code

    @property
    def is_statistic(self) -> bool:
        """One number of each row, of nothing but the row."""
        return self.effect is Effect.REDUCES and self.goes_over and self.takes is None and not self.extras

    @property
    def is_by_row(self) -> bool:
        """Whether "of each row" says of it what it does anyway."""
        images = self.takes is not None and "channels" in (self.takes.dimensions or ())
        return not images and (self.effect is not Effect.RESHAPES or "each row" in self.says)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.extras if isinstance(one, Tensor))
