import torch.nn.functional as F


def bias_silu(x, bias=None):
    return F.silu(x if bias is None else x + bias)
