"""A Llama block with our RMSNorm, rotary and SwiGLU kernels, end to end, beside eager PyTorch and torch.compile.

    python benchmarks/llama_block_on_gpu.py [-o result.json] [--tokens 4096] [--hidden 4096]

Forward alone, and forward with backward. The products and the attention are PyTorch's in all three; what differs is
everything between them. Variants take turns within each round, weights and activations together are far larger than the
L2 cache, and medians of the rounds are told. Outputs and gradients of the variants are compared with the same block in
f32.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import tilewright
from recording import ROOT, write_result

EXAMPLES = ROOT / "examples"
ROUNDS = 30


def eager_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def eager_rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * cos.unsqueeze(1) + torch.cat((-high, low), -1) * sin.unsqueeze(1)

    return rotated(q), rotated(k)


def eager_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


# A kernel's results, and the inputs that its backward gives gradients of.
OURS = {
    "rmsnorm": (("y",), ("x", "weight")),
    "rotary": (("q_out", "k_out"), ("q", "k")),
    "swiglu": (("y",), ("gate", "up")),
}


def ours(name: str) -> Callable[..., Any]:
    """An example's kernel, with the one that makes its gradients."""
    results, by = OURS[name]
    backward = tilewright.load(EXAMPLES / f"{name}_backward.cu")
    return tilewright.load(EXAMPLES / f"{name}.cu").with_backward(backward, {one: f"grad_{one}" for one in results}, by)


class Block(nn.Module):
    """Attention with grouped keys, then the feed-forward, as in Llama 3 of 8 billion parameters."""

    def __init__(self, hidden: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.width = heads, key_heads, hidden // heads
        self.before_attention = nn.Parameter(torch.ones(hidden))
        self.before_feed = nn.Parameter(torch.ones(hidden))
        self.q = nn.Linear(hidden, heads * self.width, bias=False)
        self.k = nn.Linear(hidden, key_heads * self.width, bias=False)
        self.v = nn.Linear(hidden, key_heads * self.width, bias=False)
        self.o = nn.Linear(heads * self.width, hidden, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.norm_of: Callable[..., Any] = eager_norm
        self.rotary_of: Callable[..., Any] = eager_rotary
        self.gate_of: Callable[..., Any] = eager_gate

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        normal = self.norm_of(x, self.before_attention, 1e-5)
        q = self.q(normal).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        k = self.k(normal).view(batch, tokens, self.key_heads, self.width).transpose(1, 2)
        v = self.v(normal).view(batch, tokens, self.key_heads, self.width).transpose(1, 2)
        q, k = self.rotary_of(q, k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        normal = self.norm_of(x, self.before_feed, 1e-5)
        return x + self.down(self.gate_of(self.gate(normal), self.up(normal)))


def variants(hidden: int, inner: int) -> dict[str, Callable[..., torch.Tensor]]:
    """The same weights in all of them."""
    torch.manual_seed(0)
    made: dict[str, Callable[..., torch.Tensor]] = {}
    weights: dict[str, torch.Tensor] | None = None
    for name in ("eager", "torch.compile", "ours", "ours, compiled"):
        block = Block(hidden, heads=hidden // 128, key_heads=hidden // 512, inner=inner).to("cuda", torch.bfloat16)
        weights = weights or block.state_dict()
        block.load_state_dict(weights)
        if name.startswith("ours"):
            block.norm_of, block.rotary_of, block.gate_of = ours("rmsnorm"), ours("rotary"), ours("swiglu")
        made[name] = torch.compile(block) if "compile" in name else block
    return made


def angles(tokens: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 500000.0 ** (-torch.arange(0, width, 2, device="cuda", dtype=torch.float32) / width)
    turned = torch.outer(torch.arange(tokens, device="cuda", dtype=torch.float32), frequencies)
    both = torch.cat((turned, turned), -1)[None]
    return both.cos().to(dtype), both.sin().to(dtype)


def forward(block: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        return block(*inputs)


def forward_and_backward(block: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    x, *rest = inputs
    block.zero_grad(set_to_none=True)  # type: ignore[attr-defined]
    x = x.detach().requires_grad_()
    block(x, *rest).backward(x.detach())
    assert x.grad is not None
    return x.grad


def milliseconds(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


def timed(
    blocks: dict[str, Callable[..., torch.Tensor]], inputs: tuple[torch.Tensor, ...], step: Callable[..., torch.Tensor]
) -> dict[str, dict[str, float]]:
    truth = true_answer(blocks["eager"], inputs, step)
    errors = {name: distance(step(block, inputs), truth) for name, block in blocks.items()}
    for _ in range(3):
        for block in blocks.values():
            step(block, inputs)
    samples: dict[str, list[float]] = {name: [] for name in blocks}
    for number in range(ROUNDS):
        order = list(blocks) if number % 2 == 0 else list(reversed(blocks))
        for name in order:
            samples[name].append(milliseconds(lambda name=name: step(blocks[name], inputs)))
    return {
        name: {
            "median_ms": round(statistics.median(times), 4),
            "least_ms": round(min(times), 4),
            "relative_error": errors[name],
        }
        for name, times in samples.items()
    }


def true_answer(block: Any, inputs: tuple[torch.Tensor, ...], step: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The eager block with the same weights in f32."""
    wide = copy.deepcopy(block).float()
    answer = step(wide, tuple(one.float() for one in inputs))
    del wide
    torch.cuda.empty_cache()
    return answer


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--hidden", type=int, default=4096)
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    inner = given.hidden * 7 // 2
    blocks = variants(given.hidden, inner)
    x = torch.randn(1, given.tokens, given.hidden, device="cuda", dtype=torch.bfloat16)
    inputs = (x, *angles(given.tokens, 128, torch.bfloat16))
    steps = {"forward": forward, "forward and backward": forward_and_backward}
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "block": {"tokens": given.tokens, "hidden": given.hidden, "inner": inner, "dtype": "bf16", "rounds": ROUNDS},
    }
    for name, step in steps.items():
        result[name] = timed(blocks, inputs, step)
        for variant, figures in result[name].items():
            print(f"{name:22} {variant:16} {figures}", flush=True)
    if given.output:
        write_result(given.output, result)


if __name__ == "__main__":
    main()
