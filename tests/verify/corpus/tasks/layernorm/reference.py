import torch.nn.functional as F


def layernorm(x, weight, bias, eps: float = 1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
