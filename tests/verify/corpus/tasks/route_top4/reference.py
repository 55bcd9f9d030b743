import torch


def route_top4(logits):
    values, indices = torch.topk(logits, 4, -1)
    weights = torch.softmax(values, -1)
    return weights, indices
