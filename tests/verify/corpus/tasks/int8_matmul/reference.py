import torch


def int8_matmul(a, b):
    return (a.to(torch.float64) @ b.to(torch.float64)).to(torch.int32)
