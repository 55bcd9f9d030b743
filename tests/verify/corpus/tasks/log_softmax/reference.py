import torch


def log_softmax(x):
    return torch.log_softmax(x, -1)
