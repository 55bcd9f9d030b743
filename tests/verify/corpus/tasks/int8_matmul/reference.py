import torch


def int8_matmul(a, b):
    return a.to(torch.int32) @ b.to(torch.int32)
