"""A Llama block with our RMSNorm, rotary and SwiGLU kernels, end to end, beside eager PyTorch and torch.compile.

    python benchmarks/llama_block_on_gpu.py [-o result.json] [--tokens 4096] [--hidden 4096]

Forward alone, and forward with backward. The products and the attention are PyTorch's in all three; what differs is
everything between them. Variants take turns within each round, weights and activations together are far larger than the
L2 cache, and medians of the rounds are told. Outputs and gradients of the variants are compared with the same block in
f32.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from recording import ROOT, write_result
from torch import nn
from torch.nn import functional

import tilewright

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


class Ours:
    """The same three, as kernels with their gradients."""

    def __init__(self) -> None:
        load = lambda name: tilewright.load(EXAMPLES / f"{name}.cu")  # noqa: E731
        self.norm = load("rmsnorm").with_backward(load("rmsnorm_backward"), gradients=("x", "weight"))
        self.gate = load("swiglu").with_backward(load("swiglu_backward"), gradients=("gate", "up"))
        turn = load("rotary")
        self.rotary = Rotary(turn)


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
