import torch.nn.functional as F


def lrelu(x):
    return F.leaky_relu(x, 0.1)
