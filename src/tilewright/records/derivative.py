"""What a backward task has to do with its forward one: whose gradients it takes and gives, and what is kept for it."""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = "_backward"  # how the name of a backward op ends


@dataclass(frozen=True)
class SavedTensor:
    """An input or a result of the forward that the backward is given, under the same name."""

    name: str
    bytes: int  # at the task's own sizes
    is_result: bool = False


@dataclass(frozen=True)
class Derivative:
    """The backward's arguments are `gradients`, then `saved`, then the forward's numbers; its results go with `by`."""

    forward: str  # hash of the forward task
    op: str  # its name
    results: tuple[str, ...]  # the forward's results whose gradients are taken
    gradients: tuple[str, ...]  # what these gradients are called among the backward's arguments
    saved: tuple[SavedTensor, ...]
    by: tuple[str, ...]  # the inputs that get a gradient, in the order of the backward's results
    without: tuple[tuple[str, str], ...] = ()  # tensors that get none, and why
    autograd_bytes: int | None = None  # what PyTorch's autograd would keep; None where that was not found out

    @property
    def saved_bytes(self) -> int:
        return sum(one.bytes for one in self.saved)
