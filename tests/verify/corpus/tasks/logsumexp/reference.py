import torch


def logsumexp(x):
    return torch.logsumexp(x, -1)
