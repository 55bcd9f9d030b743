"""A small Llama-like model in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        query, key = rotated(parts[0], cos, sin), rotated(parts[1], cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, size))


class GatedMlp(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(size), RMSNorm(size)
        self.attention, self.mlp = Attention(size, heads), GatedMlp(size, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.mlp(self.after(x))


class Model(nn.Module):
    def __init__(self, size: int = 64, heads: int = 4, inner: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size, heads, inner) for _ in range(layers))
        self.last = RMSNorm(size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.last(x)


def inputs(batch: int = 2, length: int = 16, size: int = 64, heads: int = 4) -> tuple[torch.Tensor, ...]:
    angles = torch.arange(length)[:, None] / 100.0 ** torch.linspace(0, 1, size // heads // 2)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.randn(batch, length, size), angles.cos(), angles.sin()


class Capped(nn.Module):
    """Computes in a type that the playbook does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x).abs() * 2).to(torch.uint16).float() * 10.0
