"""Attention scores to probabilities: scale, mask, softmax over the last dimension."""

import torch


def masked_softmax(scores, mask, scale: float = 0.125):
    wide = scores.float() * scale
    wide = wide.masked_fill(~mask, -1e9)
    return torch.softmax(wide, dim=-1).to(scores.dtype)
