import torch


def sqrelu(x):
    return torch.relu(x) ** 2
