import torch.nn.functional as F


def bias_act(x, bias, slope: float = 0.1, twice: bool = False):
    y = F.leaky_relu(x + bias, slope)
    return y * 2 if twice else y
