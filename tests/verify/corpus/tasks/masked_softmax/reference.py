import torch


def masked_softmax(x, mask):
    return torch.softmax(x.masked_fill(~mask, -1e9), -1)
