import torch.nn.functional as F


def silu16(x):
    return F.silu(x)
