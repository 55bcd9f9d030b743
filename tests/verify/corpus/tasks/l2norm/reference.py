import torch.nn.functional as F


def l2norm(x, eps: float = 1e-12):
    return F.normalize(x, dim=-1, eps=eps)
