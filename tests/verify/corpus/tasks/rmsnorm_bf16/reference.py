import torch.nn.functional as F


def rmsnorm(x, weight, eps: float = 1e-6):
    return F.rms_norm(x, x.shape[-1:], weight, eps)
