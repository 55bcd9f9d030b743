import torch


def binadd(v, idx):
    return torch.zeros(4096, dtype=v.dtype, device=v.device).index_add(0, idx, v)
