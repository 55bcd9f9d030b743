import torch


def roll(x, shift: int = 3):
    return torch.roll(x, shift, -1)
