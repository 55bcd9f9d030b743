"""Contractions for tests of Hopper's products, by layout, sizes and what is done with their sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewright.playbook.gemms.hopper import hopper_product
from tilewright.playbook.gemms.program import Extent, Gemm, Kept, Operand
from tilewright.playbook.row_program import (
    Load,
    NumberKind,
    Pointwise,
    ProgramInput,
    ProgramOutput,
    RowProgram,
    Value,
)
from tilewright.records import DType, Precision, TensorSpec

TORCH = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Product:
    """a @ b, or their transposes; then a triangle of it; then bias and an activation, or a residual."""

    sizes: tuple[int, int, int, int]  # batch, m, n, k
    dtype: DType = DType.F32
    a_transposed: bool = False
    b_transposed: bool = False
    batched: bool = False
    bias: bool = False
    activation: str = ""
    residual: bool = False
    kept: Kept | None = None
    pieces: bool = False
    fused: bool = False
    ready_b: bool = False

    @property
    def op_line(self) -> str:
        return f"matmul(a, b{', bias' if self.bias else ''}{', x' if self.residual else ''}) -> c"

    @property
    def text(self) -> str:
        return hopper_product(self.contraction, self.op_line, self.pieces, self.fused, self.ready_b).file()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        batch, m, n, k = self.sizes
        first = (batch,) if self.batched else ()
        found: dict[str, tuple[int, ...]] = {
            "a": (*first, k, m) if self.a_transposed else (*first, m, k),
            "b": (*first, n, k) if self.b_transposed else (*first, k, n),
        }
        if self.bias:
            found["bias"] = (n,)
        if self.residual:
            found["x"] = (*first, m, n)
        return found

    @property
    def specs(self) -> dict[str, TensorSpec]:
        return {name: TensorSpec.contiguous(self.dtype, shape) for name, shape in self.shapes.items()}

    def draw(self, device: str = "cpu") -> list[torch.Tensor]:
        return [torch.randn(shape, device=device).to(TORCH[self.dtype]) for shape in self.shapes.values()]

    def truth(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The results in f64."""
        a, b, *others = (one.double() for one in tensors)
        found = (a.mT if self.a_transposed else a) @ (b.mT if self.b_transposed else b)
        if self.kept is not None:
            cut = torch.triu if self.kept.triangle == "upper" else torch.tril
            found = cut(found, self.kept.diagonal)
        for one in others:
            found = found + one
        if self.activation:
            found = getattr(torch.nn.functional, self.activation)(found)
        return found

    @property
    def contraction(self) -> Gemm:
        at = 1 if self.batched else 0
        m = f"a.shape[{at + 1 if self.a_transposed else at}]"
        k = f"a.shape[{at if self.a_transposed else at + 1}]"
        n = f"b.shape[{at if self.b_transposed else at + 1}]"
        batch, *rest = self.sizes
        sizes = dict(zip((m, n, k), rest, strict=True))
        return Gemm(
            Extent("a.shape[0]", batch) if self.batched else Extent("1", 1),
            Extent(m, sizes[m]),
            Extent(n, sizes[n]),
            Extent(k, sizes[k]),
            self._operand("a", m, k, not self.a_transposed, sizes),
            self._operand("b", n, k, self.b_transposed, sizes),
            self._finish(m, n),
            "sum",
            Precision.DTYPE,
            self.kept,
        )

    def _operand(self, name: str, rows: str, k: str, along_k: bool, sizes: dict[str, int]) -> Operand:
        pitch = k if along_k else rows
        matrix = Extent(f"{rows} * {k}", sizes[rows] * sizes[k]) if self.batched else Extent("0", 0)
        return Operand(name, self.dtype, along_k, Extent(pitch, sizes[pitch]), matrix)

    def _finish(self, m: str, n: str) -> RowProgram:
        inputs = [ProgramInput("sum", DType.F32, True, None)]
        values: list[Value] = [Load("sum")]
        if self.bias:
            inputs.append(ProgramInput("bias", self.dtype, True, ()))
            values += [Load("bias"), Pointwise("add", (len(values) - 1, len(values)))]
        if self.residual:
            inputs.append(ProgramInput("x", self.dtype, True, None))
            values += [Load("x"), Pointwise("add", (len(values) - 1, len(values)))]
        if self.activation:
            values.append(Pointwise(self.activation, (len(values) - 1,)))
        rank = 3 if self.batched else 2
        shape = f"{'a.shape[0], ' if self.batched else ''}{m}, {n}"
        return RowProgram(
            "matmul",
            tuple(inputs),
            (ProgramOutput("c", self.dtype, len(values) - 1, True),),
            tuple(values),
            (NumberKind.FLOAT,) * len(values),
            (f"c: {self.dtype}[{shape}]",),
            (f"a.ndim == {rank} and b.ndim == {rank}", f"a.dtype == {self.dtype} and b.dtype == {self.dtype}"),
            m,
            n,
            self.sizes[1],
            self.sizes[2],
        )
