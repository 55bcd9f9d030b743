"""What a reference is asked about the f32 convolutions that it makes, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Task

LIST = "tilewright.reference.convolutions:list_convolutions"
WARM = "tilewright.verify.wide_convolution:warm"
MEASURE = "tilewright.verify.wide_convolution:measure"  # where a GPU is


@dataclass(frozen=True)
class ConvolutionRequest:
    task: Task  # at its own sizes


@dataclass(frozen=True)
class ListAnswer:
    # Of every f32 convolution, whether by a rule PyTorch computes it in f32; None where they could not be seen.
    likely_f32: tuple[bool, ...] | None


@dataclass(frozen=True)
class PrecisionAnswer:
    f32: bool | None  # whether PyTorch computes them all so; None where that could not be seen, or there is none
