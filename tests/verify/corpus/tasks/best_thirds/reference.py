import torch


def best_thirds(x):
    return torch.topk(x, 2, -1).indices // 3
