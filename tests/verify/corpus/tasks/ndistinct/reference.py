import torch.nn.functional as F


def ndistinct(x):
    return F.one_hot(x, 32).amax(1).sum(-1)
