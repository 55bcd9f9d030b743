import torch.nn.functional as F


def conv2d(x, w):
    return F.conv2d(x, w, padding=1)
