def colsum(x):
    return x.sum(0)
