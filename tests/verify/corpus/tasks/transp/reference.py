def transp(x):
    return x.t().contiguous()
