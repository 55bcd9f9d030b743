import torch


def ssqrt(x):
    return torch.sign(x) * torch.sqrt(x.abs())
