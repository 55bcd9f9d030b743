import torch


def bounded(x, low, high):
    return torch.clamp(x, low, high)
