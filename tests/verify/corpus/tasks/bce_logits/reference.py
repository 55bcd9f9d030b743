import torch.nn.functional as F


def bce_logits(x, y):
    return F.binary_cross_entropy_with_logits(x, y, reduction="none")
