import torch


def compact(x):
    m = x > 0
    at = (torch.cumsum(m, 0) - 1).clamp(min=0)
    return torch.zeros_like(x).index_add(0, at, torch.where(m, x, 0))
