import torch


def lower(x):
    return torch.tril(x)
