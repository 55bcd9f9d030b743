import torch


def unpack4(x):
    """Two signed 4-bit numbers of each byte, the low one first."""
    low = ((x & 15).to(torch.int8) ^ 8) - 8
    high = ((x >> 4).to(torch.int8) ^ 8) - 8
    return torch.stack((low, high), -1).reshape(x.shape[0], -1)
