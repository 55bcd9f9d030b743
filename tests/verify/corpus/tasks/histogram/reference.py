import torch


def histogram(x):
    return torch.zeros(100, dtype=torch.int64, device=x.device).scatter_add_(0, x, torch.ones_like(x))
