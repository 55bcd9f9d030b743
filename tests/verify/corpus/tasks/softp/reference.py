import torch.nn.functional as F


def softp(x):
    return F.softplus(x)
