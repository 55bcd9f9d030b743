import torch.nn.functional as F


def groupnorm(x, weight, bias, eps: float = 1e-5):
    return F.group_norm(x, 8, weight, bias, eps)
