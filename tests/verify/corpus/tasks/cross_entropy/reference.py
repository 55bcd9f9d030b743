import torch.nn.functional as F


def cross_entropy(x, target):
    return F.cross_entropy(x, target, reduction="none")
