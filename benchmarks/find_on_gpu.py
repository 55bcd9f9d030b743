"""A model in plain PyTorch: what `find` measures in it, and the playbook's kernels swapped into it.

    python benchmarks/find_on_gpu.py [-o result.json] [--layers 4] [--tokens 4096] [--hidden 4096] [--attempts 4]
                                      [--backward]

The model is Llama-like. `find` runs it once and measures each of its operations; kernels are made for the regions that
the playbook can write, verified and timed as any other, and swapped in. Then the whole model is timed: as it was,
swapped, compiled, and swapped and compiled; forward alone, and forward with backward. Variants take turns within each
round, and medians of the rounds are told. Outputs are compared with the same model in f32.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tilewright
from recording import write_result
from tilewright.records import to_json

ROUNDS = 20


class Norm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q * cos + half_turned(q) * sin, k * cos + half_turned(k) * sin


def half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = (
            one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        q, k = rotary(q, k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, size))


class Feed(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(size, inner, bias=False), nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.before, self.attention = Norm(size), Attention(size, heads)
        self.after, self.feed = Norm(size), Feed(size, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.feed(self.after(x))


class Model(nn.Module):
    def __init__(self, size: int, heads: int, inner: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size, heads, inner) for _ in range(layers))
        self.last = Norm(size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.last(x)


def example(tokens: int, size: int, heads: int) -> tuple[torch.Tensor, ...]:
    width = size // heads
    angles = torch.arange(tokens)[:, None] / 10000.0 ** (torch.arange(0, width, 2) / width)
    angles = torch.cat((angles, angles), dim=-1)
    return tuple(one.bfloat16() for one in (torch.randn(1, tokens, size), angles.cos(), angles.sin()))


def timed(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each, in microseconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for name, call in variants.items():
        for _ in range(3):
            call()
        print(f"  {name} is ready", file=sys.stderr)
    for _ in range(ROUNDS):
        for name, call in variants.items():
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            call()
            ended.record()
            torch.cuda.synchronize()
            times[name].append(begun.elapsed_time(ended) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def forward_only(model: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    def call() -> None:
        with torch.no_grad():
            model(*given)

    return call


def with_backward(
    model: Callable[..., Any], given: tuple[torch.Tensor, ...], weights: torch.Tensor
) -> Callable[[], Any]:
    def call() -> None:
        (model(*given) * weights).sum().backward()

    return call


def error(model: nn.Module, given: tuple[torch.Tensor, ...], wide: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(*given).float() - wide).square().mean().sqrt() / wide.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path)
    for name, usual in (("layers", 4), ("tokens", 4096), ("hidden", 4096), ("inner", 11008), ("attempts", 4)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--backward", action="store_true", help="make kernels of the gradients too")
    asked = parser.parse_args()
    torch.manual_seed(0)
    heads = asked.hidden // 128
    with torch.device("cuda"):
        model = Model(asked.hidden, heads, asked.inner, asked.layers).bfloat16().eval()
        given = example(asked.tokens, asked.hidden, heads)
        weights = torch.randn(1, asked.tokens, asked.hidden, dtype=torch.bfloat16)
    with torch.no_grad():
        wide = copy.deepcopy(model).float()(*(one.float() for one in given))
    found = tilewright.find(model, *given)
    print(found)
    chosen = {"author": "playbook", "attempts": asked.attempts, "backward": asked.backward}
    found.make(say=lambda text: print(text, file=sys.stderr), **chosen)
    plain, compiled, swapped = copy.deepcopy(model), torch.compile(copy.deepcopy(model)), model
    swap = found.swap()
    print(swap, swap.refused)
    both = torch.compile(copy.deepcopy(swapped))
    models = {"eager": plain, "swapped": swapped, "torch.compile": compiled, "swapped and compiled": both}
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "sizes": {name: getattr(asked, name) for name in ("layers", "tokens", "hidden", "inner")},
        "found": to_json(found.found),
        "swap": to_json(swap.report),
        "errors": {name: error(one, given, wide) for name, one in models.items()},
    }
    result["forward_us"] = timed({name: forward_only(one, given) for name, one in models.items()})
    with contextlib.suppress(torch.OutOfMemoryError):
        calls = {name: with_backward(one, given, weights) for name, one in models.items()}
        result["forward_and_backward_us"] = timed(calls)
    for key in ("errors", "forward_us", "forward_and_backward_us"):
        print(key, {name: float(f"{value:.4g}") for name, value in result.get(key, {}).items()})
    if asked.output:
        write_result(asked.output, result)


if __name__ == "__main__":
    main()
