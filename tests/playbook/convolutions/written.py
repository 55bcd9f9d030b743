"""Convolutions for tests of their structures, by sizes, windows and what is done with their sums."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import tilewright
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.program import Extent
from tilewright.playbook.row_program import (
    Load,
    NumberKind,
    Pointwise,
    ProgramInput,
    ProgramOutput,
    RowPart,
    RowProgram,
    Value,
)
from tilewright.records import DType, Precision

TORCH = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}
Write = Callable[[Convolution, str], Fragment]


def in_runs(write: Write, tiles: int) -> Write:
    """Files whose blocks have so many tiles: at small sizes they would give each of them one."""

    def written(convolution: Convolution, op_line: str) -> Fragment:
        made = write(convolution, op_line)
        entries = [
            (f"//! let     run = {tiles} + RUN / 1000", "") if line.startswith("//! let     run =") else (line, remark)
            for line, remark in made.plan.entries
        ]
        assert entries != made.plan.entries
        return replace(made, plan=replace(made.plan, entries=entries))

    return written


@dataclass(frozen=True)
class Written:
    """A convolution, then a bias, a residual and an activation where they are asked for."""

    lengths: tuple[int, ...]
    taps: tuple[int, ...]
    batch: int = 2
    groups: int = 1
    channels: int = 1  # of a group
    filters: int = 1
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    more: tuple[int, ...] = ()  # output padding of a transposed one
    transposed: bool = False
    dtype: DType = DType.F32
    precision: Precision = Precision.DTYPE
    bias: bool = False
    residual: bool = False
    activation: str = ""

    def _each(self, given: tuple[int, ...], otherwise: int) -> tuple[int, ...]:
        return given or (otherwise,) * len(self.lengths)

    @property
    def windows(self) -> tuple[Window, ...]:
        found = []
        lists = [self._each(self.stride, 1), self._each(self.padding, 0), self._each(self.dilation, 1)]
        places = zip(self.lengths, self.taps, *lists, self._each(self.more, 0), strict=True)
        for place, (length, taps, stride, padding, dilation, more) in enumerate(places):
            size, reach = f"x.shape[{place + 2}]", (taps - 1) * dilation + 1
            if self.transposed:
                size_out = f"({size} - 1) * {stride} + {reach + more} - {2 * padding}"
                made = (length - 1) * stride + reach + more - 2 * padding
            else:
                size_out = f"({size} + {2 * padding} - {reach}) / {stride} + 1"
                made = (length + 2 * padding - reach) // stride + 1
            window = Window(Extent(size, length), Extent(size_out, made), taps, stride, padding, dilation)
            found.append(window)
        return tuple(found)

    @property
    def op_line(self) -> str:
        return f"conv(x, w{', bias' if self.bias else ''}{', residual' if self.residual else ''}) -> out"

    @property
    def convolution(self) -> Convolution:
        channels = Extent("1" if self.channels == 1 else f"x.shape[1] / {self.groups}", self.channels)
        rows = "w.shape[1]" if self.transposed else f"w.shape[0] / {self.groups}"
        filters, batch = Extent(rows, self.filters), Extent("x.shape[0]", self.batch)
        return Convolution(
            batch,
            self.groups,
            channels,
            filters,
            self.windows,
            "x",
            "w",
            self.dtype,
            self.transposed,
            self._finish(filters.expression),
            "sum",
            self.precision,
        )

    def _finish(self, filters: str) -> RowProgram:
        inputs = [ProgramInput("sum", DType.F32, True, None)]
        values: list[Value] = [Load("sum")]
        if self.bias:
            inputs.append(ProgramInput("bias", self.dtype, False, (RowPart("", f"{self.groups} * {filters}"),)))
            values += [Load("bias"), Pointwise("add", (len(values) - 1, len(values)))]
        if self.residual:
            inputs.append(ProgramInput("residual", self.dtype, True, None))
            values += [Load("residual"), Pointwise("add", (len(values) - 1, len(values)))]
        if self.activation:
            values.append(Pointwise(self.activation, (len(values) - 1,)))
        out = ProgramOutput("out", self.dtype, len(values) - 1, True)
        results = ", ".join(one.results.expression for one in self.windows)
        return RowProgram(
            "conv",
            tuple(inputs),
            (out,),
            tuple(values),
            (NumberKind.FLOAT,) * len(values),
            (f"out: {self.dtype.value}[x.shape[0], {self.groups} * ({filters}), {results}]",),
            (f"x.dtype == {self.dtype.value}", f"w.dtype == {self.dtype.value}"),
            f"x.shape[0] * {self.groups} * {filters}",
            "1",
            self.batch * self.groups * self.filters,
            1,
        )

    def draw(self, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        first = self.groups * (self.channels if self.transposed else self.filters)
        second = self.filters if self.transposed else self.channels
        shapes = [(self.batch, self.groups * self.channels, *self.lengths), (first, second, *self.taps)]
        shapes += [(self.groups * self.filters,)] if self.bias else []
        results = tuple(one.results.size for one in self.windows)
        shapes += [(self.batch, self.groups * self.filters, *results)] if self.residual else []
        return [torch.randn(shape, device=device).to(TORCH[self.dtype]) for shape in shapes]

    def truth(self, tensors: list[torch.Tensor], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The results, by PyTorch."""
        x, w, *others = (one.to(dtype) for one in tensors)
        stride, padding, dilation = (
            self._each(self.stride, 1),
            self._each(self.padding, 0),
            self._each(self.dilation, 1),
        )
        more = self._each(self.more, 0)
        found = torch.convolution(x, w, None, stride, padding, dilation, self.transposed, more, self.groups)
        for one in others:
            found = found + (one.reshape(1, -1, *[1] * len(self.lengths)) if one.ndim == 1 else one)
        return getattr(torch.nn.functional, self.activation)(found) if self.activation else found

    def check(self, write: Write, folder: Path, allowed: float, **choices: int) -> None:
        """Run what a structure writes, with these choices of its constants, and compare every result with f64."""
        path = folder / "conv.cu"
        text = write(self.convolution, self.op_line).file()
        for name, chosen in choices.items():
            text = re.sub(rf"//! (?:tune |const)   {name} = [\d| ]+", f"//! const   {name} = {chosen} ", text)
        path.write_text(text)
        tensors = self.draw()
        found = tilewright.load(str(path))(*tensors)
        expected = self.truth(tensors)
        assert found.shape == expected.shape
        assert found.dtype == TORCH[self.dtype]
        error = ((found.double() - expected).abs() / (expected.abs() + expected.abs().mean())).max().item()
        assert error <= allowed, f"{self}: {error:.2g}"
