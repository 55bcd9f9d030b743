"""Residual add fused with RMSNorm, as in every layer of a Llama: both the new residual and its norm are wanted."""

import torch


def add_rmsnorm(x, residual, weight, eps: float = 1e-6):
    added = (x.float() + residual.float()).to(x.dtype)
    wide = added.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return added, (wide * scale * weight.float()).to(x.dtype)
