import torch
import torch.nn.functional as F


def product_as_integers(x, w):
    return (F.linear(x, w) * 10).to(torch.int32)
