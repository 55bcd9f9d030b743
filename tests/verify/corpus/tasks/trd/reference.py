def trd(x):
    return x.t().contiguous()
