"""What a test needs to know of one example: its files, the truth in PyTorch, and calls to try.

This module defines the type and the makers of arguments; it holds no cases. `cases_memory` and `cases_matmul` hold
them, each as a tuple called `CASES`.

A call's arguments are made on any device: on "meta" they have shapes but no memory, which is all that evaluating and
building a file needs; on "cuda" they hold seeded random numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.kernel_file import KernelFile
from tilewright.kernel_file.syntax import Tune

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Arguments = tuple[Any, ...]  # tensors, numbers and None, in the order of the op's parameters
Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Call:
    """One call of an op. `make(device)` gives its positional arguments, the same ones every time."""

    label: str
    make: Callable[[torch.device], Arguments]


@dataclass(frozen=True)
class Case:
    """One example: which files form the op, what is right, and what to try.

    `reference` is plain PyTorch. It returns the op's results in order, then the new value of every tensor that the op
    changes in place (it must not change its own arguments). It must follow its arguments' dtype: called with them as
    they are it is "PyTorch's own result", called with every floating tensor in f64 it is the truth.

    A result is right when its error against the truth is within a small multiple (`factor`) of the error of PyTorch's
    own result plus one rounding of each element to the result's dtype: see `agreement`. Where terms cancel, as in a
    sum, the result is much smaller than what was rounded on the way to it: `magnitude` then gives the size of those
    terms, and one f32 rounding of them is allowed as well. It gets the f64 arguments and returns one tensor per result.
    With `exact`, results must equal PyTorch's own element by element, and no f64 truth is computed.
    """

    name: str
    files: tuple[str, ...]  # under examples/, in the order of dispatch
    reference: Callable[..., torch.Tensor | Results]
    calls: tuple[Call, ...]
    refused: tuple[Call, ...] = ()  # calls that no file may take
    least_cc: int = 75  # refused by `need` below this compute capability
    only_cc: int | None = None  # refused by `need` on any other
    exact: bool = False
    factor: float = 4.0
    magnitude: Callable[..., torch.Tensor | Results] | None = None
    deterministic: bool = True  # two runs give the same bits
    slow_build: bool = False  # includes CuTe: half a minute to compile
    library: bool = False  # has a declared vendor step

    def runs_on(self, cc: int) -> bool:
        return cc >= self.least_cc and self.only_cc in (None, cc)

    def paths(self) -> list[Path]:
        return [EXAMPLES / file for file in self.files]


def as_tuple(results: torch.Tensor | Results) -> Results:
    return results if isinstance(results, tuple) else (results,)


def in_f64(arguments: Arguments) -> Arguments:
    """The arguments with every floating tensor in f64; other tensors and numbers as they are."""
    return tuple(
        argument.double() if isinstance(argument, torch.Tensor) and argument.is_floating_point() else argument
        for argument in arguments
    )


def accumulator(x: torch.Tensor) -> torch.dtype:
    """The dtype that a reference sums in: f64 for the truth, else f32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def single_choices(file: KernelFile) -> list[tuple[str, int | bool]]:
    """Every value of every `tune` but the first, one at a time: not all the combinations a tuner has."""
    tunes = [directive for directive in file.plan.directives if isinstance(directive, Tune)]
    return [(tune.name, value) for tune in tunes for value in tune.choices[1:]]


# -- makers of arguments --


def normal(
    device: torch.device,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    mean: float = 0.0,
    deviation: float = 1.0,
) -> torch.Tensor:
    """Normal random numbers, seeded by the argument's name and shape."""
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(_seed(name, shape))
    wide = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    return wide.mul_(deviation).add_(mean).to(dtype)


def integers(
    device: torch.device, name: str, shape: tuple[int, ...], dtype: torch.dtype, low: int, high: int
) -> torch.Tensor:
    """Uniform random integers from `low` to `high - 1`, as any dtype, seeded by the argument's name and shape."""
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(_seed(name, shape))
    return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.int32).to(dtype)


def _seed(name: str, shape: tuple[int, ...]) -> int:
    return zlib.crc32(f"{name}{shape}".encode())


def label(*parts: object) -> str:
    """`4x1024-bf16` from a shape and a dtype."""
    return "-".join(_part(part) for part in parts)


def _part(part: object) -> str:
    if isinstance(part, tuple):
        return "x".join(map(str, part)) or "scalar"
    if isinstance(part, torch.dtype):
        return _SHORT[part]
    return str(part)


_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
