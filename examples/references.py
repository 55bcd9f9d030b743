"""What some of the examples compute, in plain PyTorch: `tilewright check FILE --reference examples/references.py:NAME`.

A reference takes the op's parameters by their names and follows its arguments' dtype: it is called with the tensors as
they are, and again in f64 for the truth. A tensor that the op changes in place is changed in place here too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def layernorm_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps))


def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


def add_rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    residual += x
    return F.rms_norm(residual, residual.shape[-1:], weight, eps)
