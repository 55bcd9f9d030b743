import torch


def swish(x):
    return x * torch.sigmoid(1.5 * x)
