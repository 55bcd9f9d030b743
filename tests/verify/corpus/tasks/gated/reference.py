import torch.nn.functional as F


def gated(x, w):
    return x * F.hardsigmoid(w)
