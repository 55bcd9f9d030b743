"""What a reference is asked about the f32 convolutions that it makes, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Task

LIST = "tilewright.reference.convolutions:list_convolutions"
MEASURE = "tilewright.verify.convolution_precision:measure"  # where a GPU is


@dataclass(frozen=True)
class ConvolutionRequest:
    task: Task  # at its own sizes


@dataclass(frozen=True)
class ListAnswer:
    channels: tuple[int, ...] | None  # in each group, of every f32 convolution; None where that could not be seen


@dataclass(frozen=True)
class PrecisionAnswer:
    f32: bool | None  # whether PyTorch computes them all so; None where that could not be seen, or there is none
