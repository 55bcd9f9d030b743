def irowmax(x):
    values, indices = x.max(-1)
    return values, indices
