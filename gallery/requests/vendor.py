"""What the vendor's library does in 16 bits for the requests whose references compute in f32: the fair rival."""

import torch


def linear_silu(x, weight, bias):
    return torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))


def matmul(a, b):
    return a @ b
