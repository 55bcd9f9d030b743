"""Kernel files that use the device library, one for each few components: calls, references, tolerances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tests.ptx.harness import A100

from tilewright.device_library import flatten
from tilewright.kernel_file import KernelFile, parse
from tilewright.records import PROFILES, GpuProfile

KERNELS = Path(__file__).parent / "kernels"
HOPPER, ADA = PROFILES["H200"], PROFILES["RTX 4090"]

Arguments = tuple[torch.Tensor, ...]
Results = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    gpu: GpuProfile
    calls: Callable[[], Sequence[Arguments]]
    reference: Callable[..., Results]
    tolerance: float = 0.0  # of the largest value of a result; 0: equal
    choices: tuple[dict[str, int | bool], ...] = ({},)  # of its tunes


@cache
def flat_text(name: str) -> str:
    return flatten((KERNELS / f"{name}.cu").read_text())


def flat_file(name: str) -> KernelFile:
    return parse(flat_text(name), f"{name}.cu")


def is_right(case: Case, arguments: Arguments, results: Results) -> bool:
    """Whether results agree with the reference; NaN must stand where NaN belongs."""
    expected = case.reference(*(one.cpu() for one in arguments))
    for got, want in zip(results, expected, strict=True):
        got, want = got.cpu().double(), want.double()
        if got.shape != want.shape or not torch.equal(got.isnan(), want.isnan()):
            return False
        got, want = got.nan_to_num(0.0, 1e38, -1e38), want.nan_to_num(0.0, 1e38, -1e38)
        if (got - want).abs().max() > case.tolerance * want.abs().max().clamp(min=1.0):
            return False
    return True


def _whole(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers: sums of them are exact in any order."""
    return ((torch.arange(torch.Size(shape).numel()) * 7 + 3) % 23 - 11).reshape(shape).to(dtype)


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _hand_on(x: torch.Tensor) -> Results:
    rows = x.view(4, 32).clone()
    first = rows[0] + 1
    return (torch.cat((rows[0], rows[1] + first, rows[2] + rows[1] + first, rows.sum(0) + 1)),)


def _copies(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Results:
    boxes = torch.stack([torch.nn.functional.pad(d, (0, 8 - d.shape[3]))[:2, 4 * p : 4 * p + 4, :4] for p in range(2)])
    total = torch.zeros_like(b)
    total[:8, :16] = b[:8, :16]
    total[:8, : b.shape[1] - 16] += b[:8, 16:]
    return a, b, c, torch.cat((boxes.flatten(), -boxes.flatten())), total


def _sums_of_tiles(x: torch.Tensor, z: torch.Tensor) -> Results:
    sums = x.view(-1, 512).sum(1) + z.view(-1, 512).sum(1)
    return (torch.stack((sums, sums)),)


def _reductions(x: torch.Tensor) -> Results:
    return x.sum(1), x.amax(1), x.amin(1), x.argmax(1), x.argmin(1)


def _smooth(x: torch.Tensor) -> Results:
    for _ in range(3):
        x = x + x.roll(-97)
    return (x,)


def _statistics(x: torch.Tensor) -> Results:
    x = x.double()
    variance = x.var(1, correction=0)
    return x.mean(1), variance, variance, x.logsumexp(1)


def _widen(packed: torch.Tensor, x: torch.Tensor) -> Results:
    nibbles = (packed[:, None] >> torch.arange(0, 32, 4)) & 15
    return (nibbles - 8).bfloat16(), x.half(), x.bfloat16()


def _gemm_epilogue(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> Results:
    return (2 * torch.nn.functional.silu(a.double() @ b.double() + bias) + residual,)


def _product(a: torch.Tensor, b: torch.Tensor) -> Results:
    return ((a.double() @ b.double()).to(a.dtype),)


def _products_of_f32(a: torch.Tensor, b: torch.Tensor) -> Results:
    in_tf32 = [((one.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double() for one in (a, b)]
    exact = a.double() @ b.double()
    return in_tf32[0] @ in_tf32[1], exact, exact


def _activations(x: torch.Tensor) -> Results:
    f, x = torch.nn.functional, x.double()
    return (torch.stack((x.relu(), x.sigmoid(), f.silu(x), f.gelu(x), f.gelu(x, approximate="tanh"), f.gelu(x), x)),)


def _forms(a: torch.Tensor, b: torch.Tensor, f: torch.Tensor, g: torch.Tensor) -> Results:
    halves, singles = a.double() @ b.double().t(), f.double() @ g.double().t()
    return halves, halves, singles


def _shifted(x: torch.Tensor) -> Results:
    moved = torch.cat((torch.zeros(5, dtype=x.dtype), x[:-5]))
    return moved, moved


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    return ((q.double() @ k.double().t()).softmax(-1) @ v.double(),)


PACKED = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
NAN_ROW = torch.tensor([[1.0, float("nan"), 5.0, float("nan")], [float("-inf"), 0.0, float("inf"), 2.0]])
CASES = (
    Case("ring", HOPPER, lambda: [(_whole(2596),), (_whole(260),)], lambda x: (2 * x,)),
    Case("arrivals", HOPPER, lambda: [(_whole(128),)], _hand_on),
    Case("tma_copies", HOPPER, lambda: [(_whole(200), _whole(8, 28), _whole(4, 8, 8), _whole(2, 8, 4, 8))], _copies),
    Case("transposed", HOPPER, lambda: [(_whole(16, 16).half(),)], lambda x: (x.t(),)),
    Case("multicast", HOPPER, lambda: [(_whole(96, 32), _whole(6, 16, 32))], _sums_of_tiles),
    Case(
        "reductions",
        A100,
        lambda: [(_whole(7, 203),), (NAN_ROW,)],
        _reductions,
        choices=tuple({"LANES": lanes} for lanes in (64, 8, 32, 128)),
    ),
    Case(
        "columns",
        A100,
        lambda: [(_whole(203, 37),), (_whole(3, 64),)],
        lambda x: (x.sum(0), x.argmax(0)),
        choices=tuple({"LANES": lanes} for lanes in (4, 1, 8)),
    ),
    Case(
        "packed",
        A100,
        lambda: [(_whole(1003), _whole(1003).half()), (_whole(5), _whole(5).half())],
        lambda x, y: (x, y),
        choices=tuple({"N": many} for many in (4, 1, 2, 8)),
    ),
    Case("cluster_sums", HOPPER, lambda: [(_whole(5, 301),)], lambda x: (x.sum(1),)),
    Case("grid_sums", A100, lambda: [(_whole(1111),)], lambda x: (torch.stack((x.sum(), 2 * x.sum())),)),
    Case("last_block", A100, lambda: [(_whole(300),)], lambda x: (x.flip(0),)),
    Case("tickets", A100, lambda: [(_whole(1000),)], lambda x: (-x,)),
    Case("grid_barrier", A100, lambda: [(_whole(192),)], _smooth),
    Case("statistics", A100, lambda: [(_normal(3, 517) + 100,), (_normal(2, 3),)], _statistics, 2e-6),
    Case("running_sum", A100, lambda: [(_whole(2500),)], lambda x: (x.cumsum(0), x.cummax(0).values)),
    Case(
        "conversions",
        ADA,
        lambda: [(_whole(272).to(dtype),) for dtype in PACKED],
        lambda x: ((x.float() + 1).to(x.dtype),),
    ),
    Case("int4", A100, lambda: [(torch.arange(100, dtype=torch.int32) * 123456789, _normal(200))], _widen),
    Case(
        "gemm_mma",
        A100,
        lambda: [
            (_normal(m, k, dtype=t), _normal(k, n, dtype=t), _normal(n), _normal(m, n, dtype=t))
            for m, n, k, t in ((70, 136, 104, torch.bfloat16), (33, 66, 50, torch.float16))
        ],
        _gemm_epilogue,
        1e-5,
    ),
    Case("gemm_f32", A100, lambda: [(_normal(32, 48), _normal(48, 24))], _products_of_f32, 3e-7),
    Case(
        "gemm_tiles",
        A100,
        lambda: [
            (_normal(40, k, dtype=t), _normal(k, 72, dtype=t))
            for k, t in ((200, torch.bfloat16), (50, torch.float16), (50, torch.float32), (200, torch.float32))
        ],
        lambda a, b: (a.double() @ b.double(),),
        2e-6,
    ),
    Case(
        "gemm_tiles",
        A100,
        lambda: [
            (_normal(k, 40, dtype=t), _normal(72, k, dtype=t)) for k, t in ((96, torch.bfloat16), (48, torch.float32))
        ],
        lambda a, b: (a.double().t() @ b.double().t(),),
        2e-6,
        choices=({"A_TURNED": True, "B_TURNED": False},),
    ),
    Case("shifted", A100, lambda: [(_normal(320, dtype=torch.bfloat16),)], _shifted),
    Case(
        "attention_tiles",
        A100,
        lambda: [
            (_normal(16, 32, dtype=t), 2 * _normal(n, 32, dtype=t), _normal(n, 32, dtype=t))
            for n, t in ((40, torch.float16), (17, torch.bfloat16))
        ],
        _attention,
        8e-3,
    ),
    Case("activations", A100, lambda: [(torch.linspace(-9, 9, 181),)], _activations, 3e-4),
    Case(
        "gemm_wgmma",
        HOPPER,
        lambda: [(_normal(72, 200, dtype=torch.bfloat16), _normal(200, 136, dtype=torch.bfloat16))],
        _product,
        4e-3,
        choices=tuple({"BN": n} for n in (64, 32, 128, 192, 256)),
    ),
    Case(
        "gemm_wgmma",
        HOPPER,
        lambda: [(_normal(64, 72, dtype=torch.float16), _normal(72, 264, dtype=torch.float16))],
        _product,
        5e-4,
        choices=({"BN": 128},),
    ),
    Case(
        "wgmma_forms",
        HOPPER,
        lambda: [
            (_whole(64, 64).half(), _whole(n, 64).half(), _whole(64, 32), _whole(n, 32))
            for n in (64, 32, 128, 192, 256)
        ],
        _forms,
    ),
)
