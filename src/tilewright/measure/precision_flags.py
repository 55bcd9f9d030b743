"""PyTorch's flags at a task's precision, in the process that times the baselines.

They are set around every call, because a user's module may set them when it is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tilewright.records import Precision


class PrecisionChanged(Exception):
    """A baseline changed the precision that it is timed at."""


@dataclass(frozen=True)
class Flags:
    """Whether f32 operands may be rounded to TF32, and whether cuDNN benchmarks its algorithms."""

    matmul_tf32: bool
    convolution_tf32: bool
    cudnn_benchmark: bool = False

    @classmethod
    def of(cls, precision: Precision, *, cudnn_benchmark: bool = False) -> Flags:
        return cls(precision.rounds_products, precision is not Precision.STRICT, cudnn_benchmark)

    @classmethod
    def current(cls) -> Flags | None:
        """The flags now; None where legacy and new ways to set them were mixed, so that PyTorch refuses to say."""
        backends = torch.backends
        try:
            return cls(
                bool(backends.cuda.matmul.allow_tf32), bool(backends.cudnn.allow_tf32), bool(backends.cudnn.benchmark)
            )
        except RuntimeError:
            return None

    def set(self) -> None:
        # Setting the legacy names keeps the new ones in agreement.
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.convolution_tf32
        torch.backends.cudnn.benchmark = self.cudnn_benchmark


@contextlib.contextmanager
def at_precision(precision: Precision, *, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Run PyTorch at a precision, whatever was set before. Raises `PrecisionChanged` where the body changes it."""
    before = Flags.current()
    wanted = Flags.of(precision, cudnn_benchmark=cudnn_benchmark)
    wanted.set()
    try:
        with torch.autocast("cuda", torch.bfloat16) if precision is Precision.HALF else contextlib.nullcontext():
            yield
        if Flags.current() != wanted:
            raise PrecisionChanged(
                f"it sets torch.backends itself, so it cannot be timed at {precision.value} precision"
            )
    finally:
        (before or Flags.of(Precision.DTYPE)).set()
