import torch


def log1p(x):
    return torch.log1p(x)
