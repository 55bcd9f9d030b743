def normbig(x):
    return x / (1 + x.abs().sum(-1, keepdim=True))
