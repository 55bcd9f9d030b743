import torch


def scaleb(x):
    return torch.exp(-x.abs()) * 2
