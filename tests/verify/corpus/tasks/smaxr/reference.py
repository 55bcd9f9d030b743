import torch


def smaxr(x):
    return torch.softmax(x, -1)
