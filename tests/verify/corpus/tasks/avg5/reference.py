import torch.nn.functional as F


def avg5(x):
    return (F.pad(x, (2, 2)).unfold(-1, 5, 1)).mean(-1)
