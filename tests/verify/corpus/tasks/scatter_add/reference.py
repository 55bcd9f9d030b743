import torch


def scatter_add(x, index):
    return torch.zeros(512, x.shape[1], device=x.device, dtype=x.dtype).index_add_(0, index, x)
