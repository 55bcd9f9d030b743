"""Requests that are refused, as values: what was found, and what would help. Each front end words both its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class ArgumentKind(str, Enum):
    SHAPE = "shape"
    NUMBER = "number"
    VALUES = "values"


@dataclass(frozen=True)
class GivenArgument:
    """What a person gave for a parameter; `text` is empty where its name alone is at fault."""

    kind: ArgumentKind
    name: str
    text: str = ""


# -- remedies --


@dataclass(frozen=True)
class GiveShape:
    name: str
    example: str


@dataclass(frozen=True)
class GiveNumber:
    name: str


@dataclass(frozen=True)
class GiveShapeOrNumber:
    """For a parameter that may be either."""

    name: str
    example: str


@dataclass(frozen=True)
class GiveShapeOfEach:
    """For tensors that are not named."""


@dataclass(frozen=True)
class GiveValues:
    """What a tensor should hold."""

    name: str
    example: str


@dataclass(frozen=True)
class GiveArguments:
    """Shapes and numbers apart from the request's text."""


@dataclass(frozen=True)
class AllowDegenerate:
    pass


@dataclass(frozen=True)
class ChooseModel:
    """A model in place of the playbook."""


Remedy = (
    GiveShape
    | GiveNumber
    | GiveShapeOrNumber
    | GiveShapeOfEach
    | GiveValues
    | GiveArguments
    | AllowDegenerate
    | ChooseModel
)


class RefusedRequest(ValueError):
    """`found` says what is wrong, of the argument `given` where there is one; any of the `remedies` would help.

    As text it is a whole sentence that knows no front end; `tilewright.frontends.remedies` has theirs.
    """

    def __init__(self, found: str, *remedies: Remedy, given: GivenArgument | None = None) -> None:
        self.found = found
        self.remedies = remedies
        self.given = given
        super().__init__(self.sentence(_plain_argument, _plain_remedy))

    def sentence(self, argument: Callable[[GivenArgument], str], remedy: Callable[[Remedy], str]) -> str:
        """The whole in the words of a front end."""
        place = f"{argument(self.given)}: " if self.given is not None else ""
        return place + "; ".join([self.found, *map(remedy, self.remedies)])


class TaskError(RefusedRequest):
    """A request that makes no task."""


def _plain_argument(one: GivenArgument) -> str:
    return f"{one.kind.value} of {one.name}" + (f", {one.text}" if one.text else "")


def _plain_remedy(one: Remedy) -> str:
    match one:
        case GiveShape(name, example):
            return f"give a shape for {name}, such as {example}"
        case GiveNumber(name):
            return f"give a number for {name}"
        case GiveShapeOrNumber(name, example):
            return f"give a shape for {name}, such as {example}, or a number if it is one"
        case GiveShapeOfEach():
            return "give a shape for each tensor"
        case GiveValues(name, example):
            return f"give other values for {name}, such as {example}"
        case GiveArguments():
            return "give them as shapes and numbers"
        case AllowDegenerate():
            return "a degenerate task can be allowed"
        case ChooseModel():
            return "a model can be asked instead"
