"""Forward and backward by the built-in author on this machine's GPU: whole runs, then one step of training.

python benchmarks/gradients_on_gpu.py [-o result.json] [--attempts 12] [NAME ...]

The runs measure each kernel beside eager and torch.compile of the same reference. The step is forward and backward
together, called as a person calls them, beside the function itself and the function compiled.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from recording import write_result

_ROUNDS, _CALLS = 7, 20


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias)


CASES: dict[str, tuple[Callable[..., torch.Tensor], dict[str, str]]] = {
    "rms_norm": (rms_norm, {"x": "8192x4096:bf16", "weight": "4096:bf16"}),
    "layer_norm": (layer_norm, {"x": "8192x4096:bf16", "weight": "4096:bf16", "bias": "4096:bf16"}),
    "softmax": (softmax, {"x": "8192x4096:bf16"}),
    "swiglu": (swiglu, {"gate": "4096x11008:bf16", "up": "4096x11008:bf16"}),
    "bias_gelu": (bias_gelu, {"x": "8192x4096:bf16", "bias": "4096:bf16"}),
}


def step_us(function: Callable[..., torch.Tensor], tensors: dict[str, torch.Tensor], gradient: torch.Tensor) -> float:
    """Forward and backward, median of rounds, in a row without waiting."""
    for _ in range(3):
        torch.autograd.grad(function(**tensors), list(tensors.values()), gradient)
    times = []
    for _ in range(_ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(_CALLS):
            torch.autograd.grad(function(**tensors), list(tensors.values()), gradient)
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) * 1000 / _CALLS)
    return median(times)


def row_of(name: str, attempts: int) -> dict[str, Any]:
    import tilewright
    from tilewright.frontends.api.make import Made

    function, shapes = CASES[name]
    made = tilewright.make(function, author="playbook", backward=True, enough=2.0, attempts=attempts, **shapes)
    assert isinstance(made, Made)
    assert made.backward is not None, f"{name}: no backward kernel"
    tensors = {
        one: torch.randn([int(size) for size in text.split(":")[0].split("x")], device="cuda").bfloat16()
        for one, text in shapes.items()
    }
    tensors = {one: tensor.requires_grad_() for one, tensor in tensors.items()}
    result = made(**tensors)
    gradient = torch.randn_like(result)
    found = torch.autograd.grad(result, list(tensors.values()), gradient)
    wide = {one: tensor.detach().double().requires_grad_() for one, tensor in tensors.items()}
    truth = torch.autograd.grad(function(**wide), list(wide.values()), gradient.double())
    worst = {
        one: float(((got - want).abs() / (want.abs() + want.abs().mean())).max())
        for one, got, want in zip(tensors, found, truth, strict=True)
    }
    assert max(worst.values()) < 3e-2, worst
    del wide, truth
    compiled = torch.compile(function)
    steps = {"ours": made, "eager": function, "compiled": compiled}
    derivative = made.backward.task.derivative
    return {
        "case": name,
        "size": " ".join(f"{key}={size}" for key, size in made.task.sizes.items()),
        "kernel_us": {
            one.task.name: one.entry.measurement.time_us for one in (made, made.backward) if one.entry.measurement
        },
        "baselines_us": {
            one.task.name: {each.name: each.median_us for each in getattr(one.entry.measurement, "baselines", ())}
            for one in (made, made.backward)
        },
        "step_us": {key: step_us(one, tensors, gradient) for key, one in steps.items()},
        "kept_bytes": derivative.saved_bytes if derivative else None,
        "autograd_bytes": derivative.autograd_bytes if derivative else None,
        "worst_error": worst,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", default=list(CASES))
    arguments.add_argument("-o", "--output", type=Path)
    arguments.add_argument("--attempts", type=int, default=12, help="most attempts of each run")
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["TILEWRIGHT_HOME"] = home
        for name in given.names:
            rows.append(row_of(name, given.attempts))
            print(rows[-1], flush=True)
            if given.output:
                write_result(given.output, {"gpu": torch.cuda.get_device_name(), "measurements": rows})


if __name__ == "__main__":
    main()
