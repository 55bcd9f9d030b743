"""Refused requests: what was found, and remedies. Each front end words both in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tilewright.records import Carried


class BadArgument(ValueError):
    """An argument that cannot be used; the message says what to write instead."""


class ArgumentKind(str, Enum):
    """The kind of an argument given for a parameter."""

    SHAPE = "shape"
    NUMBER = "number"
    VALUES = "values"


class RemedyKind(Enum):
    """Format strings over the `name` and `example` of a remedy."""

    GIVE_SHAPE = "give a shape for {name}, such as {example}"
    GIVE_NUMBER = "give a number for {name}"
    GIVE_SHAPE_OR_NUMBER = "give a shape for {name}, such as {example}, or a number if it is one"
    GIVE_SHAPE_OF_EACH = "give a shape for each tensor"
    GIVE_VALUES = "give other values for {name}, such as {example}"
    GIVE_ARGUMENTS = "give shapes and numbers apart from it"
    ALLOW_DEGENERATE = "a degenerate task can be allowed"
    WRITE_FUNCTION = "it can be given as a function in PyTorch"
    CHOOSE_MODEL = "a model can be asked instead"


PLAIN_WORDS = {kind: kind.value for kind in RemedyKind}


@dataclass(frozen=True)
class GivenArgument:
    """An argument given for a parameter; `text` is empty if only its name is wrong."""

    kind: ArgumentKind
    name: str
    text: str = ""


@dataclass(frozen=True)
class Remedy:
    kind: RemedyKind
    name: str = ""  # of a parameter
    example: str = ""

    def text(self, words: Mapping[RemedyKind, str]) -> str:
        return words[self.kind].format(name=self.name, example=self.example)


class RefusedRequest(Carried, ValueError):
    """`found` says what is wrong, with the argument `given` if there is one; each of the `remedies` would help.

    `str()` gives a sentence independent of front ends; `tilewright.frontends.api.reporter` words it for each.
    """

    def __init__(self, found: str, *remedies: Remedy, given: GivenArgument | None = None) -> None:
        self.found = found
        self.remedies = remedies
        self.given = given
        place = "" if given is None else f"{given.kind.value} of {given.name}{given.text and ', '}{given.text}"
        super().__init__(self.sentence(place, PLAIN_WORDS))

    def sentence(self, place: str, words: Mapping[RemedyKind, str]) -> str:
        """The message with a front end's words for the argument and the remedies."""
        text = "; ".join([self.found, *(one.text(words) for one in self.remedies)])
        return f"{place}: {text}" if place else text


class TaskError(RefusedRequest):
    """A request that makes no task."""
