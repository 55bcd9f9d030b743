"""What prompts show is true: every pattern builds, runs clean in the emulator and agrees with PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.prompts.samples import LAYERNORM

import tilewright.prompts
from tilewright.kernel_file import evaluate, parse
from tilewright.prompts.question import system_text
from tilewright.records import PROFILES, Build, TensorSpec
from tilewright.runtime import load
from tilewright.toolchain import build

IDIOMS = Path(tilewright.prompts.__file__).parent / "idioms"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
Reference = Callable[..., torch.Tensor]


def _rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.T


# name, reference, shapes of the arguments, dtype; odd sizes, tails, rows beyond registers
CASES: list[tuple[str, Reference, tuple[tuple[int, ...], ...], torch.dtype]] = [
    ("vectors", lambda a, b: F.silu(a) * b, ((1003,), (1003,)), F32),
    ("vectors", lambda a, b: F.silu(a) * b, ((37, 64), (37, 64)), BF16),
    ("rows", _rmsnorm, ((7, 1001), (1001,)), BF16),
    ("rows", _rmsnorm, ((2, 9000), (9000,)), F32),
    ("columns", lambda x: x.mean(1), ((2, 37, 260),), F32),
    ("columns", lambda x: x.mean(1), ((3, 70, 35),), BF16),
    ("pooling", lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 17, 301),), F32),
    ("pooling", lambda x: F.max_pool2d(x, 3, 2, 1), ((1, 2, 5, 6),), BF16),
    ("last_block", F.mse_loss, ((70001,), (70001,)), F32),
    ("last_block", F.mse_loss, ((3,), (3,)), F16),
    ("scan", lambda x: x.cumsum(-1), ((3, 1001),), F32),
    ("scan", lambda x: x.cumsum(-1), ((2, 9000),), BF16),
    ("mma_tile", _linear, ((100, 72), (90, 72)), BF16),
    ("mma_tile", _linear, ((65, 33), (67, 33)), F16),
    ("split_k", _linear, ((70, 600), (50, 600)), BF16),
    ("split_k", _linear, ((65, 33), (67, 33)), F16),
    ("attention", F.scaled_dot_product_attention, ((1, 2, 70, 64), (1, 2, 130, 64), (1, 2, 130, 64)), BF16),
    ("attention", F.scaled_dot_product_attention, ((1, 1, 5, 16), (1, 1, 3, 16), (1, 1, 3, 16)), F16),
]
CUTE_CASES = [("cute_sm80", _linear, ((130, 72), (67, 72)), BF16)]
SLOW_CUTE_CASES = [("cute_rows", lambda x, w: x * w, ((17, 132), (132,)), F32)]


def _check(text: str, reference: Reference, arguments: list[torch.Tensor], folder: Path, *more: float) -> None:
    """Two schedules, no finding, and an error like one rounding of the result."""
    path = folder / "pattern.cu"
    path.write_text(text)
    call = load(path).emulate(*arguments, *more, schedules=2)
    assert call.findings == ()
    truth = reference(*(argument.double() for argument in arguments))
    rounding = torch.finfo(call.results.dtype).eps
    error = (call.results.double() - truth).abs().max()
    assert error <= 4 * rounding * truth.abs().max().clamp(min=1.0)


def _check_idiom(
    name: str, reference: Reference, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, folder: Path
) -> None:
    generator = torch.Generator().manual_seed(1)
    arguments = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    _check((IDIOMS / f"{name}.cu").read_text(), reference, arguments, folder)


@pytest.mark.parametrize(("name", "reference", "shapes", "dtype"), CASES)
def test_a_pattern_is_right_and_clean(
    name: str, reference: Reference, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    _check_idiom(name, reference, shapes, dtype, tmp_path)


@pytest.mark.parametrize(("name", "reference", "shapes", "dtype"), CUTE_CASES)
def test_a_cute_pattern_is_right_and_clean(
    name: str, reference: Reference, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    _check_idiom(name, reference, shapes, dtype, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reference", "shapes", "dtype"), SLOW_CUTE_CASES)
def test_a_further_cute_pattern_is_right_and_clean(
    name: str, reference: Reference, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    _check_idiom(name, reference, shapes, dtype, tmp_path)


@pytest.mark.slow
def test_the_hopper_pattern_builds() -> None:
    file = parse((IDIOMS / "cute_sm90.cu").read_text(), "cute_sm90.cu")
    shapes = {"x": TensorSpec.parse("300x200:bf16"), "w": TensorSpec.parse("260x200:bf16")}
    gpu = PROFILES["H200"]
    made = build(evaluate(file, shapes, gpu, None).build_request())
    assert isinstance(made, Build)
    (kernel,) = made.kernels
    assert kernel.resources.spill_store_bytes == 0
    assert "wgmma.mma_async" in made.ptx


def test_every_pattern_is_tested() -> None:
    tested = {case[0] for case in (*CASES, *CUTE_CASES, *SLOW_CUTE_CASES)} | {"cute_sm90"}
    assert {path.stem for path in IDIOMS.glob("*.cu")} == tested


def test_the_worked_example_of_the_contract_is_right(tmp_path: Path) -> None:
    example = re.search(r"^```cuda\n(//! op      scale_rows.*?)^```$", system_text(LAYERNORM), re.MULTILINE | re.DOTALL)
    assert example is not None
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(37, 260, generator=generator), torch.randn(260, generator=generator)
    mask = (torch.rand(37, generator=generator) < 0.5).to(torch.uint8)

    def scale_rows(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * mask[:, None]

    _check(example[1], scale_rows, [x, weight, mask], tmp_path, 1e-3)
