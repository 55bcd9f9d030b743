"""Which structures are written for convolutions, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.playbook.convolutions.draft import draft_convolution
from tilewright.playbook.convolutions.program import Convolution
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.products.plan_text import Choices

WriteConvolution = Callable[[Convolution, str, Choices], Fragment]


@dataclass(frozen=True)
class ConvolutionWay:
    """A way to write convolutions: each by the first of its structures that can."""

    id: str
    summary: str
    write: WriteConvolution
    resort: bool = False  # as a structure has it


DRAFT = ConvolutionWay("draft-convolution", "first version: one thread per result", draft_convolution)


def convolution_ways(convolutions: tuple[Convolution, ...], arch: str) -> tuple[ConvolutionWay, ...]:
    """The ways that take every convolution of a chain on a GPU, the most promising first."""
    return ()
