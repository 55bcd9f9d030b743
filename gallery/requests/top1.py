"""The largest element of every row and where it is: greedy sampling's last step."""

import torch


def top1(logits):
    values, indices = torch.max(logits, dim=-1)
    return values, indices
