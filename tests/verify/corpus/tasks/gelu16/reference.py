import torch.nn.functional as F


def gelu16(x):
    return F.gelu(x)
