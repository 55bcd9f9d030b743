import torch


def ema(p, g, h):
    s = (p * g).sum(-1)
    p.mul_(0.9).add_(h, alpha=0.1)
    return s, torch.tanh(h)
