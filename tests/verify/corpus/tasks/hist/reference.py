import torch


def hist(x):
    return torch.zeros(256, dtype=torch.int64, device=x.device).scatter_add_(0, x, torch.ones_like(x))
