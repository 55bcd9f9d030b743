"""An activation no library has: a squared ReLU whose growth is capped smoothly."""

import torch


def soft_capped_square(x, cap: float = 6.0):
    positive = torch.relu(x)
    return cap * torch.tanh(positive * positive / cap) + 0.01 * torch.sin(x)
