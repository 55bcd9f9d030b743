import torch


def var_mean(x):
    variance, mean = torch.var_mean(x, -1)
    return mean, variance
