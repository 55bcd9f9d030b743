"""Rotary position embedding, the half-split form of Llama."""

import torch


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    cos, sin = cos.float(), sin.float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)
