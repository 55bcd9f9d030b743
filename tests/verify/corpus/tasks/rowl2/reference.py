import torch


def rowl2(x):
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)
