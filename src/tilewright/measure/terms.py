"""Equal terms: PyTorch held to a task's promise of precision, in the process that times the baselines.

Flags are set around every call rather than once, because a module that is compared with may set them when imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tilewright.records import Precision


class TermsChanged(Exception):
    """A baseline changed the precision that it is to be timed at."""


@dataclass(frozen=True)
class Flags:
    """What PyTorch may do with f32 operands, and whether cuDNN tries its algorithms out."""

    matmul_tf32: bool
    convolution_tf32: bool
    tries_algorithms: bool = False

    @classmethod
    def of(cls, precision: Precision, *, tries_algorithms: bool = False) -> Flags:
        return cls(precision.rounds_products, precision is not Precision.STRICT, tries_algorithms)

    @classmethod
    def current(cls) -> Flags | None:
        """None where old and new ways to set them were mixed, so that PyTorch refuses to say."""
        backends = torch.backends
        try:
            return cls(
                bool(backends.cuda.matmul.allow_tf32), bool(backends.cudnn.allow_tf32), bool(backends.cudnn.benchmark)
            )
        except RuntimeError:
            return None

    def set(self) -> None:
        # The older names: setting these leaves both ways of asking in agreement.
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.convolution_tf32
        torch.backends.cudnn.benchmark = self.tries_algorithms


@contextlib.contextmanager
def held_to(precision: Precision, *, tries_algorithms: bool = False) -> Iterator[None]:
    """While active PyTorch works as promised, whatever was set before. Raises `TermsChanged` where that was undone."""
    before = Flags.current()
    wanted = Flags.of(precision, tries_algorithms=tries_algorithms)
    wanted.set()
    try:
        with torch.autocast("cuda", torch.bfloat16) if precision is Precision.HALF else contextlib.nullcontext():
            yield
        if Flags.current() != wanted:
            raise TermsChanged(f"it sets torch.backends itself, so it cannot be timed at {precision.value} precision")
    finally:
        (before or Flags.of(Precision.DTYPE)).set()
