import torch


def rmsrow(x, g):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g
