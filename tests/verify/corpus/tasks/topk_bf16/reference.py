import torch


def topk(x):
    value, index = torch.topk(x, 8, -1)
    return value, index
