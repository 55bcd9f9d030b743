import torch


def causal_softmax(x):
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return torch.softmax(x.masked_fill(hidden, float("-inf")), -1)
