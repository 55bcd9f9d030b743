import torch


def int_mod(x, y):
    return torch.remainder(x, y + 1)
