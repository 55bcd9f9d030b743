import torch.nn.functional as F


def groupnorm_silu(x, weight, bias):
    """GroupNorm with 32 groups, then SiLU."""
    return F.silu(F.group_norm(x, 32, weight, bias))
