import torch


def midpoint(x, y):
    return torch.div(x.to(torch.int64) + y, 2, rounding_mode="floor").to(torch.int32)
